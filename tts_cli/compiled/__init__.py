"""Matrix products on the CPU straight from the bytes of a GGUF file, compiled by numba at first use."""
