"""uvicorn's connections, for clients that are slow, send nonsense, or still listen when the server ends."""

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from tts_cli.server.errors import ApiError

STEP_BYTES = 1 << 16    # of a body; a client that sends so many is not too slow yet
LINGER_SECONDS = 2.0    # how long a body may still come when it was answered already


def http_protocol(read_timeout: float, write_timeout: float) -> type[H11Protocol]:
    """The class of connections that are dropped when the client takes nothing for `write_timeout` seconds though there
    is something, or needs more than `read_timeout` for a request's head or for the next `STEP_BYTES` of its body."""

    class Patient(H11Protocol):
        _reading = _writing = None  # timers
        _since = 0                  # bytes that came since the first of them was set
        _lingers = False            # it is that of a body whose request was answered

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._reading = self.loop.call_later(read_timeout, transport.abort)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._since += len(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def _watch(self) -> None:
            expected, lingers = self._is_expected(), self.conn.our_state in (h11.DONE, h11.MUST_CLOSE)
            if not expected or lingers != self._lingers or (self._since >= STEP_BYTES and not lingers):
                self._reading = _forgotten(self._reading)
            if expected and self._reading is None:
                self._since, self._lingers = 0, lingers
                seconds = LINGER_SECONDS if lingers else read_timeout
                self._reading = self.loop.call_later(seconds, self.transport.abort)

        def _is_expected(self) -> bool:
            """Whether the client is in the midst of a request. Between two of them uvicorn's own timer runs."""
            if self.transport.get_protocol() is not self:  # a WebSocket by now
                return False
            if self.conn.their_state is h11.IDLE:
                return bool(self.conn.trailing_data[0])
            return self.conn.their_state is h11.SEND_BODY

        def pause_writing(self) -> None:
            super().pause_writing()
            self._writing = self.loop.call_later(write_timeout, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._writing = _forgotten(self._writing)

        def connection_lost(self, exc: Exception | None) -> None:
            self._reading, self._writing = _forgotten(self._reading), _forgotten(self._writing)
            super().connection_lost(exc)

        def handle_websocket_upgrade(self, event: h11.Request) -> None:
            self._reading = _forgotten(self._reading)
            super().handle_websocket_upgrade(event)

        def send_400_response(self, msg: str) -> None:
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                error = ApiError(400, "this is not an HTTP/1.1 request that can be understood", code="invalid_http")
                body = json.dumps(error.body()).encode()
                headers = [("content-type", "application/json"), ("content-length", str(len(body))),
                           ("connection", "close")]
                for part in (h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                             h11.Data(data=body), h11.EndOfMessage()):
                    self.transport.write(self.conn.send(part))
            if self.cycle is not None:
                self.cycle.disconnected = True  # the application may still want to answer
            self.transport.close()

    return Patient


def _forgotten(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class PatientWebSocket(WebSocketsSansIOProtocol):
    """Goes on when the server ends: the application finishes, or is cancelled when the time is over. A client that
    takes nothing loses its connection when the application is through with it."""

    def shutdown(self) -> None:
        if not self.handshake_complete or self.close_sent:
            super().shutdown()

    async def run_asgi(self) -> None:
        await super().run_asgi()
        if not self.writable.is_set():
            self.transport.abort()
