"""What a client sent comes back in part only, and the log says what went wrong."""

import socket

import httpx
import pytest
from server_tools import SineEngine, serving

from tts_cli.errors import TtsError
from tts_cli.server.worker import Cancelled


@pytest.mark.parametrize("path", ["/nothing", "/tts"])
def test_a_long_method_does_not_come_back(path, caplog):
    caplog.set_level("INFO", "tts_cli.server")
    with serving(SineEngine()) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 10) as client:
            client.sendall(f"{'A' * 5000} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 40") and b"A" * 20 in answer
    assert b"A" * 200 not in answer and "A" * 200 not in caplog.text


@pytest.mark.parametrize("fault, told", [(TtsError("the model failed"), True), (Cancelled("the end"), False)])
def test_the_log_names_what_ended_a_stream(fault, told, caplog):
    engine = SineEngine()
    engine.fault = fault
    with serving(engine) as server, pytest.raises(httpx.RemoteProtocolError):
        server.speak("one two three fault", stream=True)
    faults = [record.exc_info[1] for record in caplog.records if record.name == "tts_cli.server" and record.exc_info]
    assert faults == ([fault] if told else [])
