"""Run `tts` inside the test process, with its three streams replaced by bytes."""

import io
import sys
import threading
from dataclasses import dataclass
from unittest import mock

from tts_cli.cli.main import main


@dataclass
class Run:
    code: int
    out: bytes
    err: str

    @property
    def error(self) -> str:
        """The one error line; fails when stderr holds anything else."""
        assert self.err.startswith("tts: error: ") and self.err.count("\n") == 1, self.err
        return self.err.removeprefix("tts: error: ").rstrip("\n")


class Stream(io.TextIOWrapper):
    def __init__(self, content: bytes = b"", *, terminal: bool = False, encoding: str = "utf-8"):
        super().__init__(io.BytesIO(content), encoding=encoding, write_through=True)
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def tts(*arguments, stdin: bytes = b"", stdin_is_terminal: bool = False, terminal: bool = False,
        encoding: str = "utf-8") -> Run:
    """The exit code and what was written. `terminal`: stderr says that it is one.

    A process would end here even while its worker loads a model; in a test that one would go on into the next test,
    with its messages and what is patched there.
    """
    before = set(threading.enumerate())
    out, err = Stream(encoding=encoding), Stream(terminal=terminal, encoding=encoding)
    given = Stream(stdin, terminal=stdin_is_terminal, encoding=encoding)
    with mock.patch.multiple(sys, stdin=given, stdout=out, stderr=err):
        code = main([str(argument) for argument in arguments])
        for thread in set(threading.enumerate()) - before:
            if thread.name == "tts worker":
                thread.join(60)
                assert not thread.is_alive()
    return Run(code, out.buffer.getvalue(), err.buffer.getvalue().decode(encoding))
