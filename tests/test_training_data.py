"""Texts, speech in shards that can be gone on with, and what is measured of it."""

import json
import multiprocessing
import os
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from server_tools import until
from tiny_training import RATE, Humming, tiny_nano

from training import data, features, teachers, texts
from training.corpus import Corpus
from training.text import Reader, learn_merges, read_merges

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def humming(monkeypatch):
    monkeypatch.setitem(teachers.TEACHERS, "hum", Humming)


def make(folder, *, hours: float, voice: str = "hum:low", workers: int = 1) -> Corpus:
    nano = tiny_nano(folder)
    (folder / "wordnet").mkdir(exist_ok=True)
    (folder / "wordnet" / "data.noun").write_text('00 | a dog; "The dog barked all night"; "Did you hear it?"\n')
    data.main([str(nano.path), str(folder / "data"), "--voice", voice, "--hours", str(hours), "--workers",
               str(workers), "--wordnet", str(folder / "wordnet")])
    return Corpus(folder / "data")


def test_sentences_are_tidy_and_always_the_same(tmp_path):
    (tmp_path / "data.verb").write_text('1 | to say; "speak up!"; "he said  so -- twice"; "NASA said it"; "two words"')
    found = texts.sentences(tmp_path, [], 30)
    assert found == texts.sentences(tmp_path, [], 30) and len(set(found)) == len(found)
    joined = " ".join(found)
    assert "He said so, twice." in joined.replace(" ,", ",") and "NASA" not in joined
    with pytest.raises(FileNotFoundError, match="wordnet-base"):
        texts.sentences(tmp_path / "nowhere", [], 0)


def test_shards_go_on_where_they_were_cut(tmp_path):
    whole = make(tmp_path, hours=0.01)
    shard = tmp_path / "data" / "hum-low" / "00"
    kept = {suffix: (shard.parent / f"00{suffix}").read_bytes() for suffix in (".i16", ".f32", ".jsonl")}
    assert len(kept[".i16"]) > 20 * 2 * RATE
    with open(f"{shard}.jsonl", "r+b") as index:  # as if killed in the middle of a line, two utterances ago
        lines = index.read().splitlines(keepends=True)
        index.truncate(sum(map(len, lines[:-2])) + 5)
    again = make(tmp_path, hours=0.01)
    assert {suffix: (shard.parent / f"00{suffix}").read_bytes() for suffix in kept} == kept
    assert [u.text for u in again.train] == [u.text for u in whole.train]


def test_words_and_phonemes_have_the_times_of_the_model():
    """Of the real hibari: words are loud between their marks."""
    text = "Six boxes. Two more, Anna."
    spoken = teachers.make_teacher("hibari:heart").speak(text, 0)
    letters, seconds = zip(*spoken.marks, strict=True)
    assert letters == (0, 3, 4, 10, 11, 14, 15, 20, 21, 26) and sorted(seconds) == list(seconds)
    spans = [spoken.samples[int(a * RATE):int(b * RATE)] for a, b in pairwise(seconds)]
    assert min(np.abs(word).max() for word in spans[::2]) > 0.1
    assert np.abs(spans[3])[:len(spans[3]) // 480 * 480].reshape(-1, 480).max(1).min() < 0.02  # a pause
    assert "".join(symbol for symbol, _ in spoken.sounds).startswith("sɪks")
    ends = [end for _, end in spoken.sounds]
    assert sorted(ends) == ends and ends[-1] == pytest.approx(len(spoken.samples) / RATE, abs=0.01)
    assert spoken.sounds[0][0] == spoken.sounds[-1][0] == ""


def test_marks_where_words_and_phonemes_differ_in_number():
    sounds = [("", 0.1), ("ˈ", 0.15), ("a", 0.2), (",", 0.3), (" ", 0.4), ("b", 0.5), ("", 0.6)]
    assert teachers.word_marks("Ah, be", sounds) == [(0, 0.1), (3, 0.2), (4, 0.4), (6, 0.5)]
    assert teachers.word_marks("AB", sounds) == [(0, 0.1), (2, 0.5)]
    assert teachers.tidy_sounds(sounds) == [("", 0.15), ("a", 0.2), ("", 0.4), ("b", 0.5), ("", 0.6)]


def test_a_shifted_voice_is_higher_and_as_long():
    one, other = (teachers.make_teacher(name).speak("One two six", 0) for name in ("hum:low", "hum:low@1.25"))
    assert len(other.samples) == pytest.approx(len(one.samples), rel=0.3)  # its silence is not slower
    tops = [np.abs(np.fft.rfft(s.samples, RATE)).argmax() for s in (one, other)]
    assert tops[1] == pytest.approx(1.25 * tops[0], rel=0.02)
    assert other.marks[-1][0] == one.marks[-1][0] and other.marks[-1][1] <= len(other.samples) / RATE


def test_kokoro_teaches_in_mixed_voices_and_tells_when_words_sound(kokoro):
    text = "Hello there, Anna."
    spoken = teachers.make_teacher("kokoro:af_heart:0.6,bm_george:0.4").speak(text, 1)
    letters, seconds = zip(*spoken.marks, strict=True)
    assert letters == (0, 5, 6, 12, 13, 18) and sorted(seconds) == list(seconds)
    loud = np.flatnonzero(np.abs(spoken.samples) > 0.02) / RATE
    assert abs(seconds[0] - loud[0]) < 0.2 and abs(seconds[-1] - loud[-1]) < 0.3


@pytest.mark.parametrize("name, told", [
    ("nobody:low", "hibari:VOICE"), ("hibari:low", "heart"), ("hibari:heart@3", "factor"), ("kokoro:nobody", "nobody")])
def test_voices_that_there_are_not(name, told):
    with pytest.raises(ValueError, match=told):
        teachers.make_teacher(name)


def test_held_out_texts_are_in_no_crop(tmp_path):
    corpus = make(tmp_path, hours=0.02)
    assert corpus.held_out[0].number == 0 and not any(u.number % texts.HELD_OUT for u in corpus.held_out)
    assert corpus.train and all(u.number % texts.HELD_OUT for u in corpus.train)
    lines = [json.loads(line) for line in (tmp_path / "data" / "hum-low" / "00.jsonl").read_text().splitlines()]
    assert not any("zero" in line["text"] for line in lines)  # what the teacher refused is left out


def test_a_text_is_spoken_in_the_pieces_of_the_product_unless_it_is_held_out(tmp_path):
    text = "One two three four five six. Seven eight nine ten eleven twelve, thirteen and some more."
    data.speak_shard(tmp_path, "hum:low", 0, 1, [text, text], 60, float("inf"), max_chars=40)
    lines = [json.loads(line) for line in (tmp_path / "00.jsonl").read_text().splitlines()]
    assert [(line["number"], line["piece"], line["text"]) for line in lines] == [
        (0, 0, text), (1, 0, "One two three four five six."), (1, 1, "Seven eight nine ten eleven twelve,"),
        (1, 2, "thirteen and some more.")]
    assert [line["start"] for line in lines] == [0, *np.cumsum([line["frames"] for line in lines])[:-1]]
    assert all(line["marks"][-1][0] == len(line["text"]) for line in lines)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="workers inherit the slow teacher")
def test_workers_end_with_the_run_that_began_them(tmp_path):
    """When it is killed the next run would write to the same files beside them."""
    nano = tiny_nano(tmp_path)
    sentences = "; ".join(f'"The dog number {n} barked all night"' for n in range(300))
    (tmp_path / "data.noun").write_text(f"00 | a dog; {sentences}\n")
    program = (f"import multiprocessing, sys, time\nsys.path[:0] = {[str(ROOT / 'tests'), str(ROOT)]}\n"
               "multiprocessing.set_start_method('fork')\nfrom training import data, teachers\n"
               "from tiny_training import Humming\nclass Slow(Humming):\n    def speak(self, text, seed):\n"
               "        time.sleep(.1)\n        return super().speak(text, seed)\nteachers.TEACHERS['hum'] = Slow\n"
               f"data.main([{str(nano.path)!r}, {str(tmp_path / 'data')!r}, '--voice', 'hum:low', '--workers', '2',"
               f" '--wordnet', {str(tmp_path)!r}])")
    run = subprocess.Popen([sys.executable, "-c", program])
    indices = [tmp_path / "data" / "hum-low" / f"0{n}.jsonl" for n in range(2)]
    try:
        until(lambda: all(index.exists() and index.stat().st_size for index in indices), seconds=60)
        workers = psutil.Process(run.pid).children()
    finally:
        run.kill()
        run.wait()
    assert len(workers) == 2 and not psutil.wait_procs(workers, timeout=20)[1]


def test_a_shard_that_lacks_sound_is_refused(tmp_path):
    speak = partial(data.speak_shard, tmp_path, "hum:low", 0, 1)
    seconds = speak(["One two three."], 60, float("inf"))
    assert speak(["One two three.", "Four five."], 60, float("inf")) > seconds > 0
    os.truncate(tmp_path / "00.i16", 100)
    with pytest.raises(ValueError, match="00.i16: shorter"):
        speak(["One two three.", "Four five.", "Six."], 60, float("inf"))


def test_a_voice_that_there_is_not_leaves_nothing_behind(tmp_path, capsys):
    for voice in ("hibari:lark", "kokoro:nobody"):
        with pytest.raises(SystemExit, match="2"):
            make(tmp_path, hours=0.01, voice=voice)
    assert "lark" in capsys.readouterr().err and not (tmp_path / "data").exists()


def test_speech_of_an_older_version_is_refused(tmp_path):
    make(tmp_path, hours=0.01)
    index = tmp_path / "data" / "hum-low" / "00.jsonl"
    index.write_text(index.read_text().replace('"piece": 0, ', ""))
    with pytest.raises(ValueError, match="hum-low: made by an older version"):
        Corpus(tmp_path / "data")


def test_crops_are_stretches_of_the_speech(tmp_path):
    corpus = make(tmp_path, hours=0.01)
    crops = corpus.crops(np.random.default_rng(0), 16, 6, starts=0.5, gain_db=0)
    assert crops.samples.shape == (16, 6 * 1920) and crops.rows.shape == (16, 82, 48)
    assert 4 <= int(crops.first.sum()) <= 14
    u = corpus.train[0]
    whole = corpus.rows(u)[0]
    cut = corpus.crops(np.random.default_rng(1), 64, 6, starts=1, gain_db=0)
    best = min((cut.rows[i] - whole[:, :48]).abs().max() for i in range(64))
    assert best < 1e-4  # features of a crop are those of the utterance there


def test_marks_tell_when_words_end(tmp_path):
    u = next(u for u in make(tmp_path, hours=0.01).train if len(u.text.split()) > 4)
    ends = [seconds for _, seconds in u.marks]
    assert ends == sorted(ends) and abs(ends[0] - 0.1) < 0.02
    assert u.marks[-1][0] == len(u.text) and ends[-1] < u.frames * 0.08


@pytest.mark.parametrize("hz", [70, 110, 220, 380])
def test_pitch_of_a_tone_with_overtones(hz):
    t = np.arange(RATE) / RATE
    tone = sum(0.1 * np.sin(2 * np.pi * hz * k * t) for k in range(1, 8))
    found = features.pitch(np.concatenate((np.zeros(RATE // 2), tone)))
    assert len(found) == 150 and (found[:45] < 0).all()
    assert np.abs(found[60:140] / hz - 1).max() < 0.01


def test_pitch_of_noise_is_none():
    assert (features.pitch(0.1 * np.random.default_rng(0).standard_normal(RATE)) < 0).mean() > 0.9


def test_packed_columns_come_back():
    rows = torch.randn(2, 82, 24)
    assert torch.equal(features.unpack(features.pack(rows)), rows)


def test_the_reader_has_the_words_the_prompt_needs(tmp_path):
    merges = learn_merges(["the assistant said that there is something else there"] * 3, 300)
    (tmp_path / "merges.txt").write_text("\n".join(merges))
    reader = Reader(tiny_nano(tmp_path), read_merges(tmp_path / "merges.txt"))
    ids, letters = reader.read("the assistant")
    assert ids == reader.encode("the assistant") and letters == sorted(letters) and 0 < letters[0] < 3
    assert [reader.token(i) for i in reader.encode("assistant")] == ["assistant"]
    assert reader.id("<tts_text_eod>") < tiny_nano(tmp_path).text_vocab <= reader.id("<|codec_0|>")
