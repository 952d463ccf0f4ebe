"""The ASGI app: the page, its files, the live feed, the same numbers as JSON, the API, and a health check.

The content security policy allows only files and scripts of this server, so that markup in a uid remains text. If the
server listens only on this machine, a request's Host header must name this machine. Otherwise a page of another site
could point its own name here and read the numbers (DNS rebinding). `onceflow.dashboard.login` has the ways to log in.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onceflow.dashboard.api import openapi
from onceflow.dashboard.api.endpoint import Endpoint, refused
from onceflow.dashboard.api.routes import PREFIX, ROUTES
from onceflow.dashboard.api.service import Service
from onceflow.dashboard.board import Document, exact
from onceflow.dashboard.feed import Feed
from onceflow.dashboard.login import NO_LOGIN, Login, TokenLogin
from onceflow.dashboard.login_pages import ALLOWED, LoginPages, LoginRequired, is_own_page
from onceflow.dashboard.metrics import PageMetrics
from onceflow.errors import OnceflowError
from onceflow.listening import is_loopback, local_names
from onceflow.remedies import Remedy

STATIC = Path(__file__).parent / "static"
GUARDED_PATHS = ("/api/", "/events", "/metrics", "/login", "/logout")
"""Paths that pages of other sites may not request."""
UID_BYTES_MAX = 1_024
"""Maximum size of a valid uid; longer ones are refused."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    # A browser revalidates each time and gets 304 for an unchanged file: a new release shows at once.
    "Cache-Control": "no-cache",
}


class SafeHeaders:
    """Middleware that adds HEADERS to every response, errors included."""

    def __init__(self, app: ASGIApp, *, has_forms: bool) -> None:
        self._app = app
        policy = HEADERS["Content-Security-Policy"]
        own_forms = policy.replace("form-action 'none'", "form-action 'self'")
        self._headers = HEADERS | {"Content-Security-Policy": own_forms if has_forms else policy}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class EventStream:
    """`GET /events`: server-sent events until the page closes or the server stops."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._feed.full:
            refusal = PlainTextResponse(f"too many pages are open: {Remedy.CLOSE_PAGES}", 503)
            await refusal(scope, receive, send)
            return
        # The response is cancelled when the page closes; closing the generator here ends its subscription at once.
        async with contextlib.aclosing(self._feed.listen()) as documents:
            events = (as_event(document) async for document in documents)
            await StreamingResponse(events, media_type="text/event-stream")(scope, receive, send)


def as_event(document: Document | None) -> bytes:
    """Return one server-sent event: a snapshot, or a keep-alive."""
    if document is None:
        return b"event: alive\ndata: {}\n\n"
    # JSON text has no line breaks, so one data line is enough for any content.
    return b"retry: 1000\nevent: snapshot\ndata: " + json.dumps(document).encode() + b"\n\n"


class OwnPages:
    """Middleware that refuses requests of other sites' pages, which browsers mark; links to the page itself work."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_guarded = scope["type"] == "http" and scope["path"].startswith(GUARDED_PATHS)
        if is_guarded and not is_own_page(Headers(scope=scope)):
            refusal = refused(403, "forbidden", "pages of other sites may not read this, only the dashboard itself")
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def create_app(
    feed: Feed,
    host: str = "127.0.0.1",
    service: Service | None = None,
    login: Login = NO_LOGIN,
    server_names: Sequence[str] = (),
) -> Starlette:
    """Return the app.

    `host` is the address that the server listens on: on loopback, a Host header must name this machine or one of
    `server_names`. `service` has the sources of the API, by default without an archive.
    """
    service = service or Service(feed, feed.addresses)
    metrics = PageMetrics(feed.addresses, lambda: feed.listeners)
    service.login = login.kind

    async def page(_: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def snapshot(_: Request) -> Response:
        return JSONResponse(await feed.document())

    async def user(request: Request) -> Response:
        return await _user(feed, request.query_params.get("uid", ""))

    async def health(request: Request) -> Response:
        services = (await feed.document())["services"]
        well = all(service["state"] == "up" for service in services.values())
        shown = services if request.scope[ALLOWED] else {}
        return JSONResponse({"ok": well, **shown}, 200 if well else 503)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await feed.close()
            await service.close()
            await asyncio.to_thread(metrics.close)

    routes = [
        Route("/", page),
        Route("/events", EventStream(feed)),
        Route("/api/snapshot", snapshot),
        Route("/api/user", user),
        Route("/health", health),
        Route("/metrics", metrics.respond),
        *_api_routes(service),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    if isinstance(login, TokenLogin):
        pages = LoginPages(login)
        routes.append(Route("/login", pages.login, methods=["GET", "POST"]))
        routes.append(Route("/logout", pages.logout, methods=["POST"]))
    return Starlette(routes=routes, middleware=_middleware(host, login, server_names), lifespan=lifespan)


def _api_routes(service: Service) -> list[Route]:
    async def page(_: Request) -> Response:
        return HTMLResponse(openapi.page())

    async def document(_: Request) -> Response:
        return JSONResponse(openapi.document())

    async def no_such_path(request: Request) -> Response:
        return refused(404, "not-found", f"no such path: {request.url.path}; /api lists all")

    return [
        Route("/api", page),
        Route("/api/openapi.json", document),
        *(Route(PREFIX + route.path, Endpoint(route, service)) for route in ROUTES),
        Route("/api/{path:path}", no_such_path),
    ]


def _middleware(host: str, login: Login, server_names: Sequence[str]) -> list[Middleware]:
    middleware = [Middleware(SafeHeaders, has_forms=isinstance(login, TokenLogin)), Middleware(OwnPages)]
    if is_loopback(host) or server_names:
        names = [*(local_names(host) if is_loopback(host) else ()), *server_names]
        middleware.append(Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False))
    return [*middleware, Middleware(LoginRequired, login=login)]


async def _user(feed: Feed, uid: str) -> Response:
    if not 0 < len(uid.encode()) <= UID_BYTES_MAX:
        return JSONResponse({"error": f"uid must have 1 to {UID_BYTES_MAX:,} bytes"}, 400)
    try:
        user = await feed.clicks_of(uid)
    except OnceflowError as error:
        return JSONResponse({"error": str(error)}, 503)
    clicks = None if user.clicks is None else exact(user.clicks)
    return JSONResponse({"uid": uid, "clicks": clicks, "live": user.is_live})
