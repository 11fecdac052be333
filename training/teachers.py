"""Voices that speak the training texts. A teacher is made once per process and may then be asked for any text."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Protocol

import numpy as np
import soxr

from training.features import RATE
from tts_cli.engine import SpeechRequest
from tts_cli.errors import TtsError
from tts_cli.loading import BUILTIN, open_engine

_MARKS = re.compile(r"[ˈˌː“”]")    # phonemes' signs of stress, length and quotation take no time of their own
_PAUSES = re.compile(r"[,.;:?!—]")


@dataclass(frozen=True)
class Spoken:
    """Speech and when what is in it.

    samples  float32 [n] at 24 kHz
    marks    (letters of the text, seconds) where words begin and end, in order
    sounds   (phoneme, second at which it ends), in order, the first from 0 on; "" is a pause
    """

    samples: np.ndarray
    marks: list[tuple[int, float]]
    sounds: list[tuple[str, float]]


class Teacher(Protocol):
    """Made with a voice, loaded with the first text. Raises `ValueError` for a voice that it does not have."""

    def speak(self, text: str, seed: int, speed: float = 1.0) -> Spoken:
        """Say a text, `speed` times as fast as usual. Raises `ValueError` for one it cannot say."""


class HibariTeacher:
    """hibari-tts (Apache-2.0): over 70 times as fast as speech on one core, one very regular voice in the package."""

    voices = ("heart",)

    def __init__(self, voice: str):
        if voice not in self.voices:
            raise ValueError(f"hibari has no voice {voice!r}; it has {', '.join(self.voices)}")
        self._voice = voice

    @cached_property
    def _hibari(self):
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # see tts_cli/kokoro/g2p
        from hibari import Hibari

        return Hibari(self._voice)

    @cached_property
    def _lengths(self):
        return _length_session(self._hibari.model_path)

    def speak(self, text: str, seed: int, speed: float = 1.0) -> Spoken:
        """See `Teacher.speak`; sentence by sentence, less than a quarter of a second counts as nothing said."""
        rng, parts, sounds, start = np.random.default_rng(seed), [], [], 0.0
        for phonemes in self._hibari.phonemize(text):
            ids = self._hibari.ids(phonemes)
            part = np.clip(self._hibari.from_ids(ids, speed, rng), -1, 1)
            sounds += self._timed(phonemes, ids, len(part) / RATE, speed, start)
            parts.append(part)
            start += len(part) / RATE
        if start < 0.25:
            raise ValueError(f"hibari said nothing for {text!r}")
        return Spoken(np.concatenate(parts), word_marks(text, sounds), tidy_sounds(sounds))

    def _timed(self, phonemes: str, ids: list[int], seconds: float, speed: float, start: float
               ) -> list[tuple[str, float]]:
        """Every character of a sentence and when it ends, by the lengths the model gives them."""
        lengths, = self._lengths.run(None, {"ids": np.array([ids]), "speed": np.array([speed], np.float32)})
        ends = start + np.cumsum(lengths) * seconds / lengths.sum()
        known = [c for c in phonemes if c in self._hibari.vocab]
        return list(zip(["", *known, ""], ends.tolist(), strict=True))


def _length_session(path: str):
    """The part of hibari's model that says how long each phoneme is: what it rounds for the only time."""
    import onnx
    import onnxruntime

    model = onnx.load(path)
    rounded, = (node.output[0] for node in model.graph.node if node.op_type == "Round")
    lengths, = (node.output[0] for node in model.graph.node if node.op_type == "Clip" and rounded in node.input)
    part = onnx.utils.Extractor(model).extract_model(["ids", "speed"], [lengths])
    return onnxruntime.InferenceSession(part.SerializeToString(), providers=["CPUExecutionProvider"])


class KokoroTeacher:
    """The built-in Kokoro-82M (Apache-2.0): four voices and their mixes, about 3 times as fast as speech on one core.

    It knows when its words sound. voice: as of `tts --voice`, e.g. "bf_emma" or "af_heart:0.6,bm_george:0.4"
    """

    def __init__(self, voice: str):
        self._engine, self._voice = open_engine(BUILTIN, device="cpu"), voice
        try:
            self._engine.voice_paths(voice)
        except TtsError as error:
            raise ValueError(str(error)) from None

    def speak(self, text: str, seed: int, speed: float = 1.0) -> Spoken:
        """See `Teacher.speak`; the phonemes of a word share its time evenly."""
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
        sounds = [("", begins[0])]
        for word, begin in heard:
            said = [*self._engine.phonemes(word.text, self._voice)]
            times = np.linspace(begin + word.start, begin + word.end, len(said) + 1)
            sounds += [(" ", float(times[0])), *zip(said, times[1:].tolist(), strict=True)]
        return Spoken(samples, word_marks(text, sounds), tidy_sounds(sounds))


class Shifted:
    """Another speaker made of one: slower speech played faster, so that pitch and formants are `factor` times as high
    and the tempo stays."""

    def __init__(self, teacher: Teacher, factor: float):
        self._teacher, self._factor = teacher, factor

    def speak(self, text: str, seed: int, speed: float = 1.0) -> Spoken:
        spoken = self._teacher.speak(text, seed, speed / self._factor)
        samples = soxr.resample(spoken.samples, RATE * self._factor, RATE)
        return Spoken(samples, *([(what, seconds / self._factor) for what, seconds in found]
                                 for found in (spoken.marks, spoken.sounds)))


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


def word_marks(text: str, sounds: Sequence[tuple[str, float]]) -> list[tuple[int, float]]:
    """Where words begin and end, from characters of phonemes and when they end; " " is between words.

    Where there is another number of words than in the text (abbreviations), only beginning and end are known.
    """
    spoken, before = [], 0.0
    for word, part in groupby(sounds, lambda sound: sound[0] not in ("", " ")):
        *_, (_, last) = part = list(part)
        ends = [end for symbol, end in part if not _PAUSES.fullmatch(symbol)]
        if word and ends:
            spoken.append((before, ends[-1]))
        before = last
    words = [word.span() for word in re.finditer(r"\S+", text)]
    if len(words) != len(spoken):
        words, spoken = [(0, len(text))], [(spoken[0][0], spoken[-1][1])]
    return [mark for (first, last), (start, end) in zip(words, spoken, strict=True)
            for mark in ((first, start), (last, end))]


def tidy_sounds(sounds: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Only phonemes and pauses: signs that are no sounds of their own end with the sound before."""
    found: list[tuple[str, float]] = []
    for symbol, end in sounds:
        symbol = "" if symbol == " " or _PAUSES.fullmatch(symbol) else symbol
        if found and (_MARKS.fullmatch(symbol) or symbol == found[-1][0] == ""):
            found[-1] = (found[-1][0], end)
        elif not _MARKS.fullmatch(symbol):
            found.append((symbol, end))
    return found
