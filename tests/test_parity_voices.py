"""Greedy float32 runs with every kind of voice equal the reference implementation.

`data/reference_voices.npz`: what qwen-tts 0.1.1 computed on the checkpoints `factory.tiny_checkpoint` writes (Base with
a reference clip in context, CustomVoice speakers, VoiceDesign instructions), and its codec encoder's codes of a clip.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from clips import speech_like
from factory import tiny_pair

from tts_cli.engine import CancelToken, SpeechRequest
from tts_cli.qwen3tts.codec import encode_clip
from tts_cli.qwen3tts.codec_encoder import CodecEncoder
from tts_cli.qwen3tts.convert import convert
from tts_cli.qwen3tts.engine import Qwen3TTSEngine
from tts_cli.qwen3tts.generate import frames
from tts_cli.qwen3tts.pair import open_mmproj
from tts_cli.voices import Voice

GOLDEN = np.load(Path(__file__).parent / "data" / "reference_voices.npz")
NOTES = json.loads(str(GOLDEN["notes"]))


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    return {kind: Qwen3TTSEngine.open(*tiny_pair(folder / kind, variant=kind, extras=True), device="cpu",
                                      dtype="float32")
            for kind in ("base", "custom_voice", "voice_design")}


def voice_of(case, note):
    if note["speaker"]:
        return note["speaker"]
    if "icl" not in case:
        return None
    codes = GOLDEN["reference_codes"].astype(np.int32)
    return Voice("reference", GOLDEN["xvector"], codes[:9] if case.endswith("short") else codes,
                 "This is the reference.")


@pytest.mark.parametrize("case", sorted(NOTES))
def test_prompt_codes_and_hidden_states_equal_the_reference(engines, case):
    note, engine = NOTES[case], engines[case.split("/")[0]]
    engine.load()
    expected = GOLDEN[f"{case}/codes"]
    request = SpeechRequest(note["text"], language=note["language"], text_mode=note["text_mode"],
                            voice=voice_of(case, note), instruct=note["instruct"], greedy=True,
                            max_frames=len(expected) + note["eos"])
    plan = engine.plan(request)
    prompt = engine.embed(plan.prompt)
    assert np.abs(prompt.rows.sum(1).numpy() - GOLDEN[f"{case}/prompt_sum"]).max() <= 2e-5
    *made, reason = frames(engine.models, prompt, plan.options, CancelToken())
    np.testing.assert_array_equal(torch.stack([f.codes for f in made]).numpy(), expected)
    hidden = GOLDEN[f"{case}/hidden"]
    assert np.abs(torch.stack([f.hidden for f in made[:len(hidden)]]).numpy() - hidden).max() <= 2e-5
    assert reason == ("eos" if note["eos"] else "limit")


def test_the_reference_clip_leads_into_the_speech_without_being_heard(engines):
    """The reference decodes clip and speech in one pass and cuts; here the clip only sets the vocoder's state."""
    case = "base/st_icl"
    engine, note = engines["base"], NOTES[case]
    request = SpeechRequest(note["text"], language=note["language"], text_mode=note["text_mode"], greedy=True,
                            voice=voice_of(case, note), max_frames=len(GOLDEN[f"{case}/codes"]))
    samples = np.concatenate([chunk.samples for chunk in engine.speak(request)])
    want = GOLDEN[f"{case}/pcm"]
    assert len(samples) == 1920 * len(GOLDEN[f"{case}/codes"])
    assert np.abs(samples[:len(want)] - want).max() <= 2e-5


@pytest.fixture(scope="module")
def converted(checkpoint, tmp_path_factory):
    return convert(checkpoint, tmp_path_factory.mktemp("converted"), "f32")


def test_codec_encoder_equals_the_reference(converted):
    clip = speech_like(48000)[:36123]
    mmproj = open_mmproj(converted[1])
    codes = encode_clip(mmproj, clip, torch.device("cpu"))
    np.testing.assert_array_equal(codes, GOLDEN["clip_codes"])


@pytest.mark.parametrize("frames", [1, 3, 1000])
def test_codec_encoder_reads_a_clip_in_blocks_of_any_size(converted, monkeypatch, frames):
    monkeypatch.setattr(CodecEncoder, "BLOCK_FRAMES", frames)
    codes = encode_clip(open_mmproj(converted[1]), speech_like(48000)[:36123], torch.device("cpu"))
    np.testing.assert_array_equal(codes, GOLDEN["clip_codes"])


@pytest.mark.parametrize("samples, frames", [(1, 1), (1919, 1), (1920, 1), (1921, 2), (5000, 3)])
def test_codec_encoder_keeps_the_last_part_of_a_frame(converted, samples, frames):
    codes = encode_clip(open_mmproj(converted[1]), speech_like(24000)[:samples], torch.device("cpu"))
    assert codes.shape == (frames, 16)
