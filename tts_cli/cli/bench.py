"""`tts bench`: print how fast a pair speaks on this machine, and where the time of a frame goes."""

import json as json_module
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tts_cli.cli import options as o
from tts_cli.cli.console import Console
from tts_cli.cli.sources import locate_pair
from tts_cli.errors import UsageError
from tts_cli.loading import BUILTIN, NANO, kokoro_folder, open_engine
from tts_cli.model_choice import check_threads, resolve_pair, use_threads

FRAME_SECONDS = 0.08

Frames = Annotated[int, typer.Option("--frames", metavar="FRAMES", min=1, help="Frames of 80 ms to speak")]
Cold = Annotated[bool, typer.Option("--cold/--no-cold", help="Start a process of its own for the cold first audio")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object", show_default="off")]


def bench(
    ctx: typer.Context, *, frames: Frames = 60, cold: Cold = True, json: Json = False, config: o.Config = None,
    model: o.Model = None, mmproj: o.Mmproj = None, hf_repo: o.HfRepo = None,
    device: o.Device = "auto", dtype: o.Dtype = "auto", threads: o.Threads = None, gpu_layers: o.GpuLayers = None,
    no_graphs: o.NoGraphs = False,
    quiet: o.Quiet = False, verbose: o.Verbose = False,
) -> None:
    """Measure load, prefill, ms per frame by part, first audio, chunk jitter, memory bandwidth and peak memory."""
    console = Console(quiet, verbose)
    check_threads(threads)
    pair = locate_pair(ctx, model, mmproj, hf_repo)
    if pair is None:
        console.note("tts: measuring nano; for another model give -m TALKER.gguf or -hf OWNER/NAME")
    talker, projector = resolve_pair(pair or (NANO, None), console)
    if talker == BUILTIN or (talker != NANO and kokoro_folder(Path(talker)) is not None):
        raise UsageError("tts bench measures the parts of Qwen3-TTS: give -m TALKER.gguf, -hf OWNER/NAME or -m nano")
    from tts_cli import bench as measure

    use_threads(threads)
    console.detail(f"speaking {frames} frames ({frames * FRAME_SECONDS:.1f} s of audio)")
    command = [sys.executable, "-m", "tts_cli", "-p", measure.TEXT, "-n", "2", "-s", "1", "-q", "-o", "-",
            "--format", "pcm", "-m", str(talker), *(["-mm", str(projector)] if projector else []),
            "--device", device, "--dtype", dtype, *(["-t", str(threads)] if threads else []),
            *(["--no-graphs"] if no_graphs else [])]
    result = measure.bench(lambda: open_engine(talker, projector, device=device, dtype=dtype, graphs=not no_graphs),
                           frames, cold_command=command if cold else None)
    print(json_module.dumps(asdict(result), indent=2) if json else _table(result))


def _table(result) -> str:
    per_frame = "  ".join(f"{name} {ms:.1f}" for name, ms in result.frame_ms.items() if name != "total")
    rows = [
        ("device", f"{result.device}, {result.dtype}, {result.threads} threads"),
        ("load", f"{result.load_seconds:.2f} s"),
        ("prefill", f"{result.prefill_ms:.0f} ms"),
        ("first audio", f"{result.first_audio_ms:.0f} ms" + (
            "" if result.cold_first_audio_ms is None
            else f" (cold, from the start of the process: {result.cold_first_audio_ms:.0f} ms)")),
        ("per frame", f"{result.frame_ms['total']:.1f} ms  ({per_frame})"),
        ("speed", f"{result.times_real_time:.2f} x real time over {result.frames} frames"),
        ("underruns", f"{result.underruns} when played from the first chunk on"),
        ("weights read", f"{result.weight_gb_per_s:.1f} GB/s (talker and predictor)"),
        ("peak memory", f"{result.peak_rss_mb:.0f} MB"),
    ]
    if result.jitter_ms is not None:
        rows.insert(6, ("chunk jitter", f"p50 {result.jitter_ms['p50']:.1f} ms, p95 {result.jitter_ms['p95']:.1f} ms"))
    if result.early_ms is not None:
        rows.insert(5, ("growth", f"{result.early_ms:.1f} ms near frame 20, {result.late_ms:.1f} ms at the end"))
    if result.device_peak_mb is not None:
        rows.append(("peak on device", f"{result.device_peak_mb:.0f} MB"))
    return "\n".join(f"{name:<16}{value}" for name, value in rows)
