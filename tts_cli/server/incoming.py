"""Bodies of requests, JSON or a form, to checked fields. Nothing a request says is opened as a path or fetched."""

import re
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from tts_cli.server.errors import ApiError, shown
from tts_cli.server.schemas import SpeechBody, TtsBody

MAX_FIELDS = 50
MAX_STRINGS = 4 * MAX_FIELDS  # in JSON: names and values, with room for text that is no field
MAX_REST = 8192               # bytes of JSON that are in no string
FILE = "speaker_ref"
_HINTS = {"application/x-www-form-urlencoded": "; curl needs -H 'Content-Type: application/json', or --json for -d"}
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,./:=?-]{1,70}")  # RFC 2046

Model = TypeVar("Model", bound=BaseModel)


async def read_tts(request: Request, max_body: int) -> tuple[TtsBody, bytes | None]:
    """The fields of `POST /tts` and the clip that came as a file. Raises `ApiError` or `ValidationError`."""
    if _media_type(request) != "multipart/form-data":
        return await _json(request, TtsBody, "multipart/form-data"), None
    values, clip = await _form(request, max_body)
    if clip is not None:
        values.pop("speaker_ref_b64", None)  # the file wins
    return TtsBody.model_validate_strings(values), clip


async def read_speech(request: Request) -> SpeechBody:
    """The fields of `POST /v1/audio/speech`. Raises `ApiError` or `ValidationError`."""
    return await _json(request, SpeechBody)


def one_text(body: TtsBody) -> str:
    """Of `input` and `prompt` the one given."""
    given = [(name, text) for name in ("input", "prompt") if (text := getattr(body, name)) is not None]
    if len(given) != 1:
        raise ApiError(400, f"input: {'give input or prompt, not both' if given else 'the text to speak is missing'}",
                       "input", "invalid_value")
    return given[0][1]


def parsed(kind: type[Model], text: str | bytes) -> Model:
    """JSON text to a model. Raises `ApiError` or `ValidationError`.

    A megabyte of tiny values takes a parser seconds, in which nobody else is served: text with more of them than any
    request has is refused before it is parsed.
    """
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    # Between the quotes that end strings; what they hold may be long.
    parts = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 2 * MAX_STRINGS + 1)
    if len(parts) > 2 * MAX_STRINGS + 1 or sum(map(len, parts[::2])) > MAX_REST:
        raise ApiError(400, f"the body is not JSON of this API: more than {MAX_STRINGS} strings, or {MAX_REST} bytes "
                            "besides them", code="invalid_json")
    return kind.model_validate_json(raw, strict=True)


async def _json(request: Request, kind: type[Model], *others: str) -> Model:
    media_type = _media_type(request)
    if media_type != "application/json":
        raise ApiError(415, f"Content-Type: {shown(media_type)} is not one of "
                            f"{', '.join(('application/json', *others))}{_HINTS.get(media_type, '')}",
                       code="unsupported_media_type")
    return parsed(kind, await request.body())


async def _form(request: Request, max_body: int) -> tuple[dict[str, str], bytes | None]:
    """Fields and file of a form. It is UTF-8 whatever its header says, and whole."""
    body = await request.body()
    boundary = parse_options_header(request.headers["content-type"])[1].get(b"boundary", b"")
    if not _BOUNDARY.fullmatch(boundary):
        raise ApiError(400, f"Content-Type: {shown(boundary.decode('latin-1'))} is not a boundary of a form",
                       code="invalid_form")
    if b"--" + boundary + b"--" not in body:
        raise ApiError(400, "the form is cut short: its last boundary is missing", code="invalid_form")

    async def once() -> AsyncIterator[bytes]:
        yield body

    # Latin-1 keeps every byte as it is. The body is bounded already, so its parts need no smaller limit.
    headers = Headers(raw=[(b"content-type", b'multipart/form-data; charset=latin-1; boundary="%s"' % boundary)])
    parser = MultiPartParser(headers, once(), max_files=1, max_fields=MAX_FIELDS, max_part_size=max_body)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise ApiError(400, f"the form cannot be read: {error.message[:1].lower()}{error.message[1:]}",
                       code="invalid_form") from None
    try:
        return await _form_values(form.multi_items())
    finally:
        await form.close()


async def _form_values(items: Iterable[tuple[str, str | UploadFile]]) -> tuple[dict[str, str], bytes | None]:
    values, clip = {}, None
    for name, value in items:
        name = _utf8(name, "the name of a field")
        if name in values or (name == FILE and clip is not None):
            raise ApiError(400, f"{shown(name)} is given twice", name[:80], "invalid_value")
        if isinstance(value, UploadFile):
            if name != FILE:
                raise ApiError(400, f"{shown(name)}: only {FILE} is a file", name[:80], "invalid_value")
            clip = await value.read()
        elif name == FILE:
            raise ApiError(400, f"{FILE}: send it as a file, or {FILE}_b64 as text", FILE, "invalid_value")
        else:
            values[name] = _utf8(value, name[:80])
    return values, clip


def _utf8(text: str, name: str) -> str:
    try:
        return text.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise ApiError(400, f"{name}: this is not UTF-8", name, "invalid_value") from None


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
