"""Rows per hour of `tts batch`: in one process, in two, and what Ray adds.

    python benchmarks/batch.py [--model TALKER.gguf] [--rows 40] [--frames 25] [--sentences 2] [--crews local,pool,ray]
                               [--together 1]

Every crew speaks the same rows. The clock runs from the last of the rows begun at first to the last of all, so that
the time to start, told apart, does not count. Threads are 1 for every engine; on a machine with fewer cores than
engines two are no faster.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tts_cli.batch.dispatch import outcomes
from tts_cli.batch.local import Local
from tts_cli.batch.manifest import Entry
from tts_cli.batch.rows import Rows
from tts_cli.batch.speaker import Setup, Speaker
from tts_cli.batch.store import Store
from tts_cli.batch.workers import Pool
from tts_cli.model_choice import ModelChoice
from tts_cli.notices import Notices

TEXT = "This is sentence number {}, which is about as long as the sentences of a book are."


def crew_of(name: str, setup: Setup):
    if name == "local":
        return Local(Speaker(setup))
    if name == "pool":
        return Pool(setup, 2, 2)
    from tts_cli.batch.cluster import Cluster, Share, connect

    connect("local")
    return Cluster(replace(setup, where=None), 1, Share())


def measure(name: str, choice: ModelChoice, together: int, rows: list) -> float:
    """Prints; returns seconds per row."""
    with tempfile.TemporaryDirectory() as folder, Store(folder) as store:
        asked = time.perf_counter()
        times, audio = [], 0.0
        with crew_of(name, Setup(choice, store.folder.resolve(), together=together)) as crew:
            for outcome in outcomes(rows, crew):
                if outcome.fatal or outcome.record["error"]:
                    raise SystemExit(outcome.fatal or outcome.record["error"])
                if outcome.data is not None:
                    store.take(outcome.row.file, outcome.data)
                store.add(outcome.record)
                times.append(time.perf_counter())
                audio += outcome.record["seconds"]
        begun = min(together * crew.size, len(times) - 1)  # rows that end at about the same time
        each = (times[-1] - times[begun - 1]) / (len(times) - begun)
        print(f"{name:<6} {3600 / each:8.0f} rows/hour, {each:.3f} s a row of {audio / len(rows):.1f} s, "
              f"first row after {times[0] - asked:.1f} s", flush=True)
        return each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--frames", type=int, help="of a row, for Qwen3-TTS")
    parser.add_argument("--sentences", type=int, default=1, help="of a row; two are about 10 s of Kokoro")
    parser.add_argument("--crews", default="local,pool,ray")
    parser.add_argument("--together", type=int, help="rows spoken in turns, by default as many as tts batch speaks")
    args = parser.parse_args()
    choice = ModelChoice(None if args.model is None else (args.model, None), "auto", "auto", 1, None)
    engine = choice.open(Notices())
    together = engine.together if args.together is None else args.together
    maker = Rows({"max_frames": args.frames, "greedy": bool(args.frames)}, Path(), [args.model], engine)
    rows = [maker.row(Entry(n, {"id": f"r{n}", "text": " ".join([TEXT.format(n)] * args.sentences)}))
            for n in range(args.rows)]
    each = {name: measure(name, choice, together, rows) for name in args.crews.split(",")}
    if {"local", "ray"} <= each.keys():
        added = each["ray"] - each["local"]
        print(f"Ray adds {1000 * added:.1f} ms a row: {added / 0.1:.2f} % of a row of 10 s")


if __name__ == "__main__":
    main()
