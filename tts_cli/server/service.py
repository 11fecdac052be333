"""One engine on one worker thread, and the way from a request's fields to a job."""

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from anyio import CapacityLimiter, to_thread

from tts_cli.engine import CancelToken, Engine, SpeechRequest
from tts_cli.errors import UsageError
from tts_cli.manner import CLIP_RATE, Manner
from tts_cli.notices import Notices
from tts_cli.reading import Reading
from tts_cli.server.errors import ApiError
from tts_cli.server.live_text import LiveSpeech, LiveText
from tts_cli.server.metrics import Metrics
from tts_cli.server.schemas import SpeechFields
from tts_cli.server.settings import TURN_FRAMES, ServerSettings
from tts_cli.server.voices import chosen_voice
from tts_cli.server.worker import Busy, Job, SpeechWorker
from tts_cli.text import clean_text
from tts_cli.utterances import PARAGRAPH_GAP, utterances

log = logging.getLogger("tts_cli.server")
# Field of the API -> field of the request, where it is not the same name.
_FIELDS = {"lang": "language", "n_predict": "max_frames"} | {name: name for name in (
    "instruct", "temperature", "top_k", "top_p", "repeat_penalty", "sub_temperature", "sub_top_k", "sub_top_p", "seed",
    "speed")}


@dataclass(frozen=True)
class Wish:
    """How to speak, checked as far as that goes without the model's thread."""

    request: SpeechRequest
    clip: np.ndarray | None
    ref_text: str | None


class SpeechService:
    """What the routes share.

    defaults  what a request does not say
    prepare   called on the worker's thread before the first request, when the model is there; returns the defaults
              with the voice that only the model can make
    """

    def __init__(self, engine: Engine, settings: ServerSettings | None = None,
                 defaults: SpeechRequest | None = None, prepare: Callable[[], SpeechRequest] | None = None):
        self.engine, self.settings, self.metrics = engine, settings or ServerSettings(), Metrics()
        self.defaults = defaults or SpeechRequest("")
        self._prepare = prepare
        s = self.settings
        self.worker = SpeechWorker(self._load, self.metrics, parallel=s.parallel, queue=s.queue,
                                   ahead_seconds=s.ahead_seconds)
        self.metrics.watch(self.worker)
        self._decoders = CapacityLimiter(2)
        self.ending = asyncio.Event()

    @property
    def status(self) -> str:
        """ok, loading or failed."""
        loaded = self.worker.loaded
        if not loaded.done():
            return "loading"
        return "failed" if loaded.exception() is not None or not self.worker.alive else "ok"

    def end(self) -> None:
        """On the event loop: no new requests come; texts that are still being written end here."""
        self.ending.set()

    def close(self) -> None:
        self.worker.close()

    async def wish(self, fields: SpeechFields, voice: str | None, instruct: str | None = None,
                   clip: bytes | None = None) -> Wish:
        """Raises `UsageError` or `ApiError`."""
        given = {there: value for here, there in _FIELDS.items() if (value := getattr(fields, here)) is not None}
        if instruct is not None:
            given["instruct"] = instruct
        if {"temperature", "sub_temperature"} & given.keys():
            given["greedy"] = False
        voice = chosen_voice(self.engine, voice)
        if voice is not None:
            given["voice"] = voice
        request = replace(self.defaults, text="", **given)
        if clip is None and fields.speaker_ref_b64 is not None:
            clip = self._from_base64(fields.speaker_ref_b64)
        if clip is None:
            if fields.ref_text is not None:
                raise ApiError(400, "ref_text: it says what a recording says; send speaker_ref, too", "ref_text")
            return Wish(request, None, None)
        if voice is not None:
            raise ApiError(400, "voice: give a voice or speaker_ref, not both", "voice")
        try:
            self.engine.check_cloning(fields.ref_text is not None)
        except UsageError as error:
            raise ApiError(400, str(error), "speaker_ref", "invalid_value") from None
        ref_text = None if fields.ref_text is None else clean_text(fields.ref_text)
        return Wish(request, await self._decoded(clip), ref_text)

    def checked_text(self, text: str) -> str:
        """Cleaned. Raises `ApiError` when it is too long, `UsageError` when there is nothing to speak."""
        if len(text) > self.settings.max_text:
            raise ApiError(400, f"input: {len(text)} characters are too many, the most is {self.settings.max_text}; "
                                "send it in parts", "input", "text_too_long")
        return clean_text(text)

    def speak(self, text: str, wish: Wish) -> Job:
        """Put a cleaned text into the queue. Raises `Busy`, or `UsageError` for text that cannot be spoken."""
        self._refuse_when_ending()
        gap = self.settings.gap
        pieces = utterances(text, max_chars=self.settings.max_chars, gap=gap, paragraph_gap=max(gap, PARAGRAPH_GAP))

        def start(cancel: CancelToken) -> Reading:
            return Reading(self.engine, self._voiced(wish), pieces, cancel)

        return self.worker.submit(start, long_start=wish.clip is not None)

    def speak_live(self, text: LiveText, wish: Wish) -> Job:
        """Speak a text that is still to come; `worker.wake` tells that more is there. Raises `Busy`."""
        self._refuse_when_ending()
        speech: LiveSpeech | None = None

        def start(cancel: CancelToken) -> LiveSpeech:
            nonlocal speech
            speech = LiveSpeech(self.engine, self._voiced(wish), text, cancel, max_chars=self.settings.max_chars,
                                gap=self.settings.gap)
            return speech

        return self.worker.submit(start, lambda: speech.can_go_on, long_start=wish.clip is not None)

    def _refuse_when_ending(self) -> None:
        if self.ending.is_set():
            raise Busy("the server is shutting down")

    def _load(self) -> None:
        self.engine.load()
        if self._prepare is not None:
            self.defaults = self._prepare()

    def _voiced(self, wish: Wish) -> SpeechRequest:
        """On the worker's thread."""
        self.worker.loaded.result()  # a model that could not be loaded is every request's fault
        voice = wish.request.voice
        if wish.clip is not None:
            voice = self.engine.voice_from_clip(wish.clip, "speaker_ref", wish.ref_text)
        elif voice is None:  # the defaults' voice was not there when the request came
            voice = self.defaults.voice
        return replace(wish.request, voice=voice, in_turns=self.settings.parallel > 1)

    def _from_base64(self, text: str) -> bytes:
        try:
            return base64.b64decode(text.encode("ascii"), validate=True)
        except (UnicodeEncodeError, binascii.Error, ValueError):
            raise ApiError(400, "speaker_ref_b64: this is not base64 (RFC 4648, without line breaks or a data: prefix)",
                           "speaker_ref_b64", "invalid_value") from None

    async def _decoded(self, clip: bytes) -> np.ndarray:
        from tts_cli.audio.read import read_clip

        limit, seconds = self.settings.max_clip_bytes, self.settings.max_clip_seconds
        if len(clip) > limit:
            raise ApiError(413, f"speaker_ref: {len(clip)} bytes are too many, the most is {limit}; a few seconds of "
                                "speech are enough", "speaker_ref", "clip_too_large")
        samples = await to_thread.run_sync(read_clip, clip, limiter=self._decoders)
        if len(samples) > seconds * CLIP_RATE:
            raise UsageError(f"the clip: {len(samples) / CLIP_RATE:.1f} s are too long, the most is {seconds:g} s")
        return samples


def manner_in_turns(manner: Manner) -> Manner:
    """For requests that take turns, with chunks so short that nobody waits long for another's."""
    return replace(manner, request=replace(manner.request, chunk_frames=TURN_FRAMES))


def service_in(manner: Manner, engine: Engine, clip: np.ndarray | None, settings: ServerSettings,
               told: Notices) -> SpeechService:
    """A service that speaks in `manner` unless a request says otherwise; `clip` is what the manner reads.

    `told` hears when the model is there.
    """
    def prepare() -> SpeechRequest:
        request = manner.voiced(engine, clip, told).request
        told.note("tts: the model is loaded")
        return request

    given = {name: value for name in ("max_chars", "gap") if (value := getattr(manner, name)) is not None}
    return SpeechService(engine, replace(settings, **given), manner.request, prepare)
