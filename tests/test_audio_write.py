"""Writing speech: the name decides the format, the file is whole or absent, and a failure is one line."""

import errno
import os
import struct
import subprocess
import sys
import threading
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile
from clips import cosine, speech_like

from tts_cli.audio import write
from tts_cli.audio.read import read_clip
from tts_cli.audio.wav_stream import UNKNOWN, sample_bytes, to_int16, wav_header
from tts_cli.audio.write import FORMATS, AudioWriter, ClosedPipe, check_output, choose_format, open_writer
from tts_cli.errors import TtsError, UsageError

RATE = 24000
CLIP = speech_like(RATE)
FILE_NAMES = {"wav": "a.wav", "wav24": "a.wav", "wavf32": "a.wav", "flac": "a.flac", "mp3": "a.mp3", "ogg": "a.ogg",
              "opus": "a.opus", "pcm": "a.pcm", "f32": "a.f32"}
ENCODED = ["flac", "mp3", "ogg", "opus"]
WAVS = {"wav": ("s16", 44), "wav24": ("s24", 44), "wavf32": ("f32", 58)}


def save(path, format, samples=CLIP, chunk=None):
    with open_writer(path, format, RATE) as writer:
        for start in range(0, len(samples), chunk or max(len(samples), 1)):
            writer.write(samples[start:start + (chunk or len(samples))])
    return Path(path)


def message(kind, call, *args, **kwargs) -> str:
    with pytest.raises(kind) as caught:
        call(*args, **kwargs)
    assert type(caught.value) is kind and "\n" not in str(caught.value)
    return str(caught.value)


class Pipe:
    """Standard output as a pipe that ends after `limit` bytes."""

    def __init__(self, limit=None, error=errno.EPIPE):
        self.data, self.flushed, self.limit, self.error = b"", 0, limit, error
        self.buffer = self

    def write(self, data):
        if self.limit is not None and len(self.data) + len(data) > self.limit:
            raise OSError(self.error, os.strerror(self.error))
        self.data += data
        return len(data)

    def flush(self):
        self.flushed = len(self.data)

    def isatty(self):
        return False

    def fileno(self):
        raise OSError("no descriptor")


@pytest.fixture
def piped(monkeypatch):
    """Call it in the test itself: pytest puts its own standard output in place after the fixtures have run."""

    def start(**kwargs):
        pipe = Pipe(**kwargs)
        monkeypatch.setattr(sys, "stdout", pipe)
        return pipe

    return start


# --- formats -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("format", FILE_NAMES)
def test_every_format_is_written_whole(tmp_path, format):
    path = save(tmp_path / FILE_NAMES[format], format, chunk=1920)
    assert os.listdir(tmp_path) == [path.name]
    if FORMATS[format].container == "RAW":
        assert path.read_bytes() == sample_bytes(CLIP, FORMATS[format].encoding)
        return
    info = soundfile.info(str(path))
    assert info.samplerate == RATE and info.channels == 1
    subtype = {"s16": "PCM_16", "s24": "PCM_24", "f32": "FLOAT"}
    encoding = FORMATS[format].encoding
    assert (info.format, info.subtype) == (FORMATS[format].container, subtype.get(encoding, encoding))
    assert info.frames == len(CLIP)
    assert cosine(read_clip(path), CLIP) > 0.99


@pytest.mark.parametrize("format", FILE_NAMES)
@pytest.mark.parametrize("chunk", [1, 1920, 5000])
def test_chunks_make_the_bytes_of_one_write(tmp_path, format, chunk):
    samples = CLIP[:3000] if chunk == 1 else CLIP
    whole = save(tmp_path / ("1" + FILE_NAMES[format]), format, samples).read_bytes()
    pieces = save(tmp_path / ("2" + FILE_NAMES[format]), format, samples, chunk).read_bytes()
    if FORMATS[format].container == "OGG":  # Vorbis looks ahead
        whole, pieces = (soundfile.read(tmp_path / (n + FILE_NAMES[format]))[0] for n in "12")
        assert len(whole) == len(pieces) == len(samples) and cosine(whole, pieces) > 0.999
    else:
        assert whole == pieces


@pytest.mark.parametrize("format", FILE_NAMES)
def test_the_same_samples_are_the_same_bytes(tmp_path, format):
    """Also in Ogg, whose streams have numbers: libsndfile would draw another each time."""
    first, again, other = (save(tmp_path / (name + FILE_NAMES[format]), format, samples, 1920).read_bytes()
                           for name, samples in (("1", CLIP), ("2", CLIP), ("3", CLIP[::-1].copy())))
    assert first == again != other
    if FORMATS[format].container == "OGG":
        assert first[14:18] != other[14:18]  # so that one may follow the other in a file
        for name, frames in (("1", len(CLIP)), ("3", len(CLIP))):
            assert soundfile.info(str(tmp_path / (name + FILE_NAMES[format]))).frames == frames


def test_wav_and_flac_and_pcm_hold_the_same_samples(tmp_path):
    expected = to_int16(CLIP)
    for format in ("wav", "flac"):
        samples, _ = soundfile.read(save(tmp_path / FILE_NAMES[format], format), dtype="int16")
        np.testing.assert_array_equal(samples, expected)
    assert save(tmp_path / "a.pcm", "pcm").read_bytes() == expected.tobytes()


@pytest.mark.parametrize("format", FILE_NAMES)
def test_no_samples_make_a_valid_empty_file(tmp_path, format):
    path = save(tmp_path / FILE_NAMES[format], format, CLIP[:0])
    if FORMATS[format].container == "WAV":
        assert soundfile.info(str(path)).frames == 0 and path.stat().st_size == WAVS[format][1]
    elif FORMATS[format].container == "RAW":
        assert path.read_bytes() == b""


def test_float_samples_become_integers_by_rounding_and_clipping():
    samples = np.array([-2, -1, -0.5, 0, 0.5 / 32767, 1.5 / 32767, 0.25, 1, 3], np.float64)
    assert to_int16(samples).tolist() == [-32767, -32767, -16384, 0, 0, 2, 8192, 32767, 32767]
    assert sample_bytes(np.array([1, -1, 0.5], np.float32), "s24") == b"\xff\xff\x7f\x01\x00\x80\x00\x00\x40"
    assert sample_bytes(np.array([2.5], np.float32), "f32") == struct.pack("<f", 2.5)


def test_float_wav_keeps_what_is_beyond_full_scale(tmp_path):
    samples, _ = soundfile.read(save(tmp_path / "a.wav", "wavf32", CLIP * 3), dtype="float32")
    np.testing.assert_array_equal(samples, CLIP * 3)


@pytest.mark.parametrize("format", ENCODED)
def test_encoders_get_clipped_samples(tmp_path, format):
    samples, _ = soundfile.read(save(tmp_path / FILE_NAMES[format], format, CLIP * 4))
    assert np.abs(samples).max() < 1.5


@pytest.mark.parametrize("format, low, high", [("mp3", 30, 100), ("ogg", 30, 110), ("opus", 30, 90)])
def test_lossy_bit_rates_are_those_of_good_speech(tmp_path, format, low, high):
    size = save(tmp_path / FILE_NAMES[format], format).stat().st_size
    assert low < size * 8 / (len(CLIP) / RATE) / 1000 < high  # kbit/s


def test_a_rate_the_encoder_does_not_take(tmp_path):
    assert "22050 Hz" in message(UsageError, open_writer, tmp_path / "a.opus", "opus", 22050)
    assert os.listdir(tmp_path) == []


# --- headers -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("format", WAVS)
@pytest.mark.parametrize("samples", [1, 2, 4001])
def test_file_headers_are_exact(tmp_path, format, samples):
    encoding, header = WAVS[format]
    data = save(tmp_path / "a.wav", format, CLIP[8000:8000 + samples]).read_bytes()
    body = sample_bytes(CLIP[8000:8000 + samples], encoding)
    assert data[:header] == wav_header(RATE, samples, encoding)
    assert data[header:] == body + b"\0" * (len(body) % 2)
    assert struct.unpack_from("<I", data, 4)[0] == len(data) - 8
    assert struct.unpack_from("<I", data, header - 4)[0] == len(body)
    assert soundfile.info(str(tmp_path / "a.wav")).frames == samples


def test_the_standard_library_reads_the_wav_file(tmp_path):
    with wave.open(str(save(tmp_path / "a.wav", "wav"))) as file:
        assert file.getparams()[:4] == (1, 2, RATE, len(CLIP))
        assert file.readframes(len(CLIP)) == to_int16(CLIP).tobytes()


def test_the_rate_comes_from_the_caller(tmp_path):
    with open_writer(tmp_path / "a.wav", "wav", 16000) as writer:
        writer.write(CLIP)
    assert soundfile.info(str(tmp_path / "a.wav")).samplerate == 16000


@pytest.mark.parametrize("encoding, width, most", [("s16", 2, 2147483629), ("s24", 3, 1431655752),
                                                   ("f32", 4, 1073741811)])
def test_the_largest_wav(encoding, width, most):
    header = wav_header(RATE, most, encoding)
    assert UNKNOWN - 4 <= struct.unpack_from("<I", header, 4)[0] <= UNKNOWN
    assert struct.unpack_from("<I", header, len(header) - 4)[0] == most * width
    assert "4 GiB" in message(TtsError, wav_header, RATE, most + 1, encoding)
    assert "4 GiB" in message(TtsError, wav_header, RATE, 2**40, encoding)


def test_a_wav_file_does_not_grow_past_its_header(tmp_path):
    with pytest.raises(TtsError, match="4 GiB"), open_writer(tmp_path / "a.wav", "wav", RATE) as writer:
        writer.write(CLIP)
        writer._encoder._samples = 2**31 - 100  # as after a day of speech
        writer.write(CLIP)
    assert os.listdir(tmp_path) == []


# --- pipes ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("format", WAVS)
def test_a_pipe_gets_one_open_header_and_the_samples_of_the_file(tmp_path, piped, format):
    pipe = piped()
    encoding, header = WAVS[format]
    save("-", format, chunk=1920)
    assert pipe.data[:header] == wav_header(RATE, None, encoding)
    assert pipe.data[4:8] == pipe.data[header - 4:header] == b"\xff" * 4
    size = len(sample_bytes(CLIP, encoding))
    assert pipe.data[header:] == save(tmp_path / "a.wav", format).read_bytes()[header:header + size]
    assert len(read_clip(pipe.data)) == len(CLIP)


@pytest.mark.parametrize("format", ["pcm", "f32"])
def test_raw_pipes_hold_samples_only(piped, format):
    pipe = piped()
    save("-", format, chunk=1000)
    assert pipe.data == sample_bytes(CLIP, FORMATS[format].encoding)


def test_each_write_reaches_the_pipe_and_nothing_before_the_first(piped):
    pipe = piped()
    with open_writer("-", "wav", RATE) as writer:
        assert pipe.data == b""
        for n in (1, 2, 3):
            writer.write(CLIP[:100])
            assert pipe.flushed == 44 + 200 * n
    assert pipe.flushed == len(pipe.data)


def test_a_run_that_fails_early_leaves_the_pipe_empty(piped):
    pipe = piped()
    with pytest.raises(RuntimeError), open_writer("-", "wav", RATE):
        raise RuntimeError
    assert pipe.data == b""


def test_no_speech_at_all_is_still_a_wav(piped):
    pipe = piped()
    save("-", "wav", CLIP[:0])
    assert pipe.data == wav_header(RATE, None)


def test_a_closed_pipe_has_its_own_error(piped):
    piped(limit=1000)
    with pytest.raises(ClosedPipe), open_writer("-", "wav", RATE) as writer:
        writer.write(CLIP[:100])
        writer.write(CLIP)


def test_a_full_disk_behind_a_redirection_is_reported(piped):
    piped(limit=1000, error=errno.ENOSPC)
    assert os.strerror(errno.ENOSPC) in message(TtsError, save, "-", "wav")


SPEAK = """
import sys, numpy
sys.path.insert(0, {root!r})
from tts_cli.audio.write import ClosedPipe, open_writer
try:
    with open_writer("-", "wav", 24000) as writer:
        for _ in range({times}):
            writer.write(numpy.full(2400, 0.5, numpy.float32))
except ClosedPipe:
    sys.exit(7)
"""


def speaker(times):
    script = SPEAK.format(root=str(Path(__file__).parents[1]), times=times)
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_real_pipe_carries_binary_data():
    out, err = speaker(3).communicate(timeout=60)
    assert err == b"" and out == wav_header(RATE, None) + struct.pack("<h", 16384) * 7200


def test_a_reader_that_leaves_ends_the_writer_quietly():
    process = speaker(10_000)
    process.stdout.read(1000)
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""  # no traceback, nor a complaint of the interpreter at exit
    assert process.wait(timeout=60) == 7


def test_audio_is_not_written_to_a_terminal(monkeypatch, piped):
    pipe = piped()
    check_output("-")
    monkeypatch.setattr(pipe, "isatty", lambda: True)
    assert "terminal" in message(UsageError, check_output, "-")


def test_no_standard_output(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    check_output("-")
    assert "standard output" in message(TtsError, open_writer, "-", "wav", RATE)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX")
def test_a_named_pipe_is_written_directly(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    check_output(path)
    assert choose_format(path) == "wav"
    heard = []
    listener = threading.Thread(target=lambda: heard.append(path.read_bytes()))
    listener.start()
    save(path, "wav", chunk=1920)
    listener.join()
    assert heard == [wav_header(RATE, None) + to_int16(CLIP).tobytes()]
    assert os.listdir(tmp_path) == ["pipe"]
    assert "flac cannot be written to" in message(UsageError, choose_format, path, "flac")


# --- choosing the format -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name, format", [("a.wav", "wav"), ("A.WAV", "wav"), ("a.wave", "wav"), ("x.y.Flac", "flac"),
                                          ("a.mp3", "mp3"), ("a.ogg", "ogg"), ("a.oga", "ogg"), ("a.OPUS", "opus"),
                                          ("a.pcm", "pcm"), ("a.f32", "f32"), ("-", "wav"), ("dir.mp3/a.wav", "wav"),
                                          ("über uns.flac", "flac")])
def test_the_extension_chooses(name, format):
    assert choose_format(name) == choose_format(name, format) == format
    assert choose_format(Path(name)) == format


@pytest.mark.parametrize("name, format", [("a.wav", "wav24"), ("a.wav", "wavf32"), ("-", "pcm"), ("-", "wavf32"),
                                          ("a", "flac"), ("a", "wav")])
def test_the_option_chooses(name, format):
    assert choose_format(name, format) == format


@pytest.mark.parametrize("name", ["a.xyz", "a.m4a", "a", ".wav", "a.", "dir.wav/a"])
def test_unknown_or_no_extension_lists_the_choices(name):
    text = message(UsageError, choose_format, name)
    assert all(extension in text for extension in (".wav", ".flac", ".mp3", ".ogg", ".opus"))


@pytest.mark.parametrize("name, format", [("a.mp3", "wav"), ("a.wav", "mp3"), ("a.ogg", "opus"), ("a.xyz", "wav"),
                                          ("a.pcm", "f32")])
def test_the_name_never_lies_about_the_content(name, format):
    message(UsageError, choose_format, name, format)


def test_an_unknown_format_lists_the_choices():
    assert "wav24" in message(UsageError, choose_format, "a.wav", "WAVE64")


@pytest.mark.parametrize("format", ENCODED)
def test_formats_that_cannot_be_piped(format):
    assert "wav, wav24, wavf32, pcm, f32" in message(UsageError, choose_format, "-", format)


# --- checks before any work ----------------------------------------------------------------------------------------

def test_a_good_output_leaves_no_trace(tmp_path):
    check_output(tmp_path / "new file ü.wav")
    (tmp_path / "old.wav").write_bytes(b"old")
    check_output(str(tmp_path / "old.wav"))
    assert os.listdir(tmp_path) == ["old.wav"] and (tmp_path / "old.wav").read_bytes() == b"old"


def test_a_bare_name_is_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_output("a.wav")
    save("a.wav", "wav")
    assert os.listdir(tmp_path) == ["a.wav"]


def test_a_missing_folder(tmp_path):
    path = tmp_path / "no dir" / "a.wav"
    text = message(TtsError, check_output, path)
    assert str(path) in text and "does not exist" in text


def test_a_folder_is_not_a_file(tmp_path):
    for call in (check_output, choose_format):
        text = message(TtsError, call, tmp_path)
        assert str(tmp_path) in text and "folder" in text


def test_below_a_file(tmp_path):
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in message(TtsError, check_output, tmp_path / "file" / "a.wav")


def test_a_read_only_file(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(b"keep")
    path.chmod(0o444)
    assert "read-only" in message(TtsError, check_output, path)
    path.chmod(0o644)


def test_a_folder_that_takes_no_file(tmp_path, monkeypatch):
    def deny(folder):
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(write, "_create_temp", deny)  # chmod does not stop an administrator
    text = f"cannot write {tmp_path / 'a.wav'}: Permission denied"
    assert message(TtsError, check_output, tmp_path / "a.wav") == text
    assert message(TtsError, open_writer, tmp_path / "a.wav", "wav", RATE) == text


def test_a_name_the_file_system_refuses(tmp_path):
    assert "cannot write" in message(TtsError, check_output, tmp_path / ("x" * 5000 + ".wav"))


@pytest.mark.parametrize("path", ["", "a\0b.wav"])
def test_no_name(path):
    message(UsageError, check_output, path)


def test_an_input_is_not_overwritten(tmp_path):
    source = tmp_path / "voice.wav"
    save(source, "wav")
    (tmp_path / "sub").mkdir()
    same = tmp_path / "sub" / ".." / "voice.wav"
    assert "input" in message(UsageError, check_output, same, inputs=[tmp_path / "missing", source])
    check_output(tmp_path / "other.wav", inputs=[source])


def test_an_input_is_recognised_through_a_link(tmp_path):
    source = tmp_path / "voice.wav"
    save(source, "wav")
    os.link(source, tmp_path / "link.wav")
    assert "input" in message(UsageError, check_output, tmp_path / "link.wav", inputs=[source])


# --- whole or absent -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("format", FILE_NAMES)
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, GeneratorExit])
def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path, format, error):
    path = tmp_path / FILE_NAMES[format]
    path.write_bytes(b"old")
    with pytest.raises(error), open_writer(path, format, RATE) as writer:
        writer.write(CLIP)
        assert path.read_bytes() == b"old"
        raise error
    assert os.listdir(tmp_path) == [path.name] and path.read_bytes() == b"old"


def test_an_existing_file_is_replaced_with_ordinary_permissions(tmp_path):
    (tmp_path / "plain").touch()
    path = tmp_path / "a.wav"
    path.write_bytes(b"old")
    save(path, "wav")
    assert soundfile.info(str(path)).frames == len(CLIP)
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.skipif(os.name == "nt", reason="symbolic links need a privilege there")
def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "a.wav"
    link.symlink_to(tmp_path / "real" / "b.wav")
    save(link, "wav")
    assert link.is_symlink() and soundfile.info(str(tmp_path / "real" / "b.wav")).frames == len(CLIP)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_dead_audio_is_refused(tmp_path, value):
    with pytest.raises(TtsError, match="not numbers"), open_writer(tmp_path / "a.wav", "wav", RATE) as writer:
        writer.write(np.full(10, value, np.float32))
    assert os.listdir(tmp_path) == []


class FullDisk:
    """A file that takes `limit` bytes."""

    def __init__(self, file, limit):
        self._file, self._left = file, limit

    def write(self, data):
        self._left -= len(data)
        if self._left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._file.write(data)

    def __getattr__(self, name):
        return getattr(self._file, name)


@pytest.mark.parametrize("format", FILE_NAMES)
@pytest.mark.parametrize("limit", [0, 3000])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, capfd, format, limit):
    create = write._create_temp

    def small(folder):
        path, file = create(folder)
        return path, FullDisk(file, limit)

    monkeypatch.setattr(write, "_create_temp", small)
    path = tmp_path / FILE_NAMES[format]
    assert message(TtsError, save, path, format, CLIP, 1920) == f"cannot write {path}: {os.strerror(errno.ENOSPC)}"
    assert os.listdir(tmp_path) == []
    assert capfd.readouterr() == ("", "")  # nothing from inside libsndfile either


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_the_full_device_fails_when_it_is_opened():
    check_output("/dev/full")
    assert choose_format("/dev/full") == "wav"
    text = f"cannot write /dev/full: {os.strerror(errno.ENOSPC)}"
    assert message(TtsError, open_writer, "/dev/full", "wav", RATE) == text


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="POSIX")
def test_the_null_device_takes_everything():
    save("/dev/null", choose_format("/dev/null"))
    assert not os.path.isfile("/dev/null")


def test_finished_work_survives_a_name_that_cannot_be_taken(tmp_path, monkeypatch):
    def held(*args):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "replace", held)
    text = message(TtsError, save, tmp_path / "a.wav", "wav")
    (left,) = tmp_path.iterdir()
    assert str(left) in text and soundfile.info(str(left)).frames == len(CLIP)


def test_the_writer_counts_samples(tmp_path):
    writer = AudioWriter(tmp_path / "a.wav", "wav", RATE)
    writer.write(CLIP[:100])
    writer.write(CLIP[:50].astype(np.float64))
    writer.close()
    assert writer.samples == 150 and soundfile.info(str(tmp_path / "a.wav")).frames == 150


@pytest.mark.skipif(os.name == "nt", reason="only POSIX tells an appending output apart")
@pytest.mark.parametrize("mode, exact", [("wb", True), ("ab", False)])
def test_standard_output_redirected_to_a_file_gets_its_length(tmp_path, mode, exact):
    """`> a.wav` can be rewound at the end, `>> a.wav` cannot."""
    code = ("import numpy; from tts_cli.audio.write import open_writer\n"
            "with open_writer('-', 'wav', 24000) as w: w.write(numpy.full(100, 0.5)); w.write(numpy.zeros(20))")
    path = tmp_path / "a.wav"
    with open(path, mode) as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True, cwd=Path(__file__).parent.parent)
    raw = path.read_bytes()
    assert raw[:44] == wav_header(24000, 120 if exact else None)
    assert len(raw) == 44 + 240
