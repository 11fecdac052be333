"""convert, inspect, codec and bench on tiny models."""

import json
import sys
import time

import numpy as np
import pytest
import soundfile
from cli_tools import tts
from factory import tiny_pair

from tts_cli import bench
from tts_cli.engine import SpeechRequest
from tts_cli.errors import TtsError
from tts_cli.loading import load_engine
from tts_cli.qwen3tts.code2wav import Code2Wav
from tts_cli.qwen3tts.code_predictor import CodePredictor
from tts_cli.qwen3tts.engine import Qwen3TTSEngine
from tts_cli.qwen3tts.talker import Talker


@pytest.fixture(scope="module")
def custom_voice(tmp_path_factory):
    return tiny_pair(tmp_path_factory.mktemp("custom"), variant="custom_voice")


@pytest.fixture
def clip(tmp_path):
    path = tmp_path / "clip.wav"
    soundfile.write(path, np.random.default_rng(0).uniform(-0.3, 0.3, 24000), 24000)
    return path


# ---- inspect ------------------------------------------------------------------------------------------------------


def test_inspect_tells_what_the_files_hold_and_that_they_fit(pair):
    run = tts("inspect", *pair)
    text = run.out.decode()
    assert (run.code, run.err) == (0, "") and text.endswith("pair: fits\n")
    for words in ("qwen3tts", "clip", "talker", "mmproj", "F32", "english", "temp 0.9", "5,120"):
        assert words in text


def test_inspect_as_json(pair, custom_voice):
    talker, mmproj = json.loads(tts("inspect", "--json", "--tensors", *pair).out)["files"]
    assert talker["hidden"] == mmproj["talker_hidden"] and talker["layers"] > 0 and talker["speakers"] == []
    assert talker["sampling"] == {"temp": 0.9, "top_k": 50, "top_p": 1.0, "penalty_repeat": 1.05}
    assert mmproj["speaker_encoder"] and mmproj["predictor_projection"]
    assert {"name": "output_norm.weight", "shape": [talker["hidden"]], "type": "F32",
            "bytes": 4 * talker["hidden"]} in talker["tensor_list"]
    assert sum(of["tensors"] for of in talker["types"].values()) == talker["tensors"] == len(talker["tensor_list"])
    custom = json.loads(tts("inspect", "--json", custom_voice[0]).out)
    assert custom["files"][0]["model_type"] == "custom_voice" and "ryan" in custom["files"][0]["speakers"]
    assert "pair" not in custom


def test_inspect_of_files_that_do_not_fit(pair, custom_voice):
    run = tts("inspect", pair[0], custom_voice[1])
    assert run.code == 1 and b"pair: does not fit" in run.out and "do not fit" in run.error
    run = tts("inspect", pair[0], pair[0])
    assert run.code == 1 and "talker and talker" in run.error


def test_inspect_of_something_else(tmp_path):
    (tmp_path / "a.gguf").write_text("<html>")
    assert tts("inspect", tmp_path / "a.gguf").code == 1
    assert tts("inspect", tmp_path / "missing.gguf").code == 2
    assert tts("inspect").code == 2


# ---- codec --------------------------------------------------------------------------------------------------------


def test_decoding_dumped_codes_gives_the_spoken_file(pair, tmp_path):
    codes, spoken, decoded = tmp_path / "c.npy", tmp_path / "a.wav", tmp_path / "b.wav"
    tts("-m", pair[0], "-p", "Hello there", "-s", "1", "-o", spoken, "--dump-codes", codes, "--format", "wavf32")
    run = tts("codec", "decode", codes, "-mm", pair[1], "-o", decoded, "--format", "wavf32")
    assert run.code == 0 and "frames" in run.err
    (a, _), (b, rate) = soundfile.read(spoken), soundfile.read(decoded)
    assert rate == 24000 and len(a) == len(b) == 1920 * len(np.load(codes))
    np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("array, words", [
    (np.zeros((16, 3), np.int32), "[16, 3]"), (np.zeros((3, 16), np.float32), "float32"),
    (np.zeros((0, 16), np.int32), "no frames"), (np.full((3, 16), 2048), "2048"), (np.full((3, 16), -1), "-1"),
    (np.array(3), "int64 []"), (np.array([{}]), "not a .npy"),
])
def test_codes_that_are_no_codes(pair, tmp_path, array, words):
    np.save(tmp_path / "c.npy", array)
    run = tts("codec", "decode", tmp_path / "c.npy", "-mm", pair[1], "-o", tmp_path / "a.wav")
    assert run.code == 2 and words in run.error and not (tmp_path / "a.wav").exists()


def test_codes_files_that_cannot_be_read(pair, tmp_path):
    (tmp_path / "text.npy").write_text("hello")
    (tmp_path / "empty.npy").touch()
    np.savez(tmp_path / "many.npz", a=np.zeros((3, 16), np.int32))
    for name in ("text.npy", "empty.npy", "missing.npy", "many.npz", "."):
        run = tts("codec", "decode", tmp_path / name, "-mm", pair[1], "-o", tmp_path / "a.wav")
        assert run.code == 2 and str(tmp_path / name) in run.error


def test_embed_writes_the_voice_that_speaker_file_clones(pair, clip, tmp_path):
    run = tts("codec", "embed", clip, "-mm", pair[1], "-o", tmp_path / "x.npy")
    assert run.code == 0
    vector = np.load(tmp_path / "x.npy")
    engine = load_engine(*pair, dtype="float32")
    from tts_cli.audio.read import read_clip
    np.testing.assert_allclose(vector, engine.voice_from_clip(read_clip(clip), "clip").xvector, atol=1e-6)
    assert vector.dtype == np.float32


def test_embed_refuses_before_loading(pair, custom_voice, clip, tmp_path):
    assert tts("codec", "embed", tmp_path / "no.wav", "-mm", pair[1], "-o", tmp_path / "x.npy").code == 2
    assert tts("codec", "embed", clip, "-mm", pair[1], "-o", tmp_path / "no" / "x.npy").code == 1
    run = tts("codec", "embed", clip, "-mm", custom_voice[1], "-o", tmp_path / "x.npy")
    assert run.code == 2 and "Base" in run.error and not (tmp_path / "x.npy").exists()


def test_cloning_needs_a_base_checkpoint(custom_voice, clip, tmp_path):
    run = tts("-m", custom_voice[0], "-p", "Hi", "--speaker-file", clip, "-o", tmp_path / "a.wav")
    assert run.code == 2 and "Base" in run.error and "custom_voice" in run.error


# ---- convert ------------------------------------------------------------------------------------------------------


def test_a_converted_checkpoint_speaks(checkpoint, tmp_path):
    run = tts("convert", checkpoint, "-o", tmp_path / "models", "--type", "q8_0", terminal=True)
    assert run.code == 0 and "converting" in run.err
    talker, mmproj = sorted((tmp_path / "models").iterdir(), key=lambda path: path.name.startswith("mmproj"))
    assert all(str(path) in run.err for path in (talker, mmproj))
    assert tts("-m", talker, "-p", "Hi", "-n", "2", "-o", tmp_path / "a.wav").code == 0


def test_convert_refuses_what_it_cannot_do(checkpoint, tmp_path):
    run = tts("convert", checkpoint, "-o", tmp_path, "--type", "q3_x")
    assert run.code == 2 and "q8_0" in run.error
    assert tts("convert", tmp_path / "missing", "-o", tmp_path).code == 2
    assert tts("convert", checkpoint).code == 2


# ---- bench --------------------------------------------------------------------------------------------------------


def test_bench_numbers_add_up(pair):
    run = tts("bench", "-m", pair[0], "--dtype", "float32", "--frames", "34", "--json")
    assert run.code == 0
    told = json.loads(run.out)
    parts = told["frame_ms"]
    assert told["frames"] == 34 and told["device"] == "cpu" and told["dtype"] == "float32"
    assert sum(parts[name] for name in (*bench.PARTS, "rest")) == pytest.approx(parts["total"])
    assert told["cold_first_audio_ms"] > told["first_audio_ms"] and 0 <= told["underruns"] < 10
    assert 0 <= told["jitter_ms"]["p50"] <= told["jitter_ms"]["p95"]
    for key in ("load_seconds", "prefill_ms", "first_audio_ms", "early_ms", "late_ms", "times_real_time",
                "weight_gb_per_s", "peak_rss_mb"):
        assert told[key] > 0


def test_bench_times_the_parts_that_the_loop_calls(pair, monkeypatch):
    def slow(method):
        return lambda *arguments: (time.sleep(0.02), method(*arguments))[1]
    for kind, method in ((Talker, "together"), (CodePredictor, "predict"), (Code2Wav, "push")):
        monkeypatch.setattr(kind, method, slow(getattr(kind, method)))
    told = json.loads(tts("bench", "-m", pair[0], "--frames", "6", "--no-cold", "--json").out)
    assert told["frame_ms"]["talker"] > 16 and told["frame_ms"]["predictor"] > 20  # the first frame needs no step
    assert told["frame_ms"]["code2wav"] > 10  # one or two frames a chunk


def test_bench_as_a_table(pair, monkeypatch):
    monkeypatch.setattr(bench, "cold_start_seconds", lambda command: 1.25)
    text = tts("bench", "-m", pair[0], "--frames", "3").out.decode()
    for words in ("load", "prefill", "ms", "1250 ms)", "chunk jitter", "underruns", "talker", "predictor", "code2wav",
                  "rest", "x real time", "GB/s", "peak memory"):
        assert words in text
    monkeypatch.delattr(bench, "cold_start_seconds")  # not asked for, not done
    assert "(cold" not in tts("bench", "-m", pair[0], "--frames", "3", "--no-cold").out.decode()


@pytest.mark.parametrize("arrivals, lengths, dry", [
    ([1.0, 1.05, 1.1], [0.08, 0.08, 0.08], 0),  # faster than it plays
    ([1.0, 1.2, 1.4, 1.6], [0.08, 0.08, 0.08, 0.08], 3),  # always late
    ([1.0, 1.1, 1.15], [0.08, 0.16, 0.16], 1),  # once late, then in time
    ([1.0], [0.08], 0), ([], [], 0),
])
def test_underruns_when_played_as_it_comes(arrivals, lengths, dry):
    assert bench.underruns(arrivals, lengths) == dry


def test_jitter_is_the_distance_from_the_steady_pace():
    steady = bench.jitter_ms([1.0, 1.05, 1.10, 1.20], [0.08, 0.08, 0.08, 0.16])
    assert steady == {"p50": pytest.approx(0), "p95": pytest.approx(0)}
    assert bench.jitter_ms([1.0, 1.05, 1.20], [0.08, 0.08, 0.08])["p95"] == pytest.approx(50)
    assert bench.jitter_ms([1.0], [0.08]) is None


def test_a_cold_start_without_audio_is_an_error():
    assert bench.cold_start_seconds([sys.executable, "-c", "print(1)"]) > 0
    with pytest.raises(TtsError, match="ended with 3"):
        bench.cold_start_seconds([sys.executable, "-c", "raise SystemExit(3)"])


def test_the_probe_leaves_the_engine_as_it_was(pair):
    engine = load_engine(*pair, dtype="float32")

    def codes():
        return np.concatenate([chunk.codes for chunk in engine.speak(SpeechRequest("Hello there", seed=1))])
    before = codes()
    with bench.Probe(engine, synchronize=False):
        engine.speak(SpeechRequest("Hello there", seed=1, max_frames=3))
    assert np.array_equal(codes(), before)


def test_weights_read_per_frame(pair, pair_equal):
    for files in (pair, pair_equal):
        engine = Qwen3TTSEngine.open(*files, device="cpu", dtype="float32", compiled=False)
        engine.load()
        models = engine.models
        blocks = sum(p.numel() for p in models.predictor.decoder.parameters())
        projection = 0 if models.predictor.projection is None else models.predictor.projection.numel()
        talker = sum(p.numel() for p in models.talker.parameters())
        heads = models.predictor.heads.numel()
        assert bench.weight_bytes_per_frame(models) == 4 * (talker + heads + 15 * (blocks + projection))
