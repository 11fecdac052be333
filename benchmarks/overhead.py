"""What a frame costs beyond its matrix products.

    python benchmarks/overhead.py TALKER.gguf MMPROJ.gguf [--dtype float32|bfloat16] [--rounds 15]

Alternates the talker step and the code predictor as they run with the bare matrix-vector products of the same weights
in the same order, in one compiled loop, on one thread, and prints the medians and their difference in ms per frame.
"""

import argparse
import statistics
import time

import numpy as np
import torch
from numba import njit

from tts_cli.compiled.kernels import _product
from tts_cli.loading import load_engine
from tts_cli.qwen3tts.sampling import SamplingOptions

POSITION = 60  # of the talker's cache, about five seconds into an utterance


@njit(nogil=True)
def products(matrices, x, y):
    """x [n, widest] times each of the matrices, int64 [count, 5]; nothing else."""
    for numbers in matrices:
        _product(0, 1, numbers, x, y, 0)


def numbers(decoder, head) -> np.ndarray:
    return np.array([m.numbers for layer in decoder.matrices for m in layer] + [head.numbers])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("talker")
    parser.add_argument("mmproj")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    models = load_engine(args.talker, args.mmproj, device="cpu", dtype=args.dtype).models
    talker, predictor = models.talker, models.predictor
    hidden = torch.randn(talker.head.shape[1])
    options, uniforms, first = SamplingOptions(), torch.rand(len(predictor.heads)), torch.tensor([5])
    cache = talker.decoder.new_cache(2 * POSITION)
    cache.k.zero_(), cache.v.zero_()
    passes = [numbers(talker.decoder, talker.head), *(numbers(predictor.decoder, head) for head in predictor.heads)]
    widest = max(int(one[:, 3:].max()) for one in passes)
    x, y = np.random.default_rng(0).standard_normal((2, widest)).astype(np.float32), np.empty((2, widest), np.float32)

    def bare() -> None:
        for position, matrices in enumerate(passes):
            rows = 2 if position == 1 else 1  # the predictor's first two positions go together
            products(matrices, x[:rows], y[:rows])

    def real() -> None:
        cache.length = POSITION
        talker.logits(talker.step(hidden, cache))
        predictor.predict(hidden[None], first, [options], uniforms[None])

    times = {bare: [], real: []}
    with torch.inference_mode():
        for _ in range(args.rounds + 2):
            for work in times:
                started = time.perf_counter()
                work()
                times[work].append(1000 * (time.perf_counter() - started))
    bare_ms, real_ms = (statistics.median(times[work][2:]) for work in (bare, real))
    print(f"{args.dtype}: matrix products {bare_ms:.1f} ms, as run {real_ms:.1f} ms, "
          f"beyond the products {real_ms - bare_ms:.1f} ms per frame")


if __name__ == "__main__":
    main()
