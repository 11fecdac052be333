"""The generator every consumer shares: reproducible, interruptible, honest about how it ended; wrong input refused."""

import dataclasses

import numpy as np
import pytest
import torch
from factory import tiny_pair

from tts_cli.device import resolve_device, resolve_dtype
from tts_cli.engine import CancelToken, SpeechRequest
from tts_cli.english.plain import plain
from tts_cli.errors import ModelFileError, NothingToSpeak, TtsError, UsageError
from tts_cli.loading import load_engine, open_engine
from tts_cli.qwen3tts.codec import open_codec
from tts_cli.qwen3tts.engine import Qwen3TTSEngine
from tts_cli.qwen3tts.plan import BUDGET_BASE, BUDGET_PER_TOKEN
from tts_cli.utterances import Utterance
from tts_cli.voices import Voice

TEXT = "Hello world, this is a test."


@pytest.fixture(scope="module")
def engine(pair):
    return load_engine(*pair, device="cpu", dtype="float32")


def request(**options):
    return SpeechRequest(**({"text": TEXT, "seed": 1, "max_frames": 12} | options))


def run(engine, **options):
    speech = engine.speak(request(**options))
    chunks = list(speech)
    return np.concatenate([c.samples for c in chunks]), np.concatenate([c.codes for c in chunks]), speech.result


def test_every_frame_can_be_a_turn(engine):
    """A chunk for each frame, most of them without samples; the sound is the same."""
    plain, codes, _ = run(engine, chunk_frames=(1, 4))
    chunks = list(engine.speak(request(chunk_frames=(1, 4), in_turns=True)))
    assert np.array_equal(np.concatenate([chunk.samples for chunk in chunks]), plain)
    assert np.array_equal(np.concatenate([chunk.codes for chunk in chunks]), codes)
    assert [len(chunk.codes) for chunk in chunks] == [1, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 3]


def test_same_seed_same_bytes(engine):
    first, codes, _ = run(engine)
    again, _, _ = run(engine)
    other, other_codes, _ = run(engine, seed=2)
    assert first.tobytes() == again.tobytes()
    assert not np.array_equal(codes[:2], other_codes[:2])


def test_a_random_seed_is_reported_and_repeats_the_run(engine):
    samples, _, result = run(engine, seed=None)
    assert run(engine, seed=result.seed)[0].tobytes() == samples.tobytes()


def test_interleaved_requests_equal_the_same_alone(engine):
    alone = [run(engine, seed=s)[0] for s in (5, 6)]
    speeches = [engine.speak(request(seed=s)) for s in (5, 6)]
    parts = [[], []]
    while any(s is not None for s in speeches):
        for i, speech in enumerate(speeches):
            chunk = next(speech, None) if speech else None
            if chunk is None:
                speeches[i] = None
            else:
                parts[i].append(chunk.samples)
    for mine, want in zip(parts, alone, strict=True):
        assert np.concatenate(mine).tobytes() == want.tobytes()


@pytest.mark.parametrize("chunk_frames", [(1,), (3,), (1, 2, 50), (1000,)])
def test_chunking_changes_no_code_and_no_sample(engine, chunk_frames):
    samples, codes, result = run(engine)
    other, other_codes, other_result = run(engine, chunk_frames=chunk_frames)
    np.testing.assert_array_equal(codes, other_codes)
    assert np.abs(samples - other).max() <= 1e-5
    assert len(samples) == result.samples == 1920 * result.frames == 1920 * len(codes)
    assert result.finish_reason == other_result.finish_reason


def test_only_the_last_chunk_has_a_finish_reason(engine):
    chunks = list(engine.speak(request()))
    assert [c.finish_reason is None for c in chunks] == [True] * (len(chunks) - 1) + [False]
    assert all(c.sample_rate == 24000 for c in chunks)


def test_an_explicit_limit_is_exact(engine):
    _, codes, result = run(engine, max_frames=2)
    assert len(codes) == 2
    assert result.finish_reason == "limit"


def test_the_automatic_budget_grows_with_the_text(engine):
    def budget(text):
        return engine.plan(SpeechRequest(text)).options.max_frames

    assert budget("a b") == BUDGET_BASE + 2 * BUDGET_PER_TOKEN <= 37  # three seconds
    assert budget("a b c d") == BUDGET_BASE + 4 * BUDGET_PER_TOKEN


def test_eos_is_not_allowed_before_two_tokens(engine):
    """Most seeds of a tiny model would end at once."""
    for seed in range(20):
        assert len(run(engine, seed=seed, temperature=5.0, max_frames=4)[1]) >= 2


def test_cancel_stops_within_a_frame(engine):
    cancel = CancelToken()
    speech = engine.speak(request(max_frames=1000, chunk_frames=(1,)), cancel)
    next(speech)
    cancel.cancel()
    rest = list(speech)
    assert [c.finish_reason for c in rest] == ["cancelled"]
    assert speech.result.finish_reason == "cancelled" and speech.result.frames == 1


def test_result_before_the_end_is_a_programming_error(engine):
    with pytest.raises(RuntimeError, match="not finished"):
        _ = engine.speak(request()).result


def test_voice_changes_the_speech_and_leaves_no_trace(engine):
    before, _, _ = run(engine)
    voice = Voice("v", np.linspace(-1, 1, 64, dtype=np.float32))
    assert run(engine, voice=voice)[0].tobytes() != before.tobytes()
    assert run(engine)[0].tobytes() == before.tobytes()


@pytest.mark.parametrize("field, value", [
    ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")), ("top_k", -1),
    ("top_p", 1.5), ("top_p", -0.1), ("repeat_penalty", 0.0),
    ("temperature", 1e300), ("repeat_penalty", 1e300), ("sub_temperature", -1.0), ("max_frames", 0),
    ("seed", -1), ("text_mode", "both"), ("chunk_frames", (0,)), ("chunk_frames", ()), ("temperature", "hot")])
def test_a_request_refuses_values_out_of_range(field, value):
    with pytest.raises(UsageError, match=field):
        request(**{field: value})


@pytest.mark.parametrize("edges", [dict(temperature=0.0), dict(temperature=1e-6), dict(top_p=0.0), dict(top_k=0),
                                   dict(top_k=10**6), dict(repeat_penalty=100.0), dict(repeat_penalty=0.01),
                                   dict(temperature=100.0), dict(temperature=1e-300)])
def test_extreme_but_legal_values_speak(engine, edges):
    assert len(run(engine, max_frames=3, **edges)[1]) >= 2


def test_text_that_does_not_fit_the_context_is_refused_before_loading(pair):
    engine = open_engine(*pair, device="cpu")
    with pytest.raises(UsageError, match="context of 32768"):
        engine.check(SpeechRequest("word " * 33000))
    with pytest.raises(UsageError, match="context of 32768"):
        engine.check(SpeechRequest("word", max_frames=40000))
    assert engine.models is None


@pytest.mark.parametrize("text", ["", "  \n", "…", "😀", "!?"])
def test_nothing_to_speak_is_refused(engine, text):
    with pytest.raises(UsageError):
        engine.speak(request(text=text))


def test_a_voice_of_another_width_is_refused(engine):
    with pytest.raises(UsageError, match=r"has 32 numbers, this model needs 64"):
        engine.check(request(voice=Voice("small", np.zeros(32, np.float32))))
    with pytest.raises(UsageError, match="finite"):
        Voice("nan", np.full(64, np.nan, np.float32))


def test_broken_weights_are_reported_not_spoken(pair):
    engine = Qwen3TTSEngine.open(*pair, device="cpu", dtype="float32", compiled=False)
    engine.load()
    models = dataclasses.replace(engine.models)
    for parameter in (models.talker.head, models.talker.decoder.norm, models.predictor.heads,
                      models.predictor.decoder.norm, models.code2wav.post_conv.bias):
        kept = parameter.clone()
        parameter.fill_(torch.nan)
        try:
            with pytest.raises(TtsError, match="not numbers"):
                run(engine)
            with pytest.raises(TtsError, match="not numbers"):
                run(engine, greedy=True)
        finally:
            parameter.copy_(kept)


def test_predictor_feed_forward_beyond_float16_stays_finite(pair_equal):
    """The 0.6B predictor's activations exceed 65504: float32 and bfloat16 carry them."""
    for dtype in ("float32", "bfloat16"):
        engine = Qwen3TTSEngine.open(*pair_equal, device="cpu", dtype=dtype, compiled=False)
        engine.load()
        for block in engine.models.predictor.decoder.blocks:
            block.gate_up *= 3e3
        samples, _, _ = run(engine, max_frames=3)
        assert np.isfinite(samples).all()


def test_bfloat16_leaves_the_vocoder_in_float32(pair):
    engine = Qwen3TTSEngine.open(*pair, device="cpu", dtype="bfloat16", compiled=False)
    engine.load()
    assert {p.dtype for p in engine.models.code2wav.parameters()} == {torch.float32}
    assert engine.models.talker.head.dtype == torch.bfloat16
    assert run(engine)[2].peak > 1e-3


# ---- files ----------------------------------------------------------------------------------------------------------


def test_swapped_files_are_recognised(pair):
    with pytest.raises(ModelFileError, match="swapped"):
        open_engine(pair[1], pair[0])


def test_files_of_different_widths_do_not_fit(pair, tmp_path):
    other = tiny_pair(tmp_path, mmproj_edits={"clip.gen.audio.embedding_length": 48})
    with pytest.raises(ModelFileError):
        open_engine(pair[0], other[1])


def test_a_pair_of_two_checkpoints_is_refused(pair, tmp_path):
    other = tiny_pair(tmp_path, seed=1)
    with pytest.raises(ModelFileError, match="cosine"):
        open_engine(pair[0], other[1])


def test_a_pair_of_two_kinds_is_refused(pair, tmp_path):
    custom = tiny_pair(tmp_path, variant="custom_voice")
    with pytest.raises(ModelFileError, match="talker kind base, mmproj kind custom_voice or voice_design"):
        open_engine(pair[0], custom[1])
    with pytest.raises(ModelFileError, match="talker kind custom_voice, mmproj kind base"):
        open_engine(custom[0], pair[1])


@pytest.mark.parametrize("variant, mode", [("base", "streaming"), ("custom_voice", "full"), ("voice_design", "full")])
@pytest.mark.parametrize("extras", [True, False])
def test_the_kind_is_known_with_and_without_our_metadata(tmp_path, variant, mode, extras):
    engine = open_engine(*tiny_pair(tmp_path, variant=variant, extras=extras))
    assert (engine.kind, engine.text_mode, engine.pair.max_chars) == (variant, mode, None)
    assert "english" in engine.languages and not any("dialect" in name for name in engine.languages)


def test_a_model_of_one_voice_speaks_in_it_and_does_not_clone(tmp_path):
    edits = {"tts_cli.single_voice": True, "tts_cli.text_mode": "full", "tts_cli.max_chars": 80}
    engine = open_engine(*tiny_pair(tmp_path, talker_edits=edits))
    pieces = [Utterance("A word or two, " * 10, 0.5)]
    assert len([*engine.parts(pieces)]) > 1 and max(len(part.text) for part in engine.parts(pieces)) <= 80
    assert engine.voice_names == [] and engine.voice_paths("anna") == []
    assert engine.default_clip is None and engine.plan(request()).text_mode == "full"
    assert engine.plan(request(text_mode="streaming")).text_mode == "streaming"
    with pytest.raises(UsageError, match="one voice"):
        engine.check_cloning(False)
    with pytest.raises(UsageError, match="voice: .* speaks in one voice"):
        engine.check(request(voice="anna"))


def test_a_model_of_plain_english_reads_what_is_said_for_the_text(tmp_path):
    engine = open_engine(*tiny_pair(tmp_path, talker_edits={"tts_cli.plain_english": True}))
    written, said = (engine.plan(request(text=t)).prompt for t in ("Café № 5 — $2", "Cafe number five, two dollars"))
    assert written.text == said.text
    assert engine.unread(request(text="你好 hello")) == ["你好"] and open_engine(*tiny_pair(tmp_path)).unread(
        request(text="你好 hello")) == []
    with pytest.raises(UsageError, match="nothing to speak in '你好': .* reads English"):
        engine.check(request(text="你好"))


def test_what_is_too_long_in_words_is_cut_between_them(tmp_path):
    edits = {"tts_cli.plain_english": True, "tts_cli.max_chars": 40}
    engine = open_engine(*tiny_pair(tmp_path, talker_edits=edits))
    written = [Utterance("It is 10,400 km, or $5 million a day.", 0.5), Utterance("在家", 0.3), Utterance("So.", 0.1)]
    parts = list(engine.parts(written))
    assert " ".join(part.text for part in parts) == (
        "It is ten thousand four hundred kilometers, or five million dollars a day. 在家 So.")
    assert len(parts) == 5 and max(len(part.text) for part in parts) <= 40 and parts[-3].pause == 0.5
    with pytest.raises(NothingToSpeak):
        engine.check(request(text=parts[-2].text))  # which a reading leaves out


@pytest.mark.parametrize("text, read", [
    ("Plain words, and no more: it's so.", "Plain words, and no more: it's so."),
    ("“Hi,” he said (twice)…", "Hi, he said twice..."), ("-5 °C at 10:05", "minus five degrees Celsius at ten oh five"),
    ("Ærø straße naïve Œuvre in Kadıköy", "Aero strasse naive Oeuvre in Kadikoy"),
    ("He said—no…well", "He said, no... well"),
    ("a — b – c", "a, b, c"), ("— x", "x"), ("你好", ""), ("“’”", ""), ("STOP NOW", "Stop now"),
    ("NASA has PDFs, the UN.", "Nasa has pee dee effs, the you en."), ("I, O'Brien", "I, O'Brien"),
    ("At 10:05 PM I paid US$3.", "At ten oh five pee em I paid three dollars."),
    ("Plan B, in the U.S. or D.C.", "Plan bee, in the you ess or dee see.")])
def test_plain_english(text, read):
    assert plain(text) == read == plain(read)


def test_a_text_layout_that_there_is_not_is_refused(tmp_path):
    with pytest.raises(ModelFileError, match="sideways.*full or streaming"):
        open_engine(*tiny_pair(tmp_path, talker_edits={"tts_cli.text_mode": "sideways"}))


@pytest.mark.parametrize("key, value", [
    ("general.sampling.temp", -1.0), ("general.sampling.top_k", -3), ("general.sampling.top_p", 7.0),
    ("general.sampling.penalty_repeat", 0.0), ("tts_cli.sampling.sub_temp", -1.0),
    ("tts_cli.sampling.sub_top_p", -0.5), ("tts_cli.model_type", "foo"), ("qwen3tts.rope.freq_base", 0.0),
    ("qwen3tts.attention.layer_norm_rms_epsilon", -1.0)])
def test_a_talkers_value_that_cannot_be_is_refused_by_its_key(tmp_path, key, value):
    with pytest.raises(ModelFileError, match=f"{key}.*{value}"):
        open_engine(*tiny_pair(tmp_path, talker_edits={key: value}))


@pytest.mark.parametrize("key, value", [
    ("tts_cli.code2wav.window", 1), ("tts_cli.code2wav.rms_epsilon", 0.0), ("tts_cli.code2wav.rope_theta", -1.0),
    ("tts_cli.code_predictor.rope_theta", 0.0), ("clip.gen.audio.attention.layer_norm_epsilon", 0.0)])
def test_an_mmprojs_value_that_cannot_be_is_refused_by_its_key(tmp_path, key, value):
    with pytest.raises(ModelFileError, match=f"{key}.*{value}"):
        open_engine(*tiny_pair(tmp_path, mmproj_edits={key: value}))


def test_utterances_shorter_than_any_word_are_refused(tmp_path):
    with pytest.raises(ModelFileError, match="max_chars is 5, expected at least 40"):
        open_engine(*tiny_pair(tmp_path, talker_edits={"tts_cli.max_chars": 5}))


@pytest.mark.parametrize("variant", ["custom_voice", "voice_design"])
def test_cloning_with_another_kind_names_the_one_that_can(tmp_path, variant):
    engine = open_engine(*tiny_pair(tmp_path, variant=variant))
    with pytest.raises(UsageError, match="Base"):
        engine.voice_from_clip(np.ones(24000, np.float32), "clip")
    with pytest.raises(UsageError, match="Base"):
        engine.check(request(voice=Voice("v", np.zeros(64, np.float32))))


def test_the_only_mmproj_beside_the_talker_is_found(tmp_path):
    talker, mmproj = tiny_pair(tmp_path / "töne and spaces")
    assert open_engine(talker).pair.mmproj.path == mmproj
    (mmproj.parent / "mmproj-second.gguf").write_bytes(mmproj.read_bytes())
    with pytest.raises(UsageError, match="mmproj-second.gguf"):
        open_engine(talker)


def test_codec_alone_decodes_like_the_engine(engine, pair):
    samples, codes, _ = run(engine)
    codec = open_codec(pair[1], device="cpu")
    decoded = np.concatenate([c.samples for c in codec.decode(codes)])
    assert np.abs(decoded - samples).max() <= 1e-5
    for bad in (codes[:, :3], codes.astype(np.float32), codes + 2048, codes - 3000, codes[:0], codes[0]):
        with pytest.raises(UsageError, match="codes"):
            list(codec.decode(bad))


def test_device_and_dtype_names():
    cpu = torch.device("cpu")
    assert resolve_device("cpu") == cpu
    for bad in ("cuda:99", "tpu", "cuda:x", "cpu:1", ""):
        with pytest.raises(UsageError, match="device"):
            resolve_device(bad)
    assert resolve_dtype("auto", cpu) in (torch.float32, torch.bfloat16)
    with pytest.raises(UsageError, match="float32"):
        resolve_dtype("float16", cpu)
