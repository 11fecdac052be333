"""Rows that the model could not speak are refused before any weight is read."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from tts_cli.batch.rows import OF_A_CLIP, VOICE_COLUMNS, Row, check_format, manner_of, stated
from tts_cli.engine import Engine, SpeechRequest
from tts_cli.errors import NothingToSpeak, TtsError, UsageError
from tts_cli.flags import flags_named
from tts_cli.notices import Notices
from tts_cli.reading import from_first_spoken

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
        self._clip = lru_cache(_MANNERS_KEPT)(self._read_clip)

    def __call__(self, row: Row) -> None:
        """Raises `UsageError`. A manner of speaking is tried once, with one letter."""
        pieces = row.manner().pieces(row.text)
        options = _text(row.options)
        if problem := self._problem(options):
            raise UsageError(problem)
        if self._is_tried(row):
            request = self._request(options)
            with flags_named():
                parts = from_first_spoken(self._engine, request, pieces)
                next(parts, None)  # was tried
                for piece in parts:
                    with contextlib.suppress(NothingToSpeak):  # it will be left out
                        self._engine.check(replace(request, text=piece.text))

    def defaults(self, options: Mapping) -> tuple[dict, list[str]]:
        """Those of the command line's options, by column names, that can be used, and what is wrong with the others.

        What is missing, such as a voice where the model has none of its own, may still be in the rows.
        """
        left, problems = stated(options), []
        while problem := self._problem(_text(left)):
            wrong = [name for name in left if self._problem(_text(_without(left, name))) != problem]
            if not wrong:
                break
            left = _without(left, wrong[0])
            flag = "--" + wrong[0].replace("_", "-")
            problems.append(problem if flag in problem else f"{flag}: {problem.removeprefix(f'{wrong[0]}: ')}")
        return left, problems

    def _is_tried(self, row: Row) -> bool:
        if self._chars_left > 0:
            self._chars_left -= len(row.text)
            return True
        self._beyond += 1
        return self._beyond % TRIED_BEYOND == 0

    def _problem_of(self, options: str) -> str:
        try:
            given = json.loads(options)
            check_format(given)
            manner = manner_of(given)
            manner.pieces("a")  # how text is divided
            self._clip(_text({name: given[name] for name in VOICE_COLUMNS if name in given}))
            manner.check_cloning(self._engine)
            with flags_named():
                self._engine.check(replace(self._request(options), text="a"))
        except TtsError as error:
            return str(error)
        return ""

    def _read_clip(self, whose: str) -> None:
        """What is not right with it is told once, whatever else its rows say."""
        manner_of(json.loads(whose)).read_clip(self._told)

    def _request_of(self, options: str) -> SpeechRequest:
        return manner_of(json.loads(options)).with_voice_file(self._engine).request


def _text(options: Mapping) -> str:
    return json.dumps(options, sort_keys=True)


def _without(options: Mapping, name: str) -> dict:
    gone = (name, *OF_A_CLIP) if name == "speaker_file" else (name,)
    return {name: value for name, value in options.items() if name not in gone}
