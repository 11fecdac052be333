"""uvicorn with sockets of ours, and an end by SIGTERM that is a success and lets WebSockets finish, too."""

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI

from tts_cli.errors import UsageError
from tts_cli.server.connections import PatientWebSocket, http_protocol
from tts_cli.server.settings import ServerSettings


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
    """Ends by itself after SIGTERM or Ctrl-C, with what is running finished within `grace_seconds`.

    `ending` is called on the event loop when no new requests are taken any more.
    """

    def __init__(self, app: FastAPI, settings: ServerSettings, grace_seconds: int, ending: Callable[[], None]):
        super().__init__(uvicorn.Config(
            app, http=http_protocol(settings.read_timeout, settings.write_timeout), ws=PatientWebSocket,
            ws_max_size=settings.max_body, log_config=None, access_log=False, server_header=False, proxy_headers=False,
            timeout_graceful_shutdown=grace_seconds, timeout_keep_alive=30))
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending()
        await super().shutdown(sockets)

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
