"""The live page: serves what a run folder holds, and never writes to it.

One thread reads the folder. It makes the data anew when records have been added, and the status
when rounds have been done; viewers get the bytes that are ready, so that their number does not
slow down the reading, and the run does not notice either. A viewer that connects, or connects
again after a restart of either side, gets the status at once and fetches the data if its version
is another. Nothing is missed in between, because both are whole.
"""

from __future__ import annotations

import asyncio
import gzip
import hmac
import ipaddress
import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from adcs.experiments.page import page_data
from adcs.experiments.page.document import document, json_text
from adcs.experiments.page.source import RunSource
from adcs.experiments.page.status import RunStatus, metrics_text
from adcs.run_folder import RunFolder

POLL_SECONDS = 0.2
"""Time between two looks at the folder."""

LEAST_PAUSE = 0.5
"""Time between two makings of the data; as long as one takes, if that is longer."""

LEAVE_SECONDS = 3
"""Viewers have so many seconds to leave when the server ends."""

SEND_SECONDS = 10.0
"""A viewer that does not take an event within this time is disconnected; it may connect again."""

BEAT_SECONDS = 15.0
"""Time between comments on a connection without events, which keep proxies from closing it."""

COOKIE = "adcs_token"

log = logging.getLogger(__name__)


class Watched:
    """What viewers get: the data and the status, as bytes, kept current by a thread.

    Parameters
    ----------
    folder
        The run folder.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._source = RunSource(folder)
        self._status = RunStatus(self._source)
        self._boot = secrets.token_hex(4)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="adcs-watch", daemon=True)
        self._versions = 0
        self._built = 0.0
        self._stale = True
        self.sequence = 0
        self.data = b""
        self.event = b""
        self.metrics = ""

    def start(self) -> None:
        """Read the folder once, and then again and again."""
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; viewers are disconnected."""
        self._stop.set()

    @property
    def stopped(self) -> bool:
        """Whether it was stopped."""
        return self._stop.is_set()

    def _run(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            try:
                self.look()
            except Exception as error:  # A file that is being replaced; the next look finds it.
                log.warning("the run folder cannot be read: %s", error)

    def look(self) -> None:
        """Read what is new and make it ready for viewers."""
        if self._source.read():
            self._stale = self._news = True
        if self._stale and (not self.data or time.monotonic() - self._built >= self._pause):
            started = time.thread_time()
            data = page_data(self._source)
            self.data = gzip.compress(json_text({**data, "live": True}).encode(), 1)
            self._stale = False
            self._built = time.monotonic()
            self._pause = max(LEAST_PAUSE, time.thread_time() - started)
            self._versions += 1
        status = self._status.now(changed=self._news)
        if self._news or status is not self._shown:
            self.metrics = metrics_text(self._source, status)
            self._shown = status
        self._news = False
        body = {**status, "version": f"{self._boot}-{self._versions}"}
        text = json_text(body).encode()
        if text != self._text:
            self._text = text
            self.sequence += 1
            self.event = f"id: {self._boot}-{self.sequence}\ndata: ".encode() + text + b"\n\n"

    _news = True
    _text = b""
    _pause = 0.0
    _shown: Mapping[str, Any] | None = None


class Events:
    """Server-sent events: the status of the run, whenever it has changed.

    Parameters
    ----------
    watched
        What viewers get.
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the viewer leaves or is too slow."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await self._feed(send, gone)
        except (TimeoutError, asyncio.CancelledError):
            pass  # Too slow, or still there after `LEAVE_SECONDS`.
        finally:
            gone.cancel()

    async def _feed(self, send: Send, gone: asyncio.Task[None]) -> None:
        sent, beat = -1, time.monotonic()
        while not (gone.done() or self._watched.stopped):
            now, body = time.monotonic(), b""
            if self._watched.sequence != sent:
                sent, body = self._watched.sequence, self._watched.event
            elif now - beat > BEAT_SECONDS:
                body = b":\n\n"
            if body:
                beat = now
                message = {"type": "http.response.body", "body": body, "more_body": True}
                async with asyncio.timeout(SEND_SECONDS):
                    await send(message)
            await asyncio.wait([gone], timeout=0.2)
        if not gone.done():
            await send({"type": "http.response.body", "body": b""})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class TokenGuard:
    """Refuses requests without the token.

    A link with `?token=` sets a cookie and leads to the page without it, so that the token does not
    stay in the address. Programs send `Authorization: Bearer TOKEN`.

    Parameters
    ----------
    app
        The application behind it.
    token
        The token.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    def _fits(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if it has the token."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        kind, _, value = request.headers.get("authorization", "").partition(" ")
        response: Response
        if self._fits(request.cookies.get(COOKIE, "")) or (
            kind.lower() == "bearer" and self._fits(value.strip())
        ):
            await self._app(scope, receive, send)
            return
        if request.url.path == "/" and self._fits(request.query_params.get("token", "")):
            response = RedirectResponse("/", status_code=303)
            response.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
        else:
            response = PlainTextResponse("this page needs its token\n", status_code=401)
        await response(scope, receive, send)


SECURITY = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
}


def application(watched: Watched, *, host: str, token: str | None) -> Starlette:
    """Return the application of the live page; it answers GET and HEAD only.

    Parameters
    ----------
    watched
        What viewers get.
    host
        The address that it is served on. On loopback, requests for other host names are refused: a
        page elsewhere cannot read the run through a name that leads here.
    token
        What requests must have; None for none.
    """
    page = document({"live": True, "title": "adcs"}, "adcs watch")

    def show(_: Request) -> Response:
        return HTMLResponse(page, headers={**SECURITY, "cache-control": "no-store"})

    def data(request: Request) -> Response:
        headers = {**SECURITY, "cache-control": "no-store", "vary": "accept-encoding"}
        body = watched.data
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
        else:
            body = gzip.decompress(body)
        return Response(body, media_type="application/json", headers=headers)

    def metrics(_: Request) -> Response:
        return Response(
            watched.metrics, media_type="text/plain; version=0.0.4", headers=dict(SECURITY)
        )

    middleware = []
    if is_loopback(host):
        names = ["localhost", "127.0.0.1", "[::1]", "::1", host]
        middleware.append(Middleware(TrustedHostMiddleware, allowed_hosts=names))
    if token is not None:
        middleware.append(Middleware(TokenGuard, token=token))
    routes = [
        Route("/", show),
        Route("/data.json", data),
        Route("/metrics", metrics),
        Route("/events", Events(watched), methods=["GET"]),
    ]
    return Starlette(routes=routes, middleware=middleware)


class Server(uvicorn.Server):
    """Serves the live page; when it ends, it lets viewers leave first.

    Parameters
    ----------
    watched
        What viewers get.
    app
        The application of the live page.
    """

    def __init__(self, watched: Watched, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app,
            log_level="warning",
            timeout_graceful_shutdown=LEAVE_SECONDS,
            server_header=False,
            ws="none",
        )
        super().__init__(config)
        self._watched = watched

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the events of viewers, or the server would wait for them."""
        self._watched.stop()
        await super().shutdown(sockets)


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(
    folder: RunFolder,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the page of a run folder until interrupted.

    Parameters
    ----------
    folder
        The run folder.
    host, port
        Where to serve; port 0 takes a free one.
    token
        What requests must have. Without loopback one is needed, and made if none is given.
    ready
        Called with the address of the page.
    """
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    watched = Watched(folder)
    watched.start()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()  # A viewer that comes before the server is up waits.
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}/"
        ready(address if token is None else f"{address}?token={token}")
        Server(watched, application(watched, host=host, token=token)).run(sockets=[listener])


def parsed_event(text: bytes) -> dict[str, Any]:
    """Return the status in an event.

    >>> parsed_event(b'id: a-1\\ndata: {"version":"a-1"}\\n\\n')["version"]
    'a-1'
    """
    line = next(part for part in text.splitlines() if part.startswith(b"data: "))
    found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
    return found
