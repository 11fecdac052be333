"""`tts serve` as a process of its own, asked by the clients that people use: curl and the `openai` package."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import openai
import pytest
from cli_tools import tts
from clips import speech_like
from factory import tiny_pair
from server_tools import error_of, serving, until
from test_server_routes import clip_file
from websockets.sync.client import connect

import tts_cli
from tts_cli import voice_store
from tts_cli.audio.read import read_clip
from tts_cli.audio.wav_stream import wav_header
from tts_cli.errors import ModelFileError
from tts_cli.loading import load_engine
from tts_cli.qwen3tts.engine import Qwen3TTSEngine

ROOT = Path(tts_cli.__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
FRAME_BYTES = 2 * 1920
pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


class Process:
    """A running server, and what it says on stderr."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tts_cli", "serve", "--port", "0", *map(str, arguments)], env=ENVIRONMENT,
            stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
        self._reader.start()
        until(lambda: any("serving on" in line for line in self.lines) or self.process.poll() is not None, 60)
        self.url = re.search(r"serving on (\S+)", self.said)[1]
        until(lambda: self.answers() or self.process.poll() is not None, 60)

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def answers(self) -> bool:
        try:
            return httpx.get(self.url + "/health").status_code == 200
        except httpx.TransportError:
            return False

    def end(self, number=signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._reader.join(5)
        return code

    def curl(self, *arguments) -> bytes:
        done = subprocess.run(["curl", "-sS", "--max-time", "60", *arguments], capture_output=True, check=True)
        return done.stdout


@pytest.fixture(scope="module")
def server(pair):
    process = Process("-m", pair[0], "--no-voice", "--parallel", "2")
    yield process
    assert process.end(signal.SIGINT) == 0


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0, timeout=60)


def test_curl_sends_json(server, pair, tmp_path):
    body = {"input": "Good morning.", "seed": 1, "n_predict": 4}
    got = server.curl(server.url + "/tts", "-H", "Content-Type: application/json", "-d", json.dumps(body))
    tts("-m", pair[0], "--no-voice", "-p", "Good morning.", "-s", "1", "-n", "4", "-o", tmp_path / "a.wav", "-q")
    assert got == (tmp_path / "a.wav").read_bytes()  # what the command line makes


def test_curl_streams(server):
    body = {"input": "Good morning.", "seed": 1, "n_predict": 4, "stream": True}
    plain = server.curl(server.url + "/tts", "--json", json.dumps(body | {"stream": False}))
    got = server.curl("-N", server.url + "/tts", "--json", json.dumps(body))
    assert got == wav_header(24_000, None) + plain[44:]


def test_curl_sends_a_form_with_a_recording(server, tmp_path):
    (tmp_path / "ref.wav").write_bytes(clip_file())
    form = ["-F", "input=Good morning.", "-F", "seed=1", "-F", "n_predict=4", "-F", "response_format=pcm"]
    cloned = server.curl(server.url + "/tts", *form, "-F", f"speaker_ref=@{tmp_path / 'ref.wav'}")
    plain = server.curl(server.url + "/tts", *form)
    assert len(cloned) % FRAME_BYTES == len(plain) % FRAME_BYTES == 0 and cloned != plain


def test_curl_that_gives_up_leaves_the_server_to_the_next(server):
    """Row 76: `curl --max-time`, then a second request."""
    text = " ".join(["Seven more words are in this sentence."] * 400)
    done = subprocess.run(["curl", "-sN", "--max-time", "0.5", "-o", "/dev/null", server.url + "/tts", "--json",
                           json.dumps({"input": text, "stream": True})])
    assert done.returncode == 28
    assert server.curl(server.url + "/tts", "--json", '{"input": "Hi", "n_predict": 2}')
    until(lambda: "tts_active_streams 0.0" in httpx.get(server.url + "/metrics").text)


@pytest.mark.parametrize("format", ["mp3", "opus", "flac", "wav", "pcm"])
def test_the_openai_client(client, format):
    answer = client.audio.speech.create(model="tts-1", voice="alloy", input="Good morning.", response_format=format,
                                        extra_body={"n_predict": 12, "seed": 1, "stream": False})
    assert answer.response.headers["x-finish-reason"] in ("eos", "limit")
    if format != "pcm":
        assert len(read_clip(answer.content)) >= 1920


def test_the_openai_client_streams(client, tmp_path):
    wish = dict(model="tts-1", voice="alloy", input="Good morning.", response_format="pcm",
                extra_body={"n_predict": 12, "seed": 1})
    with client.audio.speech.with_streaming_response.create(**wish) as answer:
        pieces = list(answer.iter_bytes(chunk_size=None))
    with client.audio.speech.with_streaming_response.create(**wish) as answer:
        answer.stream_to_file(tmp_path / "a.pcm")
    whole = client.audio.speech.create(**wish).content
    assert len(pieces) > 1 and b"".join(pieces) == whole == (tmp_path / "a.pcm").read_bytes()


def test_the_openai_client_understands_errors(client):
    with pytest.raises(openai.BadRequestError, match="nobody") as caught:
        client.audio.speech.create(model="tts-1", voice="nobody", input="Good morning.")
    assert (caught.value.param, caught.value.type) == ("voice", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match="instruct"):
        client.audio.speech.create(model="tts-1", voice="alloy", input="Hi", instructions="Whisper.")
    with pytest.raises(openai.BadRequestError, match="'mp3'"):
        client.audio.speech.create(model="tts-1", voice="alloy", input="Hi", response_format="aac")
    assert [model.id for model in client.models.list()]


def test_sigterm_lets_running_requests_finish_but_not_for_ever(pair):
    server = Process("-m", pair[0], "--no-voice", "--grace", "5", "--max-text", "10000000", "--parallel", "4")
    wish = {"stream": True, "response_format": "pcm"}
    with contextlib.ExitStack() as stack:
        http = stack.enter_context(httpx.Client(timeout=60))
        short, endless = (iter(stack.enter_context(
            http.stream("POST", server.url + "/tts", json={**wish, **body})).iter_raw()) for body in (
                {"input": "Good morning. " * 3, "n_predict": 20}, {"input": "Good morning. " * 20_000}))
        writing, silent = (stack.enter_context(connect(
            server.url.replace("http", "ws") + "/v1/audio/speech/stream", proxy=None)) for _ in range(2))
        writing.send('{"type": "start", "n_predict": 4}')
        writing.send('{"type": "text", "text": "Not a whole sentence"}')
        until(lambda: "tts_queue_length 1.0" in httpx.get(server.url + "/metrics").text)  # waits for more text
        next(short)
        next(endless)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        sum(map(len, short))  # raises when the body has no end
        spoken = [json.loads(message)["type"] if isinstance(message, str) else message for message in writing]
        assert spoken[0] == "started" and spoken[-1] == "done" and len(b"".join(spoken[1:-1])) >= FRAME_BYTES
        assert json.loads(silent.recv(10))["error"]["code"] == "busy"
        with pytest.raises(httpx.RemoteProtocolError):
            sum(map(len, endless))
    assert server.process.wait(60) == 0 and time.monotonic() - began < 30
    assert not server.answers() and "Traceback" not in server.said


def test_a_second_ctrl_c_cancels_what_runs(pair):
    server = Process("-m", pair[0], "--no-voice")
    answers: list[httpx.Response] = []
    body = {"input": "Good morning. " * 1000}
    asking = threading.Thread(target=lambda: answers.append(httpx.post(server.url + "/tts", json=body, timeout=60)))
    asking.start()
    until(lambda: "tts_active_streams 1.0" in httpx.get(server.url + "/metrics").text)
    server.process.send_signal(signal.SIGINT)
    until(lambda: "Ctrl-C again" in server.said)
    assert "1 request is not done and may take 30 s" in server.said and server.process.poll() is None
    assert server.end(signal.SIGINT) == 0
    asking.join()
    assert answers[0].status_code == 503 and error_of(answers[0])["code"] == "cancelled"
    assert "the server was stopped" in error_of(answers[0])["message"] and "Traceback" not in server.said


def test_a_pair_that_is_damaged_is_refused_before_serving(pair, tmp_path):
    (tmp_path / "talker.gguf").write_bytes(pair[0].read_bytes()[:-4000])
    run = tts("serve", "-m", tmp_path / "talker.gguf", "-mm", pair[1], "--port", "0")
    assert run.code == 1 and "talker.gguf" in run.error


def test_weights_that_cannot_be_read_end_the_server(pair, monkeypatch):
    def load(self):
        raise ModelFileError("the disk has a hole")

    monkeypatch.setattr(Qwen3TTSEngine, "load", load)
    run = tts("serve", "-m", pair[0], "--port", "0")
    assert run.code == 1 and run.err.splitlines()[-1] == "tts: error: the disk has a hole"


@pytest.mark.parametrize("arguments, message", [
    (["--host", "0.0.0.0"], "--api-key"), (["--port", "70000"], "--port"), (["--parallel", "0"], "--parallel"),
    (["--voice", "nobody"], "nobody"), (["--host", "no.such.host.invalid", "--no-auth"], "cannot listen"),
    (["--max-chars", "1"], "--max-chars"), (["--host", "0.0.0.0", "--api-key", ""], "--api-key"),
    (["--api-key", " k"], "--api-key"), (["--read-timeout", "0"], "--read-timeout"),
])
def test_command_lines_that_are_refused(pair, arguments, message):
    run = tts("serve", "-m", pair[0], *(arguments if "--port" in arguments else ["--port", "0", *arguments]))
    assert run.code == 2 and message in run.error


def test_a_port_that_is_taken(pair, server):
    run = tts("serve", "-m", pair[0], "--port", server.url.rpartition(":")[2])
    assert run.code == 2 and "cannot listen" in run.error


def test_without_its_packages_the_verb_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tts_cli.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    run = tts("serve")
    assert run.code == 2 and 'pip install "tts-cli[server]"' in run.error


def test_the_built_in_voice_is_served(kokoro):
    with serving(kokoro) as server:
        names = server.client.get("/v1/audio/voices").json()
        assert {"af_heart", "bm_george"} <= set(names["voices"]) and names["default"] == "af_heart"
        plain = server.pcm("Hi.", voice="AF_heart")
        bodies = {server.pcm("Hi.", voice=voice) for voice in ("alloy", "af_heart:0.5,bm_george:0.5")}
        assert len(bodies) == 2 and plain in bodies
        assert len(server.pcm("Hi.", speed=4)) < len(plain)
        for fields, param in (({"instruct": "Whisper."}, "instruct"), ({"lang": "xx"}, "lang"),
                              ({"voice": "af_heart:x"}, "voice"), ({"voice": "af_heart:0"}, "voice")):
            answer = server.speak("Hi.", **fields)
            assert answer.status_code == 400 and error_of(answer)["param"] == param
        answer = server.client.post("/tts", data={"input": "Hi."}, files={"speaker_ref": clip_file()})
        assert answer.status_code == 400 and "clone" in error_of(answer)["message"]
        assert error_of(answer)["param"] == "speaker_ref"


def test_saved_voices_speak_by_their_names(pair):
    """And a name is never a path."""
    engine = load_engine(*pair, device="cpu", dtype="float32")
    voice_store.save(engine.voice_from_clip(speech_like(24_000, 1.0), "Anna"))
    try:
        with serving(engine) as server:
            listed = server.client.get("/v1/voices").json()
            assert (listed["voices"], listed["default"]) == (["Anna"], "default")
            wish = {"n_predict": 2, "seed": 1}
            anna = server.pcm("Hi.", voice="anna", **wish)
            assert anna == server.pcm("Hi.", voice="Anna:0.5,Anna:0.5", **wish) != server.pcm("Hi.", **wish)
            for name in ("ben", "Anna.safetensors", str(voice_store.path_of("Anna"))):
                answer = server.speak("Hi.", voice=name)
                assert answer.status_code == 400 and "Anna" in error_of(answer)["message"]
    finally:
        voice_store.remove("Anna")


def test_a_model_with_speakers_and_instructions(tmp_path):
    with serving(load_engine(*tiny_pair(tmp_path, variant="custom_voice"), device="cpu", dtype="float32")) as server:
        voices = server.client.get("/v1/voices").json()["voices"]
        wish = {"n_predict": 2, "seed": 1}
        bodies = [server.pcm("Hi.", voice=voice, **wish) for voice in (voices[0], voices[1].upper(), "alloy")]
        bodies.append(server.pcm("Hi.", voice=voices[0], instruct="Whisper.", **wish))
        openai_ = server.speak("Hi.", "/v1/audio/speech", voice={"id": voices[0]}, instructions="Whisper.",
                               response_format="pcm", **wish)
        assert openai_.content == bodies[3] and len(set(bodies)) >= 3 and bodies[0] != bodies[3]
        both = server.speak("Hi.", "/v1/audio/speech", instruct="a", instructions="b")
        assert both.status_code == 400 and error_of(both)["param"] == "instructions"
        answer = server.client.post("/tts", data={"input": "Hi."}, files={"speaker_ref": clip_file()})
        assert answer.status_code == 400 and error_of(answer)["param"] == "speaker_ref"
