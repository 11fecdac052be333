"""Clients that mean harm or know no better: slow senders, bombs, broken framing, pages of other origins."""

import io
import json
import re
import socket
import threading
import time
from urllib.parse import urlsplit

import httpx
import pytest
import soundfile
from clips import speech_like
from server_tools import CREATE, FRAME, RATE, SineEngine, error_of, serving, until
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tts_cli.server.errors import ApiError
from tts_cli.server.incoming import MAX_REST, MAX_STRINGS, parsed
from tts_cli.server.schemas import SpeechBody, TtsBody

FRAME_BYTES = 2 * FRAME
HEAD = b"POST /tts HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
FIELD = b'Content-Disposition: form-data; name="input"'


@pytest.fixture(scope="module")
def server():
    with serving(SineEngine(), read_timeout=0.4) as running:
        yield running


def conversation(server, sent: bytes, more: bytes = b"", pause: float = 0.0) -> bytes:
    """All that comes back until the server closes; `more` is sent byte by byte."""
    address = urlsplit(server.url)
    answer = b""
    with socket.create_connection((address.hostname, address.port), timeout=20) as client:
        client.sendall(sent)
        try:
            for byte in more:
                time.sleep(pause)
                client.sendall(bytes([byte]))
            while data := client.recv(1 << 16):
                answer += data
        except ConnectionError:
            pass
    return answer


def form(server, *parts: tuple[bytes, bytes], kind: str = "multipart/form-data; boundary=x", end: bytes = b"--x--\r\n"):
    body = b"".join(b"--x\r\n%s\r\n\r\n%s\r\n" % part for part in parts) + end
    return server.client.post("/tts", content=body, headers={"content-type": kind})


@pytest.mark.parametrize("start", [b"", b"POST /tts HT", HEAD, HEAD + b"Content-Length: 100\r\n\r\n{",
                                   HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"])
def test_who_does_not_finish_asking_is_cut_off(server, start):
    assert conversation(server, start) == b""
    assert server.speak("one").status_code == 200


def test_a_trickle_is_no_progress(server):
    began = time.monotonic()
    assert conversation(server, HEAD + b"X: ", b"y" * 200, 0.02) == b""
    assert conversation(server, HEAD + b"Content-Length: 1000\r\n\r\n", b"y" * 200, 0.02) == b""
    assert time.monotonic() - began < 7  # either would be 4 s


def test_a_large_body_may_take_longer_than_the_timeout(server):
    """Each 64 KiB has the time anew."""
    body = json.dumps({"input": "one", "seed": 0, "n_predict": 1}).encode().ljust(5 * (1 << 16))
    pieces = [body[at:at + (1 << 16)] for at in range(0, len(body), 1 << 16)]

    def slowly():
        for piece in pieces:
            time.sleep(0.15)
            yield piece

    answer = server.client.post("/nothing", content=slowly())  # not read by the route, but not cut off either
    assert answer.status_code == 404
    clip = {"input": "one", "speaker_ref_b64": "A" * (4 << 16), "response_format": "pcm"}
    raw = json.dumps(clip).encode()
    pieces = [raw[at:at + (1 << 16)] for at in range(0, len(raw), 1 << 16)]
    answer = server.client.post("/tts", content=slowly(), headers={"content-type": "application/json"})
    assert answer.status_code == 400 and error_of(answer)["param"] == "speaker_ref"  # it came whole


def test_long_answers_and_open_sockets_are_not_slow_requests():
    engine = SineEngine()
    with serving(engine, read_timeout=0.2) as server:
        engine.gate = threading.Semaphore(1)
        threading.Timer(0.6, engine.gate.release, (5,)).start()
        assert len(server.pcm("one two three")) == 3 * FRAME_BYTES
        assert len(server.pcm("one two")) == 2 * FRAME_BYTES  # on the same connection
        engine.gate = None
        with connect(server.url.replace("http", "ws") + "/v1/audio/speech/stream", proxy=None) as socket_:
            time.sleep(0.5)
            socket_.send('{"type": "end"}')
            assert [json.loads(message)["type"] for message in socket_] == ["started", "done"]


def test_a_body_behind_its_answer_is_read_for_a_moment_only(server, monkeypatch):
    monkeypatch.setattr("tts_cli.server.connections.LINGER_SECONDS", 0.2)
    answer = conversation(server, b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nyyy")
    assert answer.startswith(b"HTTP/1.1 404 ")


def test_a_client_that_goes_while_it_asks_is_no_fault(server, caplog):
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port)) as client:
        client.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        time.sleep(0.05)
    until(lambda: 'code="499",route="/tts"' in server.client.get("/metrics").text)
    assert "failed" not in caplog.text and 'code="500"' not in server.client.get("/metrics").text


@pytest.mark.parametrize("sent", [
    b"\x16\x03\x01\x02\x00hello\r\n\r\n", b"GET /health HTTP/1.1\r\n\r\n",
    HEAD + b"Content-Length: -3\r\n\r\n", HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /tts HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000])
def test_what_is_no_http_is_refused_in_the_shape_of_all_errors(server, sent, caplog):
    head, _, body = conversation(server, sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"application/json" in head
    assert json.loads(body)["error"]["code"] == "invalid_http"
    assert all(record.levelname == "WARNING" for record in caplog.records) and server.speak("one").status_code == 200


def test_a_connection_goes_on_after_an_error(server):
    bad = HEAD + b"Content-Length: 1\r\n\r\n{"
    unread = b"POST /tts HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = conversation(server, bad + unread + last)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"400", b"415", b"200"]


@pytest.mark.parametrize("body", [
    b"{" + b",".join(b'"k%d":1' % n for n in range(MAX_STRINGS)) + b',"input":"a"}',
    b"{" + b'"input":"a",' * 10_000 + b'"seed":1}', b'{"input":[' + b"1," * MAX_REST + b"1]}",
    b'{"input":"a","voice":' + b"[" * MAX_REST + b"}", b'{"input":"' + b'\\\\","input":"' * 5000 + b'"}'])
def test_json_of_a_million_pieces_is_not_parsed(server, body):
    """They would take the parser seconds of everybody's time."""
    for kind in (TtsBody, SpeechBody):
        with pytest.raises(ApiError, match="strings"):
            parsed(kind, body)
    answer = server.client.post(CREATE, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and error_of(answer)["code"] == "invalid_json"


@pytest.mark.parametrize("text", ['say "this" \\ and \\"', '"' * 5000, "\\" * 4999, '\\"' * 2500, '{"[,' * 4000,
                                  "ä\n" * 9000])
def test_quotes_and_brackets_in_a_text_are_text(text):
    for escaped in (True, False):
        assert parsed(TtsBody, json.dumps({"input": text, "seed": 1}, ensure_ascii=escaped)).input == text


def test_forms_are_utf_8_and_whole(server):
    good = (FIELD, "grüße".encode())
    assert form(server, good).status_code == 200
    for charset in ("utf-8", "latin-1", "undefined", "punycode", "zlib"):  # not for the client to say
        assert form(server, good, kind=f"multipart/form-data; boundary=x; charset={charset}").status_code == 200
    answer = form(server, (FIELD, b"gr\xfc\xdfe"))
    assert answer.status_code == 400 and error_of(answer)["param"] == "input"
    for kind, end in (("multipart/form-data", b"--x--"), ("multipart/form-data; boundary=", b"--x--"),
                      ('multipart/form-data; boundary="a\\"b"', b"--x--"),
                      ("multipart/form-data; boundary=x", b""), ("multipart/form-data; boundary=x", b"--x")):
        answer = form(server, good, kind=kind, end=end)
        assert answer.status_code == 400 and error_of(answer)["code"] == "invalid_form"


@pytest.mark.parametrize("parts", [
    [(b"Content-Disposition: form-data", b"a")], [(b"X: y", b"a")], [(FIELD + b"; x=" + b"y" * 100_000, b"a")],
    [(b'Content-Disposition: form-data; name="f%d"' % n, b"a") for n in range(60)], [(FIELD, b"a"), (FIELD, b"b")],
    [(FIELD + b"\r\nX: y" * 5000, b"a")], [(b'Content-Disposition: form-data; name="\xff"', b"a")]])
def test_forms_that_are_none(server, parts):
    answer = form(server, *parts)
    assert answer.status_code == 400 and error_of(answer)["type"] == "invalid_request_error"


def test_the_name_of_a_file_is_nothing(server):
    evil = b'Content-Disposition: form-data; name="speaker_ref"; filename="../../etc/passwd\\r\\nX: y"'
    answer = form(server, (FIELD, b"one"), (evil, b"RIFF"))
    assert answer.status_code == 400 and "passwd" not in answer.text and "x" not in answer.headers


def test_pages_of_other_origins_cannot_ask_nor_send_forms():
    with serving(SineEngine(), cors_origins=("https://a.example",)) as server:
        own = server.url
        for origin, status in (("https://b.example", 403), ("null", 403), ("https://a.example", 200), (own, 200)):
            for ask in (dict(json={"input": "one"}), dict(data={"input": "one"}, files={"n_predict": (None, "1")})):
                answer = server.client.post("/tts", headers={"origin": origin}, **ask)
                assert answer.status_code == status, origin
            assert server.client.get("/health", headers={"origin": origin}).status_code == 200
        assert error_of(server.client.post("/tts", headers={"origin": "null"}))["code"] == "forbidden"


@pytest.mark.parametrize("host, status", [
    ("localhost", 200), ("localhost:8080", 200), ("127.0.0.1:1", 200), ("[::1]:8080", 200), ("tts.localhost", 200),
    ("evil.example", 403), ("evil.example:8080", 403), ("localhost.evil.example", 403), ("127.0.0.1.evil.example", 403),
    ("[::1", 403), ("a@localhost:b@x", 403), ("mine.example:81", 200)])
def test_a_name_that_was_made_to_point_here_is_refused(host, status, name_server):
    for method in ("GET", "POST"):
        path, body = ("/v1/models", None) if method == "GET" else ("/tts", {"input": "one"})
        answer = name_server.client.request(method, path, json=body, headers={"host": host})
        assert answer.status_code == status
    if status == 403:
        with pytest.raises(InvalidStatus) as refused:
            connect(name_server.url.replace("http", "ws") + "/v1/audio/speech/stream", proxy=None,
                    additional_headers={"Host": host})
        assert refused.value.response.status_code in (400, 403)


@pytest.fixture(scope="module")
def name_server():
    with serving(SineEngine(), local_names=True, cors_origins=("http://mine.example:81",)) as running:
        yield running


def test_sixty_four_at_once_and_half_of_them_go():
    with serving(SineEngine(), parallel=4) as server:
        def client(number: int) -> int:
            with httpx.Client(timeout=60, verify=False) as one, one.stream("POST", server.url + "/tts", json={
                    "input": " ".join(["w"] * 40), "seed": number, "response_format": "pcm", "stream": True}) as answer:
                if number % 2:
                    next(answer.iter_raw())
                    return 0
                return sum(map(len, answer.iter_raw()))

        threads, lengths = [], [0] * 64
        for number in range(64):
            def work(n=number):
                lengths[n] = client(n)
            threads.append(threading.Thread(target=work))
            threads[-1].start()
        for thread in threads:
            thread.join(60)
        assert lengths == [0 if number % 2 else 40 * FRAME_BYTES for number in range(64)]
        until(lambda: not server.service.worker._jobs)


def test_a_recording_is_encoded_in_its_own_turn():
    """Not while somebody listens, as that takes long."""
    engine = SineEngine()
    cloned = []
    engine.voice_from_clip = lambda *clip: cloned.append(engine.frames) or "clip"
    engine.gate = threading.Semaphore(3)
    with serving(engine) as server:
        done = []
        first = threading.Thread(target=lambda: done.append(len(server.pcm(" ".join(["w"] * 6)))))
        first.start()
        until(lambda: engine.frames == 3)
        jobs = server.service.worker._jobs
        second = threading.Thread(target=lambda: done.append(_cloned(server)))
        second.start()
        until(lambda: len(jobs) == 2)
        engine.gate.release(10)
        first.join(20)
        second.join(20)
        assert sorted(done) == [FRAME_BYTES, 6 * FRAME_BYTES] and cloned == [6]


def _cloned(server) -> int:
    file = io.BytesIO()
    soundfile.write(file, speech_like(RATE, 1.0), RATE, format="WAV")
    return len(httpx.post(server.url + "/tts", data={"input": "one", "response_format": "pcm"}, timeout=30,
                          files={"speaker_ref": file.getvalue()}, verify=False).content)


