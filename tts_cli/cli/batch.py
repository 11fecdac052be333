"""`tts batch MANIFEST -o DIR`: many utterances, each done once; the next run goes on where this one ended."""

import contextlib
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from tts_cli.audio import shown
from tts_cli.cli import options as o
from tts_cli.cli.console import Console, error_line, one_interrupt
from tts_cli.cli.sources import ModelChoice, chosen_voice, locate_pair, read_ref_text
from tts_cli.errors import TtsError, UsageError

EXIT_PROBLEMS = 2
EXIT_SOME_ROWS_FAILED = 4

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
    greedy: o.Greedy = False, no_greedy: o.NoGreedy = False, seed: o.Seed = None, max_frames: o.MaxFrames = None,
    max_chars: o.MaxChars = None, gap: o.Gap = None, format: o.Format = None,
    quiet: o.Quiet = False, verbose: o.Verbose = False,
) -> int:
    """Speak every row of a manifest into a file of its own; rows that are finished are not spoken again.

    Columns with the names of options below count for their row, and the options for all others. Exit codes: 0 done,
    1 failed, 2 problems in the manifest or the options, 4 some rows failed, 130 interrupted: the same command goes on.
    """
    console = Console(quiet, verbose)
    if output is None:
        raise UsageError("say where to: -o DIR")
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
    place = _Place(workers, ray, cpus_per_worker, gpus_per_worker, audio_to)
    with one_interrupt():
        return _Run(Path(manifest), by, Path(output), join, choice, defaults, retries, place, console).run()


@dataclass(frozen=True)
class _Place:
    """Where rows are spoken, and where their audio goes."""

    workers: int | None
    ray: str | None
    cpus: float
    gpus: float
    audio_to: str | None


class _Run:
    """One call of the verb."""

    def __init__(self, manifest: Path, by: str | None, folder: Path, join: str | None, choice: ModelChoice,
                 defaults: dict, retries: int, place: _Place, console: Console):
        self._manifest, self._by, self._folder, self._join = manifest, by, folder, join
        self._choice, self._defaults, self._retries, self._console = choice, defaults, retries, console
        self._place = place
        self._book = None

    def run(self) -> int:
        from tts_cli.batch.manifest import read_manifest
        from tts_cli.batch.rows import Check, Rows, manner_of, model_identity
        from tts_cli.batch.run import Batch
        from tts_cli.batch.store import Store

        read_manifest(self._manifest, self._by)  # refuses
        manner_of({name: value for name, value in self._defaults.items() if value is not None}).pieces("a")
        if self._join is not None:
            from tts_cli.batch.join import Book

            self._book = Book(self._join, self._defaults["gap"])
        engine = self._choice.open(self._console)
        with Store(self._folder, remote=self._place.audio_to is not None) as store:
            rows = Rows(self._defaults, self._manifest.parent, model_identity(self._choice, engine))
            batch = Batch(self._manifest, self._by, rows, store, self._checking(Check(engine, self._console)))
            survey = batch.survey()
            if survey.problems:
                return self._refuse(survey)
            if survey.kept:
                self._console.detail(f"columns kept as they are: {', '.join(sorted(survey.kept))}")
            self._choice.tell(self._console)
            tally, wall = self._speak(batch, survey, engine)
            self._report(survey, tally, wall)
            if self._book is not None:
                self._bind(batch, store, engine, tally)
            return EXIT_SOME_ROWS_FAILED if tally.failed else 0

    def _checking(self, check):
        """`check`, and that no row has the name of the book."""
        def checked(row) -> None:
            check(row)
            if self._book is not None and (self._folder / row.file).resolve() in self._book.files:
                raise UsageError(f"id: {row.id!r} has the name of the --join file")
        return checked

    def _bind(self, batch, store, engine, tally) -> None:
        try:
            with store.records() as records:
                chapters = self._book.write(batch.rows(), records, self._folder, engine.sample_rate)
        except TtsError as error:
            if not tally.failed:
                raise
            self._console.warning(error)
        else:
            self._console.note(f"{shown(self._join)}: {len(chapters)} chapters")

    def _speak(self, batch, survey, engine):
        from tts_cli.batch.run import Tally

        if not survey.pending:
            return Tally(), 0.0
        with self._crew(engine, survey.pending) as crew, self._progress(survey) as told:
            started = time.perf_counter()
            return batch.speak(crew, told), time.perf_counter() - started

    def _crew(self, engine, rows: int):
        """Who speaks: a cluster, processes, or this process with the engine that is open already."""
        from tts_cli.batch.speaker import Setup, Speaker

        place = self._place
        setup = Setup(self._choice, place.audio_to or self._folder.resolve(), self._retries)
        if place.ray is not None:
            from tts_cli.batch.cluster import Cluster, Share, connect, room

            share = Share(place.cpus, place.gpus)
            connect(place.ray)
            return Cluster(replace(setup, where=place.audio_to), min(place.workers or room(share), rows), share)
        if (workers := min(place.workers or 1, rows)) == 1:
            from tts_cli.batch.local import Local

            return Local(Speaker(setup, engine))
        import torch

        from tts_cli.batch.workers import Pool

        self._warn_of_memory(engine, workers)
        return Pool(setup, workers, torch.get_num_threads())

    def _warn_of_memory(self, engine, workers: int) -> None:
        """The weights of one process are about as large as its files."""
        import psutil

        needed = workers * sum(path.stat().st_size for path in engine.paths if path.exists())
        free = psutil.virtual_memory().available
        if needed > free:
            self._console.warning(f"{workers} workers need about {needed / 1e9:.1f} GB for the model, "
                                  f"{free / 1e9:.1f} GB are free; fewer --workers may be faster")

    @contextlib.contextmanager
    def _progress(self, survey):
        """Tells of failed rows; on a terminal a bar over seconds of audio, with an estimate of the time left."""
        from tqdm import tqdm

        with tqdm(total=round(survey.seconds, 1), disable=not self._console.shows_progress, file=sys.stderr,
                  leave=False, mininterval=0.2,
                  bar_format="{percentage:3.0f}%|{bar}| {elapsed}, {remaining} left{postfix}") as bar:
            started = time.perf_counter()

            def told(row, record, tally) -> None:
                if record["error"] is not None:
                    with bar.external_write_mode(file=sys.stderr):
                        self._console.warning(f"row {row.id} (line {row.line}): {record['error']}")
                speed = tally.seconds / max(time.perf_counter() - started, 1e-9)
                bar.set_postfix_str(f"{tally.spoken} of {survey.pending} rows, {tally.seconds:.0f} s of audio, "
                                    f"{speed:.2f} x real time", refresh=False)
                bar.update(row.seconds)
            yield told

    def _refuse(self, survey) -> int:
        for problem in survey.problems:
            error_line(f"{shown(self._manifest)}, {problem}")
        if survey.more_problems:
            error_line(f"{shown(self._manifest)}: {survey.more_problems} more problems")
        return EXIT_PROBLEMS

    def _report(self, survey, tally, wall: float) -> None:
        speed = f" in {wall:.1f} s ({tally.seconds / wall:.2f} x real time)" if wall else ""
        skipped = survey.rows - survey.pending
        self._console.note(f"{shown(self._folder)}: {tally.spoken} of {survey.rows} rows spoken, {tally.seconds:.2f} s "
                           f"of audio{speed}" + (f", {skipped} were there already" if skipped else "")
                           + (f", {tally.failed} failed: see results.jsonl" if tally.failed else ""))
