"""Matrix products on the CPU straight from the bytes of a GGUF file, compiled by numba at first use."""

import os

UNIT = 32  # weights a row is read in: rows that are no multiple of it have no kernel

# Read when numba is imported. Where colorama is installed (with click on Windows) every message that numba words while
# it compiles, shown or not, replaces sys.stdout and sys.stderr for a moment and puts the earlier ones back. Here a
# thread compiles while another writes and opens its prompt.
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
