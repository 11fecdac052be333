"""Sound devices: which there are, which one a name means, and one line when there is none.

PortAudio is reached through sounddevice, which initialises it at import: imported here, inside functions, and nowhere
at import of this package.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType

from tts_cli.errors import TtsError, UsageError

_INSTEAD = "or write a file: -o speech.wav"
_PACKAGES = {
    "linux": "apt install libportaudio2 (Debian, Ubuntu) or dnf install portaudio (Fedora)",
    "darwin": "brew install portaudio, or pip install --force-reinstall sounddevice, which brings it",
    "win32": "pip install --force-reinstall sounddevice, which brings it",
}


@dataclass(frozen=True)
class Device:
    """An output device as PortAudio lists it; the same hardware appears once per host API."""

    index: int
    name: str
    host_api: str
    channels: int  # the most it takes
    default_rate: int  # Hz
    is_default: bool


def sound_library() -> ModuleType:
    """The sounddevice module. Raises `TtsError` naming the package when it or PortAudio is not installed."""
    try:
        import sounddevice
    except ModuleNotFoundError as error:
        raise TtsError(f"playing needs the package sounddevice: pip install sounddevice; {_INSTEAD}") from error
    except OSError as error:  # sounddevice looks for the shared library while it is imported
        package = _PACKAGES.get(sys.platform, "PortAudio from the system's packages, usually called portaudio")
        raise TtsError(f"playing needs the PortAudio library: {package}; {_INSTEAD}") from error
    except Exception as error:  # PortAudioError cannot be named here: it lives in the module that failed to import
        if type(error).__name__ != "PortAudioError":
            raise
        raise TtsError(f"PortAudio does not start: {one_line(error)}; {_INSTEAD}") from error
    return sounddevice


def output_devices() -> list[Device]:
    """All devices that can play, in PortAudio's order. Raises `TtsError` when PortAudio is missing."""
    sd = sound_library()
    try:
        hosts = [host["name"] for host in sd.query_hostapis()]
        default = sd.default.device[1]
        return [Device(d["index"], d["name"], hosts[d["hostapi"]], d["max_output_channels"],
                       int(d["default_samplerate"]), d["index"] == default)
                for d in sd.query_devices() if d["max_output_channels"] > 0]
    except sd.PortAudioError as error:
        raise TtsError(f"cannot list the sound devices: {one_line(error)}; {_INSTEAD}") from error


def find_output_device(device: str | int | None) -> Device:
    """The device meant by an index, a name or a part of a name in any case; None is the system's default.

    "NAME, HOST API" chooses between equal names; without it the default device's host API wins. Raises `TtsError` when
    nothing can play and `UsageError`, with the list, for an unknown or ambiguous name.
    """
    devices = output_devices()
    if not devices:
        raise TtsError(f"there is no sound device to play on; connect one {_INSTEAD}")
    default = next((d for d in devices if d.is_default), devices[0])
    if device is None:
        return default
    word = str(device).strip()
    if word.isdecimal():
        found = [d for d in devices if d.index == int(word)]
    else:
        found = _by_name(word, devices)
        if len(found) > 1:
            found = [d for d in found if d.host_api == default.host_api] or found
    if len(found) == 1:
        return found[0]
    problem = f"{word!r} fits several output devices" if found else f"there is no output device {word!r}"
    names = "; ".join(f"{d.index}: {d.name}, {d.host_api}" for d in found or devices)
    raise UsageError(f"{problem}, choose one of {names}")


def check_output_device(device: str | int | None) -> None:
    """Refuse, before a model is read, a device that cannot be found. Raises as `find_output_device` does."""
    find_output_device(device)


def one_line(error: Exception) -> str:
    """What PortAudio said; a PortAudioError prints as a tuple of text, code and host error."""
    return " ".join(str(error.args[0] if error.args else error).split())


def _by_name(word: str, devices: list[Device]) -> list[Device]:
    """The devices of the first rule that fits any: the exact name, the name in any case, a part of it."""
    folded = word.casefold()
    if not folded:
        return []
    rules = (lambda d: word in (d.name, f"{d.name}, {d.host_api}"),
             lambda d: folded in (d.name.casefold(), f"{d.name}, {d.host_api}".casefold()),
             lambda d: folded in f"{d.name}, {d.host_api}".casefold())
    for rule in rules:
        found = [d for d in devices if rule(d)]
        if found:
            return found
    return []
