"""Where this system keeps a program's files for a person; the XDG variables come first, everywhere."""

import os
import sys
from pathlib import Path

_NAME = "tts-cli"


def cache_folder() -> Path:
    """For what can be made again."""
    return _folder("XDG_CACHE_HOME", "LOCALAPPDATA", ("AppData", "Local"), ("Library", "Caches"), (".cache",))


def config_folder() -> Path:
    """For settings."""
    return _folder("XDG_CONFIG_HOME", "APPDATA", ("AppData", "Roaming"), ("Library", "Application Support"),
                   (".config",))


def data_folder() -> Path:
    """For what a person made and wants kept."""
    return _folder("XDG_DATA_HOME", "APPDATA", ("AppData", "Roaming"), ("Library", "Application Support"),
                   (".local", "share"))


def _folder(variable: str, windows_variable: str, windows: tuple, mac: tuple, others: tuple) -> Path:
    if given := os.environ.get(variable):
        return Path(given) / _NAME
    if os.name == "nt":
        return Path(os.environ.get(windows_variable) or Path.home().joinpath(*windows)) / _NAME
    return Path.home().joinpath(*(mac if sys.platform == "darwin" else others)) / _NAME
