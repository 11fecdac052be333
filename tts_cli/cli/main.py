"""The `tts` command: its verbs, its exit codes, and one plain line for every error."""

import contextlib
import errno
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import typer
from typer.main import get_command

from tts_cli.background import any_busy
from tts_cli.cli import batch, bench, codec, convert, inspect, repl, serve, settings, voices
from tts_cli.cli.config import with_origin
from tts_cli.cli.console import error_line, tell
from tts_cli.cli.help import with_plain_help
from tts_cli.cli.process import forget, occupy_closed_streams, signals_unwind
from tts_cli.cli.refusals import explain
from tts_cli.cli.speak import speak
from tts_cli.errors import TtsError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_CLOSED_PIPE = 141  # what a shell shows for a program that SIGPIPE ended

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False,
                  context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
app.callback(invoke_without_command=True)(speak)
for verb in (repl.repl, batch.batch, convert.convert, inspect.inspect, bench.bench, serve.serve):
    app.command(rich_help_panel="Verbs")(verb)
for name, verbs in (("voices", voices.app), ("codec", codec.app), ("config", settings.app)):
    app.add_typer(verbs, name=name, rich_help_panel="Verbs")

# typer exports BadParameter; two classes below it lies the base of every refused command line.
_CommandLineError = typer.BadParameter.__mro__[2]


def main(arguments: list[str] | None = None) -> int:
    """Run `tts` with the arguments (default: the process's) and return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    occupy_closed_streams()
    _tolerate_narrow_encodings()
    origins: dict[str, tuple[str | Path, list[str]]] = {}  # of what configs say, see `with_origin`
    try:
        with signals_unwind():
            code = with_plain_help(get_command(app))(args=arguments, prog_name="tts", standalone_mode=False,
                                                     obj=origins) or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # where a reader that went away is noticed
        return _interrupted() if code == EXIT_INTERRUPTED else code
    except TtsError as error:
        if _is_closed_pipe(error):
            return EXIT_CLOSED_PIPE
        error_line(with_origin(str(error), origins, arguments))
        return error.exit_code
    except _CommandLineError as error:
        error_line(with_origin(explain(error, arguments), origins, arguments))
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except SystemExit as error:  # SIGTERM or SIGHUP; the parser's when the reader of standard output went away
        return _failed(error, verbose=False) if _is_closed_pipe(error) else error.code
    except Exception as error:
        return _failed(error, verbose=bool({"-v", "--verbose"} & set(arguments)))


def leave(code: int) -> NoReturn:
    """End the process at once, even while a thread is inside torch (after Ctrl-C): files are closed or removed by now,
    and an ordinary shutdown would wait for the thread or crash in it."""
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not any_busy():
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _interrupted() -> int:
    tell("tts: interrupted")
    return EXIT_INTERRUPTED


def _failed(error: BaseException, verbose: bool) -> int:
    if _is_closed_pipe(error):
        forget(sys.stdout)
        return EXIT_CLOSED_PIPE
    if verbose:
        traceback.print_exception(error)
    elif isinstance(error, OSError) and error.strerror:
        error_line(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
    else:
        error_line(f"{type(error).__name__}: {error} (a fault in tts; -v shows the traceback)")
    return EXIT_FAILED


def _is_closed_pipe(error: BaseException | None) -> bool:
    """Whether the reader of standard output went away, however deep the error is wrapped."""
    while error is not None:
        # Windows says EINVAL where POSIX says EPIPE.
        if isinstance(error, BrokenPipeError) or (
                os.name == "nt" and isinstance(error, OSError) and error.errno == errno.EINVAL):
            return True
        error = error.__cause__ or error.__context__
    return False


def _tolerate_narrow_encodings() -> None:
    """A message that the console's code page cannot show is shown in part, not turned into a crash."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    leave(main())
