"""A checkpoint folder to a `Kokoro` with weights: which file, what it holds, strictly.

`config.json` with an `istftnet` block says that a folder is one; the weights are a PyTorch file (`kokoro-v1_0.pth`) or
a safetensors file. A damaged file of either kind raises `ModelFileError` and nothing else.
"""

import json
import pickle
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from tts_cli.errors import ModelFileError, UsageError
from tts_cli.kokoro.checkpoint import state_from_checkpoint
from tts_cli.kokoro.config import KokoroConfig
from tts_cli.kokoro.model import Kokoro

WEIGHT_NAMES = ("kokoro-v1_0.safetensors", "kokoro-v1_0.pth")
_PARTS = {"bert", "bert_encoder", "predictor", "text_encoder", "decoder"}
_MAX_CONFIG_BYTES = 4 << 20
# What a pickle of untrusted bytes raises, beside the errors torch turns into UnpicklingError.
DAMAGED = (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError, TypeError, LookupError, AttributeError,
           ArithmeticError, AssertionError, struct.error, zipfile.BadZipFile)


def is_checkpoint(folder: Path) -> bool:
    """Whether `folder` holds a Kokoro checkpoint, however damaged."""
    if any((folder / name).is_file() for name in WEIGHT_NAMES):
        return True
    try:
        return "istftnet" in _json(folder / "config.json")
    except (ModelFileError, UsageError):
        return False


def read_config(folder: Path) -> KokoroConfig:
    """The sizes in `config.json`. Raises `ModelFileError`, `UsageError` when there is no such file."""
    path = folder / "config.json"
    return KokoroConfig.from_dict(_json(path), str(path))


def find_weights(folder: Path) -> Path:
    """The one file of weights in `folder`. Raises `UsageError` when there is none, or several of other names."""
    for name in WEIGHT_NAMES:
        if (folder / name).is_file():
            return folder / name
    found = sorted(path for kind in ("*.safetensors", "*.pth") for path in folder.glob(kind))
    if len(found) != 1:
        what = f"several files of weights: {', '.join(path.name for path in found)}" if found else "no file of weights"
        raise UsageError(f"{folder} holds {what}; it needs one, {' or '.join(WEIGHT_NAMES)}")
    return found[0]


def load_checkpoint(path: Path, config: KokoroConfig) -> Kokoro:
    """The model with the weights of a `.pth` or `.safetensors` file, float32 on the CPU. Raises `ModelFileError`."""
    tensors = flat(read_safetensors(path) if path.suffix.lower() == ".safetensors" else read_torch(path), path)
    if any(name.endswith(".scales") for name in tensors):
        raise ModelFileError(f"{path}: quantised for MLX, which is not read; use the files of hexgrad/Kokoro-82M")
    try:
        state = state_from_checkpoint(tensors, config)
    except RuntimeError as error:  # shapes of weight norm that do not fit each other
        raise ModelFileError(f"{path}: {first_line(error)}") from None
    return build(config, state, str(path))


def build(config: KokoroConfig, state: Mapping[str, Tensor], where: str) -> Kokoro:
    """The model with `state`, its own names, as parameters: nothing is copied.

    Raises `ModelFileError` listing what is missing, not known or of another shape.
    """
    with torch.device("meta"):
        model = Kokoro(config)
    wanted = dict(model.state_dict())
    shapes = [f"{name} {tuple(state[name].shape)} instead of {tuple(like.shape)}" for name, like in wanted.items()
              if name in state and state[name].shape != like.shape]
    problems = [f"{what} {len(some)}: {', '.join(some[:5])}{', …' if len(some) > 5 else ''}" for what, some in (
        ("missing", sorted(wanted.keys() - state.keys())), ("not known", sorted(state.keys() - wanted.keys())),
        ("misshapen", shapes)) if some]
    if problems:
        raise ModelFileError(f"{where}: tensors {'; '.join(problems)}")
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(False).eval()


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of the file, mapped, not copied. Raises `ModelFileError`, `UsageError` when it cannot be opened."""
    from safetensors import SafetensorError, safe_open

    _check_readable(path)
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError) as error:
        raise ModelFileError(f"{path}: not a whole safetensors file ({first_line(error)})") from None


def read_torch(path: Path):
    """What `torch.save` wrote: plain data and tensors, mapped. Raises as `read_safetensors` does.

    Only the zip format is read, with its entries stored as they are: there the bounds of every tensor are checked.
    """
    _check_readable(path)
    try:
        with zipfile.ZipFile(path) as archive:
            plain = all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
        if not plain:
            raise ModelFileError(f"{path}: compressed by another program; download it again")
        return torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
    except DAMAGED as error:
        raise ModelFileError(f"{path}: not a whole PyTorch file of tensors ({first_line(error)})") from None


def first_line(error: BaseException) -> str:
    """torch and safetensors explain at length; the first sentence says what is wrong."""
    lines = str(error).strip().splitlines()
    return lines[0].split(". ")[0][:120].rstrip(".") if lines else type(error).__name__


def flat(tensors, path: Path) -> dict[str, Tensor]:
    """Names joined by dots, from flat or nested dicts of tensors, without a prefix that all names share.

    Raises `ModelFileError` for anything else.
    """
    found: dict[str, Tensor] = {}
    stack = [("", tensors, 0)]
    while stack:
        prefix, value, depth = stack.pop()
        if isinstance(value, Mapping) and depth < 4:
            stack += [(f"{prefix}.{key}" if prefix else str(key), inner, depth + 1) for key, inner in value.items()]
        elif isinstance(value, Tensor) and prefix and value.layout == torch.strided and not value.is_meta:
            found[prefix] = value
        else:
            raise ModelFileError(f"{path}: {prefix or 'the file'} is {type(value).__name__}, not a tensor")
    tops = {name.split(".")[0] for name in found}
    if len(tops) == 1 and not tops & _PARTS:
        found = {name.partition(".")[2]: tensor for name, tensor in found.items()}
    return found


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise ModelFileError(f"{path}: the file is empty; download it again")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


def _json(path: Path) -> dict:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; a Kokoro checkpoint needs its config.json") from None
    try:
        config = json.loads(raw) if len(raw) <= _MAX_CONFIG_BYTES else None
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise ModelFileError(f"{path}: not a JSON object")
    return config
