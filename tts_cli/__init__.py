"""Local speech synthesis: Qwen3-TTS from GGUF files.

The names below are the public interface. They are loaded on first use, so that `import tts_cli` (and with it
`tts --help`) costs nothing.
"""

from importlib import import_module

_PUBLIC = {
    "load_engine": "tts_cli.loading",
    "Engine": "tts_cli.engine",
    "SpeechRequest": "tts_cli.engine",
    "AudioChunk": "tts_cli.engine",
    "Speech": "tts_cli.engine",
    "SpeechResult": "tts_cli.engine",
    "CancelToken": "tts_cli.engine",
    "Voice": "tts_cli.voices",
    "TtsError": "tts_cli.errors",
    "UsageError": "tts_cli.errors",
    "ModelFileError": "tts_cli.errors",
}

__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str):
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    if name == "__version__":
        return _version()
    raise AttributeError(f"module 'tts_cli' has no attribute {name!r}")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tts-cli")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"


def __dir__():
    return sorted(__all__)
