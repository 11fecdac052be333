"""A pair on a CUDA device, graphed against eager, and beside the faster-qwen3-tts package where it is installed.

    python benchmarks/gpu_peer.py TALKER.gguf MMPROJ.gguf [--checkpoint FOLDER] [--rounds 5] [--frames 120]

Checks first that graphs change no code, at full size: tiny models in the tests choose other kernels. Then it alternates
the rounds of all and prints medians of ms per frame, x real time and first audio; then what utterances in turns give
together. The peer reads the checkpoint folder that the pair was made of; without one it is left out. Its first sound
includes hearing the reference clip.
"""

import argparse
import statistics
import time
from dataclasses import replace

import numpy as np
import torch

from tts_cli.bench import TEXT, Probe
from tts_cli.engine import SpeechRequest
from tts_cli.qwen3tts.engine import REFERENCE_CLIP, Qwen3TTSEngine
from tts_cli.qwen3tts.static_steps import ROWS, StaticModels

FRAME_SECONDS = 0.08
PEER_CHUNK = 4  # frames; it makes no sound before


def spoken(engine: Qwen3TTSEngine, seed: int, frames: int) -> tuple[np.ndarray, float, float]:
    """(codes, seconds per frame after the first, seconds to the first sound)."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    with Probe(engine, synchronize=False):  # keeps the model from ending early
        chunks = engine.speak(SpeechRequest(TEXT, seed=seed, max_frames=frames))
        made = [next(chunks)]
        first = time.perf_counter() - started
        made.extend(chunks)
    codes = np.concatenate([chunk.codes for chunk in made])
    return codes, (time.perf_counter() - started - first) / max(1, len(codes) - 1), first


def together(engine: Qwen3TTSEngine, rows: int, frames: int) -> float:
    """Seconds of audio that so many utterances in turns give in a second."""
    with Probe(engine, synchronize=False):
        going = [engine.speak(SpeechRequest(TEXT, seed=seed, max_frames=frames, in_turns=True)) for seed in range(rows)]
        for speech in going:
            next(speech)
        torch.cuda.synchronize()
        started = time.perf_counter()
        while going:
            going = [speech for speech in going if next(speech, None) is not None]
    return rows * frames * FRAME_SECONDS / (time.perf_counter() - started)


def peer(checkpoint: str, frames: int):
    """A function that speaks with the peer and returns the same numbers, or None where it cannot be had."""
    try:
        from faster_qwen3_tts import FasterQwen3TTS
    except ImportError:
        print("faster-qwen3-tts is not installed: left out")
        return None
    model = FasterQwen3TTS.from_pretrained(checkpoint, device="cuda", dtype=torch.bfloat16)

    def run(seed: int):
        torch.manual_seed(seed)
        torch.cuda.synchronize()
        started, first, lengths = time.perf_counter(), None, []
        for chunk, rate, _ in model.generate_voice_clone_streaming(
                text=TEXT, language="English", ref_audio=str(REFERENCE_CLIP), ref_text="", xvec_only=True,
                chunk_size=PEER_CHUNK, max_new_tokens=frames, min_new_tokens=frames):
            first = first or time.perf_counter() - started
            lengths.append(len(chunk) / rate / FRAME_SECONDS)
        return None, (time.perf_counter() - started - first) / max(1, sum(lengths) - PEER_CHUNK), first
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("talker")
    parser.add_argument("mmproj")
    parser.add_argument("--checkpoint")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--frames", type=int, default=120)
    args = parser.parse_args()
    graphed = Qwen3TTSEngine.open(args.talker, args.mmproj, device="cuda", dtype="bfloat16")
    graphed.load()
    eager = Qwen3TTSEngine(graphed.pair, graphed.device, graphed.dtype, graphs=False)
    models = graphed.models  # read once, used by both
    eager.models = replace(models, static=StaticModels(models.talker, models.predictor, graphed.device, False))
    runs = {"graphed": lambda seed: spoken(graphed, seed, args.frames),
            "eager": lambda seed: spoken(eager, seed, args.frames)}
    other = peer(args.checkpoint, args.frames) if args.checkpoint else None
    if other is not None:
        runs["faster-qwen3-tts"] = other
    same = np.array_equal(runs["graphed"](0)[0], runs["eager"](0)[0])
    print(f"codes of {args.frames} frames graphed and eager: {'equal' if same else 'DIFFERENT'}")
    times = {name: [] for name in runs}
    for seed in range(args.rounds + 1):  # the first round warms up
        for name, run in runs.items():
            times[name].append(run(seed)[1:])
    for name, rounds in times.items():
        frame, first = (statistics.median(column) for column in zip(*rounds[1:], strict=True))
        print(f"{name:<18}{1000 * frame:7.2f} ms/frame {FRAME_SECONDS / frame:7.2f} x real time "
              f"{1000 * first:7.1f} ms to the first sound")
    for rows in (1, 4, ROWS):
        rates = [together(graphed, rows, args.frames) for _ in range(1 + min(3, args.rounds))][1:]
        print(f"{rows:>2} utterances in turns {statistics.median(rates):7.2f} x real time in total")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
