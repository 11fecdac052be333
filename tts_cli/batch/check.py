"""Rows that the model could not speak are refused before any weight is read."""

import json
from dataclasses import replace
from functools import lru_cache

from tts_cli.batch.rows import Row, manner_of
from tts_cli.engine import Engine, SpeechRequest
from tts_cli.errors import TtsError, UsageError
from tts_cli.flags import flags_named
from tts_cli.notices import Notices

# The model's own look at a text takes Kokoro 3 to 8 ms a sentence: up to two minutes for so much, ten hours of speech.
TRIED_CHARS = 1_000_000
TRIED_BEYOND = 100  # then one row of so many
_MANNERS_KEPT, _VOICES_KEPT = 1024, 64


class Check:
    """Every option is tried, and the text of every row up to a million characters of them; behind those, of every
    hundredth row. A text that is refused only when it is spoken fails its row.
    """

    def __init__(self, engine: Engine, told: Notices, tried_chars: int = TRIED_CHARS):
        self._engine, self._told = engine, told
        self._chars_left, self._beyond = tried_chars, 0
        self._problem = lru_cache(_MANNERS_KEPT)(self._problem_of)
        self._request = lru_cache(_VOICES_KEPT)(self._request_of)

    def __call__(self, row: Row) -> None:
        """Raises `UsageError`. A manner of speaking is tried once, with one letter."""
        pieces = row.manner().pieces(row.text)
        options = json.dumps(row.options, sort_keys=True)
        if problem := self._problem(options):
            raise UsageError(problem)
        if self._is_tried(row):
            request = self._request(options)
            with flags_named():
                for piece in pieces:
                    self._engine.check(replace(request, text=piece.text))

    def _is_tried(self, row: Row) -> bool:
        if self._chars_left > 0:
            self._chars_left -= len(row.text)
            return True
        self._beyond += 1
        return self._beyond % TRIED_BEYOND == 0

    def _problem_of(self, options: str) -> str:
        try:
            manner = manner_of(json.loads(options))
            manner.read_clip(self._told)
            manner.check_cloning(self._engine)
            with flags_named():
                self._engine.check(replace(self._request(options), text="a"))
        except TtsError as error:
            return str(error)
        return ""

    def _request_of(self, options: str) -> SpeechRequest:
        return manner_of(json.loads(options)).with_voice_file(self._engine).request
