"""Thousands of made-up requests against the API's own description, by schemathesis, inside this process.

Once as it stands, which is mostly what is refused (a voice may be any name, but few are known), and once with fields
narrowed to what this server knows, so that most requests are spoken.
"""

import base64
import collections
import io

import schemathesis
import soundfile
from clips import speech_like
from hypothesis import HealthCheck, Phase, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks
from server_tools import CREATE, RATE, VOICES, SineEngine, until

from tts_cli.server.app import create_app
from tts_cli.server.service import SpeechService
from tts_cli.server.settings import ServerSettings

CASES = 600  # of each route, a third of them narrowed
ENGINE = SineEngine()
SERVICE = SpeechService(ENGINE, ServerSettings(max_text=400))
APP = create_app(SERVICE)
RULES = [schemathesis.checks.not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
         checks.response_schema_conformance]


async def app(scope, receive, send):
    """The application without its end: the transport starts and ends it for every request."""
    if scope["type"] != "lifespan":
        await APP(scope, receive, send)
        return
    for step in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{step}.complete"})


def clip() -> str:
    file = io.BytesIO()
    soundfile.write(file, speech_like(RATE, 0.2), RATE, format="FLAC")
    return base64.b64encode(file.getvalue()).decode()


def narrowed():
    """The API with fields that this server can use together."""
    api = schemathesis.openapi.from_asgi("/openapi.json", app)
    del api.raw_schema["paths"]["/tts"]["post"]["requestBody"]["content"]["multipart/form-data"]
    for name in ("TtsBody", "SpeechBody"):
        model = api.raw_schema["components"]["schemas"][name]
        fields = model["properties"]
        for alone in ("prompt", "ref_text", "instructions"):  # not without, or not beside, another field
            fields.pop(alone, None)
        model.pop("anyOf", None)
        model["required"] = ["input"]
        fields["input"] = {"type": "string", "pattern": "^w[a-z]{0,9}( w[a-z0-9]{0,9}[.,!?]?){0,9}$"}
        if name == "TtsBody":  # a voice or a recording
            fields.pop("voice")
            fields["speaker_ref_b64"] = {"enum": [clip(), None]}
        else:
            fields.pop("speaker_ref_b64")
            fields["voice"] = {"enum": [*VOICES, "HIGH", "default", "alloy", {"id": "low"}, None]}
        fields["lang"] = {"enum": ["auto", "English", "german", None]}
    return api


API = schemathesis.openapi.from_asgi("/openapi.json", app)
API.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
NARROWED = narrowed()
NARROWED.config.generation.update(modes=[GenerationMode.POSITIVE])
SEEN: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
WELL: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)


def bounded(cases: int):
    return settings(max_examples=cases, derandomize=True, deadline=None, database=None,
                    phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck))


@API.parametrize()
@bounded(CASES * 2 // 3)
def test_no_request_breaks_the_contract(case):
    answer = case.call()
    SEEN[case.path][answer.status_code] += 1
    case.validate_response(answer, checks=RULES)


@NARROWED.include(method="POST").parametrize()
@bounded(CASES - CASES * 2 // 3)
def test_no_good_request_breaks_the_contract(case):
    answer = case.call()
    WELL[case.path][answer.status_code] += 1
    case.validate_response(answer, checks=RULES)


def test_the_requests_were_many_and_of_all_kinds():
    """And the worker lives: an ordinary request is answered."""
    for route in ("/tts", CREATE):
        if SEEN[route]:  # another worker may have had the route
            assert sum(SEEN[route].values()) >= CASES * 2 // 3 and 400 in SEEN[route], SEEN
        if WELL[route]:
            assert WELL[route][200] > 0.75 * sum(WELL[route].values()) >= 0.75 * (CASES - CASES * 2 // 3), WELL
    until(lambda: not SERVICE.worker._jobs)
    assert SERVICE.status == "ok"
