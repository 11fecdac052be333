"""Reading a reference clip: what is accepted sounds the same, what is refused says why."""

import inspect
import io
import os
import shutil
import struct
import threading

import numpy as np
import pytest
import soundfile
from clips import cosine, speech_like

from tts_cli.audio.mel import MIN_SAMPLES
from tts_cli.audio.read import MAX_SECONDS, loudness_warning, peak_dbfs, read_clip
from tts_cli.audio.wav_stream import sample_bytes, wav_header
from tts_cli.errors import UsageError

RATE = 24000
CLIP = speech_like(RATE)
# container, subtype, and the most the samples may differ from the original
EXACT = [("WAV", "PCM_U8", 1 / 127), ("WAV", "PCM_16", 1e-4), ("WAV", "PCM_24", 1e-6), ("WAV", "PCM_32", 1e-7),
         ("WAV", "FLOAT", 0), ("WAV", "DOUBLE", 0), ("WAV", "ALAW", 0.02), ("WAV", "ULAW", 0.02),
         ("WAVEX", "PCM_16", 1e-4), ("WAVEX", "PCM_24", 1e-6), ("RF64", "PCM_16", 1e-4), ("AIFF", "PCM_16", 1e-4),
         ("FLAC", "PCM_16", 1e-4), ("FLAC", "PCM_24", 1e-6), ("CAF", "PCM_16", 1e-4)]
LOSSY = [("MP3", "MPEG_LAYER_III"), ("OGG", "VORBIS"), ("OGG", "OPUS")]


def encoded(samples, rate=RATE, container="WAV", subtype="PCM_16") -> bytes:
    data = io.BytesIO()
    soundfile.write(data, samples, rate, format=container, subtype=subtype)
    return data.getvalue()


def refusal(source, **kwargs) -> str:
    with pytest.raises(UsageError) as caught:
        read_clip(source, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- the same clip in every container, rate and type ---------------------------------------------------------------

@pytest.mark.parametrize("container, subtype, tolerance", EXACT)
def test_uncompressed_and_lossless_containers_give_the_same_samples(container, subtype, tolerance):
    clip = read_clip(encoded(CLIP, RATE, container, subtype))
    assert clip.dtype == np.float32 and clip.shape == CLIP.shape
    assert np.abs(clip - CLIP).max() <= tolerance


@pytest.mark.parametrize("container, subtype", LOSSY)
def test_lossy_containers_sound_the_same(container, subtype):
    clip = read_clip(encoded(CLIP, RATE, container, subtype))
    assert abs(len(clip) - len(CLIP)) <= RATE // 50
    n = min(len(clip), len(CLIP))
    assert cosine(clip[:n], CLIP[:n]) > 0.93


def test_mp3_is_decoded_in_one_run_whatever_the_block_size(monkeypatch):
    data = encoded(speech_like(44100), 44100, "MP3", "MPEG_LAYER_III")
    whole = soundfile.read(io.BytesIO(data), dtype="float32")[0]
    monkeypatch.setattr("tts_cli.audio.read._BLOCK", 1000)
    np.testing.assert_array_equal(read_clip(data, 44100), whole)


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 32000, 44100, 48000, 96000])
def test_every_rate_becomes_the_clip_at_24_khz(rate):
    clip = read_clip(encoded(speech_like(rate), rate, "WAV", "FLOAT"))
    assert abs(len(clip) - len(CLIP)) <= 1
    n = min(len(clip), len(CLIP))
    assert cosine(clip[:n], CLIP[:n]) > 0.99999
    assert np.abs(clip[:n] - CLIP[:n]).max() < 1e-3  # at the edges, where the filter sees no future


def test_another_target_rate():
    assert abs(len(read_clip((CLIP, RATE), 16000)) - len(CLIP) * 2 // 3) <= 1


def test_resampled_length_is_the_reference_s():
    assert len(read_clip((CLIP[:1001], 44100), min_samples=1)) == 545  # ceil(1001 * 24000 / 44100)


@pytest.mark.parametrize("channels", [2, 3, 6, 8])
def test_channels_are_averaged(channels):
    gains = np.arange(1, channels + 1, dtype=np.float32) / channels
    clip = read_clip(encoded(CLIP[:, None] * gains, RATE, "WAV", "FLOAT"))
    np.testing.assert_allclose(clip, CLIP * gains.mean(), atol=1e-6)


def test_opposite_channels_cancel_and_are_refused_as_silence():
    assert "silence" in refusal((np.stack([CLIP, -CLIP], axis=1), RATE))


@pytest.mark.parametrize("wrap", [str, lambda path: path, lambda path: path.read_bytes(),
                                  lambda path: bytearray(path.read_bytes()), lambda path: (CLIP, RATE)],
                         ids=["str", "Path", "bytes", "bytearray", "samples"])
def test_every_kind_of_source(tmp_path, wrap):
    path = tmp_path / "clip.wav"
    path.write_bytes(encoded(CLIP, subtype="FLOAT"))
    np.testing.assert_array_equal(read_clip(wrap(path)), CLIP)


@pytest.mark.parametrize("dtype, scale", [(np.int16, 2**15), (np.int32, 2**31), (np.int8, 2**7), (np.float64, 1),
                                          (np.float16, 1)])
def test_arrays_of_any_type(dtype, scale):
    samples = (CLIP.astype(np.float64) * scale).astype(dtype)
    assert np.abs(read_clip((samples, RATE)) - CLIP).max() < 1e-2
    assert peak_dbfs(read_clip((samples, RATE))) == pytest.approx(peak_dbfs(CLIP), abs=0.2)


def test_unsigned_bytes_are_centred():
    assert np.abs(read_clip(((CLIP * 127 + 128).astype(np.uint8), RATE)) - CLIP).max() < 0.02


@pytest.mark.parametrize("name", ["my voice.wav", "Stimme-ü-声音-🎤.wav", "noextension", "wrong.mp3", "headerless.raw",
                                  "old.vox", "it's \"quoted\".wav"])
def test_file_names_do_not_matter(tmp_path, name):
    if os.name == "nt" and '"' in name:
        name = name.replace('"', "")
    path = tmp_path / "Ordner mit Ä" / name
    path.parent.mkdir()
    path.write_bytes(encoded(CLIP, subtype="FLOAT"))
    np.testing.assert_array_equal(read_clip(path), CLIP)


def test_our_own_piped_wav_is_a_reference_clip_too():
    clip = read_clip(wav_header(RATE, None) + sample_bytes(CLIP, "s16"))
    assert len(clip) == len(CLIP) and np.abs(clip - CLIP).max() < 1e-4


def test_a_flac_stream_without_a_length():
    data = bytearray(encoded(CLIP, RATE, "FLAC", "PCM_24"))
    data[21] &= 0xF0  # the 36 bits of the number of samples
    data[22:26] = bytes(4)
    assert np.abs(read_clip(bytes(data)) - CLIP).max() < 1e-6


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX")
def test_a_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    feeder = threading.Thread(target=path.write_bytes, args=(encoded(CLIP, subtype="FLOAT"),))
    feeder.start()
    np.testing.assert_array_equal(read_clip(path), CLIP)
    feeder.join()


# --- loudness ------------------------------------------------------------------------------------------------------

def test_loud_float_files_pass_unchanged():
    np.testing.assert_array_equal(read_clip(encoded(CLIP * 40, subtype="FLOAT")), CLIP * 40)
    double = read_clip(encoded(CLIP.astype(np.float64) * 1e6, subtype="DOUBLE"))
    np.testing.assert_allclose(double, CLIP * 1e6, rtol=1e-6)


def test_a_clipped_square_passes():
    square = np.sign(np.sin(np.arange(RATE) * 0.05)).astype(np.float32)
    assert np.abs(read_clip(encoded(square)) - square).max() < 1e-4


def test_noise_and_speech_on_an_offset_pass():
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, RATE).astype(np.float32)
    np.testing.assert_array_equal(read_clip((noise, RATE)), noise)
    np.testing.assert_array_equal(read_clip((CLIP + 0.3, RATE)), CLIP + np.float32(0.3))


def test_quiet_speech_passes_unchanged_with_a_warning():
    quiet = CLIP * np.float32(2e-3)  # peak -60 dBFS
    clip = read_clip(encoded(quiet, subtype="FLOAT"))
    np.testing.assert_array_equal(clip, quiet)
    assert "very quiet" in loudness_warning(clip)
    assert loudness_warning(CLIP) is None


@pytest.mark.parametrize("samples", [np.zeros(RATE, np.float32),
                                     np.random.default_rng(0).integers(-1, 2, RATE).astype(np.int16),
                                     CLIP * np.float32(1e-4)], ids=["digital", "dither", "far too quiet"])
def test_silence_is_refused(samples):
    message = refusal((samples, RATE))
    assert "silence" in message and "-70 dBFS" in message


def test_a_constant_is_refused():
    assert "constant" in refusal((np.full(RATE, 0.5, np.float32), RATE))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_refused(value):
    samples = CLIP.copy()
    samples[100] = value
    assert "not numbers" in refusal(encoded(samples, subtype="FLOAT"))
    assert "not numbers" in refusal((samples, RATE))


def test_doubles_beyond_float32_are_refused():
    assert "not numbers" in refusal(encoded(CLIP.astype(np.float64) * 1e300, subtype="DOUBLE"))


# --- length and rate -----------------------------------------------------------------------------------------------

def test_the_default_minimum_is_the_speaker_encoder_s():
    assert inspect.signature(read_clip).parameters["min_samples"].default == MIN_SAMPLES


@pytest.mark.parametrize("samples", [0, 1, 240, 1279])
def test_too_short_names_the_minimum(samples):
    message = refusal((CLIP[10000:10000 + samples], RATE))
    assert "too short" in message and "53.4 ms" in message


def test_the_minimum_counts_after_resampling():
    assert len(read_clip((CLIP[10000:11280], RATE))) == 1280
    assert "too short" in refusal((CLIP[10000:11280], 48000))
    assert len(read_clip((CLIP[10000:10427], 8000))) == 1281
    assert "too short" in refusal((CLIP[10000:10426], 8000))
    assert "1000.0 ms" in refusal((CLIP[:20000], RATE), min_samples=RATE)


def test_hours_are_refused_before_they_are_decoded(tmp_path):
    path = tmp_path / "audiobook.wav"
    samples = (MAX_SECONDS + 1) * 8000
    with open(path, "wb") as file:
        file.write(wav_header(8000, samples))
        file.truncate(44 + 2 * samples)
    assert "60 seconds" in refusal(path)


def test_a_stream_that_never_ends_is_refused(monkeypatch):
    monkeypatch.setattr("tts_cli.audio.read.MAX_SECONDS", 1)
    data = bytearray(encoded(CLIP, RATE, "FLAC", "PCM_16"))
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    assert "more than 1 seconds" in refusal(bytes(data))


@pytest.mark.parametrize("rate", [0, -1, 1, 3999, 768001, 24000.5, "24000", None, True])
def test_rates_that_cannot_be_are_refused(rate):
    assert "sample rate" in refusal((CLIP, rate))


def test_a_damaged_rate_in_a_header_is_refused():
    data = bytearray(encoded(CLIP))
    struct.pack_into("<I", data, 24, 2**31 - 1)
    assert "sample rate" in refusal(bytes(data))


@pytest.mark.parametrize("samples", [np.zeros((2, RATE), np.float32), np.zeros((1, 2, 3), np.float32),
                                     np.float32(1.0), np.zeros((5, 0), np.float32)])
def test_arrays_of_another_shape_are_refused(samples):
    assert "[n, channels]" in refusal((samples, RATE))


@pytest.mark.parametrize("source", [None, 7, [0.1, 0.2], CLIP, (CLIP,)])
def test_another_type_is_a_usage_error(source):
    assert "a clip is a path" in refusal(source)


@pytest.mark.parametrize("samples", [np.zeros(RATE, np.complex64), np.zeros(RATE, bool), np.array(["a"] * 500)])
def test_arrays_of_another_type_are_refused(samples):
    assert "floats, signed integers or uint8" in refusal((samples, RATE))


# --- files that are not a clip -------------------------------------------------------------------------------------

def test_a_missing_file(tmp_path):
    assert refusal(tmp_path / "no where.wav") == f"{tmp_path / 'no where.wav'}: no such file"


def test_a_folder(tmp_path):
    assert "a folder" in refusal(tmp_path)


def test_an_empty_file(tmp_path):
    (tmp_path / "empty.wav").touch()
    assert "is empty" in refusal(tmp_path / "empty.wav")


@pytest.mark.parametrize("path", ["", "a\0b.wav", "x" * 5000])
def test_names_that_name_nothing(path):
    refusal(path)


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = tmp_path / "private.wav"
    path.write_bytes(encoded(CLIP))

    def deny(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", deny)  # chmod does not stop an administrator
    assert refusal(path).endswith("cannot be read: Permission denied")


@pytest.mark.parametrize("good", [0, 8000])
def test_a_disk_that_fails(tmp_path, monkeypatch, capfd, good):
    class Failing(io.BytesIO):
        def read(self, size=-1):
            self.fail_after(0)
            return super().read(size)

        def readinto(self, buffer):
            self.fail_after(8000)
            return super().readinto(buffer)

        def fail_after(self, most):
            if self.tell() >= most >= good:
                raise OSError(5, "Input/output error")

    path = tmp_path / "clip.wav"
    path.write_bytes(encoded(CLIP))
    monkeypatch.setattr("tts_cli.audio.read._open", lambda path, name: Failing(path.read_bytes()))
    assert refusal(path).endswith("cannot be read: Input/output error")
    assert capfd.readouterr() == ("", "")


def test_text_renamed_wav(tmp_path):
    (tmp_path / "text.wav").write_text("Not sound at all.\n" * 100)
    assert "not an audio file" in refusal(tmp_path / "text.wav")


@pytest.mark.parametrize("length", [4, 8, 12, 20, 36, 40, 43, 44])
def test_a_cut_wav_header(length):
    message = refusal(encoded(CLIP)[:length])
    assert "damaged" in message or "too short" in message


@pytest.mark.parametrize("container, subtype", [("FLAC", "PCM_16"), ("OGG", "VORBIS")])
@pytest.mark.parametrize("keep", [60, 3000])
def test_cut_compressed_files(container, subtype, keep):
    assert "damaged" in refusal(encoded(CLIP, RATE, container, subtype)[:keep])


def test_a_wav_whose_end_is_missing_keeps_what_is_there():
    assert len(read_clip(encoded(CLIP)[:44 + 2 * 10000])) == 10000


@pytest.mark.filterwarnings("error")  # an exception inside a callback of libsndfile arrives as a warning
def test_random_damage_never_raises_anything_else():
    rng = np.random.default_rng(1)
    for container, subtype in [("WAV", "PCM_16"), ("WAV", "PCM_24"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"),
                               ("AIFF", "PCM_16")]:
        data = encoded(CLIP[:4000], RATE, container, subtype)
        for _ in range(60):
            damaged = bytearray(data[:rng.integers(1, len(data) + 1)])
            for position in rng.integers(0, min(len(damaged), 200), 3):
                damaged[position] = rng.integers(256)
            try:
                clip = read_clip(bytes(damaged))
            except UsageError as error:
                assert "\n" not in str(error)
            else:
                assert clip.dtype == np.float32 and np.isfinite(clip).all()


FOREIGN = {
    "m4a": (b"\0\0\0\x1cftypM4A \0\0\2\0", "m4a"),
    "mp4": (b"\0\0\0\x1cftypisom\0\0\2\0", "MPEG-4"),
    "mov": (b"\0\0\0\x14ftypqt  ", "mov"),
    "aac": (b"\xff\xf1P@\x1d\x9f\xfc\xde\x02\0Lavc", "AAC"),
    "wma": (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9", "Windows Media"),
    "webm": (b"\x1aE\xdf\xa3\x9fB\x86\x81\x01", "WebM"),
    "amr": (b"#!AMR\n<", "AMR"),
    "wv": (b"wvpk0/\0\0\x10\4\0\0", "WavPack"),
    "ac3": (b"\x0bwG\xc3L@/\x84", "AC-3"),
    "avi": (b"RIFFl]\0\0AVI LIST", "AVI"),
    "spx": (b"OggS" + bytes(24) + b"Speex   1.2", "Speex"),
    "ts": (b"G@\x11\x10".ljust(188, b"\0") + b"G@", "transport stream"),
    "caf": (b"caff\0\1\0\0desc\0\0\0\0\0\0\0\x20" + bytes(8) + b"alac", "Core Audio"),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("suffix", ["own", ".wav"])
def test_formats_that_cannot_be_read_are_named_with_the_fix(tmp_path, kind, suffix):
    head, name = FOREIGN[kind]
    path = tmp_path / f"my voice{'.' + kind if suffix == 'own' else suffix}"
    path.write_bytes(head + bytes(range(256)) * 8)
    message = refusal(path)
    target = "my voice.wav" if suffix == "own" else "my voice-converted.wav"
    assert name in message and f'ffmpeg -i "{path}" "{tmp_path / target}"' in message


def test_a_name_that_does_not_print_stays_on_one_line(tmp_path):
    assert "no such file" in refusal(str(tmp_path / "a\nb.wav"))


def test_the_file_is_released(tmp_path):
    folder = tmp_path / "clips"
    folder.mkdir()
    (folder / "good.wav").write_bytes(encoded(CLIP))
    (folder / "bad.wav").write_bytes(b"RIFF....")
    read_clip(folder / "good.wav")
    refusal(folder / "bad.wav")
    shutil.rmtree(folder)  # Windows refuses while a handle is open
    assert not folder.exists()


def test_samples_far_beyond_full_scale_are_refused():
    assert len(read_clip((CLIP * 32768, RATE)))  # floats that hold 16-bit integers
    assert "full scale" in refusal((CLIP * np.float32(1e30), RATE))
