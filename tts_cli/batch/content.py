"""What files hold, in a few bytes: so that a row knows whether what it sounds like has changed."""

import hashlib
from pathlib import Path

from tts_cli.engine import Engine
from tts_cli.errors import UsageError
from tts_cli.loading import BUILTIN
from tts_cli.model_choice import ModelChoice

_BLOCK = 1 << 20
_SAMPLES, _SAMPLE_BYTES = 256, 4096


def file_sha256(path: str | Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def input_digest(path: str | Path) -> str:
    """Of a file that somebody named. Raises `UsageError` when it is none that can be read."""
    try:
        if not Path(path).is_file():  # a pipe would be waited for, for ever
            raise UsageError(f"{path}: {'is not a file' if Path(path).exists() else 'no such file'}")
        return file_sha256(path)
    except (OSError, ValueError) as error:  # ValueError: a character that no name can have
        raise UsageError(f"{str(path)!r}: {getattr(error, 'strerror', None) or error}") from None


def model_identity(choice: ModelChoice, engine: Engine) -> list:
    """What tells models apart, wherever they lie and whatever they are called: sizes and samples of their files."""
    if choice.named().pair == (BUILTIN, None):
        from tts_cli.kokoro.packages import SHA256

        return [BUILTIN, SHA256]
    return [_sampled(path) for path in engine.paths]


def _sampled(path: Path) -> str:
    """A digest of 256 blocks spread evenly over a file: gigabytes need not be read to notice another training."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for number in range(_SAMPLES):
            file.seek(max(0, size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]
