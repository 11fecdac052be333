"""What a frame costs beyond its matrix products.

    python benchmarks/overhead.py TALKER.gguf MMPROJ.gguf [--dtype float32|bfloat16] [--rounds 15]

Alternates the talker step and the code predictor as they run with the bare matrix-vector products of the same weights
in the same order, on one thread, and prints the medians and their difference in ms per frame.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F

from tts_cli.loading import load_engine
from tts_cli.qwen3tts.sampling import SamplingOptions

POSITION = 60  # of the talker's cache, about five seconds into an utterance


def matrices(decoder) -> list[torch.Tensor]:
    return [w for block in decoder.blocks for w in (block.qkv, block.attn_out, block.gate_up, block.ffn_down)]


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
    inputs = {w.shape[1]: torch.randn(w.shape[1], dtype=w.dtype)
              for w in (*matrices(talker.decoder), *matrices(predictor.decoder), predictor.heads[0])}
    options, uniforms, first = SamplingOptions(), torch.rand(len(predictor.heads)), torch.tensor(5)
    cache = talker.decoder.new_cache(2 * POSITION)
    cache.k.zero_(), cache.v.zero_()

    def bare() -> None:
        for w in (*matrices(talker.decoder), talker.head):
            torch.mv(w, inputs[w.shape[1]])
        for position, head in enumerate(predictor.heads):
            for w in matrices(predictor.decoder):
                x = inputs[w.shape[1]]
                if position == 0:  # the first two positions go together
                    F.linear(torch.stack((x, x)), w)
                else:
                    torch.mv(w, x)
            torch.mv(head, inputs[head.shape[1]])

    def real() -> None:
        cache.length = POSITION
        talker.logits(talker.step(hidden, cache))
        predictor.predict(hidden, first, options, uniforms)

    times = {bare: [], real: []}
    with torch.inference_mode():
        for _ in range(args.rounds + 2):
            for work in times:
                started = time.perf_counter()
                work()
                times[work].append(1000 * (time.perf_counter() - started))
    products, frame = (statistics.median(times[work][2:]) for work in (bare, real))
    print(f"{args.dtype}: matrix products {products:.1f} ms, as run {frame:.1f} ms, "
          f"beyond the products {frame - products:.1f} ms per frame")


if __name__ == "__main__":
    main()
