"""uvicorn with sockets of ours, and an end by SIGTERM that is a success and lets WebSockets finish, too."""

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from tts_cli.errors import UsageError
from tts_cli.notices import Notices
from tts_cli.server.connections import PatientWebSocket, http_protocol
from tts_cli.server.service import SpeechService

_LAST_SECONDS = 2  # for the answers to requests that were cancelled


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
    """Ends by itself after SIGTERM or Ctrl-C, with what is running finished within `grace_seconds`. What takes longer
    is cancelled, and everything at the second signal; the third waits for nobody."""

    def __init__(self, app: FastAPI, service: SpeechService, grace_seconds: int, told: Notices):
        settings = service.settings
        super().__init__(uvicorn.Config(
            app, http=http_protocol(settings.read_timeout, settings.write_timeout), ws=PatientWebSocket,
            ws_max_size=settings.max_body, log_config=None, access_log=False, server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=grace_seconds + _LAST_SECONDS, timeout_keep_alive=30))
        self._service, self._grace, self._told = service, grace_seconds, told
        self._cancelled = False

    def handle_exit(self, sig: int, frame: object) -> None:
        """On the thread of the event loop, between two of its steps."""
        if self._cancelled:
            self.force_exit = True
        elif self.should_exit:
            asyncio.get_running_loop().call_soon_threadsafe(self._cancel)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.end()
        running = self._service.worker.unfinished
        if running and not self._cancelled:
            self._told.note(f"tts: {running} {'request is' if running == 1 else 'requests are'} not done and may take "
                            f"{self._grace} s; Ctrl-C again cancels")
        late = asyncio.get_running_loop().call_later(self._grace, self._cancel)
        await super().shutdown(sockets)
        late.cancel()

    def _cancel(self) -> None:
        self._cancelled = True
        self._service.close()
        asyncio.get_running_loop().call_later(_LAST_SECONDS, setattr, self, "force_exit", True)

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
