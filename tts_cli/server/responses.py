"""Answers made of speech: whole, streamed, or as server-sent events.

All of them listen for the client meanwhile: when it goes, the job is cancelled, and the next request has the model.
"""

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable

from anyio import to_thread
from starlette.responses import Response

from tts_cli.engine import AudioChunk
from tts_cli.server.bodies import BodyStream, content_type, whole_file
from tts_cli.server.errors import api_error
from tts_cli.server.worker import Cancelled, Job

log = logging.getLogger("tts_cli.server")


class SpeechResponse(Response):
    """The answer that one job makes. Faults before the first byte become an error of their own; later ones end the
    connection without the end of the body, which every client can tell from success."""

    def __init__(self, submit: Callable[[], Job], format_name: str, sample_rate: int):
        super().__init__()
        self._submit, self._format, self._rate = submit, format_name, sample_rate

    async def __call__(self, scope, receive, send) -> None:
        job = self._submit()
        listener = asyncio.create_task(_cancel_when_gone(receive, job))
        try:
            await job.prepared()
            await self._answer(job, scope, receive, send)
        except Cancelled:
            if not listener.done():  # the server's own wish
                raise
            scope["state"]["gone"] = True
        finally:
            job.cancel()
            listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listener

    async def _answer(self, job: Job, scope, receive, send) -> None:
        chunks = [chunk.samples async for chunk in job]
        body = await to_thread.run_sync(whole_file, self._format, self._rate, chunks)
        headers = {"X-Sample-Rate": str(self._rate), "X-Finish-Reason": job.result.finish_reason,
                   "X-Audio-Seconds": f"{job.result.audio_seconds:.3f}", "X-Seed": str(job.result.seed)}
        _tell_of_words(job)
        if job.result.left_out:
            headers["X-Left-Out"] = str(len(job.result.left_out))
        await Response(body, headers=headers, media_type=content_type(self._format, self._rate))(scope, receive, send)


class StreamedSpeech(SpeechResponse):
    """Audio in chunks, the first as soon as there is some."""

    async def _answer(self, job: Job, scope, receive, send) -> None:
        first = await anext(job)  # a model that fails at once is an ordinary error
        headers = {"X-Sample-Rate": str(self._rate), **self._headers()}
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()]})
        async for data in self._pieces(first, job):
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _headers(self) -> dict[str, str]:
        return {"Content-Type": content_type(self._format, self._rate), "Cache-Control": "no-store"}

    def _pieces(self, first: AudioChunk, job: Job) -> AsyncIterator[bytes]:
        return encoded(first, job, self._format, self._rate)


class SpeechEvents(StreamedSpeech):
    """OpenAI's `stream_format: sse`. A fault on the way is an event, too."""

    def _headers(self) -> dict[str, str]:
        return {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store"}

    async def _pieces(self, first: AudioChunk, job: Job) -> AsyncIterator[bytes]:
        try:
            async for data in encoded(first, job, self._format, self._rate):
                yield _event(type="speech.audio.delta", audio=base64.b64encode(data).decode())
        except Cancelled:
            raise
        except Exception as error:
            yield _event(type="error", **api_error(error).body())
            return
        # Frames stand for tokens: 12.5 a second, whatever the engine.
        frames = round(12.5 * job.result.audio_seconds)
        yield _event(type="speech.audio.done", finish_reason=job.result.finish_reason,
                     audio_seconds=round(job.result.audio_seconds, 3), left_out=job.result.left_out,
                     usage={"input_tokens": 0, "output_tokens": frames, "total_tokens": frames})


async def encoded(first: AudioChunk, job: Job, format_name: str, sample_rate: int) -> AsyncIterator[bytes]:
    """The bytes of a job's file, as they come; none of them empty."""
    body = BodyStream(format_name, sample_rate)
    finished = False

    async def run(step, *arguments) -> bytes:
        return step(*arguments) if body.is_light else await to_thread.run_sync(step, *arguments)

    try:
        if data := await run(body.push, first.samples):
            yield data
        async for chunk in job:
            if data := await run(body.push, chunk.samples):
                yield data
        data = await run(body.finish)
        finished = True
        _tell_of_words(job)
        if data:
            yield data
    finally:
        if not finished:
            body.abandon()


def _tell_of_words(job: Job) -> None:
    """How many, not which: a log has what was spoken only when that is asked for."""
    if job.result.left_out:
        log.warning("%d words were left out, not in the language of the voice", len(job.result.left_out))


async def _cancel_when_gone(receive, job: Job) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    job.cancel()


def _event(**fields) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()
