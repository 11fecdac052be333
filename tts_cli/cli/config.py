"""`--config NAME|FILE.toml`: options from a file, as defaults that the command line overrides."""

import difflib
import typing
from collections.abc import Mapping
from pathlib import Path

import typer

import tts_cli
from tts_cli.audio import shown
from tts_cli.errors import UsageError
from tts_cli.loading import NAMES
from tts_cli.settings import read_toml, settings_file

# An installed package carries the presets inside; a source tree has them beside it.
PRESET_FOLDERS = (Path(tts_cli.__file__).parent / "configs", Path(tts_cli.__file__).parent.parent / "configs")
NOT_IN_A_CONFIG = {"config", "version", "help"}
# Files that belong to the setup are found from the config's folder; what is read or written per run is not.
RELATIVE_TO_THE_CONFIG = {"model", "mmproj", "speaker_file"}
MODEL_NAMES = {"model", "hf_repo"}
GO_WITH_THE_MODEL = {*MODEL_NAMES, "mmproj", "voice"}
_SETTINGS = "tts_cli.settings"
_UNUSABLE = "tts_cli.unusable"
_KIND_NAMES = {str: "a string", bool: "true or false", int: "a whole number", float: "a number"}


def presets() -> dict[str, Path]:
    """Preset names and their files."""
    return {path.stem: path for folder in reversed(PRESET_FOLDERS) for path in sorted(folder.glob("*.toml"))}


def find_config(given: str) -> Path:
    """A preset's name or a path to a file. Raises `UsageError` listing the presets."""
    try:
        path = Path(given).expanduser()
        if path.exists() and not path.is_dir():  # a pipe will do
            return path
    except (OSError, RuntimeError, ValueError) as error:  # ~ of nobody, a name too long, a closed folder
        raise UsageError(f"--config {shown(given)}: {getattr(error, 'strerror', None) or error}") from None
    if given in (known := presets()):
        return known[given]
    raise UsageError(f"--config {shown(given)}: no such file, and the presets are {', '.join(sorted(known))}")


def use_config(ctx: typer.Context, given: str | None) -> str | None:
    """Option callback (eager): make what `tts config set` keeps, and over it the file's values, the defaults of the
    running command. Returns the path of the file.

    Raises `UsageError` for a file that is not TOML, an unknown key or a value of the wrong type; of what is kept, not
    before it is known that no verb follows (`check_settings`), for one of them mends it.
    """
    if ctx.resilient_parsing:
        return given
    try:
        settings = _defaults(ctx, settings_file()) if settings_file().is_file() else {}
    except UsageError as error:
        if ctx.parent is not None:
            raise
        ctx.meta[_UNUSABLE], settings = error, {}
    path = None if given is None else str(find_config(given))
    values = {} if path is None else _defaults(ctx, Path(path))
    if values.keys() & MODEL_NAMES:  # another model than the one that is set
        settings = {name: value for name, value in settings.items() if name not in GO_WITH_THE_MODEL}
    ctx.meta[_SETTINGS] = settings.keys() - values.keys()
    files = {**dict.fromkeys(settings, settings_file()), **dict.fromkeys(values, path)}
    _origins(ctx).clear()
    _origins(ctx).update({flag.removeprefix("--"): (files[parameter.name], parameter.opts)
                          for parameter in ctx.command.params if parameter.name in files
                          for flag in parameter.opts if flag.startswith("--")})
    ctx.default_map = {**(ctx.default_map or {}), **settings, **values}
    return path


def check_settings(ctx: typer.Context) -> None:
    """To be called when no verb follows, or one whose options are its own. Raises what `use_config` put off."""
    if ctx.invoked_subcommand is None and _UNUSABLE in ctx.meta:
        raise ctx.meta[_UNUSABLE]
    if ctx.invoked_subcommand is not None:
        _origins(ctx).clear()


def with_origin(message: str, origins: Mapping[str, tuple[str | Path, list[str]]], arguments: list[str]) -> str:
    """The message about a value, with the config that gives it in front if nobody typed it.

    origins  option names without dashes -> the config's path and all flags of the option; what `main` gives the parser
             as its object, and `use_config` fills
    """
    name, colon, rest = message.partition(":")
    path, flags = origins.get(name.removeprefix("--"), (None, ()))
    typed = any(word.partition("=")[0] == flag or (word.startswith(flag) and not flag.startswith("--"))
                for word in arguments for flag in flags)
    return message if path is None or typed else f"{path}: {name.removeprefix('--')}{colon}{rest}"


def _origins(ctx: typer.Context) -> dict:
    return ctx.ensure_object(dict)


def is_setting(ctx: typer.Context, name: str) -> bool:
    """Whether the parameter's value comes from `tts config set`, rather than from this run."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "DEFAULT_MAP" and name in ctx.meta.get(_SETTINGS, ())


def check_configured(ctx: typer.Context, name: str, value: str | None) -> None:
    """Refuse a file that is not there by the config that names it: nobody typed the name."""
    source = ctx.get_parameter_source(name)
    if source is None or source.name != "DEFAULT_MAP" or value in (None, *NAMES) or Path(value).exists():
        return
    raise UsageError(f"{_origins(ctx)[name][0]}: {name} is {shown(value)}, and there is no such file")


def _defaults(ctx: typer.Context, path: Path) -> dict:
    """The file's values for parameters of the running command; keys of other commands are checked, too."""
    root = ctx.find_root().command
    known = {**_options(root), **_options(ctx.command)}
    kinds = {**_kinds(root), **_kinds(ctx.command)}
    mine = {parameter.name for parameter in ctx.command.params}
    defaults, seen = {}, {}
    for key, value in read_toml(path).items():
        name = known.get(key.replace("_", "-"))
        if name is None:
            raise UsageError(f"{path}: unknown key {key!r}{_closest(key, known)}; a config may hold "
                             f"{', '.join(sorted(known))}")
        if (other := seen.setdefault(name, key)) != key:
            raise UsageError(f"{path}: {other} and {key} are the same option; keep one of them")
        value = _checked(path, key, value, kinds[name])
        if name in RELATIVE_TO_THE_CONFIG:
            value = value if value in NAMES else _beside(path, key, value)
        if name in mine:
            defaults[name] = value
    return defaults


def _closest(key: str, known) -> str:
    found = difflib.get_close_matches(key.replace("_", "-"), known, 1)
    return f", did you mean {found[0]!r}?" if found else ""


def _beside(path: Path, key: str, value: str) -> str:
    try:
        return str(path.parent / Path(value).expanduser())
    except RuntimeError as error:  # ~ of a person who does not exist
        raise UsageError(f"{path}: {key} = {value!r}: {error}") from None


def keys(command) -> dict[str, tuple[str, type]]:
    """What a config may hold for a command: key -> parameter name and kind."""
    kinds = _kinds(command)
    return {key: (name, kinds[name]) for key, name in _options(command).items()}


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
