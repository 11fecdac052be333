"""The compiled CPU kernels against gguf's dequantisers and torch's modules."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from factory import tiny_pair
from gguf import GGMLQuantizationType as Kind

from tts_cli.compiled import kernels
from tts_cli.compiled.formats import FORMATS
from tts_cli.compiled.matrix import Matrix, usable
from tts_cli.compiled.team import Team
from tts_cli.engine import SpeechRequest
from tts_cli.errors import ModelFileError, TtsError
from tts_cli.gguf.file import GGUFFile
from tts_cli.qwen3tts.compiled import read_matrix
from tts_cli.qwen3tts.engine import Qwen3TTSEngine
from tts_cli.qwen3tts.layers import StreamState
from tts_cli.qwen3tts.weights import load_codec, load_models

ROWS, COLUMNS = 37, 512  # rows in no multiple of a tile, two super-blocks to a row
SCALES = {Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,)}  # where float16 numbers lie in a super-block
CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=[1, 2, 3], ids=lambda n: f"{n} threads")
def team(request):
    return Team(request.param)


def stored(kind: Kind, seed: int = 0) -> np.ndarray:
    """Random rows of that type, uint8 [ROWS, bytes per row]."""
    random = np.random.default_rng(seed)
    if kind not in SCALES:
        values = random.standard_normal((ROWS, COLUMNS)).astype(np.float32)
        return np.ascontiguousarray(gguf.quants.quantize(values, kind).view(np.uint8)).reshape(ROWS, -1)
    elements, size = gguf.GGML_QUANT_SIZES[kind]  # gguf cannot write these: any bits are weights, but for the scales
    blocks = random.integers(0, 256, (ROWS, COLUMNS // elements, size), np.uint8)
    for at in SCALES[kind]:
        scales = random.uniform(-.02, .02, blocks.shape[:2]).astype(np.float16)
        blocks[..., at:at + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(ROWS, -1)


def vectors(count: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(count).standard_normal((count, COLUMNS)).astype(np.float32))


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: Kind(kind).name)
def test_products_equal_dequantised_rows(kind, team):
    raw = stored(kind)
    exact = vectors(11).numpy().astype(np.float64) @ gguf.quants.dequantize(raw, kind).astype(np.float64).T
    found = Matrix(raw, Kind(kind), (ROWS, COLUMNS), team).times(vectors(11)).numpy()
    assert np.abs(found - exact).max() <= 1e-6 * np.abs(exact).max()


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: Kind(kind).name)
def test_a_product_does_not_depend_on_its_company(kind, team):
    """Alone or among others, by any number of threads: the same bits."""
    matrix = Matrix(stored(kind), Kind(kind), (ROWS, COLUMNS), team)
    alone = Matrix(matrix.data, Kind(kind), (ROWS, COLUMNS), Team(1))
    x = vectors(9)
    together = matrix.times(x)
    for t, row in enumerate(x):
        assert torch.equal(alone.times(row), together[t])


def test_a_stack_gives_its_matrices(team):
    raw = np.concatenate([stored(Kind.Q8_0, seed) for seed in range(3)])
    stack = Matrix(raw, Kind.Q8_0, (3, ROWS, COLUMNS), team)
    x = vectors(1)[0]
    assert torch.equal(torch.cat([book.times(x) for book in stack]), stack.times(x))
    assert len(stack) == 3 and stack.nbytes == raw.nbytes


def test_unusable_matrices_are_refused():
    assert not usable(Kind.Q2_K, (8, 256)) and not usable(Kind.F32, (8, 40)) and not usable(Kind.Q4_K, (8, 32))
    with pytest.raises(ValueError, match="Q2_K"):
        Matrix(np.zeros((8, 84), np.uint8), Kind.Q2_K, (8, 256), Team(1))


def test_not_a_number_stays_one(team):
    raw = stored(Kind.Q8_0)
    raw[5, :2] = np.frombuffer(np.float16(np.nan).tobytes(), np.uint8)
    found = Matrix(raw, Kind.Q8_0, (ROWS, COLUMNS), team).times(vectors(5))
    assert found[:, 5].isnan().all() and found[:, :5].isfinite().all()


# ---- the team -------------------------------------------------------------------------------------------------------


def test_callers_of_several_threads_take_turns():
    team, x = Team(2), vectors(4)
    matrix = Matrix(stored(Kind.F32), Kind.F32, (ROWS, COLUMNS), team)
    expected, wrong = matrix.times(x), []

    def work():
        for _ in range(200):
            if not torch.equal(matrix.times(x), expected):
                wrong.append(1)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_interrupted_caller_leaves_the_team_whole(monkeypatch):
    team = Team(2)
    matrix = Matrix(stored(Kind.F32), Kind.F32, (ROWS, COLUMNS), team)
    x, expected = vectors(4), matrix.times(vectors(4))

    class Interrupted:
        def get(self):
            raise KeyboardInterrupt
    done = team._done
    monkeypatch.setattr(team, "_done", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        matrix.times(x)
    monkeypatch.setattr(team, "_done", done)
    assert torch.equal(matrix.times(x), expected)


def test_a_team_that_is_not_used_any_more_ends():
    before = set(threading.enumerate())  # workers of other tests among them, which may be about to end
    team = Team(3)
    workers = set(threading.enumerate()) - before
    assert len(workers) == 3
    del team
    for worker in workers:
        worker.join(5)
        assert not worker.is_alive()


# ---- the models -----------------------------------------------------------------------------------------------------


def codes(engine, **options) -> np.ndarray:
    request = SpeechRequest("Hello there, my friend.", seed=5, max_frames=40, **options)
    return np.concatenate([chunk.codes for chunk in engine.speak(request)])


@pytest.mark.parametrize("files", [{}, {"equal": True}, {"type": "f16"}, {"type": "q8_0"}], ids=str)
@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "sampled"])
def test_codes_equal_those_of_torch(files, greedy, tmp_path):
    pair = tiny_pair(tmp_path, **files)
    compiled, plain = (codes(Qwen3TTSEngine.open(*pair, device="cpu", dtype="float32", compiled=choice), greedy=greedy)
                       for choice in (True, False))
    np.testing.assert_array_equal(compiled, plain)


def test_codes_do_not_depend_on_the_number_of_threads(pair):
    made = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            engine = Qwen3TTSEngine.open(*pair, device="cpu", dtype="float32")
            made.append(codes(engine))
        finally:
            torch.set_num_threads(before)
    np.testing.assert_array_equal(made[0], made[1])
    np.testing.assert_array_equal(made[0], made[2])


def test_prefill_in_pieces_is_the_same_as_at_once(pair):
    """Hidden states and keys: bit for bit, in any division of the prompt."""
    models = load_models(GGUFFile.open(pair[0]), GGUFFile.open(pair[1]), torch.float32, CPU)
    decoder = models.talker.decoder
    rows = torch.randn(13, decoder.config.hidden, generator=torch.Generator().manual_seed(1))
    whole = decoder.new_cache(13)
    at_once = decoder(rows, whole)
    pieces = decoder.new_cache(2)  # grows on the way
    parts = torch.cat([decoder(rows[:5], pieces), decoder(rows[5], pieces)[None], decoder(rows[6:], pieces)])
    assert torch.equal(at_once, parts)
    assert torch.equal(whole.k[:, :, :13], pieces.k[:, :, :13]) and torch.equal(whole.v[:, :, :13], pieces.v[:, :, :13])


def test_weights_stay_in_the_file(tmp_path):
    talker, mmproj = (GGUFFile.open(path) for path in tiny_pair(tmp_path, type="q8_0"))
    models = load_models(talker, mmproj, torch.float32, CPU)
    head = models.talker.head
    assert head.kind == Kind.Q8_0 and np.shares_memory(head.data, talker.raw("output.weight"))
    blocks = [info.nbytes for name, info in talker.tensors.items() if name.startswith("blk.") and len(info.shape) == 2]
    assert models.talker.decoder.nbytes == sum(blocks)


def test_the_vocoder_with_stored_weights_gives_the_samples_of_tensors(tmp_path):
    """Its first convolutions read the file's 16-bit rows, which hold all taps of an output."""
    talker, mmproj = (GGUFFile.open(path) for path in tiny_pair(tmp_path, type="f16"))
    stored, (tensors, _) = load_models(talker, mmproj, torch.float32, CPU).code2wav, load_codec(mmproj, CPU)
    for name, tensor in (("pre_conv", "a.gen.wav.pre_conv.weight"), ("entry", "a.gen.wav.dac.entry.weight")):
        (matrix,) = stored.get_submodule(name).weight.matrices
        assert matrix.kind == Kind.F16 and np.shares_memory(matrix.data, mmproj.raw(tensor))
    frames = torch.randint(0, 2048, (30, 16), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected, found = (code2wav.push(frames, StreamState()) for code2wav in (tensors, stored))
    assert expected.std() > 1e-3
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_bfloat16_narrows_what_is_wider(pair):
    talker, mmproj = (GGUFFile.open(path) for path in pair)
    models = load_models(talker, mmproj, torch.bfloat16, CPU)
    assert models.talker.head.kind == Kind.BF16
    exact = torch.from_numpy(talker.rows("output.weight", slice(None))).bfloat16()
    assert torch.equal(torch.from_numpy(models.talker.head.data).view(torch.bfloat16), exact)
    assert {p.dtype for p in models.code2wav.parameters()} == {torch.float32}


@pytest.mark.parametrize("narrow", [False, True])
def test_types_without_a_kernel_are_copied(narrow, tmp_path):
    values = np.random.default_rng(3).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    raw = gguf.quants.quantize(values, Kind.MXFP4)
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "test")
    writer.add_tensor("w", raw, raw_dtype=Kind.MXFP4)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    matrix = read_matrix(GGUFFile.open(tmp_path / "one.gguf"), "w", (ROWS, COLUMNS), narrow, Team(1))
    assert matrix.kind == (Kind.BF16 if narrow else Kind.F32)
    exact = torch.from_numpy(gguf.quants.dequantize(raw, Kind.MXFP4)).to(torch.bfloat16 if narrow else torch.float32)
    assert torch.equal(torch.from_numpy(matrix.data).view(exact.dtype).view(ROWS, COLUMNS), exact)


def test_matrices_of_another_shape_are_refused(tmp_path):
    """Also when their rows are as many as expected in all: each has its place in the buffers."""
    talker, mmproj = tiny_pair(tmp_path)
    file = GGUFFile.open(talker)
    q, k = (np.array(file.rows(f"blk.1.attn_{name}.weight", slice(None))) for name in "qk")
    both = np.concatenate((q, k))
    edits = {"blk.1.attn_q.weight": both[:len(q) - 32], "blk.1.attn_k.weight": both[len(q) - 32:]}
    edited, _ = tiny_pair(tmp_path / "edited", talker_edits=edits)
    with pytest.raises(ModelFileError, match="blk.1.attn_q.weight"):
        load_models(GGUFFile.open(edited), GGUFFile.open(mmproj), torch.float32, CPU)


@pytest.mark.parametrize("file, name", [
    ("talker", "output.weight"), ("talker", "output_norm.weight"),
    ("mmproj", "a.gen.code.head.weight"), ("mmproj", "a.gen.code.output_norm.weight")])
def test_broken_weights_are_reported_not_spoken(file, name, tmp_path):
    pair = tiny_pair(tmp_path)
    original = GGUFFile.open(pair[file == "mmproj"])
    broken = np.full(original.tensor(name).shape, np.nan, np.float32)
    edited = tiny_pair(tmp_path / "edited", **{f"{file}_edits": {name: broken}})
    for greedy in (True, False):
        with pytest.raises(TtsError, match="not numbers"):
            codes(Qwen3TTSEngine.open(*edited, device="cpu", dtype="float32"), greedy=greedy)


def test_without_a_folder_for_the_cache_the_functions_are_compiled_anew(monkeypatch):
    def refuse(*arguments, **options):
        if options.pop("cache", False):
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function
    assert kernels._cached(refuse, nogil=True)(len) is len


def test_what_other_sources_were_compiled_to_is_not_used(tmp_path):
    """numba itself looks at kernels.py alone."""
    for name in ("kernels.decode-1.py311.nbi", "kernels.decode-1.py311.1.nbc", "other.nbi"):
        (tmp_path / name).touch()
    kernels.forget_others(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernels.sources", "other.nbi"]
    (tmp_path / "kernels.decode-1.py311.nbi").touch()
    kernels.forget_others(tmp_path)
    assert (tmp_path / "kernels.decode-1.py311.nbi").exists()
    (tmp_path / "kernels.sources").write_text("of yesterday")
    kernels.forget_others(tmp_path)
    assert not (tmp_path / "kernels.decode-1.py311.nbi").exists()
    kernels.forget_others(tmp_path / "other.nbi")  # where no folder can be


def test_compiling_leaves_the_standard_streams_alone():
    """It may run beside a thread that has replaced them; numba touches them where it finds colorama."""
    program = ("import sys, types\nsys.modules['colorama'] = types.ModuleType('colorama')\n"
               "sys.modules['colorama'].__version__ = '0.4.6'\nfrom tts_cli.compiled import kernels\n"
               "from numba.core.errors import termcolor\nassert termcolor().errmsg('a') == 'a'")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent.parent, env=environment,
                          capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
