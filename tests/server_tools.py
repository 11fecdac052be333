"""A server in this process for the tests: an engine that needs no model, and real sockets."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np

from tts_cli.engine import AudioChunk, CancelToken, Speech, SpeechRequest
from tts_cli.errors import UsageError
from tts_cli.notices import Notices
from tts_cli.server.app import create_app
from tts_cli.server.run import Server, listen, url_of
from tts_cli.server.service import SpeechService
from tts_cli.server.settings import ServerSettings
from tts_cli.text import clean_text

RATE = 24_000
FRAME = 1920
VOICES = ["low", "high"]
CREATE = "/v1/audio/speech"


class SineEngine:
    """One frame of a tone per word, its pitch by voice and seed; the word decides what else happens.

    `gate`: a semaphore taken before every frame, or None. `frames`: how many were made. `fault`: the exception that the
    word "fault" raises.
    """

    sample_rate = RATE
    paths: list[Path] = []
    languages = ["english", "german"]
    voice_names = VOICES
    default_voice = "low"
    unused = frozenset()
    default_clip, together = None, 1

    def __init__(self):
        self.gate: threading.Semaphore | None = None
        self.frames = 0
        self.fault: Exception = ValueError("a secret of the inside")
        self.opened = threading.Event()
        self.opened.set()
        self.threads: set[str] = set()

    def load(self) -> None:
        self.opened.wait(30)

    def check(self, request: SpeechRequest) -> None:
        clean_text(request.text)
        if request.language.lower() not in ("auto", *self.languages):
            raise UsageError(f"language: {request.language!r} is not one of auto, {', '.join(self.languages)}")

    def check_cloning(self, transcript: bool) -> None:
        pass

    def unread(self, request) -> list[str]:
        return []

    def parts(self, pieces):
        return iter(pieces)

    def voice_from_clip(self, clip: np.ndarray, name: str, ref_text: str | None = None):
        return f"clip {len(clip)} {ref_text}"

    def speak(self, request: SpeechRequest, cancel: CancelToken | None = None) -> Speech:
        self.check(request)
        seed = 0 if request.seed is None else request.seed
        return Speech(self._chunks(request, seed, cancel or CancelToken()), RATE, seed)

    def _chunks(self, request: SpeechRequest, seed: int, cancel: CancelToken) -> Iterator[AudioChunk]:
        words = request.text.split()
        for number, word in enumerate(words[:request.max_frames]):
            while self.gate is not None and not self.gate.acquire(timeout=0.01):
                if cancel.cancelled:
                    break
            if cancel.cancelled:
                yield AudioChunk(np.zeros(0, np.float32), RATE, None, "cancelled")
                return
            if word.strip(".") == "fault":
                raise self.fault
            self.frames += 1
            self.threads.add(threading.current_thread().name)
            yield AudioChunk(tone(request.voice, seed, number), RATE, np.zeros((1, 16), np.int32))
        cut = request.max_frames is not None and len(words) > request.max_frames
        yield AudioChunk(np.zeros(0, np.float32), RATE, None, "limit" if cut else "eos")


def tone(voice: str | None, seed: int, number: int) -> np.ndarray:
    pitch = 200 + 40 * (sum(map(ord, voice or "")) % 7) + seed % 97
    return (0.3 * np.sin(2 * np.pi * pitch * (np.arange(FRAME) + number * FRAME) / RATE)).astype(np.float32)


@contextlib.contextmanager
def serving(engine, defaults: SpeechRequest | None = None, **settings) -> Iterator["Running"]:
    """A real server on a free port, in a thread."""
    service = SpeechService(engine, ServerSettings(**settings), defaults)
    listener = listen("127.0.0.1", 0)
    server = Server(create_app(service), service, 3, Notices())
    url = url_of(listener)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        with httpx.Client(base_url=url, timeout=30, verify=False) as client:
            yield Running(url, client, service, engine, server.server_state.connections)
    finally:
        server.should_exit = True
        service.close()
        thread.join(20)
    assert not thread.is_alive()


class Running:
    def __init__(self, url: str, client: httpx.Client, service: SpeechService, engine, connections: set):
        self.url, self.client, self.service, self.engine = url, client, service, engine
        self.connections = connections

    def speak(self, text: str = "one two three", route: str = "/tts", **fields) -> httpx.Response:
        """A request without chance: its seed is 0 unless given."""
        return self.client.post(route, json={"input": text, "seed": 0, **fields})

    def pcm(self, text: str = "one two three", **fields) -> bytes:
        answer = self.speak(text, response_format="pcm", **fields)
        assert answer.status_code == 200, answer.text
        return answer.content


def error_of(answer: httpx.Response) -> dict:
    """The error of an answer, in the shape that all of them have."""
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["error"] and set(body["error"]) == {"message", "type", "param", "code"}, body
    assert answer.headers["x-request-id"]
    return body["error"]


def until(condition, seconds: float = 20) -> None:
    """Wait for what another thread does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
