"""ASGI endpoint of one route: a GET with checked parameters, whose query ends when its client leaves."""

import asyncio
import contextlib
import time

from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from onceflow.dashboard.api import rows
from onceflow.dashboard.api.refusals import refusal
from onceflow.dashboard.api.service import Service
from onceflow.dashboard.api.table import BadParameter, Parsed, Reply, Route, encode_cursor
from onceflow.errors import OnceflowError

NO_STORE = {"Cache-Control": "no-store"}
RETRY_AFTER_S = "1"
ROWS_ON_THE_LOOP_MAX = 1_000
"""Rows up to which a response is written on the event loop; more would delay others."""


class Endpoint:
    """`GET /api/v1/PATH` for one line of the table."""

    def __init__(self, route: Route, service: Service) -> None:
        self._route = route
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if request.method not in ("GET", "HEAD"):
            response: Response = refused(
                405, "method", f"{request.method} is not allowed, only GET", {"Allow": "GET, HEAD"}
            )
        else:
            response = await self._respond(request)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        try:
            given = self._route.parse(request.query_params.multi_items(), time.time_ns() // 1_000_000)
            reply = await _unless_disconnected(request, self._service, self._route, given)
        except BadParameter as error:
            return refused(400, "bad-parameter", str(error), parameter=error.name)
        except OnceflowError as error:
            status, code = refusal(error)
            headers = {"Retry-After": RETRY_AFTER_S} if status == 503 else {}
            return refused(status, code, self._service.shown(error), headers)
        headers = {**NO_STORE, "Onceflow-Source": reply.source}
        if reply.cursor is not None:
            after = request.url.include_query_params(cursor=encode_cursor(reply.cursor))
            headers["Link"] = f'<{_target(after)}>; rel="next"'
        is_csv = given["format"] == "csv"
        if is_csv:
            name = self._route.path.replace("/", "-")
            headers["Content-Disposition"] = f'attachment; filename="{name}.csv"'
        layout = rows.to_csv if is_csv else rows.to_json
        if len(reply.rows) > ROWS_ON_THE_LOOP_MAX:
            body = await asyncio.to_thread(layout, self._route, reply.rows)
        else:
            body = layout(self._route, reply.rows)
        return Response(body, headers=headers, media_type="text/csv" if is_csv else "application/json")


def refused(
    status: int, code: str, message: str, headers: dict[str, str] | None = None, *, parameter: str | None = None
) -> Response:
    """Return the response of a refused request."""
    content = {"error": message, "code": code} | ({} if parameter is None else {"parameter": parameter})
    return JSONResponse(content, status, {**NO_STORE, **(headers or {})})


def _target(url: URL) -> str:
    """Return path and query, which are percent-encoded."""
    return f"{url.path}?{url.query}"


async def _unless_disconnected(request: Request, service: Service, route: Route, given: Parsed) -> Reply:
    """Return the reply, or cancel its computation when the client disconnects. Raises ClientDisconnect then."""
    reply = asyncio.ensure_future(route.handle(service, given))
    left = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((reply, left), return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            raise ClientLeft("the client closed the connection")
        return reply.result()
    finally:
        for task in (reply, left):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await left


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class ClientLeft(OnceflowError):
    """A client that does not wait for its response."""
