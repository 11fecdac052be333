"""nano: a very small Qwen3-TTS pair of one English voice that comes with the package, see training/README.md."""

from pathlib import Path

_FOLDER = Path(__file__).parent
TALKER, MMPROJ = _FOLDER / "nano-Q8_0.gguf", _FOLDER / "mmproj-nano-Q8_0.gguf"
