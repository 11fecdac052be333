"""A server under load and abuse: turns, the queue, clients that go or take nothing, faults, limits."""

import concurrent.futures
import contextlib
import json
import socket
import subprocess
import threading
import time
from urllib.parse import urlsplit

import httpx
import pytest
import torch
from server_tools import CREATE, FRAME, SineEngine, error_of, serving, tone, until

from tts_cli.audio.wav_stream import sample_bytes
from tts_cli.engine import SpeechRequest
from tts_cli.errors import TtsError, UsageError
from tts_cli.loading import load_engine
from tts_cli.server.settings import ServerSettings

LONG = " ".join(["word"] * 2000)
FRAME_BYTES = 2 * FRAME


@pytest.fixture
def server():
    with serving(SineEngine(), parallel=2, queue=2) as running:
        yield running


@contextlib.contextmanager
def streaming(server, text=LONG, **fields):
    """A response that is being read, with its pieces."""
    body = {"input": text, "stream": True, "response_format": "pcm", "seed": 0, **fields}
    with httpx.Client(timeout=30, verify=False) as client, \
            client.stream("POST", server.url + "/tts", json=body) as answer:
        yield answer, answer.iter_raw()


def connected(server, body: dict, receive_buffer: int = 4096) -> socket.socket:
    """A client that has asked and reads nothing."""
    raw = json.dumps(body).encode()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.connect((urlsplit(server.url).hostname, urlsplit(server.url).port))
    client.sendall(b"POST /tts HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                   b"Content-Length: %d\r\n\r\n%s" % (len(raw), raw))
    return client


def number(server, name: str) -> float:
    lines = server.client.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def test_a_server_that_is_stopped_tells_its_clients_before_the_model_is_through():
    """A pass of a large model takes seconds, in which nothing of it can be stopped."""
    engine, pass_ended = SineEngine(), threading.Event()
    make = engine._chunks

    def slow(*arguments):
        for chunk in make(*arguments):
            pass_ended.wait(20)
            yield chunk
    engine._chunks = slow
    with serving(engine) as server, concurrent.futures.ThreadPoolExecutor() as clients:
        whole = clients.submit(server.speak)
        waiting = clients.submit(server.speak)
        until(lambda: number(server, "tts_queue_length") == 1)
        server.service.close()
        for answer in (whole.result(10), waiting.result(10)):
            assert answer.status_code == 503 and error_of(answer)["code"] == "cancelled"
            assert error_of(answer)["type"] == "server_error" and "the server was stopped" in answer.text
        pass_ended.set()


def test_nothing_new_is_begun_while_the_server_ends(server):
    server.service.ending._value = True
    answer = server.speak()
    assert answer.status_code == 503 and "shutting down" in error_of(answer)["message"]


def test_the_log_tells_which_clients_went(server, caplog):
    caplog.set_level("INFO", "tts_cli.server")
    with streaming(server) as (_, pieces):
        next(pieces)
    until(lambda: "POST /tts 200, client gone in" in caplog.text)
    server.engine.gate = threading.Semaphore(0)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.url + "/tts", json={"input": "a b"}, timeout=0.3)
    until(lambda: "POST /tts client gone in" in caplog.text)
    server.engine.gate = None
    server.speak()
    until(lambda: "POST /tts 200 in" in caplog.text)


@pytest.mark.parametrize("field, meant", [("max_frames", "n_predict"), ("sede", "seed"), ("temprature", "temperature"),
                                          ("zzz", None)])
def test_an_unknown_field_is_told_with_the_one_it_may_be(server, field, meant):
    message = error_of(server.speak(**{field: 1}))["message"]
    assert message.startswith(f"'{field}' is not a field of this request")
    assert (f"did you mean {meant}?" in message) if meant else "did you mean" not in message


def test_eight_at_once_are_the_same_as_one_after_the_other(pair):
    """Rows 77, 78 and 83: every request has its own seed and its own state, and a full body."""
    with serving(load_engine(*pair, device="cpu", dtype="float32"), parallel=4) as server:
        wishes = [{"text": f"Number {n}, and more.", "seed": n % 4, "n_predict": 10 + n, "stream": n % 2 == 0}
                  for n in range(8)]
        apart = [server.pcm(**wish) for wish in wishes]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda wish: server.pcm(**wish), wishes))
        assert together == apart and len(set(apart)) == 8
        assert all(FRAME_BYTES <= len(body) <= (10 + n) * FRAME_BYTES for n, body in enumerate(apart))


def test_requests_take_turns_and_all_on_one_thread(server):
    engine, jobs = server.engine, server.service.worker._jobs
    engine.gate = threading.Semaphore(0)
    clients = [connected(server, {"input": LONG, "stream": True}) for _ in range(2)]
    until(lambda: len(jobs) == 2)
    engine.gate.release(40)
    until(lambda: sum(job.made_seconds for job in jobs) == pytest.approx(3.2))
    assert [job.made_seconds for job in jobs] == pytest.approx([1.6, 1.6], abs=0.25)
    assert engine.threads == {"tts worker"}
    for client in clients:
        client.close()


def test_a_newcomer_is_heard_before_the_others_go_on(server):
    engine = server.engine
    engine.gate = threading.Semaphore(5)
    with streaming(server) as (_, first):
        next(first)
        until(lambda: engine.frames == 5)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            second = pool.submit(server.pcm, "hi")
            until(lambda: len(server.service.worker._jobs) == 2)
            engine.gate.release(2)  # the first of them for the chunk that is being made
            assert len(second.result(20)) == FRAME_BYTES


def test_beyond_the_queue_is_503_with_a_time(server):
    server.engine.gate = threading.Semaphore(0)
    jobs = server.service.worker._jobs
    with concurrent.futures.ThreadPoolExecutor() as pool:
        goers = [connected(server, {"input": LONG}) for _ in range(2)]
        until(lambda: len(jobs) == 2)
        stayers = [pool.submit(server.pcm, "hi") for _ in range(2)]
        until(lambda: len(jobs) == 4)
        assert (number(server, "tts_queue_length"), number(server, "tts_active_streams")) == (3, 1)
        for route in ("/tts", CREATE):
            answer = server.speak("hi", route)
            assert answer.status_code == 503 and error_of(answer)["code"] == "busy"
            assert int(answer.headers["retry-after"]) > 0
        for client in goers:
            client.close()
        until(lambda: len(jobs) == 2)
        server.engine.gate.release(2)
        assert [len(job.result(20)) for job in stayers] == [FRAME_BYTES] * 2


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_stops_its_speech_within_two_frames(server, stream):
    """Row 76, with curl as the client."""
    engine = server.engine
    engine.gate = threading.Semaphore(3)
    body = json.dumps({"input": LONG, "stream": stream})
    curl = subprocess.Popen(["curl", "-sN", server.url + "/tts", "-H", "Content-Type: application/json", "-d", body],
                            stdout=subprocess.PIPE)
    until(lambda: engine.frames == 3)
    curl.kill()
    curl.wait()
    until(lambda: number(server, 'tts_finished_total{reason="cancelled"}') == 1)
    curl.stdout.close()
    assert not server.service.worker._jobs
    engine.gate.release(10)
    assert len(server.pcm("one two")) == 2 * FRAME_BYTES
    assert engine.frames <= 3 + 2 + 2


def test_a_client_that_goes_while_it_waits_is_forgotten(server):
    server.engine.gate = threading.Semaphore(0)
    jobs = server.service.worker._jobs
    first = connected(server, {"input": LONG})
    until(lambda: len(jobs) == 1)
    second = connected(server, {"input": "hi"})
    until(lambda: len(jobs) == 2)
    second.close()
    until(lambda: jobs[-1].is_cancelled)
    server.engine.gate.release(1)
    until(lambda: len(jobs) == 1)
    first.close()


def test_a_slow_reader_holds_nobody_and_is_cut_off():
    with serving(SineEngine(), parallel=1, ahead_seconds=2.0, write_timeout=0.5, max_text=10**6) as server:
        client = connected(server, {"input": LONG * 4, "stream": True, "response_format": "f32"})
        until(lambda: server.engine.frames > 25)
        assert len(server.pcm("one two")) == 2 * FRAME_BYTES  # at once, though there is one place
        until(lambda: number(server, 'tts_finished_total{reason="cancelled"}') == 1)
        assert server.engine.frames < 4 * 2000  # what the network's buffers took
        with contextlib.suppress(ConnectionError):
            while client.recv(1 << 16):
                pass
        client.close()
        assert server.client.get("/health").status_code == 200


def test_a_reader_in_real_time_gets_everything():
    with serving(SineEngine(), ahead_seconds=1.0) as server, streaming(server, " ".join(["w"] * 60)) as (_, pieces):
        first = next(pieces)
        until(lambda: server.engine.frames >= 14)
        assert len(first) + sum(map(len, pieces)) == 60 * FRAME_BYTES


@pytest.mark.parametrize("fault, status, code", [
    (ValueError("a secret of the inside"), 500, "internal_error"), (TtsError("not numbers"), 500, "speech_failed"),
    (MemoryError(), 503, "out_of_memory"), (torch.OutOfMemoryError("CUDA"), 503, "out_of_memory"),
])
def test_a_fault_belongs_to_one_request(server, fault, status, code, caplog):
    server.engine.fault = fault
    with concurrent.futures.ThreadPoolExecutor() as pool:
        beside = pool.submit(server.pcm, "one two three four")
        answer = server.speak("fault")
        assert answer.status_code == status and error_of(answer)["code"] == code and "secret" not in answer.text
        assert len(beside.result(20)) == 4 * FRAME_BYTES
    assert len(server.pcm("one")) == FRAME_BYTES
    answer = server.speak("one fault", stream_format="sse", response_format="pcm", route=CREATE)
    events = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line]
    assert [event["type"] for event in events] == ["speech.audio.delta", "error"] and "secret" not in answer.text
    assert number(server, 'tts_finished_total{reason="error"}') == 2
    if code == "internal_error":
        assert "a secret of the inside" in caplog.text  # for the person who runs the server


def test_a_body_that_is_too_large_is_not_read(monkeypatch):
    """Row 17."""
    monkeypatch.setattr("tts_cli.server.edge.LINGER_SECONDS", 0.2)
    with serving(SineEngine(), max_body=100_000, max_text=1000) as server:
        address = (urlsplit(server.url).hostname, urlsplit(server.url).port)
        start = b"POST /tts HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        for head in (b"Content-Length: 25000000", b"Transfer-Encoding: chunked"):
            with socket.create_connection(address, timeout=20) as client:
                client.sendall(start + head + b"\r\n\r\n")
                if b"chunked" in head:
                    client.sendall(b"186a1\r\n" + b" " * 100_001)
                answer = b""
                while data := client.recv(1 << 16):
                    answer += data
                assert answer.startswith(b"HTTP/1.1 413 ") and b'"code":"body_too_large"' in answer
        answer = server.speak("a" * 1001)
        assert answer.status_code == 400 and error_of(answer)["code"] == "text_too_long"
        assert server.speak("a" * 1000, n_predict=1).status_code == 200
        form = server.client.post("/tts", data={"input": "a"}, files={"speaker_ref": bytes(200_000)})
        assert form.status_code == 413 and error_of(form)


def test_a_clip_that_is_too_large_is_413():
    with serving(SineEngine(), max_clip_bytes=1000) as server:
        answer = server.client.post("/tts", data={"input": "a"}, files={"speaker_ref": bytes(1001)})
        assert answer.status_code == 413 and error_of(answer)["param"] == "speaker_ref"


def test_health_tells_when_the_model_is_there():
    engine = SineEngine()
    engine.opened.clear()
    with serving(engine) as server:
        answer = server.client.get("/health")
        assert answer.status_code == 503 and answer.json() == {"status": "loading"}
        with concurrent.futures.ThreadPoolExecutor() as pool:
            early = pool.submit(server.pcm, "one")
            until(lambda: server.service.worker.waiting == 1)
            engine.opened.set()
            assert len(early.result(20)) == FRAME_BYTES
        assert server.client.get("/health").json() == {"status": "ok"}


def test_the_servers_own_defaults_speak_before_and_after_the_model_is_there():
    engine = SineEngine()
    engine.opened.clear()
    with serving(engine, SpeechRequest("", voice="high", seed=3, language="german")) as server:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            early = pool.submit(server.pcm, "one", seed=None)
            until(lambda: server.service.worker.waiting == 1)
            engine.opened.set()
            assert early.result(20) == sample_bytes(tone("high", 3, 0), "s16")
        assert server.pcm("one", voice="low", seed=4) == sample_bytes(tone("low", 4, 0), "s16")


def test_health_tells_when_the_model_is_broken():
    engine = SineEngine()
    engine.load = lambda: (_ for _ in ()).throw(TtsError("damaged"))
    with serving(engine) as server:
        until(lambda: server.client.get("/health").json() == {"status": "failed"})
        assert server.speak("one").status_code == 500


def test_the_numbers_of_prometheus(server):
    server.pcm("one two three")
    server.speak("x", n_predict=0)
    server.client.get("/nothing")
    assert number(server, 'tts_requests_total{code="200",route="/tts"}') == 1
    assert number(server, 'tts_requests_total{code="400",route="/tts"}') == 1
    assert number(server, 'tts_requests_total{code="404",route="other"}') == 1
    assert number(server, "tts_audio_seconds_total") == pytest.approx(0.24)
    assert number(server, 'tts_finished_total{reason="eos"}') == 1
    for name in ("tts_queue_wait_seconds", "tts_first_audio_seconds", "tts_times_real_time"):
        assert number(server, f"{name}_count") == 1


def test_texts_are_logged_only_when_asked(caplog):
    caplog.set_level("INFO")
    for wanted in (False, True):
        with serving(SineEngine(), log_text=wanted) as server:
            server.pcm("a private matter")
        assert ("a private matter" in caplog.text) == wanted
    assert "POST /tts 200" in caplog.text


@pytest.mark.parametrize("name, value", [("parallel", 0), ("queue", -1), ("max_text", 0), ("max_body", 10),
                                         ("max_clip_seconds", 61), ("write_timeout", float("nan")), ("api_key", ""),
                                         ("cors_origins", ("example.com",))])
def test_settings_that_make_no_sense(name, value):
    with pytest.raises(UsageError, match=name):
        ServerSettings(**{name: value})


def test_nothing_is_left_behind(server):
    """A mix of good, bad and broken requests: all jobs go, and the worker lives."""
    threads = threading.active_count()
    for n in range(30):
        if n % 3 == 0:
            connected(server, {"input": LONG, "stream": True}).close()
        elif n % 3 == 1:
            assert server.speak("fault").status_code == 500
        else:
            server.client.post("/tts", content=b"{", headers={"content-type": "application/json"})
        time.sleep(0.005)
    until(lambda: not server.service.worker._jobs)
    assert len(server.pcm("one")) == FRAME_BYTES and threading.active_count() <= threads + 4
