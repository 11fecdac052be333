"""The parts of the API's description that FastAPI cannot tell from the routes: bodies they read themselves."""

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tts_cli.server.bodies import content_type
from tts_cli.server.errors import ErrorBody
from tts_cli.server.schemas import (
    ControlMessage,
    DoneMessage,
    SpeechBody,
    StartedMessage,
    StartMessage,
    TextMessage,
    TtsBody,
)

SPEECH_HEADERS = {
    "X-Request-Id": "Of this request, also in the server's log",
    "X-Sample-Rate": "Hz",
    "X-Finish-Reason": "eos, or limit when it was cut; not when streamed",
    "X-Audio-Seconds": "Not when streamed",
    "X-Left-Out": "How many words were left out, not in the language of the voice; only then, and not when streamed",
    "X-Seed": "Makes the same take again; not when streamed",
}
_REFERENCE = "#/components/schemas/{model}"
_STATUS = {400: "A field cannot be used", 401: "The key is missing or wrong", 413: "Too large",
           415: "Another media type", 500: "A fault", 503: "Busy or loading: see Retry-After"}
ERRORS: dict[int | str, dict] = {code: {"model": ErrorBody, "description": text} for code, text in _STATUS.items()}
_AUDIO = sorted({content_type(name, 24_000).partition(";")[0] for name in ("wav", "pcm", "flac", "mp3", "opus")})


def speech(body: type[BaseModel], *, form: bool = False, events: bool = False) -> dict:
    """Arguments of a route that reads `body` and answers audio."""
    schema = {"$ref": _REFERENCE.format(model=body.__name__)}
    content = {"application/json": {"schema": schema}}
    if form:
        with_file = {"type": "object", "properties": {"speaker_ref": {
            "type": "string", "format": "binary", "description": "A recording of the voice to clone"}}}
        content["multipart/form-data"] = {"schema": {"allOf": [schema, with_file]}}
    audio = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in _AUDIO}
    if events:
        audio["text/event-stream"] = {}
    headers = {name: {"description": text, "schema": {"type": "string"}} for name, text in SPEECH_HEADERS.items()}
    return {"openapi_extra": {"requestBody": {"required": True, "content": content}},
            "responses": {**ERRORS, 200: {"description": "Audio", "content": audio, "headers": headers}}}


def install(app: FastAPI) -> None:
    """Make `/openapi.json` whole: the bodies, and the messages of the WebSocket, which OpenAPI has no routes for."""
    def described() -> dict:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            kinds = (TtsBody, SpeechBody, StartMessage, TextMessage, ControlMessage, StartedMessage, DoneMessage)
            _, extra = models_json_schema([(kind, "validation") for kind in kinds], ref_template=_REFERENCE)
            schema.setdefault("components", {}).setdefault("schemas", {}).update(extra["$defs"])
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = described
