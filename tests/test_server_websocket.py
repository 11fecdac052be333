"""Speech over a WebSocket: text in pieces, sound by the sentence; the client is the `websockets` package."""

import contextlib
import json
import threading
from socket import SHUT_RDWR

import numpy as np
import pytest
from server_tools import FRAME, RATE, SineEngine, serving, tone, until
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

from tts_cli.audio.read import read_clip
from tts_cli.audio.wav_stream import sample_bytes
from tts_cli.loading import load_engine
from tts_cli.server.live_text import LiveText

FRAME_BYTES = 2 * FRAME
GAP = bytes(2 * round(0.25 * RATE))


@pytest.fixture
def server():
    with serving(SineEngine(), max_text=1000, idle_timeout=20, queue=1) as running:
        yield running


def opened(server, **options):
    return connect(server.url.replace("http", "ws") + "/v1/audio/speech/stream", proxy=None,
                   **{"close_timeout": 0.5, **options})


def say(socket, **message) -> None:
    socket.send(json.dumps(message))


def heard(socket) -> tuple[list[dict], bytes]:
    """Everything until the server closes: messages, and the audio."""
    messages, audio = [], b""
    with contextlib.suppress(ConnectionClosedError):
        for message in socket:
            if isinstance(message, bytes):
                audio += message
            else:
                messages.append(json.loads(message))
    return messages, audio


def words(count: int, start: int = 0) -> bytes:
    return b"".join(sample_bytes(tone(None, 0, n), "s16") for n in range(start, start + count))


def test_a_text_in_tokens_becomes_its_sentences(server):
    with opened(server) as socket:
        say(socket, type="start", seed=0)
        for token in ("One", " two", " three", ".", " Four", " five.", " Six"):
            say(socket, type="text", text=token)
        say(socket, type="end")
        messages, audio = heard(socket)
    assert audio == words(3) + GAP + words(2) + GAP + words(1)
    started, done = messages
    assert started == {"type": "started", "request_id": started["request_id"], "sample_rate": RATE,
                       "content_type": "audio/pcm;rate=24000;channels=1;bits=16;encoding=signed-integer;endian=little"}
    assert done == {"type": "done", "finish_reason": "eos", "audio_seconds": round(6 * 0.08 + 0.5, 3),
                    "left_out": []}


@pytest.mark.parametrize("text, answer", [("😀 ...", "error"), ("...", "error"), (" \n", "done"), ("", "done")])
def test_a_text_with_nothing_to_speak_is_refused_and_no_text_is_not(server, text, answer):
    with opened(server) as socket:
        say(socket, type="start")
        say(socket, type="text", text=text)
        say(socket, type="end")
        messages, audio = heard(socket)
    assert messages[-1]["type"] == answer and audio == b""
    assert answer == "done" or "nothing to speak" in messages[-1]["error"]["message"]


def test_a_sentence_sounds_while_the_next_is_being_written(server):
    with opened(server) as socket:
        say(socket, type="start", seed=0)
        say(socket, type="text", text="One two. Thr")
        assert json.loads(socket.recv(10))["type"] == "started"
        assert socket.recv(10) + socket.recv(10) == words(2)
        assert len(server.pcm("hi")) == FRAME_BYTES  # who waits for text holds no place
        say(socket, type="text", text="ee")
        say(socket, type="flush")
        assert socket.recv(10) + socket.recv(10) == GAP + words(1)
        say(socket, type="end")
        assert json.loads(socket.recv(10))["finish_reason"] == "eos"


def test_without_a_start_the_defaults_speak(server):
    with opened(server) as socket:
        say(socket, type="text", text="One two")
        say(socket, type="end")
        messages, audio = heard(socket)
    assert len(audio) == 2 * FRAME_BYTES and messages[-1]["type"] == "done"


def test_cancel_is_silence_at_once(server):
    server.engine.gate = threading.Semaphore(2)
    with opened(server) as socket:
        say(socket, type="text", text="One two three four five six.")
        say(socket, type="end")
        until(lambda: server.engine.frames == 2)
        say(socket, type="cancel")
        messages, audio = heard(socket)
    assert messages[-1] == {"type": "done", "finish_reason": "cancelled", "audio_seconds": 0.16, "left_out": []}
    assert len(audio) <= 2 * FRAME_BYTES and server.engine.frames == 2
    until(lambda: not server.service.worker._jobs)


def test_a_client_that_goes_is_forgotten(server):
    server.engine.gate = threading.Semaphore(1)
    with opened(server) as socket:
        say(socket, type="text", text="One two three. Four")
        until(lambda: server.engine.frames == 1)
        socket.socket.shutdown(SHUT_RDWR)
        until(lambda: not server.service.worker._jobs)
    assert server.engine.frames <= 2


@pytest.mark.parametrize("format", ["mp3", "opus", "flac", "wav"])
def test_other_formats(server, format):
    with opened(server) as socket:
        say(socket, type="start", response_format=format, voice="alloy", seed=0)
        say(socket, type="text", text=" ".join(["word"] * 30))
        say(socket, type="end")
        _, audio = heard(socket)
    assert len(read_clip(audio)) >= 30 * FRAME


@pytest.mark.parametrize("messages, param", [
    (["{"], None), (["[]"], None), (['{"type": "sing"}'], None), (['{"type": "start", "voice": "nobody"}'], "voice"),
    (['{"type": "start", "speed": 99}'], "speed"), (['{"type": "start"}', '{"type": "start"}'], "type"),
    (['{"type": "text", "text": 5}'], "text"), ([json.dumps({"type": "text", "text": "a" * 1001})], "text"),
    (['{"type": "start", "lang": "klingon"}'], "lang"), ([b"\0\1"], None),
    (['{"type": "text", "text": "Hi"}', '{"type": "end"}', '{"type": "flush"}'], "type"),
    (['{"type": "text", "text": "Hi. Fault fault fault."}', '{"type": "text", "text": " fault. So"}'], None),
])
def test_what_cannot_be_is_told_and_ends_the_connection(server, messages, param):
    if len(messages) == 3:  # the flush has to come before the speech is over
        server.engine.gate = threading.Semaphore(0)
    with opened(server) as socket:
        for message in messages:
            socket.send(message)
        told, _ = heard(socket)
        assert told[-1]["type"] == "error" and set(told[-1]["error"]) == {"message", "type", "param", "code"}
        assert param is None or told[-1]["error"]["param"] == param, told
        assert socket.close_code in (1008, 1011) and "secret" not in json.dumps(told)
    until(lambda: not server.service.worker._jobs)


def test_silence_of_the_client_ends_the_connection():
    with serving(SineEngine(), idle_timeout=0.2) as server, opened(server) as socket:
        say(socket, type="text", text="One.")
        told, _ = heard(socket)
    assert told[-1]["error"]["code"] == "idle"


def test_beyond_the_queue_is_an_error(server):
    server.engine.gate = threading.Semaphore(0)
    with opened(server) as first, opened(server) as second, opened(server) as third:
        for socket in (first, second):
            say(socket, type="start")
        until(lambda: len(server.service.worker._jobs) == 2)
        say(third, type="start")
        told, _ = heard(third)
    assert told[-1]["error"]["code"] == "busy"


def test_keys_and_origins():
    with serving(SineEngine(), api_key="s3cret") as server:
        with pytest.raises(InvalidStatus) as refused, opened(server):
            pass
        assert refused.value.response.status_code == 401
        assert json.loads(refused.value.response.body)["error"]["code"] == "invalid_api_key"
        with opened(server, additional_headers={"Authorization": "Bearer s3cret"}) as socket:
            say(socket, type="end")
            assert heard(socket)[0][-1]["type"] == "done"
    with serving(SineEngine(), cors_origins=("https://a.example",)) as server:
        with pytest.raises(InvalidStatus), opened(server, origin="https://b.example"):
            pass
        for origin in ("https://a.example", server.url):
            with opened(server, origin=origin) as socket:
                say(socket, type="end")
                assert heard(socket)[0][-1]["type"] == "done"


def test_the_real_model_speaks_the_same_as_over_http(pair):
    with serving(load_engine(*pair, device="cpu", dtype="float32")) as server:
        with opened(server) as socket:
            say(socket, type="start", seed=3, n_predict=6)
            say(socket, type="text", text="Good ")
            say(socket, type="text", text="morning.")
            say(socket, type="end")
            _, audio = heard(socket)
        assert audio == server.pcm("Good morning.", seed=3, n_predict=6)


def test_a_message_that_is_too_large_closes(server):
    with opened(server, max_size=None) as socket, pytest.raises(ConnectionClosed):
        socket.send(json.dumps({"type": "text", "text": "a" * (17 << 20)}))
        while True:
            socket.recv(10)


def test_pauses_and_symbols_alone_are_no_error(server):
    with opened(server) as socket:
        say(socket, type="start", seed=0)
        for piece in ("One. ", "[pause:300ms]", " \u001b[31m"):
            say(socket, type="text", text=piece)
            say(socket, type="flush")
        say(socket, type="text", text=" Two.")
        say(socket, type="end")
        messages, audio = heard(socket)
    assert messages[-1]["finish_reason"] == "eos"
    assert audio == words(1) + bytes(2 * round(0.55 * RATE)) + words(1)


def test_symbols_without_end_take_no_time_and_no_room():
    text = LiveText(200)
    for _ in range(1000):
        text.add("\u2026!* ")
    assert len(text._rest) <= 600 and not text.ready
    text.add("word")
    text.end()
    assert text.take().endswith("word")


def test_a_client_that_takes_nothing_is_cut_off():
    with serving(SineEngine(), ahead_seconds=2.0, write_timeout=0.3, max_text=10**6) as server, \
            opened(server, max_queue=1) as socket:
        say(socket, type="start", response_format="f32")
        say(socket, type="text", text="word " * 10_000)
        say(socket, type="end")
        until(lambda: server.engine.frames > 25)
        until(lambda: not server.service.worker._jobs)
        until(lambda: not server.connections)


@pytest.mark.parametrize("pieces, sentences", [
    (["Pi is 3", ".", "14, e.g", ". about", ". Next"], ["Pi is 3.14, e.g. about.", "Next"]),
    (["你好。", "再见。", "好"], ["你好。", "再见。", "好"]),
    (["Wait... ", "what?! ", "Yes"], ["Wait... what?!", "Yes"]),
    (["One. Two. Three"], ["One. Two.", "Three"]), (["  ", "... ", "!"], []), (["a\n\nb"], ["a\n\nb"]),
])
def test_where_sentences_are_cut(pieces, sentences):
    text = LiveText(200)
    for piece in pieces:
        text.add(piece)
    text.end()
    found = []
    while (sentence := text.take()) is not None:
        found.append(sentence)
    assert found == sentences and text.ended


def test_a_sentence_without_end_is_cut():
    text = LiveText(100)
    for _ in range(300):
        text.add("word ")
    assert text.ready and len(text.take()) <= 100
    text.add("x" * 1000)
    text.end()
    taken = []
    while (sentence := text.take()) is not None:
        taken.append(sentence)
    assert sum(sentence.count("x") for sentence in taken) == 1000 and np.max([len(s) for s in taken[:-2]]) <= 200
