"""The login's part of the ASGI app: the check of every request, and the pages to log in and out."""

import asyncio
import html
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from onceflow.dashboard.api.endpoint import refused
from onceflow.dashboard.login import COOKIE, SESSION_S, Login, TokenLogin, TooManyAttempts

FORM_BYTES_MAX = 4_096
FORM_S = 10.0
"""Maximum time for reading a form."""
ALLOWED = "onceflow.allowed"
"""Key in the scope: whether the request may have the numbers."""
OPEN_PATHS = ("/login", "/logout", "/health", "/static/")
"""Paths that need no login; /health has no details then."""


class LoginRequired:
    """Middleware that lets only requests with a login read numbers."""

    def __init__(self, app: ASGIApp, login: Login) -> None:
        self._app = app
        self._login = login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        try:
            scope[ALLOWED] = await self._login.is_allowed(HTTPConnection(scope))
        except TooManyAttempts as error:
            await refused(429, "attempts", str(error), {"Retry-After": "5"})(scope, receive, send)
            return
        if scope[ALLOWED] or path.startswith(OPEN_PATHS):
            await self._app(scope, receive, send)
        else:
            await self._refusal(path)(scope, receive, send)

    def _refusal(self, path: str) -> Response:
        if path == "/" and self._login.kind == "token":
            return RedirectResponse("/login", 303, {"Cache-Control": "no-store"})
        headers = {"WWW-Authenticate": "Bearer"} if self._login.kind == "token" else {}
        return refused(401, "login-required", "this needs a login", headers)


class LoginPages:
    """Responses of /login and /logout."""

    def __init__(self, login: TokenLogin) -> None:
        self._login = login

    async def login(self, request: Request) -> Response:
        """Show the form, or check a token that it sends."""
        if request.method != "POST":
            return _form()
        try:
            token = await _token(request)
            if token is None:
                return PlainTextResponse("the form has no token\n", 400)
            if not await self._login.is_token(token, request):
                return _form("This is not the token.", 401)
        except TooManyAttempts as error:
            return _form(str(error), 429)
        response = RedirectResponse("/", 303, {"Cache-Control": "no-store"})
        self._set_cookie(response, request, self._login.session(), SESSION_S)
        return response

    async def logout(self, request: Request) -> Response:
        """Delete the cookie."""
        response = RedirectResponse("/login", 303, {"Cache-Control": "no-store"})
        self._set_cookie(response, request, "", 0)
        return response

    def _set_cookie(self, response: Response, request: Request, value: str, age_s: int) -> None:
        # Only the browser's own proxy can set this header, and a wrong one affects nothing else.
        schemes = (request.url.scheme, request.headers.get("x-forwarded-proto", ""))
        is_secure = "https" in schemes
        response.set_cookie(COOKIE, value, max_age=age_s, path="/", httponly=True, samesite="strict", secure=is_secure)


def is_own_page(headers: Headers) -> bool:
    """Return whether a browser sends the request for a page of this server, or a program sends it."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site in ("none", "same-origin")
    return origin is None or origin.partition("://")[2] == headers.get("host")


async def _token(request: Request) -> str | None:
    """Return the token in a form; None for anything else."""
    body = b""
    try:
        async with asyncio.timeout(FORM_S):
            async for part in request.stream():
                body += part
                if len(body) > FORM_BYTES_MAX:
                    return None
        values = parse_qs(body.decode(), max_num_fields=8).get("token", [])
    except (TimeoutError, ClientDisconnect, ValueError):
        return None
    return values[0].strip() if len(values) == 1 else None


def _form(message: str = "", status: int = 200) -> Response:
    shown = f'<p role="alert">{html.escape(message)}</p>\n' if message else ""
    text = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Log in · Onceflow</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="stylesheet" href="/static/api.css"></head><body><main>\n<h1>Onceflow</h1>\n'
        f'{shown}<form method="post" action="/login">\n'
        '<label for="token">Token</label>\n'
        '<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>\n'
        "<button>Log in</button>\n</form></main></body></html>\n"
    )
    return HTMLResponse(text, status, {"Cache-Control": "no-store"})
