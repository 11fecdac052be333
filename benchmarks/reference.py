"""Milliseconds per frame of the reference package, to hold beside `tts bench`.

    python -m venv reference && reference/bin/pip install qwen-tts
    reference/bin/python benchmarks/reference.py CHECKPOINT_FOLDER [--dtype float32|bfloat16] [--frames 10]
    tts convert CHECKPOINT_FOLDER -o pair --type bf16 && tts bench -m pair/*.gguf --frames 10 --dtype float32 -t 1

Needs a Base checkpoint; runs without a reference clip, greedy, in the layout with all text in the prompt.
"""

import argparse
import time

import torch
from qwen_tts import Qwen3TTSModel

TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind at all."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--frames", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    wrapper = Qwen3TTSModel.from_pretrained(args.checkpoint, dtype=getattr(torch, args.dtype))
    ids = wrapper._tokenize_texts([wrapper._build_assistant_text(TEXT)])
    options = wrapper._merge_generate_kwargs(do_sample=False, subtalker_dosample=False, max_new_tokens=args.frames + 1)
    for label in ("cold", "warm"):
        started = time.perf_counter()
        codes, _ = wrapper.model.generate(input_ids=ids, languages=["English"], non_streaming_mode=True, **options)
        generated = time.perf_counter()
        wrapper.model.speech_tokenizer.decode([{"audio_codes": codes[0]}])
        decoded = time.perf_counter()
        n = len(codes[0])
        print(f"{label}: {n} frames, talker and predictor {1000 * (generated - started) / n:.0f} ms/frame, "
              f"decoder {1000 * (decoded - generated) / n:.0f} ms/frame")


if __name__ == "__main__":
    main()
