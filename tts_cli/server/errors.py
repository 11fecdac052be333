"""Every error in the shape of OpenAI's: `{"error": {"message", "type", "param", "code"}}`.

What a client sent is shown in part only: a megabyte that came in must not go out again.
"""

import re
from dataclasses import fields
from difflib import get_close_matches
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException

from tts_cli.engine import SpeechRequest
from tts_cli.errors import TtsError, UsageError
from tts_cli.server.worker import Busy, Cancelled

RETRY_AFTER = "2"  # seconds
_SHOWN = 80
# The first word of a message that refuses a request -> the field at fault, where that has another name here.
_PARAMS = {**{f.name: f.name for f in fields(SpeechRequest)}, "text": "input", "nothing": "input", "language": "lang",
           "max_frames": "n_predict", "the": "speaker_ref"}


# What the command line and other APIs call a field -> its name here.
_ELSEWHERE = {"max_frames": "n_predict", "max_tokens": "n_predict", "language": "lang", "text": "input",
              "speaker": "voice", "format": "response_format", "instruction": "instruct", "temp": "temperature"}


class ErrorDetail(BaseModel):
    message: str = Field(description="What was given, what is allowed, what to do")
    type: str = Field(description="invalid_request_error, authentication_error, rate_limit_error or server_error")
    param: str | None = Field(description="The field that is at fault")
    code: str | None = Field(description="A name for the kind of error")


class ErrorBody(BaseModel):
    error: ErrorDetail


class ApiError(Exception):
    """An answer other than success."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None,
                 headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, headers or {}

    def body(self) -> dict:
        if self.status == 401:
            kind = "authentication_error"
        elif self.code == "busy":
            kind = "rate_limit_error"
        else:
            kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


def shown(value: object) -> str:
    """The beginning of what a client sent."""
    text = repr(value[:_SHOWN] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN + 2 else text[:_SHOWN] + "…"


def api_error(error: Exception) -> ApiError:
    """What to answer to an exception, whatever it is."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        return ApiError(error.status_code, str(error.detail), code=code, headers=dict(error.headers or {}))
    if isinstance(error, Busy):
        return ApiError(503, str(error), code="busy", headers={"Retry-After": RETRY_AFTER})
    if isinstance(error, UsageError):
        first, rest = re.match(r"(\w*)(.*)", str(error), re.DOTALL).groups()
        param = _PARAMS.get(first)
        message = param + rest if param and rest.startswith(":") else str(error)  # by the name that was sent
        return ApiError(400, message, param, "invalid_value")
    if isinstance(error, Cancelled):
        return ApiError(503, str(error), code="cancelled", headers={"Retry-After": RETRY_AFTER})
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's is a RuntimeError
        return ApiError(503, "not enough memory for this request; ask again later, or for less", code="out_of_memory",
                        headers={"Retry-After": RETRY_AFTER})
    if isinstance(error, TtsError):
        return ApiError(500, str(error), code="speech_failed")
    return ApiError(500, "an internal fault; the server's log tells more", code="internal_error")


def install(app: FastAPI) -> None:
    """Let every error of the routes be answered so. What is no error on purpose is answered by `edge`."""
    async def answer(request: Request, error: Exception) -> JSONResponse:
        return api_error(error).response()

    async def no_route(request: Request, error: HTTPException) -> JSONResponse:
        asked = f"{request.method} {shown(request.url.path)}"
        allowed = (error.headers or {}).get("Allow")
        message = f"{asked} is not a route; the API's page /docs lists them"
        if allowed is not None:
            message = f"{asked}: this route takes {allowed}"
        return api_error(HTTPException(error.status_code, message, error.headers)).response()

    for kind in (ApiError, ValidationError, HTTPException, UsageError, TtsError):
        app.add_exception_handler(kind, answer)
    for status in (404, 405):  # none of the routes answers so
        app.add_exception_handler(status, no_route)


def _invalid(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False)[0]
    message, kind = first["msg"], first["type"]
    param = str(first["loc"][0])[:_SHOWN] if first["loc"] else None
    if kind == "json_invalid":
        return ApiError(400, f"the body is not JSON: {message.removeprefix('Invalid JSON: ')[:_SHOWN]}",
                        code="invalid_json")
    if kind == "extra_forbidden":
        return ApiError(400, f"{shown(param)} is not a field of this request{_meant(error.title, param)}; the API's "
                             "page /docs lists them", param, "unknown_field")
    if param is None:
        return ApiError(400, f"the body must be one JSON object: {message[:1].lower()}{message[1:]}",
                        code="invalid_type")
    given = "" if kind == "missing" else f", not {shown(first['input'])}"
    return ApiError(400, f"{param}: {message[:1].lower()}{message[1:]}{given}", param, "invalid_value")


def _meant(model: str, name: str) -> str:
    """The field that an unknown one was perhaps to be; `model`: pydantic's name of what was sent."""
    from tts_cli.server import schemas

    fields = [*getattr(schemas, model).model_fields]
    meant = _ELSEWHERE.get(name) or next(iter(get_close_matches(name, fields, 1, 0.7)), None)
    return f", did you mean {meant}?" if meant in fields else ""
