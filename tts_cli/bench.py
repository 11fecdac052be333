"""How fast an engine is and where a frame's time goes, measured around the very loop that speaks."""

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

from tts_cli.engine import CancelToken, SpeechRequest, SpeechResult
from tts_cli.errors import TtsError

TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind at all."
EARLY_FRAME = 20
# One vocoder call per this many frames, once the chunks have grown to full size: a window of it holds exactly one.
WINDOW = 12
PARTS = ("talker", "predictor", "code2wav")


@dataclass(frozen=True)
class BenchResult:
    """Times of one utterance whose end the bench holds off for `frames` frames.

    load_seconds    opening both files and reading all weights
    prefill_ms      the talker's pass over the prompt
    first_audio_ms  from the call of `speak` to the first samples, prefill included
    cold_first_audio_ms  from the start of a process `tts -o -` to its first byte of audio; None when not measured
    jitter_ms       how far chunks arrive off the steady pace of the run, for each |time since the chunk before - frames
                    x mean time per frame|: "p50" and "p95"; None with fewer than two chunks
    underruns       times the sound would stop when played at 1x from the first chunk on, without any prebuffer
    frame_ms        mean per frame, prefill left out: "total", the parts, and "rest" (sampling, embeddings, Python); on
                    CUDA the talker's embeddings count with it, its head and all sampling with the predictor
    early_ms        mean per frame around frame 20, and late_ms around the last: they show what grows; None when short
    weight_gb_per_s talker and predictor weights read per frame (the predictor's 15 times), by the time of both parts
    peak_rss_mb     of the whole process; device_peak_mb is what torch allocated on a CUDA device, else None
    """

    device: str
    dtype: str
    threads: int
    frames: int
    load_seconds: float
    prefill_ms: float
    first_audio_ms: float
    cold_first_audio_ms: float | None
    jitter_ms: dict[str, float] | None
    underruns: int
    frame_ms: dict[str, float]
    early_ms: float | None
    late_ms: float | None
    times_real_time: float
    weight_gb_per_s: float
    peak_rss_mb: float
    device_peak_mb: float | None


def bench(open_engine: Callable, frames: int, text: str = TEXT,
          cold_command: Sequence[str] | None = None) -> BenchResult:
    """Open, load, warm up with a few frames, then time `frames` frames. `open_engine()` returns an unloaded engine.

    `cold_command`: a `tts` command line that speaks raw samples to standard output, for the cold start.
    """
    import torch

    cold = None if cold_command is None else 1000 * cold_start_seconds(cold_command)
    started = time.perf_counter()
    engine = open_engine()
    engine.load()
    load_seconds = time.perf_counter() - started
    _run(engine, text, 4, synchronize=False)
    on_cpu = engine.device.type == "cpu"
    result, probe = _run(engine, text, frames, synchronize=False)
    # A device works behind the host's back: seeing the parts takes waiting for each, so that is a run of its own.
    split = probe if on_cpu else _run(engine, text, frames, synchronize=True)[1]
    prefill = probe.seconds["prefill"]
    total = 1000 * (result.wall_seconds - prefill) / result.frames
    split_total = 1000 * (split.wall - split.seconds["prefill"]) / result.frames
    parts = {name: 1000 * split.seconds[name] / result.frames for name in PARTS}
    seconds = (parts["talker"] + parts["predictor"]) / 1000
    cuda = engine.device.type == "cuda"
    return BenchResult(
        device=str(engine.device), dtype=str(engine.dtype).removeprefix("torch."), threads=torch.get_num_threads(),
        frames=result.frames, load_seconds=load_seconds, prefill_ms=1000 * split.seconds["prefill"],
        first_audio_ms=1000 * result.first_audio_seconds, cold_first_audio_ms=cold,
        jitter_ms=jitter_ms(probe.arrivals, probe.lengths), underruns=underruns(probe.arrivals, probe.lengths),
        frame_ms={"total": total, **parts, "rest": split_total - sum(parts.values())},
        early_ms=probe.frame_ms(EARLY_FRAME), late_ms=probe.frame_ms(result.frames - WINDOW),
        times_real_time=result.times_real_time, weight_gb_per_s=weight_bytes_per_frame(engine.models) / seconds / 1e9,
        peak_rss_mb=peak_rss_bytes() / 1e6,
        device_peak_mb=torch.cuda.max_memory_allocated(engine.device) / 1e6 if cuda else None)


def _run(engine, text: str, frames: int, synchronize: bool) -> "tuple[SpeechResult, Probe]":
    with Probe(engine, synchronize) as probe:
        speech = engine.speak(SpeechRequest(text, seed=1, max_frames=frames), probe.clock)
        for chunk in speech:
            if chunk.samples.size:
                probe.arrivals.append(time.perf_counter())
                probe.lengths.append(chunk.samples.size / chunk.sample_rate)
    probe.wall = speech.result.wall_seconds
    return speech.result, probe


class Clock(CancelToken):
    """Never cancelled; it is asked once per frame, and keeps when."""

    def __init__(self):
        super().__init__()
        self.asked: list[float] = []

    @property
    def cancelled(self) -> bool:
        self.asked.append(time.perf_counter())
        return False


class Probe:
    """While entered, adds up the time of each part of the loop and keeps the model from ending the utterance."""

    def __init__(self, engine, synchronize: bool):
        self._engine, self._models, self._device = engine, engine.models, engine.device
        self._synchronize = synchronize
        self.clock = Clock()
        self.seconds: dict[str, float] = defaultdict(float)
        self.arrivals: list[float] = []  # of chunks
        self.lengths: list[float] = []  # s of audio in each
        self.wall = 0.0

    def __enter__(self) -> "Probe":
        from tts_cli.qwen3tts.static_steps import Lanes

        talker, predictor, code2wav = self._models.talker, self._models.predictor, self._models.code2wav
        methods = [(talker, "prefill", "prefill"), (code2wav, "push", "code2wav")]
        if self._models.static:
            methods += [(Lanes, "read_frames", "talker"), (Lanes, "predict_frames", "predictor")]
        else:
            methods += [(talker, "together", "talker"), (talker, "logits", "talker"),
                        (predictor, "predict", "predictor")]
        with contextlib.ExitStack() as patches:
            for owner, method, part in methods:
                patches.enter_context(patch.object(owner, method, self._timed(getattr(owner, method), part)))
            patches.enter_context(patch.object(self._engine, "plan", self._without_end(self._engine.plan)))
            self._patches = patches.pop_all()
        return self

    def __exit__(self, *exception) -> None:
        self._patches.close()

    def _timed(self, method: Callable, part: str) -> Callable:
        def call(*arguments):
            self._wait()
            started = time.perf_counter()
            result = method(*arguments)
            self._wait()
            self.seconds[part] += time.perf_counter() - started
            return result
        return call

    def _without_end(self, plan: Callable) -> Callable:
        def call(*arguments):
            made = plan(*arguments)
            return replace(made, options=replace(made.options, min_frames=made.options.max_frames))
        return call

    def _wait(self) -> None:
        if self._synchronize:
            import torch

            getattr(torch, self._device.type).synchronize()

    def frame_ms(self, frame: int) -> float | None:
        """Mean ms per frame over the window that starts at `frame`; None where the run is too short for it."""
        starts = self.clock.asked
        first = min(frame, len(starts) - 1 - WINDOW)
        if first < EARLY_FRAME - WINDOW // 2:
            return None
        return 1000 * statistics.fmean(b - a for a, b in zip(starts[first:first + WINDOW],
                                                             starts[first + 1:first + WINDOW + 1], strict=True))


def cold_start_seconds(command: Sequence[str]) -> float:
    """From starting a process to its first byte of output. Raises `TtsError` when it ends without any."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        first = process.stdout.read(1)
        seconds = time.perf_counter() - started
        process.stdout.read()
    if not first:
        raise TtsError(f"the process for the cold start ended with {process.returncode} and no audio")
    return seconds


def jitter_ms(arrivals: Sequence[float], lengths: Sequence[float]) -> dict[str, float] | None:
    """See `BenchResult`; times of arrival and lengths of chunks in seconds."""
    if len(arrivals) < 2:
        return None
    pace = (arrivals[-1] - arrivals[0]) / sum(lengths[1:])
    off = sorted(1000 * abs(after - before - pace * length)
                 for before, after, length in zip(arrivals, arrivals[1:], lengths[1:], strict=False))
    return {f"p{percent}": off[min(len(off) - 1, len(off) * percent // 100)] for percent in (50, 95)}


def underruns(arrivals: Sequence[float], lengths: Sequence[float]) -> int:
    """How often a player that starts with the first chunk runs dry before the next one arrives."""
    count, dry_at = 0, float("inf")
    for arrived, length in zip(arrivals, lengths, strict=True):
        late = arrived > dry_at
        count += late
        dry_at = (arrived if late or dry_at == float("inf") else dry_at) + length
    return count


def weight_bytes_per_frame(models) -> int:
    """Bytes of talker and predictor matrices one frame multiplies with; embedding rows are too few to count."""
    predictor = models.predictor
    passes = len(predictor.heads)  # positions 0 and 1 go together, then one pass for each further book
    projection = 0 if predictor.projection is None else predictor.projection.nbytes
    return (models.talker.decoder.nbytes + models.talker.head.nbytes + passes * (predictor.decoder.nbytes + projection)
            + predictor.heads.nbytes)


def peak_rss_bytes() -> int:
    """The most memory this process ever held, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would also count the process that started this one
        line = next((line for line in status.read_text().splitlines() if line.startswith("VmHWM:")), None)
        if line:
            return 1024 * int(line.split()[1])
    if os.name == "nt":
        import psutil

        return psutil.Process().memory_info().peak_wset
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
