"""How good a codec or a whole model is.

    python -m training.evaluate codec CONFIG DATA WORK [--stage vocoder] [--count 40] [--keep DIR]
    python -m training.evaluate speech CONFIG DATA PAIR [--count 50] [--seeds 3] [--keep DIR]

codec    held-out utterances through encoder, codes and the shipped decoder
speech   held-out texts through the finished pair (training.export), as `tts` speaks them; PAIR is its folder
"""

import argparse
import time
from pathlib import Path

import numpy as np
import soundfile
import torch

from training.codec_model import Codec, load_codec
from training.corpus import Corpus
from training.ears import Ears, Tally, said_twice
from training.features import RATE, log_mel, pitch, pitch_rows
from training.loop import command, prepare
from training.losses import START, feature_figures
from training.model import Nano
from tts_cli.engine import SpeechRequest
from tts_cli.loading import load_engine
from tts_cli.qwen3tts.layers import StreamState
from tts_cli.reading import Reading
from tts_cli.text import clean_text
from tts_cli.utterances import utterances

# What is good enough: name -> the most, or the least for those in `_MORE_IS_BETTER`.
BARS = {"codec": dict(wer=7, pitch_r2=0.85, start_db=6, streamed=1e-5),
        "speech": dict(wer=10, twice=0, ended=99, speed=5, load=1)}
_MORE_IS_BETTER = ("pitch_r2", "ended", "speed")
_NOTHING = "no text is held out: there is nothing to measure by"


def codec_report(codec: Codec, corpus: Corpus, count: int, ears: Ears | None, keep: Path | None = None
                 ) -> dict[str, float]:
    """Figures of `losses.feature_figures` from the sound, and

    wer, wer_real  per cent of words, of the decoded and the original sound (with `ears`); words: how many there are
    start_db       how much louder the first 30 ms are at most than in the original, the worst case
    streamed       largest difference between one frame at a time and all at once

    Raises `ValueError` where no text is held out.
    """
    if not corpus.held_out[:count]:
        raise ValueError(_NOTHING)
    found, true, made_tally, real_tally = [], [], Tally(), Tally()
    start_db, streamed = -120.0, 0.0
    for u in corpus.held_out[:count]:
        real = corpus.samples(u)
        codes = codec.encode(corpus.rows(u))
        made = codec.speak(codes).numpy()
        state = StreamState()
        with torch.no_grad():
            pieces = torch.cat([codec.code2wav.push(codes[i:i + 1], state) for i in range(len(codes))]).numpy()
        streamed = max(streamed, float(np.abs(pieces - made).max()))
        levels = [20 * np.log10(np.abs(x[:START]).max() + 1e-3) for x in (made, real)]
        start_db = max(start_db, float(levels[0] - levels[1]))
        samples = torch.from_numpy(made)[None]
        found.append(torch.cat((log_mel(samples), pitch_rows(torch.from_numpy(pitch(made))[None])), 1))
        true.append(corpus.rows(u))
        if ears:
            made_tally.add(u.text, ears(made))
            real_tally.add(u.text, ears(real))
        if keep:
            _write(keep / f"{u.number}.wav", made)
    figures = feature_figures(torch.cat(found, -1), torch.cat(true, -1))
    if made_tally.words:
        figures |= {"wer": made_tally.rate, "wer_real": real_tally.rate, "words": made_tally.words}
    return figures | {"start_db": start_db, "streamed": streamed}


def speech_report(pair: Path, corpus: Corpus, count: int, seeds: int, ears: Ears | None, keep: Path | None = None,
                  most: int | None = None) -> dict[str, float]:
    """Held-out texts in the voice of a clip that the talker knows, or in its only one; `most` frames each, when given.

    wer, wer_short, wer_long (under and over 100 letters; those there are), ended (per cent by EOS), twice (per cent
    with a sentence that was said again), speed (times real time) and load (seconds). Raises `FileNotFoundError` for a
    folder without a talker, what `load_engine` does, and `ValueError` where no text is held out.
    """
    started = time.perf_counter()
    talker = next((p for p in sorted(pair.glob("*.gguf")) if not p.name.startswith("mmproj")), None)
    if talker is None:
        raise FileNotFoundError(f"{pair}: no talker (.gguf) here; make it with python -m training.export")
    engine = load_engine(talker, device="cpu")
    load = time.perf_counter() - started
    texts = corpus.held_out[:count]
    runs = len(texts) * seeds
    if not runs:
        raise ValueError(_NOTHING)
    voice = engine.default_clip and engine.voice_from_clip(corpus.samples(corpus.train[0]), "known")
    tallies = {name: Tally() for name in ("wer", "wer_short", "wer_long")}
    ended = twice = seconds = spent = 0.0
    for u in texts:
        for seed in range(seeds):
            request = SpeechRequest("", seed=seed, voice=voice, max_frames=most)
            speech = Reading(engine, request, utterances(clean_text(u.text)))
            samples = np.concatenate([chunk.samples for chunk in speech])
            ended += speech.result.finish_reason == "eos"
            seconds += len(samples) / RATE
            spent += speech.result.wall_seconds
            if keep:
                _write(keep / f"{u.number}-{seed}.wav", samples)
            if ears:
                heard = ears(samples)
                for name in ("wer", "wer_long" if len(u.text) > 100 else "wer_short"):
                    tallies[name].add(u.text, heard)
                twice += said_twice(u.text, heard)
    figures = {name: tally.rate for name, tally in tallies.items() if tally.words}
    if ears:
        figures["twice"] = 100 * twice / runs
    return figures | {"ended": 100 * ended / runs, "speed": seconds / spent, "load": load}


def verdict(what: str, name: str, value: float) -> str:
    """Whether a figure is good enough; "" where no bar is set."""
    if name not in BARS[what]:
        return ""
    bar, least = BARS[what][name], name in _MORE_IS_BETTER
    good = value >= bar if least else value <= bar
    return f"{'good' if good else 'NOT GOOD'} ({'at least' if least else 'at most'} {bar:g})"


def _write(path: Path, samples: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, RATE)


@command
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m training.evaluate", description=__doc__.splitlines()[0])
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("config", type=Path, help="of the codec; a pair has its own")
    shared.add_argument("data", type=Path)
    shared.add_argument("--keep", type=Path, help="write the sound here")
    shared.add_argument("--deaf", action="store_true", help="without word error rates, which need faster-whisper")
    shared.add_argument("--threads", type=int, default=1)
    what = parser.add_subparsers(dest="what", required=True)
    codec = what.add_parser("codec", parents=[shared], help="held-out utterances through encoder, codes and decoder")
    codec.add_argument("work", type=Path, help="the folder of the stages")
    codec.add_argument("--stage", default="vocoder", help="which stage's decoder: vocoder or adversarial")
    codec.add_argument("--count", type=int, default=40, help="held-out utterances")
    speech = what.add_parser("speech", parents=[shared], help="held-out texts through the finished pair")
    speech.add_argument("pair", type=Path, help="its folder")
    speech.add_argument("--count", type=int, default=50, help="held-out texts")
    speech.add_argument("--seeds", type=int, default=3, help="of each text")
    args = parser.parse_args(arguments)
    prepare(args.threads)
    corpus = Corpus(args.data)
    ears = None if args.deaf else Ears(threads=args.threads)
    if args.what == "codec":
        figures = codec_report(load_codec(Nano.read(args.config), args.work / args.stage), corpus, args.count, ears,
                               args.keep)
    else:
        figures = speech_report(args.pair, corpus, args.count, args.seeds, ears, args.keep)
    for name, value in figures.items():
        print(f"{name:<14}{value:10.3f}   {verdict(args.what, name, value)}".rstrip())


if __name__ == "__main__":
    main()
