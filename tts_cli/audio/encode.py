"""The formats speech is written in, and what turns float samples into their bytes.

16-bit samples are made by `wav_stream.to_int16` for WAV, FLAC and raw PCM alike, so these hold the same samples
wherever they are written. The lossy encoders get the floats, cut to [-1, 1]; 32-bit float formats keep them unchanged.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from tts_cli.audio.ogg import Pages
from tts_cli.audio.wav_stream import SAMPLE_BYTES, sample_bytes, to_int16, wav_header
from tts_cli.errors import TtsError, UsageError


@dataclass(frozen=True)
class Format:
    """One way to store speech. `encoding` is wav_stream's for the containers WAV and RAW, else libsndfile's subtype.

    `compression` is libsndfile's level from 0 (best) to 1 (smallest); chosen for 55-80 kbit/s at 24 kHz, where speech
    is transparent.
    """

    name: str
    extensions: tuple[str, ...]
    container: str
    encoding: str
    compression: float | None = None

    @property
    def streamable(self) -> bool:
        """Can be written front to back, without going back to the header."""
        return self.container in ("WAV", "RAW")


# For each extension the first format listed is its default.
FORMATS = {f.name: f for f in (
    Format("wav", (".wav", ".wave"), "WAV", "s16"),
    Format("wav24", (".wav", ".wave"), "WAV", "s24"),
    Format("wavf32", (".wav", ".wave"), "WAV", "f32"),
    Format("flac", (".flac",), "FLAC", "PCM_16"),
    Format("mp3", (".mp3",), "MP3", "MPEG_LAYER_III", compression=0.0),
    Format("ogg", (".ogg", ".oga"), "OGG", "VORBIS", compression=0.2),
    Format("opus", (".opus",), "OGG", "OPUS", compression=0.8),
    Format("pcm", (".pcm",), "RAW", "s16"),
    Format("f32", (".f32",), "RAW", "f32"),
)}
# 64 kbit/s at 24 kHz.
STEADY_MP3 = {"compression_level": 0.6, "bitrate_mode": "CONSTANT"}
EXTENSIONS = tuple(dict.fromkeys(extension for f in FORMATS.values() for extension in f.extensions))


class PcmEncoder:
    """Plain samples, after a WAV header unless the container is RAW. `exact`: the header is completed at the end."""

    def __init__(self, file: BinaryIO, spec: Format, sample_rate: int, *, exact: bool):
        self._file, self._spec, self._rate, self._exact = file, spec, sample_rate, exact
        self._samples = 0
        self._begun = False

    def begin(self) -> None:
        self._begun = True
        if self._spec.container == "WAV":
            _write_all(self._file, self._header())

    def write(self, samples: np.ndarray) -> None:
        if not self._begun:
            self.begin()
        self._samples += len(samples)
        if self._exact:
            self._header()  # refuses what the header could not say
        _write_all(self._file, sample_bytes(samples, self._spec.encoding))

    def finish(self) -> None:
        if not self._begun:
            self.begin()
        if self._exact and self._spec.container == "WAV":
            if self._samples * SAMPLE_BYTES[self._spec.encoding] % 2:
                _write_all(self._file, b"\0")  # RIFF chunks have an even length; the size leaves this byte out
            self._file.seek(0)
            _write_all(self._file, self._header())
            self._file.seek(0, 2)

    def abandon(self) -> None:
        pass  # holds nothing but the file, which its owner closes

    def _header(self) -> bytes:
        if self._spec.container != "WAV":
            return b""
        return wav_header(self._rate, self._samples if self._exact else None, self._spec.encoding)


class SndfileEncoder:
    """FLAC, MP3, Ogg Vorbis and Opus through libsndfile.

    `rewritable`: the header can be put right at the end. Where it cannot, MP3 keeps one bit rate, from which readers
    tell how long it is.
    """

    def __init__(self, file: BinaryIO, spec: Format, sample_rate: int, *, rewritable: bool = True):
        import soundfile  # here, because WAV needs no more than numpy

        steady = {} if rewritable or spec.container != "MP3" else STEADY_MP3

        self._failure = soundfile.SoundFileError
        self._integers = spec.encoding == "PCM_16"
        self._sink = _Sink(file, spec.container == "OGG")
        try:
            self._encoder = soundfile.SoundFile(
                self._sink, "w", samplerate=sample_rate, channels=1, format=spec.container, subtype=spec.encoding,
                **{"compression_level": spec.compression, **steady})
        except self._failure as error:
            raise UsageError(f"{spec.name} does not take {sample_rate} Hz; write wav or flac") from error

    def begin(self) -> None:
        self._sink.check()

    def write(self, samples: np.ndarray) -> None:
        self._run(self._encoder.write, to_int16(samples) if self._integers else np.clip(samples, -1, 1))

    def finish(self) -> None:
        self._run(self._encoder.close)
        self._sink.finish()

    def abandon(self) -> None:
        with suppress(self._failure):
            self._encoder.close()

    def _run(self, step, *args) -> None:
        try:
            step(*args)
        except self._failure as error:
            raise TtsError(f"the encoder failed: {error}") from error
        finally:
            self._sink.check()  # the system's own reason comes first


class _Sink:
    """What libsndfile writes to. A callback must not raise (cffi would print a traceback and carry on), so the first
    error is kept and `check` raises it, outside of libsndfile.

    ogg  the data are Ogg pages, which get another number on their way
    """

    def __init__(self, file: BinaryIO, ogg: bool):
        self._file = file
        self._error: OSError | None = None
        self._pages = Pages(file.write) if ogg else None

    def write(self, data: bytes) -> int:
        self._do(self._pages.write if self._pages else self._file.write, data)
        return len(data)

    def finish(self) -> None:
        if self._pages:
            self._do(self._pages.flush)
        self.check()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._do(self._file.seek, offset, whence) or 0

    def tell(self) -> int:
        return self._do(self._file.tell) or 0

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def _do(self, step, *args):
        if self._error is None:
            try:
                return step(*args)
            except OSError as error:
                self._error = error
        return None


def _write_all(file: BinaryIO, data: bytes) -> None:
    """An unbuffered file may take less than all."""
    view = memoryview(data)
    while view:
        view = view[file.write(view):]
