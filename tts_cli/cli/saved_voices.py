"""`tts voices save|rename|remove|export|import`: voices a person keeps; for Base models of Qwen3-TTS."""

import hashlib
from pathlib import Path
from typing import Annotated

import typer

from tts_cli.audio import shown
from tts_cli.cli import options as o
from tts_cli.cli.console import Console
from tts_cli.cli.sources import locate_pair, read_ref_text
from tts_cli.engine import SpeechRequest
from tts_cli.errors import UsageError
from tts_cli.files import whole_file
from tts_cli.manner import Manner
from tts_cli.model_choice import ModelChoice

Name = Annotated[str, typer.Argument(metavar="NAME", help="A saved voice")]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="What to call it: letters, digits, spaces and . + - _")]
Clip = Annotated[str | None, typer.Option(
    "--speaker-file", "--tts-speaker-file", metavar="CLIP", help="The recording, a few seconds of clean speech",
    show_default="(needed)")]
File = Annotated[str, typer.Argument(metavar="FILE.safetensors", help="A voice file")]


def save(
    ctx: typer.Context, name: NewName, *, speaker_file: Clip = None, ref_text: o.RefText = None,
    ref_text_file: o.RefTextFile = None, trim_ref: o.TrimRef = False, lang: o.Lang = "auto", config: o.Config = None,
    model: o.Model = None, mmproj: o.Mmproj = None, hf_repo: o.HfRepo = None, device: o.Device = "auto",
    threads: o.Threads = None, quiet: o.Quiet = False, verbose: o.Verbose = False,
) -> None:
    """Keep the voice of a recording under a name, for --voice: its numbers, not the sound."""
    console = Console(quiet, verbose)
    if speaker_file is None:
        raise UsageError("say whose voice: --speaker-file CLIP")
    from tts_cli import voice_store

    voice_store.path_of(name, new=True)
    manner = Manner(SpeechRequest("", language=lang), speaker_file, trim_ref=trim_ref,
                    ref_text=read_ref_text(ctx, ref_text, ref_text_file))
    clip = manner.read_clip(console)
    engine = ModelChoice(locate_pair(ctx, model, mmproj, hf_repo), device, "auto", threads, None).open(console)
    manner.check_cloning(engine)
    with o.flags_named():
        engine.check(SpeechRequest("a", language=lang))
    voice = engine.voice_from_clip(clip, name, manner.ref_text)
    digest = hashlib.sha256(clip.tobytes()).hexdigest()
    path = voice_store.save(voice, source=Path(speaker_file).name, source_sha256=digest, language=lang)
    console.note(f"{shown(path)}: --voice {name} speaks with it")


def rename(name: Name, new: NewName) -> None:
    """Give a saved voice another name."""
    from tts_cli import voice_store

    voice_store.rename(name, new)


def remove(name: Name) -> None:
    """Delete a saved voice."""
    from tts_cli import voice_store

    voice_store.remove(name)


def export(name: Name, file: File) -> None:
    """Copy a saved voice to a file, to take it elsewhere."""
    from tts_cli import voice_store

    source = voice_store.path_of(name)
    if Path(file).exists():
        raise UsageError(f"{shown(file)}: is there already; give another name")
    with whole_file(file) as target:
        target.write(source.read_bytes())


def import_(file: File, name: Annotated[str | None, typer.Argument(
        metavar="[NAME]", help="What to call it", show_default="the file's name")] = None) -> None:
    """Take a voice file in among the saved ones."""
    from tts_cli import voice_store

    print(voice_store.add(file, name))
