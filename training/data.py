"""Have teachers speak the training texts.

    python -m training.data CONFIG DATA [--voice hibari:heart] [--hours 3] [--workers 2] [--minutes N]

DATA/VOICE/ gets shards that workers write side by side: NAME.i16 (24 kHz samples, each utterance padded with silence
to whole frames of 80 ms), NAME.f32 (pitch, see `features.pitch`) and NAME.jsonl (one utterance a line). A text is
spoken in the pieces in which `tts` would have the model speak it, one that is held out as a whole. Run again to go on
where it stopped, also for more hours.
"""

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import parent_process
from pathlib import Path

import numpy as np
import psutil

from training.features import FRAME, RATE, pitch
from training.loop import command
from training.model import Nano
from training.teachers import make_teacher
from training.text import learn_merges
from training.texts import is_held_out, sentences
from tts_cli.text import clean_text
from tts_cli.utterances import at_most, utterances


def speak_shard(folder: Path, voice: str, worker: int, workers: int, texts: list[str], seconds: float,
                deadline: float, max_chars: int | None = None) -> float:
    """Append texts number worker, worker + workers, … until the shard holds `seconds` of speech, or `deadline`.

    max_chars  of a piece of a text that is not held out
    Returns the seconds it holds. What a killed run left unfinished is cut off first; of a text whose lines it was just
    writing, the pieces that are missing are not said again.
    """
    base = folder / f"{worker:02d}"
    done, frames = _recover(base)
    teacher = make_teacher(voice)
    with (open(f"{base}.i16", "ab") as speech, open(f"{base}.f32", "ab") as pitches,
          open(f"{base}.jsonl", "a", encoding="utf-8") as index):
        for number in range(done + 1 if done >= 0 else worker, len(texts)):
            if number % workers != worker:
                continue
            if frames * FRAME / RATE >= seconds or time.monotonic() > deadline:
                break
            if (parent := parent_process()) is not None and not psutil.pid_exists(parent.pid):
                os._exit(1)  # it was killed; the next run begins to write these files, and a pool would wait for ever
            pieces = [texts[number]] if is_held_out(number) else _pieces(texts[number], max_chars)
            lines = []
            for piece, text in enumerate(pieces):
                try:
                    spoken = teacher.speak(text, seed=number)
                except ValueError:
                    continue
                samples = np.pad(spoken.samples, (0, -len(spoken.samples) % FRAME))
                speech.write((samples * 32767).astype("<i2").tobytes())
                pitches.write(pitch(samples).astype("<f4").tobytes())
                lines.append(dict(number=number, piece=piece, text=text, start=frames, frames=len(samples) // FRAME,
                                  marks=[[letters, round(t, 3)] for letters, t in spoken.marks],
                                  sounds=[[symbol, round(t, 3)] for symbol, t in spoken.sounds]))
                frames += lines[-1]["frames"]
            # The index comes last: what it names is there.
            speech.flush(), pitches.flush()
            index.write("".join(json.dumps(line) + "\n" for line in lines))
            index.flush()
    return frames * FRAME / RATE


def _pieces(text: str, max_chars: int | None) -> list[str]:
    return [utterance.text for utterance in at_most(max_chars, utterances(clean_text(text)))]


def _recover(base: Path) -> tuple[int, int]:
    """(number of the text of the last complete line or -1, frames so far); the files are cut to that."""
    lines, index = [], Path(f"{base}.jsonl")
    if index.exists():
        for line in index.read_text(encoding="utf-8").splitlines(keepends=True):
            if not line.endswith("\n"):
                break
            lines.append(line)
        index.write_text("".join(lines), encoding="utf-8")
    last = json.loads(lines[-1]) if lines else dict(number=-1, start=0, frames=0)
    frames = last["start"] + last["frames"]
    for suffix, size in ((".i16", 2 * FRAME), (".f32", 4 * FRAME // 240)):
        if (path := Path(f"{base}{suffix}")).exists():
            if path.stat().st_size < frames * size:
                raise ValueError(f"{path}: shorter than its index says; delete {base}.* and make them again")
            os.truncate(path, frames * size)
    return last["number"], frames


@command
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m training.data", description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--voice", default="hibari:heart")
    parser.add_argument("--hours", type=float, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long; run again to go on")
    parser.add_argument("--wordnet", type=Path, help="overrides the config's")
    args = parser.parse_args(arguments)
    if args.workers < 1:
        parser.error("--workers: 1 or more")
    nano = Nano.read(args.config)
    make_teacher(args.voice)  # a voice that there is not leaves nothing behind
    source = nano.values["data"]
    texts = sentences(args.wordnet or Path(source["wordnet"]), [Path(f) for f in source["texts"]], source["templates"])
    folder = args.data / args.voice.replace(":", "-")
    folder.mkdir(parents=True, exist_ok=True)
    merges = args.data / "merges.txt"
    if not merges.exists():
        learned = learn_merges(texts, nano.values["text"]["tokens"])
        merges.write_text("".join(f"{merge}\n" for merge in learned), encoding="utf-8")
    settings = folder / "workers"
    workers = int(settings.read_text()) if settings.exists() else args.workers  # shards keep the number they began with
    settings.write_text(str(workers))
    started, deadline = time.monotonic(), time.monotonic() + 60 * args.minutes
    jobs = [(folder, args.voice, i, workers, texts, 3600 * args.hours / workers, deadline,
             nano.values["use"].get("max_chars")) for i in range(workers)]
    if workers == 1:
        seconds = speak_shard(*jobs[0])
    else:
        with ProcessPoolExecutor(workers) as pool:
            seconds = sum(pool.map(speak_shard, *zip(*jobs, strict=True)))
    print(f"{folder}: {seconds / 3600:.2f} h of speech from {len(texts)} texts, "
          f"{time.monotonic() - started:.0f} s in this run")


if __name__ == "__main__":
    main()
