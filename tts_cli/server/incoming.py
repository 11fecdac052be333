"""Bodies of requests, JSON or a form, to checked fields. Nothing a request says is opened as a path or fetched."""

from collections.abc import Iterable

from fastapi import Request
from pydantic import BaseModel
from starlette.datastructures import UploadFile

from tts_cli.server.errors import ApiError, shown
from tts_cli.server.schemas import SpeechBody, SpeechFields, TtsBody

MAX_FIELDS = 50
FILE = "speaker_ref"


async def read_tts(request: Request, max_body: int) -> tuple[TtsBody, bytes | None]:
    """The fields of `POST /tts` and the clip that came as a file. Raises `ApiError` or `ValidationError`."""
    if _media_type(request) != "multipart/form-data":
        return await _json(request, TtsBody, "multipart/form-data"), None
    # One file; the whole body is bounded already, so its parts need no smaller limit.
    async with request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=max_body) as form:
        values, clip = await _form_values(form.multi_items())
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


async def _json(request: Request, kind: type[BaseModel], *others: str) -> SpeechFields:
    media_type = _media_type(request)
    if media_type != "application/json":
        raise ApiError(415, f"Content-Type: {shown(media_type)} is not one of "
                            f"{', '.join(('application/json', *others))}", code="unsupported_media_type")
    return kind.model_validate_json(await request.body(), strict=True)


async def _form_values(items: Iterable[tuple[str, str | UploadFile]]) -> tuple[dict[str, str], bytes | None]:
    values, clip = {}, None
    for name, value in items:
        if name in values or (name == FILE and clip is not None):
            raise ApiError(400, f"{shown(name)} is given twice", name[:80], "invalid_value")
        if isinstance(value, UploadFile):
            if name != FILE:
                raise ApiError(400, f"{shown(name)}: only {FILE} is a file", name[:80], "invalid_value")
            clip = await value.read()
        elif name == FILE:
            raise ApiError(400, f"{FILE}: send it as a file, or {FILE}_b64 as text", FILE, "invalid_value")
        else:
            values[name] = value
    return values, clip


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
