"""An engine of a few lines in place of a model, so that a process that speaks starts in a second.

    [sys.executable, "-c", fake_speech.TTS, "batch", ...]    the command line with it
"""

import sys
import time
import zlib
from dataclasses import dataclass

import numpy as np

from tts_cli.engine import AudioChunk, CancelToken, Speech
from tts_cli.errors import TtsError, UsageError
from tts_cli.model_choice import ModelChoice

TTS = "import fake_speech; fake_speech.run()"
RATE = 24000
CHUNK = 2400
FOR_EVER = "for ever"  # a text with these words never ends
UNSPEAKABLE = "unspeakable"  # one with this is refused


@dataclass(frozen=True)
class Choice(ModelChoice):
    """`dtype`, which this engine has no use for, says how many seconds a chunk takes; or "gone": there is no model, or
    "never": it takes ten minutes to open.
    """

    def open(self, told) -> "FakeEngine":
        if self.dtype == "gone":
            raise TtsError("there is no model here")
        if self.dtype == "never":
            time.sleep(600)
        return FakeEngine(0.0 if self.dtype == "auto" else float(self.dtype))

    def tell(self, told, engine) -> None:
        pass


class FakeEngine:
    """Noise of the seed and the text: four chunks, or chunks without end."""

    sample_rate = RATE
    default_clip = default_voice = first_run = None
    together = 1
    paths, languages, voice_names, unused = [], [], [], frozenset(("codes",))

    def __init__(self, seconds: float):
        self._seconds = seconds
        self.checked = []

    def load(self) -> None:
        pass

    def check(self, request) -> None:
        self.checked.append(request.text)
        if UNSPEAKABLE in request.text:
            raise UsageError(f"text: {request.text!r} has no sound")

    def parts(self, pieces):
        return iter(pieces)

    def unread(self, request) -> list[str]:
        return []

    def voice_paths(self, spec) -> list:
        return []

    def check_cloning(self, transcript) -> None:
        pass

    def speak(self, request, cancel=None) -> Speech:
        return Speech(self._chunks(request, cancel or CancelToken()), RATE, request.seed)

    def _chunks(self, request, cancel):
        draw = np.random.default_rng([request.seed, zlib.crc32(request.text.encode())])
        made = 0
        while FOR_EVER in request.text or made < 4:
            if cancel.cancelled:
                yield AudioChunk(np.zeros(0, np.float32), RATE, finish_reason="cancelled")
                return
            time.sleep(max(self._seconds, 0.001))
            yield AudioChunk(draw.uniform(-0.5, 0.5, CHUNK).astype(np.float32), RATE)
            made += 1
        yield AudioChunk(np.zeros(0, np.float32), RATE, finish_reason="eos")


def run() -> None:
    from tts_cli.cli import batch, batch_run
    from tts_cli.cli.main import leave, main

    batch.ModelChoice = Choice
    batch_run.use_threads = lambda threads: 1
    leave(main(sys.argv[1:]))
