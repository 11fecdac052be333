"""`tts convert FOLDER -o DIR`: a published checkpoint to the two GGUF files."""

from pathlib import Path
from typing import Annotated

import typer

from tts_cli.cli import options as o
from tts_cli.cli.console import Console

Folder = Annotated[Path, typer.Argument(
    metavar="FOLDER", help="Checkpoint folder: config.json, *.safetensors, tokenizer files, speech_tokenizer/")]
OutputFolder = Annotated[Path, typer.Option(
    "--output", "-o", metavar="DIR", help="Folder for the two files, made when missing", rich_help_panel="Output")]
Type = Annotated[str, typer.Option(
    "--type", metavar="f32|f16|bf16|q8_0|q4_0|...", rich_help_panel="Output",
    help="Weight type: what the gguf package can quantise to")]


def convert(
    folder: Folder, *, output: OutputFolder, type: Type = "q8_0",
    quiet: o.Quiet = False, verbose: o.Verbose = False,
) -> None:
    """Convert a Qwen3-TTS checkpoint folder into talker and mmproj GGUF files that llama.cpp opens too."""
    from tts_cli.qwen3tts.convert import convert as convert_checkpoint

    console = Console(quiet, verbose)
    with console.byte_progress("converting") as progress:
        talker, mmproj = convert_checkpoint(folder, output, type, progress=progress)
    for path in (talker, mmproj):
        console.note(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
