"""A Hugging Face checkpoint folder of Qwen3-TTS to the GGUF pair: talker and mmproj.

Weights stream from the safetensors files through float32 blocks of rows into the output, so memory stays flat
whatever the model's size. The layout is in `names`, the metadata in `config`.
"""

import math
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch.nn import functional

from tts_cli.errors import ModelFileError, TtsError, UsageError
from tts_cli.gguf.write import TYPES, OutputTensor, Progress, replace_when_complete, stored_type, write_gguf
from tts_cli.qwen3tts.convert.config import ModelConfig, Section, mmproj_metadata, read_config, talker_metadata
from tts_cli.qwen3tts.convert.names import CODEC, OURS, Entry, Shape, mmproj_entries, talker_entries
from tts_cli.qwen3tts.convert.vocab import Vocabulary, read_vocabulary

__all__ = ["TYPES", "convert", "write_pair"]

BLOCK = 1 << 22  # numbers per block: 16 MB of float32
REOPEN_AFTER = 1 << 28  # bytes read through one mapping before its pages are given back
_READABLE = ("F64", "F32", "F16", "BF16")
Rows = Callable[[Entry], Iterable[np.ndarray]]


def convert(checkpoint: str | Path, out_dir: str | Path, type: str = "q8_0", *,
            progress: Progress | None = None) -> tuple[Path, Path]:
    """Write `<model>-<TYPE>.gguf` and `mmproj-<model>-<TYPE>.gguf` in `out_dir` (made if absent); return their paths.

    `type` is one of `TYPES`: the storage of matrices; vectors, convolutions and a few others keep 16 or 32 bits.
    `progress(bytes_done, bytes_in_all, tensor_name)` is called after each block. Existing files are replaced only
    when both new ones are complete. Raises `UsageError` (type, folder), `ModelFileError` (the checkpoint's content)
    and `TtsError` (writing).
    """
    _check_type(type)
    folder = Path(checkpoint)
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; give a checkpoint folder with config.json and model.safetensors")
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} has no config.json: not a checkpoint folder")
    codec_folder = folder / "speech_tokenizer"
    if not (codec_folder / "config.json").is_file():
        raise ModelFileError(f"{folder} has no speech_tokenizer/config.json: download the whole checkpoint folder")
    generation = folder / "generation_config.json"
    config = read_config(Section.read(folder / "config.json"), Section.read(codec_folder / "config.json"),
                         Section.read(generation) if generation.is_file() else None)
    vocabulary = read_vocabulary(folder, config)
    sources = Sources(folder, config.activation)
    if not sources.hold(f"{CODEC}encoder."):
        config = replace(config, dims=replace(config.dims, encoder=None))
    sources.check([*talker_entries(config.dims), *mmproj_entries(config.dims)])
    return write_pair(config, vocabulary, sources.rows, Path(out_dir), _model_name(folder), type, progress)


def write_pair(config: ModelConfig, vocabulary: Vocabulary, rows: Rows, out_dir: Path, name: str, type: str,
               progress: Progress | None = None) -> tuple[Path, Path]:
    """Write both files with the numbers `rows(entry)` yields: float32 blocks of whole rows of each tensor."""
    type = _check_type(type)
    talker, mmproj = (_outputs(entries, rows, type) for entries in
                      (talker_entries(config.dims), mmproj_entries(config.dims)))
    total = sum(t.nbytes for t in talker + mmproj)
    done = 0

    def advance(nbytes: int, tensor: str) -> None:
        nonlocal done
        done += nbytes
        if progress:
            progress(done, total, tensor)

    _prepare_folder(out_dir, total)
    paths = (out_dir / f"{name}-{type.upper()}.gguf", out_dir / f"mmproj-{name}-{type.upper()}.gguf")
    with replace_when_complete(*paths) as parts:
        title = name.encode("utf-8", "replace").decode("utf-8")  # a folder's name may be no valid text
        counts = [sum(math.prod(t.shape) for t in tensors if not t.name.startswith(OURS))
                  for tensors in (talker, mmproj)]
        write_gguf(parts[0], "qwen3tts", talker_metadata(config, vocabulary, title, type, counts[0]), talker, advance)
        write_gguf(parts[1], "clip", mmproj_metadata(config, title, type, counts[1]), mmproj, advance)
    return paths


def _check_type(type: str) -> str:
    if type.lower() not in TYPES:
        raise UsageError(f"unknown type {type!r}; choose from {', '.join(TYPES)}")
    return type.lower()


def _outputs(entries: list[Entry], rows: Rows, type: str) -> list[OutputTensor]:
    return [OutputTensor(e.name, e.shape, _storage(e, type), lambda e=e: rows(e)) for e in entries]


def _storage(entry: Entry, type: str) -> gguf.GGMLQuantizationType:
    kinds = gguf.GGMLQuantizationType
    wanted = TYPES[type]
    if entry.storage == "F16_CONV":
        wanted = kinds.F32 if wanted == kinds.F32 else kinds.F16
    elif entry.storage == "embedding":
        # Rounded to three values a row of the tables would say nothing.
        wanted = kinds.F16 if wanted in (kinds.TQ1_0, kinds.TQ2_0) else wanted
    elif entry.storage != "typed":
        wanted = kinds[entry.storage]
    return stored_type(entry.shape, wanted)


def _prepare_folder(folder: Path, needed: int) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror or error}") from error
    if free < needed:
        raise TtsError(f"{folder}: {needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free")


def _model_name(folder: Path) -> str:
    """The folder's name; for a snapshot in the hub's cache (models--OWNER--NAME/snapshots/HASH) the model's."""
    folder = folder.resolve()
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.split("--")[-1]
    return folder.name or "qwen3-tts"


class Sources:
    """The checkpoint's tensors by name, those of the speech tokenizer prefixed `speech_tokenizer/`.

    Raises `ModelFileError` for files that are absent, damaged or not safetensors.
    """

    def __init__(self, folder: Path, activation: str):
        self._activation = {"silu": functional.silu, "gelu": functional.gelu, "relu": functional.relu}[activation]
        self._folder = folder
        self._shapes: dict[str, Shape] = {}
        self._files: dict[str, Path] = {}
        self._open: tuple[Path, object] | None = None
        self._read = 0
        for prefix, place in (("", folder), (CODEC, folder / "speech_tokenizer")):
            for path in _weight_files(place):
                self._index(path, prefix)

    def _index(self, path: Path, prefix: str) -> None:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a dict
                    part = file.get_slice(name)
                    if part.get_dtype() not in _READABLE:
                        raise ModelFileError(f"{path}: tensor {name} is stored as {part.get_dtype()}; "
                                             f"readable are {', '.join(_READABLE)}")
                    self._shapes[prefix + name] = tuple(part.get_shape())
                    self._files[prefix + name] = path
        except (SafetensorError, OSError) as error:
            raise ModelFileError(f"cannot read {path}: {_first_line(error)}; download it again") from error

    def hold(self, prefix: str) -> bool:
        """Whether any tensor's name starts so."""
        return any(name.startswith(prefix) for name in self._shapes)

    def check(self, entries: list[Entry]) -> None:
        """Refuse, listing them, tensors that are missing, unknown or of another shape than config.json says."""
        wanted = {name: shape for entry in entries for name, shape in entry.sources}
        # Of the speech tokenizer's encoder not everything is used: the last acoustic books, the output projections.
        extra = [n for n in self._shapes if n not in wanted and not n.startswith(f"{CODEC}encoder.")]
        missing = [name for name in wanted if name not in self._shapes]
        shaped = [f"{name} {list(self._shapes[name])} instead of {list(shape)}" for name, shape in wanted.items()
                  if name in self._shapes and self._shapes[name] != shape]
        faults = [f"{len(names)} {what}: {_listed(names)}" for what, names in
                  (("missing", missing), ("unknown", extra), ("of a wrong shape", shaped)) if names]
        if faults:
            raise ModelFileError(f"{self._folder}: tensors do not match config.json; {'; '.join(faults)}")

    def rows(self, entry: Entry) -> Iterator[np.ndarray]:
        """The tensor an entry describes, as float32 blocks of whole rows (one row = the last dimension)."""
        with torch.inference_mode():
            for block in getattr(self, f"_{entry.op}")(entry):
                yield block.reshape(-1, entry.shape[-1]).numpy()

    def _copy(self, entry: Entry) -> Iterator[torch.Tensor]:
        yield from self._blocks(entry.sources[0][0])

    def _stack(self, entry: Entry) -> Iterator[torch.Tensor]:
        for name, _ in entry.sources:
            yield from self._blocks(name)

    def _exp(self, entry: Entry) -> Iterator[torch.Tensor]:
        yield self._whole(entry.sources[0][0]).exp()

    def _inverse_exp(self, entry: Entry) -> Iterator[torch.Tensor]:
        yield 1.0 / (self._whole(entry.sources[0][0]).exp() + 1e-9)

    def _codebook(self, entry: Entry) -> Iterator[torch.Tensor]:
        """Code vectors: running sums over running counts (VQ-VAE, van den Oord et al. 2017, appendix A.1)."""
        names = [name for name, _ in entry.sources]
        for sums, usage in zip(names[::2], names[1::2], strict=True):
            yield self._whole(sums) / self._whole(usage).clamp_min(1e-5)[:, None]

    def _fold(self, entry: Entry) -> Iterator[torch.Tensor]:
        """Text rows passed through the projection MLP fc2(act(fc1(e))), then the codec rows as they are.

        The MLP sees one row at a time, so doing it here once is the same as doing it for every prompt.
        """
        text, w1, b1, w2, b2, codec = (name for name, _ in entry.sources)
        w1, b1, w2, b2 = (self._whole(name) for name in (w1, b1, w2, b2))
        for rows in self._blocks(text):
            yield functional.linear(self._activation(functional.linear(rows, w1, b1)), w2, b2)
        yield from self._blocks(codec)

    def _whole(self, name: str) -> torch.Tensor:
        return torch.cat(list(self._blocks(name)))

    def _blocks(self, name: str) -> Iterator[torch.Tensor]:
        """A tensor in float32, cut along its first dimension."""
        shape, path = self._shapes[name], self._files[name]
        inner = name.removeprefix(CODEC)
        step = max(1, BLOCK // max(1, math.prod(shape[1:])))
        for start in range(0, shape[0], step):
            try:
                part = self._file(path).get_slice(inner)[start:start + step]
            except (SafetensorError, OSError) as error:
                raise ModelFileError(f"cannot read {name} from {path}: {_first_line(error)}") from error
            self._read += part.nbytes
            yield part.to(torch.float32)

    def _file(self, path: Path):
        """The open file; a mapping whose pages have filled memory is dropped and made anew."""
        if self._open is None or self._open[0] != path or self._read > REOPEN_AFTER:
            self._open, self._read = None, 0
            self._open = (path, safe_open(path, framework="pt"))
        return self._open[1]


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        path = folder / "model.safetensors"
        if not path.is_file():
            raise ModelFileError(f"{folder} has neither model.safetensors nor model.safetensors.index.json")
        return [path]
    names = sorted({str(name) for name in Section.read(index).section("weight_map").values.values()})
    for name in names:
        if re.search(r"[/\\]|^\.+$", name) or not (folder / name).is_file():
            raise ModelFileError(f"{index} names {name}, which is not in the folder: download the whole checkpoint")
    return [folder / name for name in names]


def _listed(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [error.__class__.__name__])[0]
