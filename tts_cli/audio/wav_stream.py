"""WAV bytes: the header and the sample conversion, the same for a file and a pipe.

Written here rather than through libsndfile because a pipe needs a header before the length is known, and so that both
give the same bytes on every machine (libsndfile stamps float files with the time).
"""

import struct

import numpy as np

from tts_cli.errors import TtsError

UNKNOWN = 0xFFFFFFFF  # the size field of a stream whose end is not known
SAMPLE_BYTES = {"s16": 2, "s24": 3, "f32": 4}


def to_int16(samples: np.ndarray) -> np.ndarray:
    """float [n] to int16: cut to [-1, 1], times 32767, rounded to nearest (ties to even)."""
    return _to_integers(samples, 32767).astype("<i2")


def sample_bytes(samples: np.ndarray, encoding: str) -> bytes:
    """Little-endian bytes of float samples [n]; "s16", "s24" (both cut to [-1, 1], full scale 2^(bits-1) - 1, rounded)
    or "f32" (unchanged)."""
    if encoding == "s16":
        return to_int16(samples).tobytes()
    if encoding == "s24":
        return _to_integers(samples, 8388607).astype("<i4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return samples.astype("<f4").tobytes()


def _to_integers(samples: np.ndarray, full_scale: int) -> np.ndarray:
    return np.rint(np.clip(samples.astype(np.float64), -1, 1) * full_scale)


def wav_header(sample_rate: int, samples: int | None, encoding: str = "s16") -> bytes:
    """Header of a mono WAV file, up to the first sample: 44 bytes, 58 for "f32".

    `samples` None leaves the sizes open (0xFFFFFFFF), as readers of a stream expect. Raises `TtsError` when the file
    would pass the 4 GiB that the size fields can hold.
    """
    width = SAMPLE_BYTES[encoding]
    floats = encoding == "f32"
    layout = struct.pack("<HHIIHH", 3 if floats else 1, 1, sample_rate, sample_rate * width, width, width * 8)
    chunks = _chunk(b"fmt ", layout + (b"\0\0" if floats else b""))  # non-PCM: extension size, and a fact chunk
    if floats:
        chunks += _chunk(b"fact", struct.pack("<I", UNKNOWN if samples is None else min(samples, UNKNOWN)))
    data = UNKNOWN if samples is None else samples * width
    riff = UNKNOWN if samples is None else 4 + len(chunks) + 8 + data + data % 2
    if riff > UNKNOWN:
        raise TtsError(f"a WAV file ends at 4 GiB, {UNKNOWN // width / sample_rate / 3600:.1f} hours of this audio; "
                       "write FLAC, or shorter files")
    return struct.pack("<4sI4s", b"RIFF", riff, b"WAVE") + chunks + struct.pack("<4sI", b"data", data)


def _chunk(tag: bytes, body: bytes) -> bytes:
    return struct.pack("<4sI", tag, len(body)) + body
