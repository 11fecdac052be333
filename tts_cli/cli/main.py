"""The `tts` command: its verbs, its exit codes, and one plain line for every error."""

import contextlib
import errno
import os
import signal
import sys
import traceback
from typing import NoReturn

import typer

from tts_cli.background import any_busy
from tts_cli.cli import bench, codec, convert, inspect, repl
from tts_cli.cli.console import error_line
from tts_cli.cli.speak import speak
from tts_cli.errors import TtsError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_CLOSED_PIPE = 141  # what a shell shows for a program that SIGPIPE ended

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False,
                  context_settings={"help_option_names": ["-h", "--help"]})
app.callback(invoke_without_command=True)(speak)
for verb in (repl.repl, convert.convert, inspect.inspect, bench.bench):
    app.command(rich_help_panel="Verbs")(verb)
app.add_typer(codec.app, name="codec", rich_help_panel="Verbs")

# typer exports BadParameter; two classes below it lies the base of every refused command line.
_CommandLineError = typer.BadParameter.__mro__[2]


def main(arguments: list[str] | None = None) -> int:
    """Run `tts` with the arguments (default: the process's) and return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _tolerate_narrow_encodings()
    try:
        code = app(args=arguments, prog_name="tts", standalone_mode=False) or 0
        return _interrupted() if code == EXIT_INTERRUPTED else code
    except TtsError as error:
        if _is_closed_pipe(error):
            return EXIT_CLOSED_PIPE
        error_line(error)
        return error.exit_code
    except _CommandLineError as error:
        error_line(f"{error.format_message()} (tts --help lists the options)")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
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
    print("tts: interrupted", file=sys.stderr, flush=True)
    return EXIT_INTERRUPTED


def _failed(error: Exception, verbose: bool) -> int:
    if _is_closed_pipe(error):
        _forget_standard_output()
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


def _forget_standard_output() -> None:
    """Keep the interpreter from complaining again when it flushes a closed pipe on its way out."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tolerate_narrow_encodings() -> None:
    """A message that the console's code page cannot show is shown in part, not turned into a crash."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    leave(main())
