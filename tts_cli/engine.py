"""What every speech engine offers: a request goes in, audio chunks come out.

There is one generator per engine. A file, the sound card, the interactive mode and a server all consume the
`Speech` it returns; a file is a stream that was written down.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tts_cli.errors import TtsError, UsageError

if TYPE_CHECKING:  # `tts --help` reads the request's fields and must not pay for numpy
    import numpy as np

    from tts_cli.kokoro.voices import KokoroVoice
    from tts_cli.utterances import Utterance
    from tts_cli.voices import Voice

FINISH_REASONS = ("eos", "limit", "cancelled")
TEXT_MODES = ("full", "streaming")
# Early first sound, then fewer and larger pieces: the vocoder's cost per frame falls with the chunk size.
CHUNK_FRAMES = (1, 1, 2, 4, 8, 12)


def _option(default, help: str, *, low=None, high=None, above=None, choices=None):
    """A request field with what the command line, a server and the check below need to know about it."""
    return field(default=default, metadata=dict(help=help, low=low, high=high, above=above, choices=choices))


@dataclass(frozen=True)
class SpeechRequest:
    """One utterance: what to say and how. Checked once, here.

    `None` means "the model's own default" for sampling values, "random" for the seed and "grows with the text" for
    `max_frames`. `voice`: a clone (Qwen3-TTS), a speaker's name (CustomVoice), or a name, a mix such as
    "af_heart:0.7,am_michael:0.3" or a pack (Kokoro). `instruct`: how to speak, in words (CustomVoice and VoiceDesign).
    `early`: begin with a short clause, so that the first sound is there soon (Kokoro). `in_turns`: this utterance takes
    turns with others on one thread, frame by frame (Qwen3-TTS); it yields a chunk without samples for each frame that
    waits for its chunk to be full, and frames of several are made in one pass where that is faster.

    Raises `UsageError` naming the field, the value and what is allowed.
    """

    text: str
    language: str = _option("auto", "language by name or two-letter code")
    voice: Voice | KokoroVoice | str | None = None
    text_mode: str | None = _option(None, "text layout", choices=TEXT_MODES)
    temperature: float | None = _option(None, "talker temperature, 0 = greedy", low=0.0, high=100.0)
    top_k: int | None = _option(None, "talker: keep the k most likely codes, 0 = all", low=0)
    top_p: float | None = _option(None, "talker: keep the most likely codes up to this probability", low=0.0, high=1.0)
    repeat_penalty: float | None = _option(None, "penalty on codes already spoken, 1 = none", low=0.01, high=100.0)
    sub_temperature: float | None = _option(None, "code predictor temperature, 0 = greedy", low=0.0, high=100.0)
    sub_top_k: int | None = _option(None, "code predictor: keep the k most likely codes, 0 = all", low=0)
    sub_top_p: float | None = _option(None, "code predictor: keep up to this probability", low=0.0, high=1.0)
    greedy: bool = _option(False, "always take the most likely code (the penalty still acts)")
    seed: int | None = _option(None, "same seed, same bytes", low=0, high=2**63 - 1)
    max_frames: int | None = _option(None, "stop after this many frames of 80 ms", low=1)
    chunk_frames: tuple[int, ...] = _option(CHUNK_FRAMES, "frames per chunk, the last number repeats", low=1)
    instruct: str | None = None
    speed: float = _option(1.0, "how fast to speak", low=0.25, high=4.0)
    phonemes: bool = _option(False, "the text is phonemes, not words")
    early: bool = True
    in_turns: bool = False

    def __post_init__(self):
        for f in fields(self):
            value = getattr(self, f.name)
            if f.metadata and value is not None:
                for one in value if isinstance(value, tuple) else (value,):
                    _check_value(f.name, one, f.metadata)
        if not self.chunk_frames:
            raise UsageError("chunk_frames: at least one number is needed")


def _check_value(name: str, value, rule) -> None:
    if rule["choices"] and value not in rule["choices"]:
        raise UsageError(f"{name}: {value!r} is not one of {', '.join(rule['choices'])}")
    low, high, above = rule["low"], rule["high"], rule["above"]
    if low is None and high is None and above is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UsageError(f"{name}: {value!r} is not a finite number")
    if low is not None and value < low:
        raise UsageError(f"{name}: {value} is too small, the least is {low}")
    if above is not None and value <= above:
        raise UsageError(f"{name}: {value} must be greater than {above}")
    if high is not None and value > high:
        raise UsageError(f"{name}: {value} is too large, the most is {high}")


@dataclass(frozen=True)
class Word:
    """A word as it was written, with its punctuation, and when it sounds, in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class AudioChunk:
    """A run of consecutive samples.

    samples        float32 [n], mono, in [-1, 1]; n may be 0 in the last chunk
    sample_rate    Hz, the model's own
    codes          int32 [frames, books] that made the samples, or None for engines without codes
    finish_reason  None, except in the last chunk of an utterance: "eos", "limit" or "cancelled"
    words          those that begin in this chunk, timed from its first sample; none for engines that do not know
    """

    samples: np.ndarray
    sample_rate: int
    codes: np.ndarray | None = None
    finish_reason: str | None = None
    words: tuple[Word, ...] = ()


@dataclass(frozen=True)
class SpeechResult:
    """How an utterance went; times in seconds, counted from the call of `Engine.speak`.

    left_out  words that the model does not read (see `Engine.unread`)
    """

    samples: int
    sample_rate: int
    frames: int
    finish_reason: str
    seed: int
    wall_seconds: float
    first_audio_seconds: float | None
    peak: float
    left_out: tuple[str, ...] = ()

    @property
    def audio_seconds(self) -> float:
        return self.samples / self.sample_rate

    @property
    def times_real_time(self) -> float:
        """Seconds of audio made per second of wall time."""
        return self.audio_seconds / self.wall_seconds if self.wall_seconds else 0.0

    def __str__(self) -> str:
        first = "none" if self.first_audio_seconds is None else f"{1000 * self.first_audio_seconds:.0f} ms"
        return (f"{self.audio_seconds:.2f} s of audio in {self.wall_seconds:.2f} s ({self.times_real_time:.2f} x "
                f"real time), first audio {first}, finish {self.finish_reason}, seed {self.seed}")


def not_read(words: Sequence[str]) -> str:
    """What to tell a person of `SpeechResult.left_out`."""
    more = f" and {len(words) - 20} more" if len(words) > 20 else ""
    return f"left out, not in the language of the voice: {' '.join(words[:20])}{more}"


class CancelToken:
    """Asked once per frame by the generator; may be set from any thread or a signal handler."""

    def __init__(self):
        self._event = threading.Event()

    def cancel(self) -> None:
        self._event.set()

    @property
    def cancelled(self) -> bool:
        return self._event.is_set()


class Speech:
    """One utterance being made: iterate for `AudioChunk`s, then read `result`.

    Iterating raises `TtsError` when the model produces samples that are not numbers: dead audio is never passed on.
    """

    def __init__(self, chunks: Iterator[AudioChunk], sample_rate: int, seed: int):
        self._chunks = chunks
        self._started = time.perf_counter()
        self.sample_rate = sample_rate
        self.seed = seed
        self._left_out: list[str] = []  # for subclasses that read a text
        self._samples = self._frames = 0
        self._peak = 0.0
        self._first_audio: float | None = None
        self._result: SpeechResult | None = None

    def __iter__(self) -> Iterator[AudioChunk]:
        return self

    def __next__(self) -> AudioChunk:
        chunk = next(self._chunks)
        if chunk.samples.size:
            peak = float(abs(chunk.samples).max())
            if not math.isfinite(peak):
                raise TtsError("the model produced samples that are not numbers; try --dtype float32, "
                               "and check the model files (tts inspect)")
            self._peak = max(self._peak, peak)
            if self._first_audio is None:
                self._first_audio = time.perf_counter() - self._started
        self._samples += chunk.samples.size
        self._frames += 0 if chunk.codes is None else len(chunk.codes)
        if chunk.finish_reason:
            self._result = SpeechResult(
                samples=self._samples, sample_rate=self.sample_rate, frames=self._frames,
                finish_reason=chunk.finish_reason, seed=self.seed,
                wall_seconds=time.perf_counter() - self._started,
                first_audio_seconds=self._first_audio, peak=self._peak, left_out=tuple(self._left_out))
        return chunk

    @property
    def result(self) -> SpeechResult:
        """Raises `RuntimeError` while the utterance is not finished."""
        if self._result is None:
            raise RuntimeError("the utterance is not finished: iterate to the last chunk first")
        return self._result


class Engine(Protocol):
    """A model behind the one generator. `check` needs no weights; `speak` loads them when that was not done."""

    sample_rate: int
    paths: list[Path]        # the model's files, which no output may overwrite
    languages: list[str]     # besides "auto"
    voice_names: list[str]   # what `SpeechRequest.voice` may name; empty when there are none
    default_voice: str | None  # the one of these that speaks when none is named
    unused: frozenset[str]   # fields of a request that make no difference, "codes" when chunks have none
    default_clip: Path | None  # a recording to clone when no voice is given, for models that would pick one at random
    first_run: str | None    # what the first use on this machine takes a while for; None when that was done
    together: int            # so many utterances in turns take less time than one after another; 1: none do

    def check(self, request: SpeechRequest) -> None:
        """Refuse, before any weight is read, what `speak` could not do. Raises `UsageError`."""

    def load(self) -> None:
        """Read the weights (once). Raises `ModelFileError`."""

    def speak(self, request: SpeechRequest, cancel: CancelToken | None = None) -> Speech:
        """Start one utterance. Several may be iterated in turn: all state belongs to the returned `Speech`."""

    def parts(self, pieces: Iterable[Utterance]) -> Iterator[Utterance]:
        """The utterances that the model is asked for to speak `pieces`, at least one where there is a piece.

        As they are, but for models that were trained on short ones or on words alone.
        """

    def unread(self, request: SpeechRequest) -> list[str]:
        """Words of the text that the model leaves out, needs no weights."""

    def check_cloning(self, transcript: bool) -> None:
        """Refuse, before any weight is read, what `voice_from_clip` could not do. Raises `UsageError`."""

    def voice_from_clip(self, clip: np.ndarray, name: str, ref_text: str | None = None) -> Voice:
        """Clone: mono float32 samples at `sample_rate`, and what they say, to a `Voice`. Raises `UsageError`."""

    def voice_from_file(self, path: Path) -> KokoroVoice:
        """A voice that was saved. Raises `UsageError` if the model has no such files, or `ModelFileError`."""

    def voice_paths(self, spec: str) -> list[Path]:
        """The files that voices of a name or mix are read from; none for those in the model. Raises `UsageError`."""

    def phonemes(self, text: str, voice: KokoroVoice | str | None = None, language: str = "auto") -> str:
        """What the model reads for `text`, without weights. Raises `UsageError` if it reads the text itself."""

    def describe(self) -> list[str]:
        """What runs, in lines a person reads."""
