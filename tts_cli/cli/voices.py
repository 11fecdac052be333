"""`tts voices …`: the voices a model knows by name, and those a person keeps."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from tts_cli.cli import options as o
from tts_cli.cli import saved_voices
from tts_cli.cli.console import Console
from tts_cli.cli.sources import locate_pair
from tts_cli.engine import SpeechRequest
from tts_cli.errors import UsageError
from tts_cli.kokoro.packages import INSTALL, is_installed
from tts_cli.model_choice import ModelChoice

app = typer.Typer(help="List, describe, try and keep voices.", no_args_is_help=True)
for verb in (saved_voices.save, saved_voices.rename, saved_voices.remove, saved_voices.export):
    app.command()(verb)
app.command("import")(saved_voices.import_)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A voice that `tts voices list` shows")]
Voice = Annotated[str, typer.Argument(metavar="NAME|MIX|FILE", help="A voice, a mix of voices, or a voice file")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON array", show_default="off")]

_LANGUAGES = {"a": "American English", "b": "British English", "e": "Spanish", "f": "French", "h": "Hindi",
              "i": "Italian", "j": "Japanese", "p": "Brazilian Portuguese", "z": "Chinese"}
_SEXES = {"f": "female", "m": "male"}
SAMPLE = "Hello! This is how I sound when I read a sentence or two. Shall we begin?"


@app.command("list")
def list_(
    ctx: typer.Context, *, json: Json = False, config: o.Config = None, model: o.Model = None, mmproj: o.Mmproj = None,
    hf_repo: o.HfRepo = None,
) -> None:
    """Print the names, one a line, with the language each was made for."""
    engine = _open(ctx, model, mmproj, hf_repo)
    voices, damaged = [], []
    for name in engine.voice_names:
        try:
            voices.append(_facts(engine, name))
        except UsageError as error:  # one bad file must not hide the others
            damaged.append(str(error))
    for problem in damaged:
        Console().warning(problem)
    if json:
        print(json_module.dumps(voices, ensure_ascii=False, indent=2))
        return
    if not voices:
        raise UsageError(f"this model knows no voices by name; {_where_voices_are(engine)}")
    width = max(len(voice["name"]) for voice in voices)
    for voice in voices:
        described = ", ".join(voice[key] for key in ("language", "sex") if voice[key])
        print(f"{voice['name']:<{width}}  {described}{'  (default)' if voice['default'] else ''}".rstrip())
    if engine.default_clip is None and (saved := _saved()):
        Console().note(f"saved, for the Base models they were made with (-m TALKER.gguf): {', '.join(saved)}")


def _where_voices_are(engine) -> str:
    if engine.default_clip is not None:
        return "it speaks with those that `tts voices save` keeps"
    installed = "" if is_installed() else f", once they are installed: {INSTALL}"
    return f"the built-in voices do (-m builtin{installed})"


def _saved() -> list[str]:
    from tts_cli import voice_store

    return voice_store.names()


@app.command()
def info(
    ctx: typer.Context, name: Name, *, config: o.Config = None, model: o.Model = None, mmproj: o.Mmproj = None,
    hf_repo: o.HfRepo = None,
) -> None:
    """Print what is known of one voice."""
    engine = _open(ctx, model, mmproj, hf_repo)
    if name not in engine.voice_names:
        if name in _saved():
            raise UsageError(f"{name!r} is a saved voice: name the Base model that it is for, too (-m TALKER.gguf)")
        there_are = ", ".join(engine.voice_names) or f"none, but {_where_voices_are(engine)}"
        raise UsageError(f"voice: {name!r} is unknown; there are {there_are}")
    for key, value in _facts(engine, name).items():
        if value not in (None, ""):
            print(f"{key:<10}{'yes' if value is True else 'no' if value is False else value}")


@app.command()
def preview(
    ctx: typer.Context, voice: Voice, *, output: o.Output = None, format: o.Format = None, speed: o.Speed = 1.0,
    seed: o.Seed = None, config: o.Config = None, model: o.Model = None, mmproj: o.Mmproj = None,
    hf_repo: o.HfRepo = None, device: o.Device = "auto", threads: o.Threads = None, quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> int:
    """Speak a sample with a voice, aloud or into a file."""
    from tts_cli.background import Worker
    from tts_cli.cli.console import one_interrupt
    from tts_cli.cli.run import ready, speak_text
    from tts_cli.cli.sinks import Outputs
    from tts_cli.cli.sources import chosen_voice
    from tts_cli.manner import Manner

    console = Console(quiet, verbose)
    choice = ModelChoice(locate_pair(ctx, model, mmproj, hf_repo), device, "auto", threads, None)
    name, file, _ = chosen_voice(ctx, voice, None, False)
    with o.flags_named():
        manner = Manner(SpeechRequest("", voice=name, speed=speed, seed=seed), voice_file=file)
    outputs = Outputs(output, format, play=output is None).checked([file])
    with one_interrupt(), Worker() as worker:
        engine = worker.call(ready, choice, manner, SAMPLE, outputs, console)
        manner = worker.call(manner.voiced, engine, None, console)
        return speak_text(engine, worker, manner, SAMPLE, outputs, console)


def _open(ctx: typer.Context, model: str | None, mmproj: str | None, hf_repo: str | None):
    choice = ModelChoice(locate_pair(ctx, model, mmproj, hf_repo), "cpu", "float32", None, None)
    return choice.open(Console(quiet=True))


def _facts(engine, name: str) -> dict:
    """Name, language and sex as the name tells them, the file, and whether it is the one spoken with by default."""
    voices = getattr(engine, "voices", None)
    if voices is None and engine.default_clip is not None:  # saved ones, of a model that clones
        from tts_cli import voice_store

        about = voice_store.about(name)
        described = {key: about.get(key) for key in ("model", "ref_text", "source", "created")}
        return {"name": name, "language": about.get("language", ""), "sex": "", "default": False,
                "file": str(voice_store.path_of(name)), **described}
    if voices is None:  # named speakers inside a talker
        return {"name": name, "language": "", "sex": "", "default": False, "file": str(Path(engine.paths[0]))}
    language, sex = (name[:2] if name[2:3] == "_" else "  ")
    return {"name": name, "language": _LANGUAGES.get(language, ""), "sex": _SEXES.get(sex, ""),
            "default": name == voices.default, "file": str(voices.path(name))}
