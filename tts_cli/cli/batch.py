"""`tts batch MANIFEST -o DIR`: many utterances, each done once; the next run goes on where this one ended."""

from pathlib import Path
from typing import Annotated

import typer

from tts_cli.cli import options as o
from tts_cli.cli.console import Console, one_interrupt
from tts_cli.cli.sources import chosen_voice, locate_pair, read_ref_text
from tts_cli.errors import UsageError
from tts_cli.model_choice import ModelChoice

Manifest = Annotated[str, typer.Argument(
    metavar="MANIFEST", help="Rows to speak: .jsonl, .csv or .tsv with columns id, text and any option, or plain text")]
Folder = Annotated[str | None, typer.Option(
    "--output", "-o", metavar="DIR", show_default="(needed)", rich_help_panel="Output",
    help="Folder for ID.EXT of every row and for results.jsonl; the same folder again goes on where it ended")]
By = Annotated[str | None, typer.Option(
    "--by", metavar="line|paragraph|sentence", show_default="line", rich_help_panel="Input",
    help="How plain text is divided into rows")]
Join = Annotated[str | None, typer.Option(
    "--join", metavar="FILE", show_default="none", rich_help_panel="Output",
    help="Also write all rows as one file (.wav .flac .mp3 ...), with FILE.cue, FILE.json and FILE.srt beside it")]
Format = Annotated[str | None, typer.Option(
    "--format", metavar="wav|wav24|wavf32|flac|mp3|ogg|opus|pcm|f32", show_default="wav", rich_help_panel="Output",
    help="Audio format of the rows' files, which tells their extension; wav is 16-bit")]
Seed = Annotated[int | None, typer.Option(
    "--seed", "-s", metavar="N", show_default="of each row its own, from its content", rich_help_panel="Sampling",
    help="Same seed, same bytes (0 or more)")]
Gap = Annotated[float | None, typer.Option(
    "--gap", metavar="SECONDS", rich_help_panel="Long text",
    show_default="0.25, at paragraphs and between rows 0.6, between rows that are sentences 0.25",
    help="Silence between the utterances of a long row, and with --join between rows")]
Retries = Annotated[int, typer.Option(
    "--retries", metavar="N", min=0, max=100, rich_help_panel="Batch",
    help="Try a row that failed or was cut at the automatic limit again, with the next seed")]
Workers = Annotated[int | None, typer.Option(
    "--workers", metavar="N", min=1, max=4096, show_default="1, with --ray as many as fit", rich_help_panel="Batch",
    help="Processes, each with a model of its own; CPU threads are divided among them")]

Ray = Annotated[str | None, typer.Option(
    "--ray", metavar="auto|local|HOST:PORT", show_default="none", rich_help_panel="Batch",
    help="Speak on a Ray cluster, whose machines have the model and the clips under the same paths")]
Cpus = Annotated[float, typer.Option(
    "--cpus-per-worker", metavar="X", min=0.01, rich_help_panel="Batch", help="With --ray: CPUs an engine gets")]
Gpus = Annotated[float, typer.Option(
    "--gpus-per-worker", metavar="X", min=0.0, rich_help_panel="Batch",
    help="With --ray: the part of a GPU an engine gets, 0.25 for four on one")]
AudioTo = Annotated[str | None, typer.Option(
    "--audio-to", metavar="URL|DIR", show_default="-o", rich_help_panel="Output",
    help="Where the workers write the audio: s3://bucket/path or any URL fsspec knows, or a shared folder")]


def batch(
    ctx: typer.Context, manifest: Manifest, *, output: Folder = None, by: By = None, join: Join = None,
    retries: Retries = 0, workers: Workers = None, ray: Ray = None, cpus_per_worker: Cpus = 1.0,
    gpus_per_worker: Gpus = 0.0, audio_to: AudioTo = None,
    config: o.Config = None, model: o.Model = None, mmproj: o.Mmproj = None, hf_repo: o.HfRepo = None,
    device: o.Device = "auto", dtype: o.Dtype = "auto", threads: o.Threads = None, gpu_layers: o.GpuLayers = None,
    lang: o.Lang = "auto", voice: o.Voice = None, speaker_file: o.SpeakerFile = None, ref_text: o.RefText = None,
    ref_text_file: o.RefTextFile = None, trim_ref: o.TrimRef = False, no_voice: o.NoVoice = False,
    instruct: o.Instruct = None, speed: o.Speed = 1.0, from_phonemes: o.FromPhonemes = False,
    text_mode: o.TextMode = None,
    temp: o.Temp = None, top_k: o.TopK = None, top_p: o.TopP = None, repeat_penalty: o.RepeatPenalty = None,
    sub_temp: o.SubTemp = None, sub_top_k: o.SubTopK = None, sub_top_p: o.SubTopP = None,
    greedy: o.Greedy = False, no_greedy: o.NoGreedy = False, seed: Seed = None, max_frames: o.MaxFrames = None,
    max_chars: o.MaxChars = None, gap: Gap = None, format: Format = None,
    quiet: o.Quiet = False, verbose: o.Verbose = False,
) -> int:
    """Speak every row of a manifest into a file of its own; rows that are finished are not spoken again.

    Columns with the names of options below count for their row, and the options for all others. Exit codes: 0 done,
    1 failed, 2 problems in the manifest or the options, 4 some rows failed, 130 interrupted: the same command goes on.
    """
    console = Console(quiet, verbose)
    if output in (None, "", "-"):
        raise UsageError("say where to: -o DIR, a folder for the files of the rows")
    choice = ModelChoice(locate_pair(ctx, model, mmproj, hf_repo), device, dtype, threads, gpu_layers)
    voice, voice_file, speaker_file = chosen_voice(ctx, voice, speaker_file, no_voice)
    defaults = dict(
        voice=voice if voice_file is None else str(voice_file.resolve()),
        speaker_file=None if speaker_file is None else str(Path(speaker_file).resolve()),
        ref_text=read_ref_text(ctx, ref_text, ref_text_file), trim_ref=trim_ref, no_voice=no_voice, lang=lang,
        instruct=instruct, speed=speed, from_phonemes=from_phonemes, text_mode=text_mode, temp=temp, top_k=top_k,
        top_p=top_p, repeat_penalty=repeat_penalty, sub_temp=sub_temp, sub_top_k=sub_top_k, sub_top_p=sub_top_p,
        greedy=o.chosen_greedy(ctx, greedy, no_greedy), seed=seed, max_frames=max_frames, max_chars=max_chars, gap=gap,
        format=format)
    if ray is None and (o.typed(ctx, "cpus_per_worker") or o.typed(ctx, "gpus_per_worker")):
        raise UsageError("--cpus-per-worker and --gpus-per-worker go with --ray; without it there is --threads")
    if join is not None and audio_to is not None:
        raise UsageError("--join reads the audio from -o DIR, and --audio-to writes it elsewhere; give one of them")
    from tts_cli.cli.batch_run import BatchRun, Place

    place = Place(workers, ray, cpus_per_worker, gpus_per_worker, audio_to)
    with one_interrupt():
        return BatchRun(Path(manifest), by, Path(output), join, choice, defaults, retries, place, console).run()
