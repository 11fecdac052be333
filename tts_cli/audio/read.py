"""A reference clip: whatever libsndfile decodes, at any rate and channel count, becomes mono float32 at one rate.

Channels are averaged and the rate is changed by soxr HQ, as the reference implementation does. Loudness is left
alone, also as there: samples beyond [-1, 1] (float files) and quiet clips pass unchanged.
"""

import io
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile
import soxr

from tts_cli.audio import shown
from tts_cli.errors import UsageError

# The encoder's activations take about 6 MB per second of clip, and a voice needs only a few seconds.
MAX_SECONDS = 60
MIN_RATE, MAX_RATE = 4_000, 768_000  # Hz; outside it a header is damaged rather than unusual
# Half the peak-to-peak value, so that a constant offset counts as nothing. -70 dBFS is 10 steps of 16 bits: above the
# dither and idle noise of a muted recording, below any speech.
SILENCE_DBFS = -70.0
LOUDEST_DBFS = 120.0  # floats may pass full scale, even be scaled as 16-bit integers; beyond this they are damage
QUIET_DBFS = -40.0
SHORT_SECONDS = 1.0  # usable below it, but a word says little about a voice
MAX_PIPE_BYTES = 256 << 20
_BLOCK = 1 << 20  # samples over all channels decoded at a time

# What people have instead of a WAV, by the first bytes of the content: (offset, bytes, name).
_OTHER_MEDIA = (
    (4, b"ftyp", "MPEG-4 audio or video (m4a, mp4, mov, 3gp)"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "Windows Media (wma, wmv)"),
    (0, b"\x1a\x45\xdf\xa3", "WebM or Matroska"),
    (0, b"ADIF", "AAC"),
    (0, b"#!AMR", "AMR"),
    (0, b"wvpk", "WavPack"),
    (0, b"MAC ", "Monkey's Audio"),
    (0, b"TTA1", "True Audio"),
    (0, b"FLV\x01", "Flash video"),
    (0, b"\x0b\x77", "AC-3"),
    (0, b".RMF", "RealAudio"),
    (0, b"DSD ", "DSD"),
    (0, b"MThd", "MIDI"),
    (8, b"AVI ", "AVI video"),
    (28, b"Speex   ", "Ogg Speex"),
    (0, b"caff", "Core Audio (caf) with a codec other than PCM"),
)


def read_clip(source: str | Path | bytes | tuple[np.ndarray, int], sample_rate: int = 24000, *,
              min_samples: int = 1280) -> np.ndarray:
    """Decode a clip to float32 [n], mono, at `sample_rate` Hz.

    `source` is a path, the bytes of a file, or `(samples, rate)` with samples [n] or [n, channels]: floats as they
    are, integers scaled by their full range. The container is told by content, never by the file's extension.
    `min_samples` counts at `sample_rate`; the default is `mel.MIN_SAMPLES`, what the speaker encoder's
    reflect padding needs.

    Raises `UsageError` for a missing or unreadable file, a format that cannot be decoded (naming it and the fix),
    damaged data, NaN or infinite samples, silence (below `SILENCE_DBFS`, a constant offset not counted), and a length
    below `min_samples` or above `MAX_SECONDS`.
    """
    if isinstance(source, tuple) and len(source) == 2:
        name, (samples, rate) = "the clip", source
        samples = _mono_floats(samples)
        _check_rate(name, rate)
        _check_length(name, len(samples), rate)
    elif isinstance(source, (bytes, bytearray, memoryview)):
        name = "the clip"
        samples, rate = _decode(io.BytesIO(source), name, Path("clip"))
    elif isinstance(source, (str, Path)):
        if source == "":
            raise UsageError("the name of the reference clip is empty; name an audio file")
        name = shown(source)
        with _open(Path(source), name) as file:
            samples, rate = _decode(file, name, Path(source))
    else:
        raise UsageError(f"a clip is a path, the bytes of an audio file or (samples, rate), "
                         f"got {type(source).__name__}")

    length = math.ceil(len(samples) * sample_rate / rate)
    if length < min_samples:
        raise UsageError(f"{name}: {_ms(length / sample_rate)} ms of audio is too short, the least is "
                         f"{_ms(min_samples / sample_rate)} ms; 3 seconds of speech or more work best")
    _check_level(name, samples)
    if rate != sample_rate:
        samples = _resample(samples, rate, sample_rate, length)
    return np.ascontiguousarray(samples)


def peak_dbfs(samples: np.ndarray) -> float:
    """Half the peak-to-peak value of float samples [n] in dB relative to full scale; -inf when they are constant."""
    half = (float(samples.max()) - float(samples.min())) / 2 if samples.size else 0.0
    return 20 * math.log10(half) if half > 0 else -math.inf


def loudness_warning(clip: np.ndarray) -> str | None:
    """One line for a person when a clip from `read_clip` is usable but so quiet (below `QUIET_DBFS`) that the voice
    may come out unlike it; None otherwise. Nothing is normalised: the reference implementation does not either."""
    peak = peak_dbfs(clip)
    if peak >= QUIET_DBFS:
        return None
    return f"the reference clip is very quiet (peak {peak:.0f} dBFS): a louder one gives a better voice"


def clip_warnings(clip: np.ndarray, sample_rate: int = 24000) -> list[str]:
    """What a person should hear about a usable clip from `read_clip`, one line each: it is quiet, it is short."""
    warnings = [quiet] if (quiet := loudness_warning(clip)) else []
    if len(clip) < SHORT_SECONDS * sample_rate:
        warnings.append(f"the reference clip is short ({len(clip) / sample_rate:.2f} s): 3 seconds of speech or more "
                        "give a better voice")
    return warnings


def _open(path: Path, name: str) -> BinaryIO:
    """Open for reading as a seekable file; a pipe is read whole."""
    if os.path.isdir(path):
        raise UsageError(f"{name}: a folder, not an audio file")
    if "\0" in str(path):
        raise UsageError(f"{name}: no file can have this name")
    try:
        file = open(path, "rb")  # noqa: SIM115 - the caller closes it
        if file.seekable():
            return file
        with file:
            data = file.read(MAX_PIPE_BYTES + 1)
    except FileNotFoundError as error:
        raise UsageError(f"{name}: no such file") from error
    except OSError as error:
        raise _unreadable(name, error) from error
    if len(data) > MAX_PIPE_BYTES:
        raise UsageError(f"{name}: more than {MAX_PIPE_BYTES >> 20} MiB came through the pipe; pass a file")
    return io.BytesIO(data)


class ForwardReader(soundfile.SoundFile):
    """`SoundFile.read` seeks after every block, which breaks MP3 (its frames lean on earlier ones: noise at each
    border) and a FLAC stream without a length. Read from front to back, no seek is needed."""

    def seekable(self) -> bool:
        return False


class _Source:
    """What libsndfile reads from. A callback must not raise (cffi would print a traceback and carry on): a seek before
    the start, which damaged headers ask for, does nothing, and the first error of the system is kept. It has no `name`
    either, from which soundfile would guess a format."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.tell = file.tell
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = 0) -> int:
        with suppress(ValueError, OSError):
            self._file.seek(offset, whence)
        return self._file.tell()

    def readinto(self, buffer) -> int:
        try:
            return self._file.readinto(buffer)
        except OSError as error:
            self.error = self.error or error
            return 0


def _decode(file: BinaryIO, name: str, path: Path) -> tuple[np.ndarray, int]:
    """Samples float32 [n], channels averaged, and their rate in Hz."""
    try:
        head = file.read(4096)
        file.seek(0)
    except OSError as error:
        raise _unreadable(name, error) from error
    if not head:
        raise UsageError(f"{name}: the file is empty")
    source = _Source(file)
    try:
        with ForwardReader(source) as clip:
            rate = clip.samplerate
            _check_rate(name, rate)
            if clip.frames < 2**62:  # a stream without a length in its header claims more
                _check_length(name, clip.frames, rate)
            blocks, frames = [], 0
            for block in _blocks(clip):
                blocks.append(block)
                frames += len(block)
                _check_length(name, frames, rate)
    except soundfile.SoundFileError as error:
        if source.error is None:
            raise UsageError(_undecodable(head, name, path)) from error
    if source.error is not None:
        raise _unreadable(name, source.error) from source.error
    return np.concatenate(blocks) if blocks else np.zeros(0, np.float32), rate


def _blocks(clip: soundfile.SoundFile) -> Iterator[np.ndarray]:
    size = max(1, _BLOCK // clip.channels)
    while len(block := clip.read(size, dtype="float32", always_2d=True)):
        yield _average(block)


def _average(samples: np.ndarray) -> np.ndarray:
    """float32 [n, channels] to the mean over channels, [n]."""
    if samples.shape[1] == 1:
        return samples[:, 0]
    with np.errstate(over="ignore"):  # an overflow becomes Inf, which is refused by name later
        return samples.mean(axis=1, dtype=np.float32)


def _mono_floats(samples) -> np.ndarray:
    """Samples of any supported type, [n] or [n, channels], to float32 [n]."""
    samples = np.asarray(samples)
    if samples.ndim not in (1, 2) or (samples.ndim == 2 and not 0 < samples.shape[1] <= max(len(samples), 2)):
        raise UsageError(f"a clip's samples must be [n] or [n, channels], got shape {list(samples.shape)}")
    if samples.dtype == np.uint8:
        samples = (samples.astype(np.float32) - 128) / 128
    elif np.issubdtype(samples.dtype, np.signedinteger):
        samples = (samples / -float(np.iinfo(samples.dtype).min)).astype(np.float32)
    elif np.issubdtype(samples.dtype, np.floating):
        with np.errstate(over="ignore"):
            samples = samples.astype(np.float32)
    else:
        raise UsageError(f"a clip's samples must be floats, signed integers or uint8, got {samples.dtype}")
    return _average(samples.reshape(len(samples), -1)) if samples.size else np.zeros(0, np.float32)


def _check_rate(name: str, rate) -> None:
    if isinstance(rate, bool) or not isinstance(rate, (int, np.integer)) or not MIN_RATE <= rate <= MAX_RATE:
        raise UsageError(f"{name}: a sample rate of {rate} Hz cannot be used, it must be a whole number "
                         f"from {MIN_RATE} to {MAX_RATE}")


def _check_length(name: str, frames: int, rate: int) -> None:
    if frames > MAX_SECONDS * rate:
        raise UsageError(f"{name}: more than {MAX_SECONDS} seconds of audio; cut a clip out of it, "
                         "3 to 30 seconds of speech are plenty (ffmpeg: -ss START -t SECONDS)")


def _check_level(name: str, samples: np.ndarray) -> None:
    if not np.isfinite(samples).all():
        raise UsageError(f"{name}: holds samples that are not numbers (NaN or infinite); export the clip again")
    peak = peak_dbfs(samples)
    if peak > LOUDEST_DBFS:
        raise UsageError(f"{name}: its samples are {peak:.0f} dB above full scale, which is no sound; export it again")
    if peak < SILENCE_DBFS:
        found = "nothing but a constant value" if samples.any() and peak == -math.inf else "silence"
        raise UsageError(f"{name}: holds {found} (no sound above {SILENCE_DBFS:.0f} dBFS); pass a clip with speech")


def _resample(samples: np.ndarray, rate: int, target: int, length: int) -> np.ndarray:
    """soxr HQ; `length` samples come out, as librosa cuts or zero-pads it for the reference implementation."""
    out = soxr.resample(samples, rate, target, quality="HQ")[:length]
    return np.pad(out, (0, length - len(out)))


def _unreadable(name: str, error: OSError) -> UsageError:
    return UsageError(f"{name}: cannot be read: {error.strerror or error}")


def _ms(seconds: float) -> str:
    return f"{math.ceil(seconds * 10_000) / 10:.1f}"


def _undecodable(head: bytes, name: str, path: Path) -> str:
    kind = _media_name(head)
    wav = path.with_suffix(".wav")
    if wav == path:
        wav = path.with_name(f"{path.stem}-converted.wav")
    fix = f'convert it first: ffmpeg -i "{shown(path)}" "{shown(wav)}"'
    if kind:
        return f"{name}: {kind} cannot be read here; {fix}"
    if any(mark in head[:16] for mark in (b"RIFF", b"RIFX", b"RF64", b"fLaC", b"OggS", b"ID3", b"FORM")):
        return f"{name}: the audio data is damaged, cut short or in a rare encoding; {fix}"
    return f"{name}: not an audio file (WAV, FLAC, MP3, Ogg Vorbis, Opus, AIFF and others can be read)"


def _media_name(head: bytes) -> str | None:
    for offset, mark, name in _OTHER_MEDIA:
        if head[offset:offset + len(mark)] == mark:
            return name
    if head[0] == 0xFF and len(head) > 1 and head[1] & 0xF6 == 0xF0:  # sync word with MPEG layer 0
        return "AAC"
    if head[0] == 0x47 and head[188:189] == b"\x47":
        return "MPEG transport stream"
    return None
