"""`--config NAME|FILE.toml`: options from a file, as defaults that the command line overrides."""

import typing
from pathlib import Path

import typer

import tts_cli
from tts_cli.errors import UsageError

# An installed package carries the presets inside; a source tree has them beside it.
PRESET_FOLDERS = (Path(tts_cli.__file__).parent / "configs", Path(tts_cli.__file__).parent.parent / "configs")
NOT_IN_A_CONFIG = {"config", "version", "help"}
# Files that belong to the setup are found from the config's folder; what is read or written per run is not.
RELATIVE_TO_THE_CONFIG = {"model", "mmproj", "speaker_file"}
_KIND_NAMES = {str: "a string", bool: "true or false", int: "a whole number", float: "a number"}


def presets() -> dict[str, Path]:
    """Preset names and their files."""
    return {path.stem: path for folder in reversed(PRESET_FOLDERS) for path in sorted(folder.glob("*.toml"))}


def find_config(given: str) -> Path:
    """A preset's name or a path to a file. Raises `UsageError` listing the presets."""
    path = Path(given).expanduser()
    if path.is_file():
        return path
    if given in (known := presets()):
        return known[given]
    raise UsageError(f"--config {given}: no such file, and the presets are {', '.join(sorted(known))}")


def use_config(ctx: typer.Context, given: str | None) -> str | None:
    """Option callback (eager): make the file's values the defaults of the running command.

    Raises `UsageError` for a file that is not TOML, an unknown key or a value of the wrong type.
    """
    if given is None or ctx.resilient_parsing:
        return given
    path = find_config(given)
    root = ctx.find_root().command
    known = {**_options(root), **_options(ctx.command)}
    kinds = {**_kinds(root), **_kinds(ctx.command)}
    mine = {parameter.name for parameter in ctx.command.params}
    defaults = {}
    for key, value in _read(path).items():
        name = known.get(key.replace("_", "-"))
        if name is None:
            allowed = ", ".join(sorted(known))
            raise UsageError(f"{path}: unknown key {key!r}; a config may hold {allowed}")
        value = _checked(path, key, value, kinds[name])
        if name in RELATIVE_TO_THE_CONFIG:
            value = str(path.parent / Path(value).expanduser())
        if name in mine:
            defaults[name] = value
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return given


def _read(path: Path) -> dict:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a TOML file: {error}") from None


def _options(command) -> dict[str, str]:
    """Option names without dashes in front (also the one-letter ones a person knows, like hf) -> parameter name."""
    return {flag.lstrip("-"): parameter.name for parameter in command.params for flag in parameter.opts
            if flag.startswith("--") and parameter.name not in NOT_IN_A_CONFIG}


def _kinds(command) -> dict[str, type]:
    if command.callback is None:
        return {}
    return {name: next(kind for kind in (typing.get_args(hint) or (hint,)) if kind is not type(None))
            for name, hint in typing.get_type_hints(command.callback).items() if name != "return"}


def _checked(path: Path, key: str, value, kind: type):
    fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise UsageError(f"{path}: {key} = {value!r} is not {_KIND_NAMES[kind]}")
    return value
