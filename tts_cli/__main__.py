"""`python -m tts_cli`, and the entry point of the `tts` command."""

import os


def run() -> None:
    """The process: Ctrl-C while Python still reads the program ends like any other Ctrl-C. Does not return."""
    import signal  # here, as little as possible comes before this

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    from tts_cli.cli.main import leave, main

    leave(main())


def _interrupted(number, frame) -> None:
    """End at once, as nothing was begun: an exception inside an import may be swallowed by it, or told at length."""
    try:
        os.write(2, b"tts: interrupted\n")
    finally:
        os._exit(130)


if __name__ == "__main__":
    run()
