"""The prompt of the interactive mode: prompt_toolkit around a `Session`."""

import os
import sys
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.patch_stdout import patch_stdout

from tts_cli.repl import Session
from tts_cli.repl_commands import completions, wants_file

GREETING = "Type a text to hear it, /help for the commands, Ctrl-D to leave."
AGAIN_TO_LEAVE = "(Ctrl-C once more leaves, so does Ctrl-D)"
MESSAGE = "tts> "


class Prompt:
    """Lines from a terminal, answers above the line that is being typed."""

    def __init__(self):
        self._session = PromptSession(history=open_history(), complete_while_typing=False)

    def say(self, message: str) -> None:
        """Print a line; from any thread."""
        print(message, flush=True)

    def run(self, session: Session, engine: Future) -> None:
        """Until the person leaves, or the model turns out to be unusable."""
        self._session.completer = SessionCompleter(session)
        engine.add_done_callback(self._leave_without_a_model)
        self.say(GREETING)
        interrupted = False  # a second Ctrl-C in a row, with nothing typed between, leaves
        with patch_stdout():
            while not (engine.done() and engine.exception()):
                try:
                    line = self._session.prompt(MESSAGE)
                except KeyboardInterrupt:
                    typed = bool(self._session.default_buffer.text)
                    if session.stop():
                        self.say("stopped")
                    elif interrupted and not typed:
                        return
                    elif not typed:
                        self.say(AGAIN_TO_LEAVE)
                    interrupted = not typed
                except (EOFError, _NoModel):
                    return
                else:
                    interrupted = False
                    if not session.submit(line):
                        return

    def _leave_without_a_model(self, engine: Future) -> None:
        application = self._session.app
        if engine.exception() is not None and application.loop is not None:
            def leave() -> None:
                if application.is_running:
                    application.exit(exception=_NoModel())
            with suppress(RuntimeError):  # the loop has just ended: `run` looks at the engine itself
                application.loop.call_soon_threadsafe(leave)


class _NoModel(Exception):
    """Ends the prompt when the model could not be loaded."""


class SessionCompleter(Completer):
    """Commands, their values and file names."""

    def __init__(self, session: Session):
        self._session = session
        self._files = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        length, words = completions(text, languages=self._session.languages, voices=self._session.voices)
        for word in words:
            yield Completion(word, start_position=-length)
        typed = wants_file(text)
        if typed is not None:
            yield from self._files.get_completions(Document(typed), event)


def state_folder() -> Path:
    """Where this system keeps what programs remember about a person: $XDG_STATE_HOME first, everywhere."""
    if os.environ.get("XDG_STATE_HOME"):
        return Path(os.environ["XDG_STATE_HOME"]) / "tts-cli"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "tts-cli"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "tts-cli"
    return Path.home() / ".local" / "state" / "tts-cli"


def open_history() -> History:
    """Typed lines of earlier sessions, in a file for this person only; forgotten at the end where none can be kept."""
    path = state_folder() / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600))
        path.chmod(0o600)
    except OSError:
        return InMemoryHistory()
    return _FileHistory(path)


class _FileHistory(FileHistory):
    def store_string(self, string: str) -> None:
        with suppress(OSError):  # a full disk does not end the session
            super().store_string(string)
