"""uvicorn, with two things it does not do: clients that take nothing are cut off, and SIGTERM ends with success."""

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from tts_cli.errors import UsageError


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to the first address of `host`; port 0 takes a free one. Raises `UsageError`."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise UsageError(f"cannot listen on {host} port {port}: {error.strerror or error}; another --port may be free, "
                         "0 takes one that is") from None


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Ends by itself after SIGTERM or Ctrl-C, with what is running finished within `grace_seconds`."""

    def __init__(self, app: FastAPI, *, write_timeout: float, grace_seconds: int, max_message: int):
        super().__init__(uvicorn.Config(
            app, http=_protocol(write_timeout), ws_max_size=max_message, log_config=None, access_log=False,
            server_header=False, proxy_headers=False, timeout_graceful_shutdown=grace_seconds, timeout_keep_alive=30))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own raises the signal again when all is done, which would make the end a failure."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _protocol(write_timeout: float) -> type[H11Protocol]:
    class Patient(H11Protocol):
        """Drops a connection whose client takes nothing for `write_timeout` seconds though there is something."""

        _timer: asyncio.TimerHandle | None = None

        def pause_writing(self) -> None:
            super().pause_writing()
            self._timer = self.loop.call_later(write_timeout, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._forget_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget_timer()
            super().connection_lost(exc)

        def _forget_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Patient
