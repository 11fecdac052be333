"""`tts config set|get|unset|list|path`: options that every later run takes as its defaults."""

from pathlib import Path
from typing import Annotated

import typer

from tts_cli.cli.config import keys
from tts_cli.cli.console import Console
from tts_cli.errors import UsageError
from tts_cli.flags import FLAGS, flags_named
from tts_cli.loading import NAMES
from tts_cli.model_choice import check_threads
from tts_cli.settings import settings_file, user_settings, write_settings

app = typer.Typer(help="Keep options as defaults of every run.", no_args_is_help=True)

Key = Annotated[str, typer.Argument(metavar="KEY", help="An option's long name without the dashes: model, voice, ...")]
Value = Annotated[str, typer.Argument(metavar="VALUE", help="What it is to be")]

# What belongs to one run.
_PER_RUN = {"prompt", "file", "output", "format", "dump_codes", "srt", "vtt", "timestamps", "lines", "output_dir",
            "list_devices", "explain", "phonemes", "from_phonemes", "play", "max_frames", "no_voice"}
_FILES = {"model", "mmproj", "speaker_file"}
_REPLACED = {"model": ("hf-repo", "mmproj"), "hf-repo": ("model", "mmproj")}  # what goes when a model is set


@app.command("set")
def set_(ctx: typer.Context, key: Key, value: Value) -> None:
    """Keep a value; it holds until it is unset, and the command line and --config win over it."""
    key, name, kind = _known(ctx, key)
    values = {known: old for known, old in user_settings().items() if known not in _REPLACED.get(key, ())}
    write_settings({**values, key: _read(key, name, kind, value)})


@app.command()
def get(ctx: typer.Context, key: Key) -> None:
    """Print a value that is kept."""
    key, _, _ = _known(ctx, key)
    values = user_settings()
    if key not in values:
        raise UsageError(f"{key} is not set; tts config list shows what is")
    print(_shown(values[key]))


@app.command()
def unset(ctx: typer.Context, key: Key) -> None:
    """Forget a value."""
    values = user_settings()
    key = key.replace("_", "-")
    if key not in values:
        raise UsageError(f"{key} is not set; tts config list shows what is")
    write_settings({known: value for known, value in values.items() if known != key})


@app.command("list")
def list_() -> None:
    """Print all values that are kept, one a line."""
    for key, value in (values := user_settings()).items():
        print(f"{key} = {_shown(value)}")
    if not values:
        Console().note("nothing is kept; tts config set KEY VALUE keeps an option")


@app.command()
def path() -> None:
    """Print where they are kept; the file may be edited, too."""
    print(settings_file())


def _known(ctx: typer.Context, key: str) -> tuple[str, str, type]:
    """(key as it is kept, parameter, kind). Raises `UsageError` listing what can be kept."""
    found = {known: rule for known, rule in keys(ctx.find_root().command).items() if rule[0] not in _PER_RUN}
    key = key.removeprefix("--").replace("_", "-")
    if key not in found:
        raise UsageError(f"{key!r} cannot be kept; there are {', '.join(sorted(found))}")
    return key, *found[key]


def _read(key: str, name: str, kind: type, value: str):
    """The value as the option's kind, checked as far as that needs no model. Raises `UsageError`."""
    if name in _FILES and value not in NAMES:
        file = Path(value).expanduser()
        if not file.exists():
            raise UsageError(f"{key}: {value}: no such file")
        return str(file.resolve())
    try:
        read = {"true": True, "on": True, "false": False, "off": False}[value.lower()] if kind is bool else kind(value)
    except (ValueError, KeyError):
        looks = {bool: "on or off", int: "a whole number", float: "a number"}[kind]
        raise UsageError(f"{key}: {value!r} is not {looks}") from None
    with flags_named():
        _check(key, name, read)
    return read


def _check(key: str, name: str, value) -> None:
    """Refuse what no run could use. Raises `UsageError`."""
    from tts_cli.cli.options import parse_chunk_frames
    from tts_cli.engine import SpeechRequest
    from tts_cli.manner import Manner

    field = next((field for field, flag in FLAGS.items() if flag == f"--{key}"), None)
    if name == "threads":
        check_threads(value)
    elif name == "device":
        from tts_cli.device import resolve_device  # imports torch

        resolve_device(value)
    elif name == "dtype":
        from tts_cli.device import resolve_device, resolve_dtype

        resolve_dtype(value, resolve_device("cpu"))
    elif name == "voice":
        _check_voice(value)
    elif name in ("max_chars", "gap"):
        Manner(SpeechRequest(""), **{name: value}).pieces("a")
    elif name == "chunk_frames":
        SpeechRequest("", chunk_frames=parse_chunk_frames(value))
    elif field is not None and hasattr(SpeechRequest, field):
        SpeechRequest("", **{field: value})


def _check_voice(voice: str) -> None:
    """Refuse a file that is not there, and a name that the model that is kept does not know."""
    from tts_cli.loading import open_engine
    from tts_cli.manner import name_or_file

    name, file = name_or_file(voice)
    if file is not None and not file.is_file():
        raise UsageError(f"voice: {voice}: no such file")
    if name is not None and "hf-repo" not in user_settings():  # which may have to be downloaded first
        open_engine(device="cpu").voice_paths(name)


def _shown(value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
