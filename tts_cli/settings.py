"""What a person set once for every run: a TOML file in the folder for configuration, option names as keys."""

import os
import re
import secrets
from pathlib import Path

from tts_cli.errors import TtsError, UsageError
from tts_cli.folders import config_folder


def settings_file() -> Path:
    return config_folder() / "config.toml"


def user_settings() -> dict:
    """Keys, with dashes, and their values; empty without a file. Raises `UsageError` for a file that is not TOML."""
    path = settings_file()
    values = read_toml(path) if path.is_file() else {}
    return {key.replace("_", "-"): value for key, value in values.items()}


def read_toml(path: Path) -> dict:
    """Keys and values as they are written. Raises `UsageError`."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except RecursionError:
        raise UsageError(f"{path} is not a TOML file of options: it is nested too deeply") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        escaped = "escape" in str(error) or "hex" in str(error).lower()  # a Windows path in double quotes
        hint = "; write a path with / or in single quotes: 'C:\\models\\talker.gguf'" if escaped else ""
        raise UsageError(f"{path} is not a TOML file: {error}{hint}") from None


def write_settings(values: dict[str, str | int | float | bool]) -> None:
    """Replace the file; without values it goes. Raises `TtsError`."""
    path = settings_file()
    temporary = path.with_name(f".config-{secrets.token_hex(8)}.part")
    try:
        if not values:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text("".join(f"{key} = {_literal(value)}\n" for key, value in values.items()), encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise TtsError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _literal(value: str | int | float | bool) -> str:
    """A TOML value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    escaped = re.sub(r'[\\"\x00-\x1f\x7f]', lambda match: f"\\u{ord(match[0]):04x}", value)
    return f'"{escaped}"'
