"""The session on a mock engine and a fake player: order, stopping, taking again, saving, errors that are one line."""

import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from tts_cli.audio.play import DeviceLost
from tts_cli.background import Worker
from tts_cli.engine import AudioChunk, CancelToken, Speech, SpeechRequest
from tts_cli.errors import TtsError, UsageError
from tts_cli.repl import Needs, Session
from tts_cli.repl_commands import Settings
from tts_cli.utterances import utterances
from tts_cli.voices import Voice

RATE = 24000


class Engine:
    """Speaks two chunks a text; of one with "wait" the second only when told or cancelled."""

    sample_rate = RATE
    languages = ("english", "german")

    def __init__(self):
        self.requests = []
        self.begun, self.go = threading.Event(), threading.Event()

    def check(self, request):
        if request.language not in ("auto", *self.languages):
            raise UsageError(f"language: {request.language!r} is not one of auto, english, german")

    def unread(self, request) -> list[str]:
        return []

    def parts(self, pieces):
        return iter(pieces)

    def speak(self, request, cancel=None):
        self.check(request)
        self.requests.append(request)
        return Speech(self._chunks(request, cancel or CancelToken()), RATE, request.seed)

    def _chunks(self, request, cancel):
        if "fail" in request.text:
            raise TtsError("the model failed")
        sound = np.full(RATE // 10, len(request.text) / 100, np.float32)
        yield AudioChunk(sound, RATE)
        self.begun.set()
        while "wait" in request.text and not self.go.wait(0.005):
            if cancel.cancelled:
                yield AudioChunk(np.zeros(0, np.float32), RATE, None, "cancelled")
                return
        yield AudioChunk(sound, RATE, None, "eos")

    paths = ()

    def describe(self):
        return ["model: mock"]

    def voice_from_clip(self, clip, name):
        return Voice(name, np.asarray(clip, np.float32))


class Player:
    underruns = 0

    def __init__(self, rate, expected):
        self.played, self.stopped, self.drained, self.fails = [], False, False, None

    def write(self, samples, cancel=None):
        if self.fails:
            raise self.fails
        self.played.append(samples)

    def drain(self, cancel=None):
        self.drained = True

    def stop(self):
        self.stopped = True

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass


@pytest.fixture
def stage():
    """A session with its engine, its players and what it said."""
    engine, players, said = Engine(), [], []
    loaded = Future()
    loaded.set_result(engine)
    stage = SimpleNamespace(engine=engine, players=players, said=said, no_sound=None, fails=None)

    def open_player(rate, expected):
        if stage.no_sound:
            raise TtsError(stage.no_sound)
        players.append(Player(rate, expected))
        players[-1].fails = stage.fails
        return players[-1]

    needs = Needs(open_player, lambda text, settings: utterances(text), lambda path: [1.0, 2.0])
    with Worker() as worker:
        stage.session = Session(loaded, worker, Settings(SpeechRequest("")), needs, said.append)

        def do(*lines):
            for line in lines:
                assert stage.session.submit(line)
            stage.session.wait()
            return said[-1] if said else ""
        stage.do = do
        yield stage
        engine.go.set()
        stage.session.close()


def texts(stage):
    return [request.text for request in stage.engine.requests]


def test_lines_are_spoken_in_order_and_played(stage):
    last = stage.do("One.", "", "  ", "Two.", "Three\nin two lines.")
    assert texts(stage) == ["One.", "Two.", "Three\nin two lines."]
    assert len(stage.players) == 3 and all(player.drained for player in stage.players)
    assert "0.20 s of audio" in last and "finish eos" in last


def test_a_seed_is_drawn_for_each_line_or_kept(stage):
    stage.do("One.", "Two.", "/seed 7", "Three.", "Four.", "/seed random", "Five.")
    seeds = [request.seed for request in stage.engine.requests]
    assert len(set(seeds)) == 4 and seeds[2:4] == [7, 7]


def test_settings_count_from_the_next_line_on(stage):
    stage.do("One.", "/temp 0.5", "/set top-k 3", "Two.", "/temp default", "/lang german", "Three.")
    one, two, three = stage.engine.requests
    assert (one.temperature, two.temperature, two.top_k, three.temperature) == (None, 0.5, 3, None)
    assert three.language == "german"
    assert stage.do("/set").splitlines()[0].split() == ["lang", "german"]


@pytest.mark.parametrize("line, words", [
    ("/lang klingon", "'klingon' is not one of"), ("/frob", "/frob is not a command"),
    ("/voice missing.wav", "missing.wav"), ("/again", "nothing was spoken yet"),
    ("/save a.wav", "nothing was spoken yet"), ("...", "nothing to speak"),
    ("Please fail.", "the model failed"), ("/temp hot", "not a number"), ("/set frob", "not a setting"),
    ("/set temp", "needs a value"), ("/set temp -1", "temp: "),
])
def test_an_error_is_one_line_and_the_session_goes_on(stage, line, words):
    last = stage.do(line)
    assert last.startswith("error: ") and words in last and "\n" not in last
    assert "0.20 s of audio" in stage.do("Go on.")
    assert stage.engine.requests[-1].language == "auto"


def test_stop_is_at_once_and_forgets_what_waits(stage):
    for line in ("Please wait.", "Never spoken.", "/temp 0.5"):
        stage.session.submit(line)
    assert stage.engine.begun.wait(10)
    assert stage.session.busy and stage.session.stop()
    stage.session.wait()
    assert texts(stage) == ["Please wait."] and stage.players[0].stopped and not stage.players[0].drained
    assert stage.session.settings.request.temperature == 0.5
    assert not stage.session.stop() and stage.do("/stop") == "nothing is being spoken"
    stage.do("Go on.")
    assert texts(stage)[-1] == "Go on." and stage.players[-1].drained


def test_commands_that_answer_at_once_do_not_wait_for_the_speech(stage):
    stage.session.submit("Please wait.")
    while stage.session.last is None:
        time.sleep(0.001)
    for line, words in (("/info", "model: mock"), ("/help", "/voice"), ("/voices", "none"), ("/stats", "speaking")):
        stage.said.clear()
        stage.session.submit(line)
        assert words in "\n".join(stage.said)
    stage.engine.go.set()


def test_again_plays_the_same_samples_and_makes_none(stage):
    stage.do("One.", "/again")
    first, second = stage.players
    assert len(stage.engine.requests) == 1 and second.drained
    assert np.array_equal(np.concatenate(first.played), np.concatenate(second.played))


def test_again_after_a_stop_makes_the_same_take_whole(stage):
    stage.session.submit("Please wait.")
    assert stage.engine.begun.wait(10)
    stage.session.stop()
    stage.session.wait()
    stage.engine.go.set()
    assert "finish eos" in stage.do("/again")
    first, second = stage.engine.requests
    assert first == second


def test_save_writes_the_last_utterance(stage, tmp_path):
    path = tmp_path / "mit leer.wav"
    assert stage.do("One.", "Three.", f"/save {path}") == f"{path}: 0.20 s of audio"
    samples, rate = soundfile.read(path)
    assert rate == RATE and np.allclose(samples, 0.06, atol=1e-4) and len(samples) == RATE // 5
    assert "0.20 s" in stage.do(f'/save "{tmp_path / "b.flac"}"') and soundfile.info(tmp_path / "b.flac").frames
    for wrong in (f"/save {tmp_path}", f"/save {tmp_path / 'a.xyz'}", f"/save {tmp_path / 'no' / 'a.wav'}", "/save -"):
        assert stage.do(wrong).startswith("error: ")


def test_a_stopped_utterance_is_saved_as_far_as_it_was_made(stage, tmp_path):
    stage.session.submit("Please wait.")
    assert stage.engine.begun.wait(10)
    stage.session.stop()
    assert "0.10 s of audio, as far as it was made" in stage.do(f"/save {tmp_path / 'a.wav'}")


def test_voices_are_cloned_once_and_known_by_name(stage, tmp_path):
    clip = tmp_path / "Anna.wav"
    clip.write_bytes(b"")
    stage.do(f"/voice {clip}", "One.", "/voice none", "Two.", "/voice Anna", "Three.")
    assert [request.voice and request.voice.name for request in stage.engine.requests] == ["Anna", None, "Anna"]
    assert stage.session.voices == ["Anna"] and "Anna" in stage.do("/voices")
    assert "voice: Anna" in stage.do("/info")


def test_without_a_device_it_says_so_once_and_still_saves(stage, tmp_path):
    stage.no_sound = "there is no sound device"
    stage.do("One.", "Two.", f"/save {tmp_path / 'a.wav'}")
    assert [line for line in stage.said if "no sound" in line][0].startswith("no sound: there is no sound device")
    assert sum("no sound" in line for line in stage.said) == 1 and (tmp_path / "a.wav").exists()


def test_a_lost_device_is_one_error_and_the_utterance_is_kept(stage, tmp_path):
    stage.fails = DeviceLost("the sound device stopped")
    stage.do("One.")
    assert [line for line in stage.said if line.startswith("error")] == ["error: the sound device stopped"]
    stage.fails = None
    assert "0.20 s" in stage.do(f"/save {tmp_path / 'a.wav'}")
    stage.do("Two.")
    assert stage.players[-1].drained


def test_stats(stage):
    assert stage.do("/stats") == "nothing was spoken yet"
    stage.do("One.", "Two.", "/again")
    assert stage.do("/stats") == "session: 2 utterances, 0.4 s of audio"
    assert "underruns 0" in stage.said[-2]


def test_quit_ends():
    worker = Worker()
    session = Session(Future(), worker, Settings(SpeechRequest("")), None, lambda line: None)
    assert session.submit("/quit") is False and session.submit("/temp 1") is True
    session.close()
    worker.close()
