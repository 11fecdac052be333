"""Chunks of samples to the bytes of a response: piece by piece, or a whole file with an exact header."""

import io

import numpy as np

from tts_cli.audio.encode import FORMATS, Format, PcmEncoder, SndfileEncoder

_CONTENT_TYPES = {"WAV": "audio/wav", "FLAC": "audio/flac", "MP3": "audio/mpeg", "OGG": "audio/ogg"}


def content_type(name: str, sample_rate: int) -> str:
    """Of the bytes of a format. Raw samples say what they are: audio/L16 would be big-endian."""
    spec = FORMATS[name]
    if spec.container == "RAW":
        kind, bits = ("float", 32) if spec.encoding == "f32" else ("signed-integer", 16)
        return f"audio/pcm;rate={sample_rate};channels=1;bits={bits};encoding={kind};endian=little"
    return _CONTENT_TYPES[spec.container] + (";codecs=opus" if spec.name == "opus" else "")


def whole_file(name: str, sample_rate: int, chunks: list[np.ndarray]) -> bytes:
    """The file that `chunks`, float [n] each, make. Takes its time: not for an event loop."""
    file = io.BytesIO()
    encoder = _encoder(file, FORMATS[name], sample_rate, exact=True)
    for samples in chunks:
        encoder.write(samples)
    encoder.finish()
    return file.getvalue()


class BodyStream:
    """A file that leaves while it is written. Headers leave sizes open; what an encoder would put right at the end in
    bytes that are gone is dropped."""

    def __init__(self, name: str, sample_rate: int):
        self._file = _Outbox()
        self._encoder = _encoder(self._file, FORMATS[name], sample_rate, exact=False)
        self.is_light = isinstance(self._encoder, PcmEncoder)  # takes microseconds

    def push(self, samples: np.ndarray) -> bytes:
        """The bytes that float samples [n] add; codecs keep some back."""
        self._encoder.write(samples)
        return self._file.take()

    def finish(self) -> bytes:
        self._encoder.finish()
        return self._file.take()

    def abandon(self) -> None:
        self._encoder.abandon()


def _encoder(file, spec: Format, sample_rate: int, *, exact: bool) -> PcmEncoder | SndfileEncoder:
    if spec.streamable:
        return PcmEncoder(file, spec, sample_rate, exact=exact)
    return SndfileEncoder(file, spec, sample_rate, rewritable=exact)


class _Outbox:
    """A file from which bytes are taken out as soon as they are written."""

    def __init__(self):
        self._bytes = bytearray()
        self._end = self._position = 0

    def write(self, data: bytes) -> int:
        if self._position == self._end:
            self._bytes += data
            self._end += len(data)
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = {0: offset, 1: self._position + offset, 2: self._end + offset}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        taken, self._bytes = bytes(self._bytes), bytearray()
        return taken
