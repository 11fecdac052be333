"""Thousands of made-up requests against the API's own description, by schemathesis, inside this process."""

import collections

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks
from server_tools import CREATE, SineEngine, until

from tts_cli.server.app import create_app
from tts_cli.server.service import SpeechService
from tts_cli.server.settings import ServerSettings

CASES = 650  # of each route
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


API = schemathesis.openapi.from_asgi("/openapi.json", app)
API.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
SEEN: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)


@API.parametrize()
@settings(max_examples=CASES, derandomize=True, deadline=None, database=None,
          phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck))
def test_no_request_breaks_the_contract(case):
    answer = case.call()
    SEEN[case.path][answer.status_code] += 1
    case.validate_response(answer, checks=RULES)


def test_the_requests_were_many_and_of_all_kinds():
    """And the worker lives: an ordinary request is answered."""
    for route in ("/tts", CREATE):
        if SEEN[route]:  # another worker may have had the route
            assert sum(SEEN[route].values()) >= CASES and {200, 400} <= SEEN[route].keys(), SEEN
    until(lambda: not SERVICE.worker._jobs)
    assert SERVICE.status == "ok"
