"""Matrix products on the CPU straight from the bytes of a GGUF file, compiled by numba at first use."""

UNIT = 32  # weights a row is read in: rows that are no multiple of it have no kernel
