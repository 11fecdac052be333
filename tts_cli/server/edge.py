"""What lies between the network and every route: an id, the key, the size of the body, counting, and the last catch."""

import ipaddress
import logging
import secrets
import time
import uuid
from urllib.parse import urlsplit

from anyio import move_on_after
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tts_cli.server.connections import LINGER_SECONDS
from tts_cli.server.errors import ApiError, api_error
from tts_cli.server.metrics import Metrics
from tts_cli.server.settings import ServerSettings

log = logging.getLogger("tts_cli.server")
LONGEST_METHOD = 20
OPEN_PATHS = ("/", "/health")  # without a key: the page asks for it, and a load balancer has none


class Edge:
    """ASGI middleware. A fault that nobody caught is logged and answered with 500, or ends the connection when the
    answer was on its way."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics):
        self._app, self._settings, self._metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})["request_id"] = uuid.uuid4().hex
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
        else:
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id, began, status = scope["state"]["request_id"], time.perf_counter(), None
        # A method may be as long as a whole head; none that is known is.
        method, body = scope["method"][:LONGEST_METHOD], _Bounded(receive, self._settings.max_body)
        scope = {**scope, "method": "GET" if method == "HEAD" else method}  # uvicorn leaves the body out

        async def identified(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
                if status == 413:
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            elif status == 413 and not message.get("more_body") and not body.ended:
                await send({**message, "more_body": True})
                await _discard(receive)
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, body, identified)
        except ClientDisconnect:
            pass  # in the midst of its request
        except Exception as error:
            fault = error
            if status is not None and error.__cause__ is not None:  # Starlette's word for one that came too late
                fault = error.__cause__
            answer = api_error(fault)
            if answer.status == 500:
                log.error("%s failed", request_id, exc_info=fault)
            if status is not None:
                raise  # the server closes the connection
            await answer.response()(scope, receive, identified)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.answered(route, status or 499)
            gone = "client gone" if status is None else ", client gone" if scope["state"].get("gone") else ""
            log.info("%s %s %s %s%s in %.2f s", request_id, method, route, status or "", gone,
                     time.perf_counter() - began)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(scope)
        except ApiError as error:
            await receive()
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Raises `ApiError` for a page that may not ask, without the right key, or for a body that says it is too
        large."""
        self._check_host(scope)
        if scope.get("method") not in ("GET", "HEAD", "OPTIONS"):
            self._check_origin(scope)
        key = self._settings.api_key
        if key is not None and scope["path"] not in OPEN_PATHS and scope.get("method") != "OPTIONS":
            scheme, _, given = _header(scope, b"authorization").partition(" ")
            right = secrets.compare_digest(given.strip().encode(), key.encode())
            if scheme.lower() != "bearer" or not right:
                raise ApiError(401, "the key is missing or wrong: send Authorization: Bearer KEY",
                               code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        length = _header(scope, b"content-length")
        if length.isdecimal() and int(length[:18]) > self._settings.max_body:
            raise too_large(self._settings.max_body)

    def _check_origin(self, scope: Scope) -> None:
        """A browser lets any page open a WebSocket, or send a form; only this server's own and the allowed ones may."""
        origin = _header(scope, b"origin")
        if origin and not self._is_allowed(origin) and origin.partition("://")[2] != _header(scope, b"host"):
            raise ApiError(403, "pages of this origin may not ask: --cors-origin ORIGIN lets them", code="forbidden")

    def _check_host(self, scope: Scope) -> None:
        """The name of a page can be made to point to this machine; then its origin is that of the request."""
        host = _header(scope, b"host")
        if self._settings.local_names and host and not _is_local(host) and not any(
                self._is_allowed(f"{scheme}://{host}") for scheme in ("http", "https")):
            raise ApiError(403, "ask by the address 127.0.0.1 or localhost; other names need --api-key, or "
                                "--cors-origin http://NAME:PORT", code="forbidden")

    def _is_allowed(self, origin: str) -> bool:
        return not {"*", origin}.isdisjoint(self._settings.cors_origins)


class _Bounded:
    """`receive` that counts the body."""

    def __init__(self, receive: Receive, most: int):
        self._receive, self._most, self._got = receive, most, 0
        self.ended = False

    async def __call__(self) -> Message:
        message = await self._receive()
        self.ended = not message.get("more_body", False)
        self._got += len(message.get("body", b""))
        if self._got > self._most:
            raise too_large(self._most)
        return message


async def _discard(receive: Receive) -> None:
    """The rest of a body that was refused, for a moment: many clients read the answer only when they have sent all,
    and would find the connection reset."""
    with move_on_after(LINGER_SECONDS):
        while (await receive()).get("more_body"):
            pass


def _is_local(host: str) -> bool:
    """Whether a Host header is a number or a name that means this machine everywhere."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or name.endswith(".localhost") or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def too_large(most: int) -> ApiError:
    return ApiError(413, f"the body is larger than {most} bytes", code="body_too_large")


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")
