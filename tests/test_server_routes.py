"""The routes, asked by httpx over a real socket; the engine says a tone for each word."""

import base64
import html
import io
import json
import re
import threading

import httpx
import numpy as np
import pytest
import soundfile
from clips import speech_like
from server_tools import CREATE, FRAME, RATE, VOICES, SineEngine, error_of, serving, tone

from tts_cli.audio.encode import FORMATS
from tts_cli.audio.read import read_clip
from tts_cli.audio.wav_stream import sample_bytes, wav_header
from tts_cli.server.schemas import STOCK_VOICES

TEXT = "one two three"
TYPES = {"wav": "audio/wav", "flac": "audio/flac", "mp3": "audio/mpeg", "opus": "audio/ogg;codecs=opus"}


@pytest.fixture(scope="module")
def server():
    with serving(SineEngine()) as running:
        yield running


def said(voice=None, seed=0, words=3) -> bytes:
    return b"".join(sample_bytes(tone(voice, seed, number), "s16") for number in range(words))


def clip_file(seconds=1.0) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, speech_like(RATE, seconds), RATE, format="WAV")
    return file.getvalue()


@pytest.mark.parametrize("route", ["/tts", CREATE])
def test_a_text_becomes_a_whole_file(server, route):
    answer = server.speak(TEXT, route, response_format="wav", stream=False, seed=5)
    assert answer.status_code == 200 and answer.content == wav_header(RATE, 3 * FRAME) + said(seed=5)
    headers = answer.headers
    assert (headers["content-type"], headers["x-sample-rate"]) == ("audio/wav", "24000")
    assert (headers["x-finish-reason"], headers["x-audio-seconds"], headers["x-seed"]) == ("eos", "0.240", "5")
    assert len(headers["x-request-id"]) == 32 and int(headers["content-length"]) == len(answer.content)


@pytest.mark.parametrize("route", ["/tts", CREATE])
def test_a_streamed_wav_is_one_open_header_and_the_same_samples(server, route):
    answer = server.speak(TEXT, route, response_format="wav", stream=True)
    assert answer.content == wav_header(RATE, None) + said()
    assert answer.headers["transfer-encoding"] == "chunked" and answer.headers["x-sample-rate"] == "24000"
    assert "x-finish-reason" not in answer.headers


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("format", ["wav", "flac", "mp3", "opus", "ogg", "pcm", "f32"])
def test_every_format_is_what_it_says(server, format, stream):
    answer = server.speak(" ".join(["word"] * 40), response_format=format, stream=stream)
    kind = answer.headers["content-type"]
    if format in ("pcm", "f32"):
        floats = np.frombuffer(answer.content, "<i2").astype(np.float32) / 32767 if format == "pcm" \
            else np.frombuffer(answer.content, "<f4")
        bits, encoding = (16, "signed-integer") if format == "pcm" else (32, "float")
        assert kind == f"audio/pcm;rate=24000;channels=1;bits={bits};encoding={encoding};endian=little"
        np.testing.assert_allclose(floats, np.concatenate([tone(None, 0, n) for n in range(40)]), atol=2e-5)
        return
    assert kind == TYPES.get(format, "audio/ogg")
    assert answer.content[:4] in {"wav": (b"RIFF",), "flac": (b"fLaC",), "opus": (b"OggS",), "ogg": (b"OggS",),
                                  "mp3": (answer.content[:1] + answer.content[1:4],)}[format]
    samples = read_clip(answer.content)
    assert 0 <= len(samples) - 40 * FRAME <= 2400 and 0.2 < np.abs(samples[FRAME:30 * FRAME]).max() < 0.4


def test_the_first_bytes_come_before_the_last_word_is_made():
    with serving(SineEngine()) as running:
        running.engine.gate = threading.Semaphore(1)
        with running.client.stream("POST", "/tts", json={"input": TEXT, "stream": True, "seed": 0}) as answer:
            pieces = answer.iter_raw()
            first = next(pieces)
            assert first == wav_header(RATE, None) + said(words=1)
            running.engine.gate.release(2)
            assert first + b"".join(pieces) == wav_header(RATE, None) + said()


def test_a_form_is_typed_and_its_file_wins(server):
    form = {"prompt": TEXT, "seed": "5", "stream": "true", "top_k": "40", "temperature": "0.5",
            "response_format": "pcm", "speaker_ref_b64": "not base64 at all"}
    files = {"speaker_ref": ("voice.wav", clip_file(), "audio/wav")}
    answer = server.client.post("/tts", data=form, files=files)
    assert answer.status_code == 200, answer.text
    assert answer.content == said(f"clip {RATE} None", 5) and "transfer-encoding" in answer.headers
    answer = server.client.post("/tts", data={"input": TEXT, "n_predict": "x"}, files={"speaker_ref": b""})
    assert error_of(answer)["param"] == "n_predict"


def test_a_clip_in_base64_is_cloned_with_its_transcript(server):
    fields = {"speaker_ref_b64": base64.b64encode(clip_file()).decode(), "ref_text": "What it says."}
    assert server.pcm(TEXT, **fields, voice="alloy") == said(f"clip {RATE} What it says.")


@pytest.mark.parametrize("fields, param", [
    ({"speaker_ref_b64": "AAA"}, "speaker_ref_b64"), ({"speaker_ref_b64": "ä==="}, "speaker_ref_b64"),
    ({"speaker_ref_b64": "data:audio/wav;base64,AAAA"}, "speaker_ref_b64"),
    ({"speaker_ref_b64": base64.b64encode(b"no sound").decode()}, "speaker_ref"), ({"ref_text": "alone"}, "ref_text"),
    ({"speaker_ref_b64": base64.b64encode(clip_file(61)).decode()}, "speaker_ref"),
    ({"speaker_ref_b64": base64.b64encode(clip_file()).decode(), "voice": "low"}, "voice"),
    ({"speaker_ref_b64": "/etc/hostname"}, "speaker_ref_b64"), ({"voice": "/etc/hostname"}, "voice"),
    ({"voice": "../x.safetensors"}, "voice"), ({"voice": "http://a.b/c.pt"}, "voice"),
])
def test_clips_and_voices_that_cannot_be_used(server, fields, param):
    answer = server.speak(TEXT, **fields)
    assert answer.status_code == 400 and error_of(answer)["param"] == param


@pytest.mark.parametrize("voice, spoken", [("low", "low"), ("HIGH", "high"), ("default", None), (None, None),
                                           *((name, None) for name in STOCK_VOICES)])
def test_known_voices_speak_and_stock_names_mean_the_default(server, voice, spoken):
    assert server.pcm(TEXT, voice=voice) == said(spoken)
    answer = server.speak(TEXT, CREATE, voice={"id": voice} if voice else None, response_format="pcm")
    assert answer.content == said(spoken)


def test_voices_and_models_are_listed(server):
    for route in ("/v1/audio/voices", "/v1/voices"):
        listed = server.client.get(route).json()
        assert listed["voices"] == VOICES and [entry["id"] for entry in listed["data"]] == VOICES
        assert listed["default"] == "low"
    assert server.client.get("/v1/models").json()["data"][0]["object"] == "model"


@pytest.mark.parametrize("body, param", [
    ({"input": ""}, "input"), ({"input": " "}, "input"), ({"input": "…"}, "input"), ({}, "input"),
    ({"input": None}, "input"), ({"input": "a", "voice": ""}, "voice"), ({"input": "a", "voice": "nobody"}, "voice"),
])
def test_texts_and_voices_that_are_none(server, body, param):
    """Row 2 of the list of reports: never a 200 with an error inside, never a 500."""
    for route in ("/tts", CREATE):
        answer = server.client.post(route, json=body)
        assert answer.status_code == 400 and error_of(answer)["param"] == param
    if body.get("voice") == "nobody":
        assert all(name in error_of(answer)["message"] for name in (*VOICES, "default"))


@pytest.mark.parametrize("format", ["aac", "MP3", "", 1, "mp4"])
def test_an_unknown_format_is_refused_with_the_list(server, format):
    for route in ("/tts", CREATE):
        error = error_of(server.speak(TEXT, route, response_format=format))
        assert error["param"] == "response_format" and all(f"'{name}'" in error["message"] for name in FORMATS)


def test_no_format_is_the_default_one(server):
    assert server.speak(TEXT, response_format=None).headers["content-type"] == "audio/wav"
    assert server.speak(TEXT, CREATE).headers["content-type"] == "audio/mpeg"


@pytest.mark.parametrize("field, value", [
    ("speed", 0), ("speed", -1), ("speed", 99), ("speed", "x"), ("top_k", -1), ("top_k", 1.5), ("top_k", "40"),
    ("n_predict", 0), ("n_predict", 1e9), ("n_predict", 10**9), ("stream", "yes"), ("stream", 1), ("seed", -1),
    ("seed", 2**63), ("seed", True), ("temperature", "hot"), ("top_p", 1.1), ("lang", 5), ("unknown", 1),
    ("input", ["a"]), ("voice", 3),
])
def test_a_field_of_the_wrong_kind_is_named(server, field, value):
    for route in ("/tts", CREATE):
        error = error_of(server.client.post(route, json={"input": TEXT, field: value}))
        assert error["param"].startswith(field) and error["type"] == "invalid_request_error"


def test_a_whole_number_may_have_a_point(server):
    assert server.speak(TEXT, seed=5.0, n_predict=2.0, response_format="pcm").content == said(seed=5, words=2)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"a"', b"null", b"1", b'{"input": "a"} x', b"\xff\xfe",
                                  b'{"input": "\\ud800"}', b'{"temperature": NaN, "input": "a"}', b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(server, body):
    for route in ("/tts", CREATE):
        answer = server.client.post(route, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400 and error_of(answer)["type"] == "invalid_request_error"


def test_a_language_that_is_unknown_is_refused_with_the_list(server):
    error = error_of(server.speak(TEXT, lang="klingon"))
    assert error["param"] == "lang" and "german" in error["message"]


def test_an_error_shows_no_more_than_the_beginning_of_the_input(server):
    long = "x" * 100_000
    bodies = [{"input": "a", "voice": long}, {"input": "a", "lang": long}, {"input": "a", long: 1},
              {"input": "a", "response_format": long}, {"input": "a", "speaker_ref_b64": long + "ä"}, {"input": long},
              {"input": "a", "voice": {long: 1}}, {"input": "…" * 10_000}, {"input": "a", "ref_text": long}]
    for body in bodies:
        for route in ("/tts", CREATE):
            answer = server.client.post(route, json=body)
            assert answer.status_code == 400 and answer.text.count("x" * 100) <= 1 and len(answer.text) < 1000
    for path in ("/" + "x" * 5000, "/tts?" + "x" * 5000):
        assert server.client.get(path).text.count("x") < 200


def test_other_routes_methods_and_media_types(server):
    client = server.client
    answer = client.get("/nothing")
    assert answer.status_code == 404 and error_of(answer)["code"] == "not_found"
    assert error_of(answer)["message"] == "GET '/nothing' is not a route; the API's page /docs lists them"
    answer = client.get("/tts")
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"
    assert error_of(answer)["message"] == "GET '/tts': this route takes POST"
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = client.post("/tts", content=b'{"input": "a"}', headers={"content-type": kind})
        assert answer.status_code == 415 and "application/json" in error_of(answer)["message"]
        assert ("--json" in error_of(answer)["message"]) == (kind == "application/x-www-form-urlencoded")  # of curl -d
    answer = client.post("/tts", content=b"x", headers={"content-type": "multipart/form-data"})
    assert answer.status_code == 400 and error_of(answer)
    answer = client.post("/tts", files=[("speaker_ref", b"a"), ("speaker_ref", b"b")], data={"input": "a"})
    assert answer.status_code == 400 and error_of(answer)
    answer = client.post("/tts", files={"other": b"a"}, data={"input": "a"})
    assert answer.status_code == 400 and error_of(answer)["param"] == "other"


@pytest.mark.parametrize("model", [None, "tts-1", "gpt-4o-mini-tts"])
def test_the_model_may_be_left_out(server, model):
    assert server.speak(TEXT, CREATE, model=model).status_code == 200


def test_events_carry_the_audio_and_the_end(server):
    answer = server.speak(TEXT, CREATE, response_format="pcm", stream_format="sse", model="tts-1")
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == said()
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"} and len(events) == 4
    assert events[-1] == {"type": "speech.audio.done", "finish_reason": "eos", "audio_seconds": 0.24, "left_out": [],
                          "usage": {"input_tokens": 0, "output_tokens": 3, "total_tokens": 3}}


def test_a_cut_is_told(server):
    assert server.speak(TEXT, n_predict=2).headers["x-finish-reason"] == "limit"


def test_long_text_is_spoken_in_utterances(server):
    sentence = "Word " + " ".join(["word"] * 29) + ". "
    answer = server.speak(sentence * 3)
    assert float(answer.headers["x-audio-seconds"]) == pytest.approx(90 * 0.08 + 2 * 0.25, abs=0.001)


def test_cross_origin_pages_ask_first():
    with serving(SineEngine(), cors_origins=("https://a.example",)) as running:
        preflight = {"origin": "https://a.example", "access-control-request-method": "POST",
                     "access-control-request-headers": "content-type"}
        answer = running.client.options("/tts", headers=preflight)
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        answer = running.client.options("/tts", headers={**preflight, "origin": "https://b.example"})
        assert "access-control-allow-origin" not in answer.headers
        answer = running.client.post("/tts", json={"input": "a"}, headers={"origin": "https://a.example"})
        assert "X-Sample-Rate" in answer.headers["access-control-expose-headers"]


def test_a_key_opens_every_door_but_two():
    with serving(SineEngine(), api_key="s3cret") as running:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic s3cret"},
                        {"authorization": "Bearer s3cre\u00e9".encode()}):
            for path in ("/v1/models", "/v1/voices", "/metrics", "/openapi.json", "/docs", "/nothing"):
                answer = running.client.get(path, headers=headers)
                assert answer.status_code == 401 and error_of(answer)["type"] == "authentication_error"
        right = {"authorization": "Bearer s3cret"}
        assert running.client.post("/tts", json={"input": "a"}, headers=right).status_code == 200
        assert running.client.post("/tts", json={"input": "a"}).status_code == 401
        assert {running.client.get(path).status_code for path in ("/", "/health")} == {200}


def test_the_api_is_described(server):
    schema = server.client.get("/openapi.json").json()
    kinds = schema["components"]["schemas"]
    assert {"/tts", CREATE, "/v1/audio/voices", "/v1/models", "/health", "/metrics"} <= set(schema["paths"])
    for name in ("TtsBody", "SpeechBody"):
        assert all(field.get("description") or "$ref" in str(field) for field in kinds[name]["properties"].values())
    assert kinds["TtsBody"]["properties"]["speed"]["anyOf"][0] == {"type": "number", "minimum": 0.25, "maximum": 4.0}
    assert kinds["SpeechBody"]["properties"]["seed"]["anyOf"][0] == {
        "type": "integer", "minimum": 0, "maximum": 2**63 - 1}
    assert "multipart/form-data" in schema["paths"]["/tts"]["post"]["requestBody"]["content"]
    assert "422" not in schema["paths"]["/tts"]["post"]["responses"]


def test_the_page_of_the_api_describes_every_field_and_loads_nothing(server):
    answer = server.client.get("/docs")
    assert answer.status_code == 200 and "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"<script|https?://|<link|<img| src=", answer.text)
    assert server.client.get("/redoc").status_code == server.client.get("/docs/oauth2-redirect").status_code == 404
    schema = server.client.get("/openapi.json").json()
    for path in schema["paths"]:
        assert f" {path}</code>" in answer.text
    for name, kind in schema["components"]["schemas"].items():
        assert f'<h2 id="{name}">' in answer.text
        for field, rule in kind.get("properties", {}).items():
            assert f"<td><code>{field}</code>" in answer.text
            assert html.escape(rule.get("description", "")) in answer.text
    assert "from 0.25, to 4.0" in answer.text and 'href="#VoiceId"' in answer.text


def test_head_is_get_without_the_body(server):
    for path in ("/", "/health", "/docs", "/v1/models", "/nothing"):
        head, get = server.client.head(path), server.client.get(path)
        assert head.status_code == get.status_code and head.content == b""
        assert head.headers["content-length"] == get.headers["content-length"]
    assert server.client.head("/tts").status_code == 405
    assert server.client.options("/tts").headers["allow"] == "POST"


def test_no_body_means_the_client_is_told_at_once(server):
    with pytest.raises(httpx.RemoteProtocolError):  # a fault behind the first byte: no end of the body
        server.speak("one two fault", stream=True)
    assert server.speak(TEXT).status_code == 200
