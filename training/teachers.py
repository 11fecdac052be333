"""Voices that speak the training texts. A teacher is made once per process and may then be asked for any text."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import soxr

from training.features import HOP, RATE
from tts_cli.engine import SpeechRequest
from tts_cli.errors import TtsError
from tts_cli.loading import BUILTIN, load_engine

_SILENCE = 0.004  # amplitude below which nothing is said
# Phonemes' marks of stress and length take no time of their own; a pause takes about that of three sounds.
_MARKS, _PAUSES, _PAUSE = re.compile(r"[ˈˌː]"), re.compile(r"[,.;:?!—]"), 3


@dataclass(frozen=True)
class Spoken:
    """samples float32 [n] at 24 kHz; marks: (letters of the text, seconds), when each word has been said."""

    samples: np.ndarray
    marks: list[tuple[int, float]]


class Teacher(Protocol):
    """Made with a voice. Raises `ValueError` for one that it does not have."""

    def speak(self, text: str, seed: int, speed: float = 1.0) -> Spoken:
        """Raises `ValueError` for a text it cannot say."""


class HibariTeacher:
    """hibari-tts (Apache-2.0): over 70 times as fast as speech on one core, one very regular voice in the package."""

    voices = ("heart",)

    def __init__(self, voice: str):
        if voice not in self.voices:
            raise ValueError(f"hibari has no voice {voice!r}; it has {', '.join(self.voices)}")
        from hibari import Hibari

        self._hibari = Hibari(voice)

    def speak(self, text: str, seed: int, speed: float = 1.0) -> Spoken:
        samples = np.clip(self._hibari(text, speed=speed, seed=seed), -1, 1)
        if len(samples) < RATE // 4:
            raise ValueError(f"hibari said nothing for {text!r}")
        return Spoken(samples, word_marks(text, samples, " ".join(self._hibari.phonemize(text))))


class KokoroTeacher:
    """The built-in Kokoro-82M (Apache-2.0): four voices and their mixes, about 3 times as fast as speech on one core.

    It knows when its words sound. voice: as of `tts --voice`, e.g. "bf_emma" or "af_heart:0.6,bm_george:0.4"
    """

    def __init__(self, voice: str):
        self._engine, self._voice = load_engine(BUILTIN, device="cpu"), voice
        try:
            self._engine.voice_paths(voice)
        except TtsError as error:
            raise ValueError(str(error)) from None

    def speak(self, text: str, seed: int, speed: float = 1.0) -> Spoken:
        try:
            speech = self._engine.speak(SpeechRequest(text, voice=self._voice, seed=seed, speed=speed, early=False))
            chunks = list(speech)
        except TtsError as error:
            raise ValueError(f"Kokoro cannot say {text!r}: {error}") from None
        samples = np.clip(np.concatenate([chunk.samples for chunk in chunks]), -1, 1)
        begins = np.cumsum([0, *(len(chunk.samples) / RATE for chunk in chunks)])
        heard = [(word, begin) for chunk, begin in zip(chunks, begins, strict=False) for word in chunk.words]
        if not heard:
            raise ValueError(f"Kokoro said nothing for {text!r}")
        first, begin = heard[0]
        marks, letters = [(0, begin + first.start)], 0
        for word, begin in heard:
            letters = max(letters, text.find(word.text, letters) + len(word.text))
            marks.append((letters, begin + word.end))
        return Spoken(samples, marks)


class Shifted:
    """Another speaker made of one: slower speech played faster, so that pitch and formants are `factor` times as high
    and the tempo stays."""

    def __init__(self, teacher: Teacher, factor: float):
        self._teacher, self._factor = teacher, factor

    def speak(self, text: str, seed: int, speed: float = 1.0) -> Spoken:
        spoken = self._teacher.speak(text, seed, speed / self._factor)
        samples = soxr.resample(spoken.samples, RATE * self._factor, RATE)
        return Spoken(samples, [(letters, seconds / self._factor) for letters, seconds in spoken.marks])


TEACHERS: dict[str, Callable[[str], Teacher]] = {"hibari": HibariTeacher, "kokoro": KokoroTeacher}


def make_teacher(name: str) -> Teacher:
    """By "teacher:voice", or "teacher:voice@1.1" for that voice 1.1 times as high.

    Raises `ValueError` naming the teachers there are, or what the teacher has no voice for.
    """
    teacher, _, voice = name.partition(":")
    voice, shifted, factor = voice.partition("@")
    if teacher not in TEACHERS or not voice:
        raise ValueError(f"unknown voice {name!r}; give {' or '.join(f'{known}:VOICE' for known in TEACHERS)}")
    if shifted and not 0.5 <= float(factor) <= 2:
        raise ValueError(f"{name!r}: {factor} is no factor between 0.5 and 2")
    made = TEACHERS[teacher](voice)
    return Shifted(made, float(factor)) if shifted else made


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
