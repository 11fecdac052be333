"""Greedy float32 runs equal the reference implementation, number by number.

`data/reference.npz` holds what qwen-tts 0.1.1 (torch 2.13, float32, one thread) computed on the checkpoints that
`factory.tiny_checkpoint` writes; here the same weights come through GGUF files.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from factory import tiny_pair

from tts_cli.audio.mel import log_mel
from tts_cli.engine import CancelToken, SpeechRequest
from tts_cli.qwen3tts.engine import Qwen3TTSEngine
from tts_cli.qwen3tts.generate import frames
from tts_cli.qwen3tts.layers import StreamState
from tts_cli.qwen3tts.sampling import SamplingOptions, filter_logits, penalize_repeats
from tts_cli.voices import Voice

GOLDEN = np.load(Path(__file__).parent / "data" / "reference.npz")
NOTES = json.loads(str(GOLDEN["notes"]))
CASES = sorted(key for key in NOTES if "/" in key)


@pytest.fixture(scope="module", params=[True, False], ids=["compiled", "torch"])
def engines(request, pair, pair_equal):
    """By golden name: with a projection between talker and predictor, and with equal widths."""
    both = {name: Qwen3TTSEngine.open(*files, device="cpu", dtype="float32", compiled=request.param)
            for name, files in (("base", pair), ("equal", pair_equal))}
    for engine in both.values():
        engine.load()
    return both


@pytest.mark.parametrize("case", CASES)
def test_prompt_codes_and_hidden_states_equal_the_reference(engines, case):
    note, model = NOTES[case], case.split("/")[0]
    engine = engines[model]
    expected = GOLDEN[f"{case}/codes"]
    voice = Voice("reference", GOLDEN[f"{model}/xvector"]) if note["xvector"] else None
    request = SpeechRequest(note["text"], language=note["language"], text_mode=note["text_mode"], voice=voice,
                            repeat_penalty=note["penalty"], greedy=True, max_frames=len(expected) + note["eos"])
    plan = engine.plan(request)
    prompt = engine.embed(plan.prompt)
    assert prompt.rows.shape == GOLDEN[f"{case}/prompt"].shape
    assert np.abs(prompt.rows.numpy() - GOLDEN[f"{case}/prompt"]).max() <= 2e-6
    # The reference calls an overlay that is only padding one row of padding.
    overlay = prompt.overlay if len(prompt.overlay) else prompt.pad[None]
    # Text beyond the last frame is never spoken, so its rows are not read.
    assert np.abs(overlay.numpy() - GOLDEN[f"{case}/overlay"][:plan.options.max_frames]).max() <= 2e-6

    *made, reason = frames(engine.models, prompt, plan.options, CancelToken())
    np.testing.assert_array_equal(torch.stack([f.codes for f in made]).numpy(), expected)
    assert np.abs(torch.stack([f.hidden for f in made]).numpy() - GOLDEN[f"{case}/hidden"]).max() <= 2e-5
    assert reason == ("eos" if note["eos"] else "limit")


def test_samples_equal_the_reference(engines):
    codes = torch.from_numpy(GOLDEN["base/ns_nospk/codes"][:8].astype(np.int64))
    samples = engines["base"].models.code2wav.push(codes, StreamState()).numpy()
    assert np.abs(samples - GOLDEN["pcm"]).max() <= 2e-5


def test_mel_and_xvector_equal_the_reference(engines):
    clip = GOLDEN["wave_short"]
    assert np.abs(log_mel(torch.from_numpy(clip)).numpy() - GOLDEN["mel_short"]).max() <= 5e-6
    for name, engine in engines.items():
        xvector = engine.voice_from_clip(clip, "clip").xvector
        assert np.abs(xvector - GOLDEN[f"{name}/xvector_short"]).max() <= 5e-6


@pytest.mark.parametrize("case, talker, penalty, predictor", [
    ("sampled", SamplingOptions(0.9, 50, 1.0), 1.05, SamplingOptions(0.9, 50, 1.0)),
    ("sampled_topp", SamplingOptions(0.7, 30, 0.8), 1.3, SamplingOptions(1.1, 20, 0.6))])
def test_processed_scores_equal_the_reference(case, talker, penalty, predictor):
    """The distribution drawn from: which tokens are left, and their scores up to a constant."""
    def check(mine, theirs):
        mine, theirs = mine.log_softmax(-1), torch.from_numpy(theirs).log_softmax(-1)
        assert torch.equal(mine.isfinite(), theirs.isfinite())
        torch.testing.assert_close(mine[mine.isfinite()], theirs[theirs.isfinite()], rtol=0, atol=2e-5)

    seen = torch.zeros(3072, dtype=torch.bool)
    for step, token in enumerate(GOLDEN[f"{case}/tokens"]):
        logits = penalize_repeats(torch.from_numpy(GOLDEN[f"{case}/logits"][step]), seen, penalty)
        forbidden = torch.arange(3072) >= 2048
        forbidden[2150] = step < 2
        check(filter_logits(logits.masked_fill(forbidden, -torch.inf), talker), GOLDEN[f"{case}/scores"][step])
        seen[token] = True
    for logits, scores in zip(GOLDEN[f"{case}/cp_logits"], GOLDEN[f"{case}/cp_scores"], strict=True):
        check(filter_logits(torch.from_numpy(logits), predictor), scores)


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_smaller_types_stay_close(engines, tmp_path, kind):
    """The first frame's hidden state keeps its direction."""
    engine = Qwen3TTSEngine.open(*tiny_pair(tmp_path, type=kind), device="cpu", dtype="float32")
    engine.load()
    plan = engine.plan(SpeechRequest("Hello world, this is a test.", greedy=True, max_frames=3))
    first = next(frames(engine.models, engine.embed(plan.prompt), plan.options, CancelToken()))
    exact = engines["base"]
    want = next(frames(exact.models, exact.embed(plan.prompt), plan.options, CancelToken()))
    assert torch.cosine_similarity(first.hidden, want.hidden, dim=0) >= 0.99


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("case", [c for c in CASES if c.startswith("base/")])
def test_cuda_codes_equal_the_reference(pair, case):
    note = NOTES[case]
    engine = Qwen3TTSEngine.open(*pair, device="cuda", dtype="float32")
    voice = Voice("reference", GOLDEN["base/xvector"]) if note["xvector"] else None
    expected = GOLDEN[f"{case}/codes"]
    request = SpeechRequest(note["text"], language=note["language"], text_mode=note["text_mode"], voice=voice,
                            repeat_penalty=note["penalty"], greedy=True, max_frames=len(expected))
    codes = np.concatenate([chunk.codes for chunk in engine.speak(request)])
    np.testing.assert_array_equal(codes, expected)
