"""Voices that speak the training texts. A teacher is made once per process and may then be asked for any text.

Each is a class with `voices`, the names it can be made with, and `speak`. More voices, and copies of these with other
pitch, tempo and formants, join here.
"""

import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from training.features import HOP, RATE

_SILENCE = 0.004  # amplitude below which nothing is said
# Phonemes' marks of stress and length take no time of their own; a pause takes about that of three sounds.
_MARKS, _PAUSES, _PAUSE = re.compile(r"[ˈˌː]"), re.compile(r"[,.;:?!—]"), 3


@dataclass(frozen=True)
class Spoken:
    """samples float32 [n] at 24 kHz; marks: (letters of the text, seconds), when each word has been said."""

    samples: np.ndarray
    marks: list[tuple[int, float]]


class Teacher(Protocol):
    voices: tuple[str, ...]

    def speak(self, text: str, seed: int) -> Spoken:
        """Raises `ValueError` for a text it cannot say."""


class HibariTeacher:
    """hibari-tts (Apache-2.0): over 70 times as fast as speech on one core, one very regular voice in the package."""

    voices = ("heart",)

    def __init__(self, voice: str):
        from hibari import Hibari

        self._hibari = Hibari(voice)

    def speak(self, text: str, seed: int) -> Spoken:
        samples = np.clip(self._hibari(text, seed=seed), -1, 1)
        if len(samples) < RATE // 4:
            raise ValueError(f"hibari said nothing for {text!r}")
        return Spoken(samples, word_marks(text, samples, " ".join(self._hibari.phonemize(text))))


TEACHERS: dict[str, type] = {"hibari": HibariTeacher}


def make_teacher(name: str) -> Teacher:
    """By "teacher:voice". Raises `ValueError` naming those there are."""
    teacher, _, voice = name.partition(":")
    if teacher not in TEACHERS or voice not in TEACHERS[teacher].voices:
        known = ", ".join(f"{t}:{v}" for t, kind in TEACHERS.items() for v in kind.voices)
        raise ValueError(f"unknown voice {name!r}; known are {known}")
    return TEACHERS[teacher](voice)


def word_marks(text: str, samples: np.ndarray, phonemes: str) -> list[tuple[int, float]]:
    """When words end, guessed from the number of sounds in each: the teacher does not tell.

    Where the phonemes have another number of words than the text (numbers, abbreviations), letters count instead.
    """
    words = list(re.finditer(r"\S+", text))
    sounds = phonemes.split()
    if len(sounds) != len(words):
        sounds = [word.group() for word in words]
    weights = np.array([len(_PAUSES.sub("", _MARKS.sub("", s))) + _PAUSE * bool(_PAUSES.search(s)) for s in sounds],
                       np.float64)
    weights[-1] -= _PAUSE * bool(_PAUSES.search(sounds[-1]))  # the last pause is the silence behind
    loud = np.flatnonzero(np.abs(samples[:len(samples) // HOP * HOP]).reshape(-1, HOP).max(1) > _SILENCE)
    start, end = (loud[0] * HOP, (loud[-1] + 1) * HOP) if len(loud) else (0, len(samples))
    times = (start + (end - start) * np.cumsum(weights) / max(weights.sum(), 1)) / RATE
    return [(0, start / RATE), *((w.end(), float(t)) for w, t in zip(words, times, strict=True))]
