"""The FastAPI application: routes, and the API's page that describes them."""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request, Response, WebSocket
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse

import tts_cli
from tts_cli.server import docs, errors, openapi
from tts_cli.server.edge import Edge
from tts_cli.server.incoming import one_text, read_speech, read_tts
from tts_cli.server.responses import SpeechEvents, SpeechResponse, StreamedSpeech
from tts_cli.server.schemas import (
    Health,
    ModelEntry,
    ModelList,
    SpeechBody,
    TtsBody,
    VoiceEntry,
    VoiceId,
    VoiceList,
)
from tts_cli.server.service import SpeechService, Wish
from tts_cli.server.websocket import Conversation

log = logging.getLogger("tts_cli.server")
PAGE = Path(__file__).with_name("page.html")
# Everything the pages need is in them; they talk to their own server alone.
PAGE_POLICY = ("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
               "form-action 'none'; frame-ancestors 'none'; base-uri 'none'")


def create_app(service: SpeechService) -> FastAPI:
    """The application around a service, which it closes when it ends."""
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(title="tts", version=tts_cli.__version__, lifespan=lifespan, redirect_slashes=False,
                  docs_url=None, redoc_url=None,  # these load scripts from elsewhere
                  description="Local speech synthesis: one model, many requests. Errors have OpenAI's shape.")
    errors.install(app)
    settings = service.settings
    app.add_middleware(Edge, settings=settings, metrics=service.metrics)
    if settings.cors_origins:
        app.add_middleware(CORSMiddleware, allow_origins=settings.cors_origins, allow_methods=["GET", "POST"],
                           allow_headers=["Authorization", "Content-Type"], expose_headers=list(openapi.SPEECH_HEADERS))
    _add_speech(app, service)
    _add_facts(app, service)
    openapi.install(app)
    return app


def _add_speech(app: FastAPI, service: SpeechService) -> None:
    @app.post("/tts", response_class=Response, **openapi.speech(TtsBody, form=True))
    async def tts(request: Request):
        """Speak a text. JSON, or a form in which `speaker_ref` may be a file. Answers raw audio."""
        body, clip = await read_tts(request, service.settings.max_body)
        text = service.checked_text(one_text(body))
        wish = await service.wish(body, body.voice, clip=clip)
        return _spoken(request, service, text, wish, body.response_format or "wav",
                       StreamedSpeech if body.stream else SpeechResponse)

    @app.post("/v1/audio/speech", response_class=Response, **openapi.speech(SpeechBody, events=True))
    async def speech(request: Request):
        """Speak a text: OpenAI's contract."""
        body = await read_speech(request)
        text = service.checked_text(body.input)
        if body.instruct is not None and body.instructions is not None:
            raise errors.ApiError(400, "instructions: give instruct or instructions, not both", "instructions")
        voice = body.voice.id if isinstance(body.voice, VoiceId) else body.voice
        wish = await service.wish(body, voice, body.instructions)
        kind = StreamedSpeech if body.stream is not False else SpeechResponse
        if body.stream_format == "sse":
            kind = SpeechEvents
        return _spoken(request, service, text, wish, body.response_format or "mp3", kind)

    @app.websocket("/v1/audio/speech/stream")
    async def stream(socket: WebSocket):
        await Conversation(socket, service).run()


def _spoken(request: Request, service: SpeechService, text: str, wish: Wish, format_name: str,
            kind: type[SpeechResponse]) -> SpeechResponse:
    if service.settings.log_text:
        log.info("%s speaks %r", request.state.request_id, text[:200])
    return kind(lambda: service.speak(text, wish), format_name, service.engine.sample_rate)


def _add_facts(app: FastAPI, service: SpeechService) -> None:
    engine = service.engine
    started = int(time.time())

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def page():
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers={"Content-Security-Policy": PAGE_POLICY})

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    def described():
        return HTMLResponse(docs.page(app.openapi()), headers={"Content-Security-Policy": PAGE_POLICY})

    @app.get("/v1/audio/voices", responses=openapi.ERRORS)
    @app.get("/v1/voices", responses=openapi.ERRORS)
    def voices() -> VoiceList:
        """The voices that `voice` may name."""
        names, default = engine.voice_names, service.defaults.voice or engine.default_voice
        if not isinstance(default, str):  # a clone, saved or not
            default = default.name if default is not None and default.name in names else "default"
        return VoiceList(data=[VoiceEntry(id=name, name=name) for name in names], default=default, voices=names)

    @app.get("/v1/models", responses=openapi.ERRORS)
    def models() -> ModelList:
        """The model that is loaded. Requests may name any."""
        name = engine.paths[0].stem if engine.paths else "tts"
        return ModelList(data=[ModelEntry(id=name, created=started, owned_by="local")])

    @app.get("/health", response_model=Health, responses={503: {"model": Health, "description": "Loading, or failed"}})
    def health() -> JSONResponse:
        """Whether speech can be made now."""
        status = service.status
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    prometheus = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Numbers"}}

    @app.get("/metrics", response_class=Response, responses={**openapi.ERRORS, **prometheus})
    def metrics() -> Response:
        """Numbers for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
