"""Word error rate of the built-in voice on lines with numbers, dates, money and acronyms, heard by Whisper.

    pip install '.[builtin]' faster-whisper jiwer
    python benchmarks/wer.py benchmarks/spoken.txt --voice af_heart [--whisper NAME|FOLDER]

Both what was written and what was heard are put into spoken form first, so "$5" and "five dollars" are the same.
"""

import argparse
import re
from pathlib import Path

import jiwer
import numpy as np
import soxr
from faster_whisper import WhisperModel

from tts_cli.engine import SpeechRequest
from tts_cli.english.spoken import spoken_form
from tts_cli.loading import load_engine


def words(text: str) -> str:
    text = spoken_form(text).lower().replace("\u2019", "'").replace("-", " ")
    return " ".join(re.sub(r"[^a-z' ]+", "", text.replace(".", "")).split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lines", type=Path)
    parser.add_argument("--voice", default="af_heart")
    parser.add_argument("--whisper", default="tiny.en", help="model name or folder of faster-whisper")
    args = parser.parse_args()
    engine, ears = load_engine("builtin"), WhisperModel(args.whisper, device="cpu", compute_type="int8")
    said, heard = [], []
    for line in args.lines.read_text(encoding="utf-8").splitlines():
        chunks = engine.speak(SpeechRequest(line, voice=args.voice, seed=1))
        samples = soxr.resample(np.concatenate([chunk.samples for chunk in chunks]), engine.sample_rate, 16000)
        segments, _ = ears.transcribe(samples.astype(np.float32), beam_size=5, language="en")
        said.append(words(line))
        heard.append(words(" ".join(segment.text for segment in segments)))
        if said[-1] != heard[-1]:
            print(f"said  {said[-1]}\nheard {heard[-1]}")
    count = sum(len(line.split()) for line in said)
    print(f"{args.voice}: word error rate {100 * jiwer.wer(said, heard):.1f} % of {count} words")


if __name__ == "__main__":
    main()
