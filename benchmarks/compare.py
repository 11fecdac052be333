"""This program beside others on the same model, machine and run: ms per frame, memory.

    python benchmarks/random_model.py pair --size 0.6b --type q8_0
    python benchmarks/compare.py pair/random-0.6b-Q8_0.gguf pair/mmproj-random-0.6b-Q8_0.gguf --threads 1 \\
        --llama-tts BUILD/bin/llama-tts --other qwen-tts "reference/bin/python benchmarks/reference.py FOLDER"

The programs take turns, each as a process of its own, for `--rounds` rounds; the table shows medians. llama-tts decodes
the sound after the last frame, `tts` while it goes; all times are shared out over the frames. Prompt and load are left
out. Any other program takes part that prints "… predictor N ms/frame, decoder N ms/frame", the last line counts.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind at all."


def run(command: list[str], threads: int) -> tuple[str, float]:
    """All that the process printed, and the most memory it held, in MB."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   env=os.environ | {"OMP_NUM_THREADS": str(threads)})
        _, status, usage = os.wait4(process.pid, 0)
        output.seek(0)
        text = output.read()
    if status:
        sys.exit(f"{command[0]} ended with status {status}:\n{text[-2000:]}")
    return text, usage.ru_maxrss / 1000


def ours(args) -> dict[str, float]:
    text, memory = run([sys.executable, "-m", "tts_cli", "bench", "-m", args.talker, "-mm", args.mmproj, "--json",
                        "--no-cold", "--frames", str(args.frames), "-t", str(args.threads)], args.threads)
    ms = json.loads(text[text.index("{"):])["frame_ms"]
    return {"talker + predictor": ms["talker"] + ms["predictor"], "code2wav": ms["code2wav"], "total": ms["total"],
            "MB": memory}


def llama(args) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        text, memory = run([args.llama_tts, "-m", args.talker, "-mm", args.mmproj, "-p", TEXT, "-n", str(args.frames),
                            "-t", str(args.threads), "-o", str(Path(folder) / "out.wav"), *args.llama_args.split()],
                           args.threads)
    frames = int(re.search(r"generated (\d+) frames", text)[1])
    generation, vocoder = (float(re.search(rf"{part} ([\d.]+)s", text)[1]) for part in ("generation", "vocoder"))
    return {"talker + predictor": 1000 * generation / frames, "code2wav": 1000 * vocoder / frames,
            "total": 1000 * (generation + vocoder) / frames, "MB": memory}


def other(command: str, args) -> dict[str, float]:
    text, memory = run(shlex.split(command), args.threads)
    generation, decoder = map(float, re.findall(r"predictor ([\d.]+) ms/frame, decoder ([\d.]+) ms/frame", text)[-1])
    return {"talker + predictor": generation, "code2wav": decoder, "total": generation + decoder, "MB": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("talker")
    parser.add_argument("mmproj")
    parser.add_argument("--llama-tts", metavar="PROGRAM")
    parser.add_argument("--llama-args", default="-ngl 0 --no-repack", help="its further options")
    parser.add_argument("--other", nargs=2, action="append", default=[], metavar=("NAME", "COMMAND"))
    parser.add_argument("--frames", type=int, default=36)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    peers: dict[str, Callable] = {"tts": ours}
    if args.llama_tts:
        peers["llama-tts"] = llama
    for name, command in args.other:
        peers[name] = partial(other, command)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in peers}
    for number in range(args.rounds):
        for name, measure in peers.items():
            found[name].append(measure(args))
            print(f"round {number + 1}, {name}: " + ", ".join(f"{key} {value:.0f}" for key, value
                                                              in found[name][-1].items()), file=sys.stderr)
    print(f"{'ms per frame':<12}" + "".join(f"{key:>20}" for key in found["tts"][0]) + f"{'x tts':>8}")
    medians = {name: {key: statistics.median(one[key] for one in all_rounds) for key in all_rounds[0]}
               for name, all_rounds in found.items()}
    for name, row in medians.items():
        print(f"{name:<12}" + "".join(f"{value:>20.1f}" for value in row.values())
              + f"{row['total'] / medians['tts']['total']:>8.2f}")


if __name__ == "__main__":
    main()
