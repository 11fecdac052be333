"""Thousands of damaged copies of a tiny pair: each opens or is refused with a `TtsError`; nothing else may happen.

The damage is drawn from a seed, so a failing number can be run again. One file on disk is damaged and mended in turn,
which costs a few bytes of writing per case instead of a copy.
"""

import random
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from factory import tiny_pair

from tts_cli import ModelFileError, SpeechRequest, TtsError
from tts_cli.gguf.file import GGUFFile
from tts_cli.gguf.tokenizer import Tokenizer
from tts_cli.loading import open_engine

MEMORY = 2**30
ODD_NUMBERS = [0, 1, 2, 7, 8, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**60, 2**63 - 1, 2**63, 2**64 - 1]
MAX_ELEMENTS = 1 << 22  # of one tensor that a case reads: the largest of the tiny pair has half of that


class Damaged:
    """A file on disk that can be damaged in one of several ways and mended again."""

    def __init__(self, path: Path, original: Path):
        self.path = path
        self.content = original.read_bytes()
        path.write_bytes(self.content)
        with GGUFFile.open(original) as file:
            self.header = min(info.offset for info in file.tensors.values())
            self.keys = [key.encode() for key in file.metadata]
            self.names = [name.encode() for name in file.tensors]

    @contextmanager
    def case(self, number: int) -> Iterator[str]:
        """Damage number `number`; yields what was done."""
        r = random.Random(number)
        damage = r.choice([self._truncate, self._flip, self._flip, self._overwrite, self._key, self._tensor,
                           self._tensor, self._shift])
        start, new, cut = damage(r)
        end = len(self.content) if cut else start + len(new)
        with self.path.open("r+b") as f:
            f.seek(start)
            f.write(new)
            if cut:
                f.truncate()
        try:
            yield f"{self.path.name} damage {number}: {damage.__name__.strip('_')} at byte {start}"
        finally:
            with self.path.open("r+b") as f:
                f.seek(start)
                f.write(self.content[start:end])
                f.truncate(len(self.content))

    def _place(self, r: random.Random) -> int:
        """Mostly in the header, often near its start, now and then in the weights."""
        return r.choice([r.randrange(self.header), r.randrange(min(4096, self.header)), r.randrange(self.header),
                         r.randrange(len(self.content))])

    def _truncate(self, r):
        return r.choice([self._place(r), len(self.content) - r.randrange(1, 4096)]), b"", True

    def _flip(self, r):
        start = self._place(r)
        new = bytearray(self.content[start:start + r.choice([1, 1, 1, 4, 64])])
        for _ in range(r.choice([1, 1, 2, 8])):
            new[r.randrange(len(new))] ^= 1 << r.randrange(8)
        return start, bytes(new), False

    def _overwrite(self, r):
        start = min(self._place(r), len(self.content) - 8)
        return start, self._number(r), False

    def _number(self, r) -> bytes:
        size = r.choice([1, 2, 4, 4, 8, 8])
        return struct.pack("<Q", r.choice(ODD_NUMBERS))[:size]

    def _key(self, r):
        """Another value type, array type, length or value behind a metadata key."""
        key = r.choice(self.keys)
        return self.content.index(key) + len(key) + r.choice([0, 4, 4, 8, 16]), self._number(r), False

    def _tensor(self, r):
        """Another name length, rank, dimension, type or offset of a tensor."""
        name = r.choice(self.names)
        start = self.content.index(struct.pack("<Q", len(name)) + name)
        return start + r.choice([0, *(8 + len(name) + x for x in (0, 4, 12, 20, 24, 28))]), self._number(r), False

    def _shift(self, r):
        """Bytes of the header lost or doubled, so that the rest of it moves."""
        start, size = r.randrange(64, self.header), r.randrange(1, 64)
        rest = self.content[start - size:self.header - size]
        return start, rest if r.random() < 0.5 else self.content[start + size:self.header] + bytes(size), False


@pytest.fixture(scope="module")
def damaged(pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    return {name: Damaged(folder / f"{name}.gguf", path) for name, path in zip(("talker", "mmproj"), pair, strict=True)}


def peak_memory() -> int:
    """The most bytes this process ever held."""
    try:
        import resource
    except ImportError:  # Windows
        return psutil.Process().memory_info().peak_wset
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def run_cases(file: Damaged, numbers: range, use) -> dict[str, int]:
    """`use(path)` for each damage; anything it raises but `TtsError` fails the test. Returns how they went."""
    counts = {"worked": 0, "refused": 0}
    before = peak_memory()
    for number in numbers:
        with file.case(number) as what:
            try:
                use(file.path, number)
            except TtsError as e:
                counts["refused"] += 1
                assert str(e) and "\n" not in str(e), what
            except Exception as e:
                raise AssertionError(f"{what} gave {e!r}") from e
            else:
                counts["worked"] += 1
    assert peak_memory() - before < MEMORY
    return counts


def read_some(path: Path, number: int) -> None:
    with GGUFFile.open(path) as file:
        for name in random.Random(number).sample(sorted(file.tensors), min(3, len(file.tensors))):
            info = file.tensor(name)
            assert file.rows(name, slice(0, 2)).dtype == np.float32
            if info.nbytes < 4 * MAX_ELEMENTS:
                out = torch.empty(info.shape)
                file.read_into(name, out)
        if file.architecture == "qwen3tts":
            Tokenizer.from_gguf(file).encode("Hello, world.")


@pytest.mark.parametrize(("name", "count"), [("talker", 1000), ("mmproj", 2000)])
def test_damaged_files_are_read_or_refused(damaged, name, count):
    counts = run_cases(damaged[name], range(count), read_some)
    assert min(counts.values()) > count // 20


REQUEST = SpeechRequest("Hello.", language="en", max_frames=2, seed=1)
CLIP = np.random.RandomState(0).standard_normal(6000).astype(np.float32) * 0.1


def speak(talker: Path, mmproj: Path) -> None:
    """Two frames, and a voice from a clip."""
    engine = open_engine(talker, mmproj, device="cpu", dtype="float32")
    try:
        speech = engine.speak(REQUEST)
        samples = np.concatenate([chunk.samples for chunk in speech])
        assert np.isfinite(samples).all()
        assert len(samples) == 1920 * speech.result.frames
        assert np.isfinite(engine.voice_from_clip(CLIP, "noise").xvector).all()
    finally:
        engine.pair.talker.close()
        engine.pair.mmproj.close()


@pytest.mark.parametrize("name", ["talker", "mmproj"])
def test_damaged_files_speak_or_are_refused(damaged, pair, name):
    whole = dict(zip(("talker", "mmproj"), pair, strict=True))
    counts = run_cases(damaged[name], range(10_000, 10_100), lambda path, number: speak(**whole | {name: path}))
    assert min(counts.values()) > 5


@pytest.mark.parametrize("name", ["talker", "mmproj"])
def test_odd_values_in_any_field_speak_or_are_refused(pair, tmp_path, name):
    whole = dict(zip(("talker", "mmproj"), pair, strict=True))
    path = tmp_path / "edited.gguf"
    content = whole[name].read_bytes()
    path.write_bytes(content)
    numbers = {"I": [0, 3, 2**32 - 1], "i": [-1], "f": [0.0, float("nan"), 1e30, -1.0]}
    with GGUFFile.open(whole[name]) as file:
        keys = [key for key, value in file.metadata.items() if type(value) in (int, float)]
    refused = 0
    for turn, key in enumerate(keys):
        start = content.index(struct.pack("<Q", len(key)) + key.encode()) + 8 + len(key)
        form = {4: "I", 5: "i", 6: "f"}[content[start]]
        for value in (numbers[form] * 2)[turn % 2::2][:2]:
            edited = content[:start + 4] + struct.pack(f"<{form}", value) + content[start + 8:]
            with path.open("r+b") as f:
                f.write(edited[:start + 8])
            try:
                speak(**whole | {name: path})
            except TtsError:
                refused += 1
            except Exception as e:
                raise AssertionError(f"{key} = {value} gave {e!r}") from e
        with path.open("r+b") as f:
            f.write(content[:start + 8])
    assert refused > 5


@pytest.mark.parametrize(("tensor", "shape"), [
    ("a.conv1d.0.weight", (16, 64, 5)), ("a.conv_out.weight", (48, 24, 1)), ("mm.a.fc.weight", (32, 96, 1)),
    ("a.gen.code.embd.weight", (14, 2048, 64)), ("a.gen.code.head.weight", (15, 1024, 32)),
    ("a.gen.code.out_embd.weight", (3072, 32)), ("a.gen.wav.quant.rest.codebook.weight", (14, 2048, 16)),
    ("a.gen.wav.pre_conv.weight", (64, 16, 3)), ("a.gen.wav.dac.blk.1.conv.weight", (32, 16, 8)),
    ("a.gen.wav.tfm.blk.3.attn_q.weight", (64, 32)), ("a.gen.wav.dac.post_conv.weight", (2, 4, 7))])
def test_tensors_of_another_shape_are_refused(pair, tmp_path, tensor, shape):
    _, mmproj = tiny_pair(tmp_path, mmproj_edits={tensor: np.zeros(shape, np.float32)})
    with pytest.raises(ModelFileError):
        speak(pair[0], mmproj)


def test_the_damaged_file_is_mended(damaged):
    for file in damaged.values():
        for number in range(50):
            with file.case(number):
                pass
            assert file.path.read_bytes() == file.content
