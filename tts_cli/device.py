"""Where to compute and in which precision: what a person asks for, against what this machine has."""

import torch

from tts_cli.errors import UsageError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def resolve_device(name: str) -> torch.device:
    """auto, cpu, cuda, cuda:N or mps. Only auto falls back. Raises `UsageError` for what this machine lacks."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}.get(kind)
    if count is None or (index and not (kind == "cuda" and index.isascii() and index.isdigit())):
        raise UsageError(f"device: {name!r} is not one of auto, cpu, cuda, cuda:N, mps")
    if int(index or 0) >= count:
        raise UsageError(f"device: {name} is not available here ({count} {kind} devices found); try --device auto")
    return torch.device(name)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """auto is bfloat16 where the hardware multiplies it natively, else float32. Raises `UsageError`."""
    if name == "auto":
        native = device.type == "cuda" and torch.cuda.is_bf16_supported() or (
            device.type == "cpu" and torch.cpu._is_avx512_bf16_supported())
        return torch.bfloat16 if native else torch.float32
    if name not in DTYPES:
        raise UsageError(f"dtype: {name!r} is not one of auto, {', '.join(DTYPES)}")
    return DTYPES[name]
