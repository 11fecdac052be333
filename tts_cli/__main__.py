"""`python -m tts_cli`, and the entry point of the `tts` command."""

import sys
from typing import NoReturn


def run() -> NoReturn:
    """The process: Ctrl-C while Python still reads the program ends like any other Ctrl-C."""
    try:
        from tts_cli.cli.main import leave, main
    except KeyboardInterrupt:
        sys.stderr.write("tts: interrupted\n")
        sys.exit(130)
    leave(main())


if __name__ == "__main__":
    run()
