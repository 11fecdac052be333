"""`WS /v1/audio/speech/stream`: text in as it is written, audio out as its sentences become whole.

The messages are those of `schemas`: `start`, `text`, `flush`, `end`, `cancel` from the client, `started`, binary audio,
`done` or `error` from the server. One speech per connection.
"""

import asyncio
import contextlib
import logging

from anyio import fail_after
from fastapi import WebSocket, WebSocketDisconnect

from tts_cli.server.bodies import content_type
from tts_cli.server.errors import ApiError, api_error
from tts_cli.server.incoming import parsed
from tts_cli.server.live_text import LiveText
from tts_cli.server.responses import encoded
from tts_cli.server.schemas import (
    AnyMessage,
    ControlMessage,
    DoneMessage,
    StartedMessage,
    StartMessage,
    TextMessage,
)
from tts_cli.server.service import SpeechService
from tts_cli.server.worker import Busy, Cancelled, Job

log = logging.getLogger("tts_cli.server")
_KINDS = {"start": StartMessage, "text": TextMessage}
_OPTIONS = StartMessage(type="start")


class Conversation:
    """One connection, from its first message to the last."""

    def __init__(self, socket: WebSocket, service: SpeechService):
        self._socket, self._service, self._settings = socket, service, service.settings
        self._text = LiveText(service.settings.max_chars)
        self._characters = 0
        self._job: Job | None = None
        self._cancelled = False

    async def run(self) -> None:
        await self._socket.accept()
        try:
            await self._converse()
        except (WebSocketDisconnect, TimeoutError):  # gone, or so slow that it is as good as gone
            return
        except Exception as error:
            answer = api_error(error)
            if answer.status == 500:
                log.error("%s failed", self._socket.state.request_id, exc_info=error)
            with contextlib.suppress(WebSocketDisconnect, TimeoutError, RuntimeError):
                await self._say({"type": "error", **answer.body()})
                await self._socket.close(1011 if answer.status >= 500 else 1008)
        else:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                await self._socket.close()
        finally:
            if self._job is not None:
                self._job.cancel()
            log.info("%s WebSocket, %d characters", self._socket.state.request_id, self._characters)

    async def _converse(self) -> None:
        first = await self._first()
        options = first if isinstance(first, StartMessage) else _OPTIONS
        wish = await self._service.wish(options, options.voice)
        self._job = self._service.speak_live(self._text, wish)
        if first is not options:
            self._act(first)
        speaking = asyncio.create_task(self._speak(options))
        listening = asyncio.create_task(self._listen())
        ending = asyncio.create_task(self._end_with_the_server())
        try:
            await asyncio.wait((speaking, listening), return_when=asyncio.FIRST_COMPLETED)
            if listening.done():
                listening.result()  # raises what the client did wrong
            await speaking
        finally:
            self._job.cancel()  # then neither task waits for it any more
            for task in (speaking, listening, ending):
                task.cancel()
            await asyncio.gather(speaking, listening, ending, return_exceptions=True)

    async def _first(self) -> StartMessage | TextMessage | ControlMessage:
        """The first message. A server that ends meanwhile is busy for this client."""
        ending = asyncio.create_task(self._service.ending.wait())
        receiving = asyncio.create_task(self._receive())
        try:
            await asyncio.wait((ending, receiving), return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                raise Busy("the server is shutting down")
            return receiving.result()
        finally:
            for task in (ending, receiving):
                task.cancel()
            await asyncio.gather(ending, receiving, return_exceptions=True)

    async def _end_with_the_server(self) -> None:
        """What was written when the server ends is spoken."""
        await self._service.ending.wait()
        self._text.end()
        self._service.worker.wake()

    async def _listen(self) -> None:
        """Until no more can come, or the client is gone (then it raises)."""
        while not self._act(await self._receive()):
            pass
        while not self._cancelled:  # behind the end there may still be a cancel
            self._act(await self._receive(idle=None))

    async def _receive(self, idle: float | None = 0) -> StartMessage | TextMessage | ControlMessage:
        """Raises `ApiError`, `ValidationError` or `WebSocketDisconnect`."""
        seconds = self._settings.idle_timeout if idle == 0 else idle
        try:
            with fail_after(seconds):
                message = await self._socket.receive()
        except TimeoutError:
            raise ApiError(408, f"no message for {seconds:g} s: send end when there is no more text",
                           code="idle") from None
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message["code"])
        if message.get("text") is None:
            raise ApiError(400, "send text messages of JSON, not binary ones", code="invalid_json")
        kind = parsed(AnyMessage, message["text"]).type
        return parsed(_KINDS.get(kind, ControlMessage), message["text"])

    def _act(self, message: StartMessage | TextMessage | ControlMessage) -> bool:
        """Whether it was the last one to act on. Raises `ApiError`."""
        if isinstance(message, StartMessage):
            raise ApiError(400, "type: start comes once, before everything else", "type")
        if message.type == "cancel":
            self._cancelled = True
            self._job.cancel()
            return True
        if self._service.ending.is_set():
            return True  # too late for more text
        if self._text.closed:
            raise ApiError(400, f"type: {message.type} came after end", "type")
        if isinstance(message, TextMessage):
            self._characters += len(message.text)
            if self._characters > self._settings.max_text:
                raise ApiError(400, f"text: more than {self._settings.max_text} characters in one connection", "text",
                               "text_too_long")
            if self._settings.log_text:
                log.info("%s speaks %r", self._socket.state.request_id, message.text[:200])
            self._text.add(message.text)
        elif message.type == "flush":
            self._text.flush()
        else:
            self._text.end()
        self._service.worker.wake()
        return self._text.closed

    async def _speak(self, options: StartMessage) -> None:
        rate = self._service.engine.sample_rate
        format_name = options.response_format or _OPTIONS.response_format
        seconds, left_out = 0.0, []
        try:
            await self._job.prepared()
            await self._say(StartedMessage(request_id=self._socket.state.request_id, sample_rate=rate,
                                           content_type=content_type(format_name, rate)).model_dump())
            first = await anext(self._job)
            async for data in encoded(first, self._job, format_name, rate):
                with fail_after(self._settings.write_timeout):
                    await self._socket.send_bytes(data)
            result = self._job.result
            reason, seconds, left_out = result.finish_reason, result.audio_seconds, list(result.left_out)
        except Cancelled:
            if not self._cancelled:
                raise
            reason, seconds = "cancelled", self._job.made_seconds
        await self._say(DoneMessage(finish_reason=reason, audio_seconds=round(seconds, 3),
                                    left_out=left_out).model_dump())

    async def _say(self, message: dict) -> None:
        with fail_after(self._settings.write_timeout):
            await self._socket.send_json(message)
