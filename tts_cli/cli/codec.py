"""`tts codec decode|embed`: the vocoder and the speaker encoder on their own; both need only the mmproj file."""

from pathlib import Path
from typing import Annotated

import typer

from tts_cli import nano
from tts_cli.audio import shown
from tts_cli.cli import options as o
from tts_cli.cli.console import Console
from tts_cli.cli.npy import read_codes
from tts_cli.errors import UsageError
from tts_cli.files import whole_file
from tts_cli.loading import NANO
from tts_cli.manner import CLIP_RATE, read_voice
from tts_cli.model_choice import use_threads

app = typer.Typer(help="Codes to audio, a recording to an x-vector.")

Codes = Annotated[str, typer.Argument(metavar="CODES.npy", help="Integer array (frames, 16), values 0 to 2047")]
Clip = Annotated[str, typer.Argument(metavar="CLIP", help="Recording of one speaker, any format and rate")]
RequiredMmproj = Annotated[str, typer.Option(
    "--mmproj", "-mm", metavar="MMPROJ.gguf|nano", rich_help_panel="Model",
    help="GGUF with vocoder and speaker encoder", callback=lambda given: str(nano.MMPROJ) if given == NANO else given)]
AudioOutput = Annotated[str, typer.Option(
    "--output", "-o", metavar="FILE|-", help="Audio file to write; - streams WAV to standard output",
    rich_help_panel="Output")]
VectorOutput = Annotated[str, typer.Option(
    "--output", "-o", metavar="XVECTOR.npy", help="Where to write the vector, float32 (hidden,)",
    rich_help_panel="Output")]


@app.command()
def decode(
    codes: Codes, *, mmproj: RequiredMmproj, output: AudioOutput, format: o.Format = None,
    device: o.Device = "auto", threads: o.Threads = None, quiet: o.Quiet = False, verbose: o.Verbose = False,
) -> None:
    """Turn codes (as --dump-codes writes them) into audio: 80 ms per frame."""
    from tts_cli.audio.write import check_output, choose_format, open_writer
    from tts_cli.qwen3tts.codec import open_codec

    console = Console(quiet, verbose)
    format = choose_format(output, format)
    check_output(output, inputs=[Path(codes), Path(mmproj)])
    array = read_codes(Path(codes))
    use_threads(threads)
    codec = open_codec(mmproj, device=device)
    rate = codec.code2wav.config.sample_rate
    samples = 0
    with open_writer(output, format, rate) as writer, console.audio_progress() as progress:
        for chunk in codec.decode(array):
            writer.write(chunk.samples)
            progress.advance(chunk.samples.size / chunk.sample_rate)
            samples += chunk.samples.size
    console.note(f"{shown(output)}: {samples / rate:.2f} s of audio from {len(array)} frames")


@app.command()
def embed(
    clip: Clip, *, mmproj: RequiredMmproj, output: VectorOutput,
    device: o.Device = "auto", threads: o.Threads = None, quiet: o.Quiet = False, verbose: o.Verbose = False,
) -> None:
    """Write the x-vector of a recording: the voice that --speaker-file clones."""
    import numpy as np

    from tts_cli.audio.write import check_output
    from tts_cli.qwen3tts.codec import open_codec

    console = Console(quiet, verbose)
    if Path(output).suffix.lower() != ".npy":
        raise UsageError(f"{shown(output)}: an x-vector is written as NumPy's .npy; give such a name")
    check_output(output, inputs=[Path(clip), Path(mmproj)])
    samples = read_voice(clip, console.warning)
    use_threads(threads)
    codec = open_codec(mmproj, device=device)
    vector = codec.embed(samples)
    with whole_file(output) as file:
        np.save(file, np.asarray(vector, dtype=np.float32))
    console.note(f"{shown(output)}: x-vector of {vector.size} numbers from {len(samples) / CLIP_RATE:.2f} s of audio")
