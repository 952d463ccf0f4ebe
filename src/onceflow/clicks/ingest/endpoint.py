"""The ASGI app of `onceflow serve`: `POST /events`, the script for web pages, a health check.

A request passes, in this order: key and origin, rate limits, size and memory, the rules of docs/events.md. A valid
event is written to the topic, and the response follows when every event is acknowledged or known to have failed. Load
costs no memory, because a request is refused before its body is kept.
"""

import asyncio
import contextlib
import logging
import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from onceflow.clicks.events import Reason, Rules
from onceflow.clicks.ingest.access import Access, ApiKey
from onceflow.clicks.ingest.appender import Appender, Unwritten
from onceflow.clicks.ingest.body import Body, BodyRefused, split
from onceflow.clicks.ingest.limits import Memory, RateLimit
from onceflow.clicks.ingest.visits import Stamp, is_bot
from onceflow.metrics_server import BOUNDS_S

SCRIPT = Path(__file__).parent / "static" / "onceflow.js"
SCRIPT_BYTES_MAX = 2_048
SCRIPT_AGE_S = 3_600
EVENTS_MAX = 10_000
"""Events of one request."""
EVENT_MEMORY = 1_024
"""Bytes that one event takes beside its text, here and in librdkafka."""
BODY_SECONDS = 10.0
RETRY_AFTER_S = 1
PREFLIGHT_AGE_S = 86_400
PROBE_SECONDS = 5.0
BOT = "bot"

_log = logging.getLogger(__name__)

Verdict = bytes | str
"""An event's key (it is valid), or the reason why it is not accepted."""


@dataclass(slots=True)
class Limits:
    """Limits of one request, and of all together."""

    memory: Memory
    body_bytes: int
    of_addresses: RateLimit
    of_keys: dict[str, RateLimit] = field(default_factory=dict)

    def wait_s(self, key: ApiKey, address: str) -> float:
        """Return the seconds until a request of this key and address may be read; 0 if it may now."""
        of_key = self.of_keys.get(key.name)
        return max(self.of_addresses.wait_s(address), of_key.wait_s(key.name) if of_key else 0.0)

    def count(self, key: ApiKey, address: str, events: int) -> None:
        """Count events of this key and address."""
        self.of_addresses.count(address, events)
        if key.name in self.of_keys:
            self.of_keys[key.name].count(key.name, events)


class Refused(Exception):
    """Request that is refused as a whole."""

    def __init__(self, status: int, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s


class Traffic:
    """Totals of the requests to `/events`."""

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()
        """Number of requests by status."""
        self.body_bytes = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        """Number of requests by their time."""

    def add(self, status: int, seconds: float) -> None:
        """Count a response."""
        self.requests[status] += 1
        self.seconds += seconds
        self.buckets[bisect_left(BOUNDS_S, seconds)] += 1


class Endpoint:
    """`POST /events` and its preflight. `counts` has the number of events by result."""

    def __init__(
        self, appender: Appender, rules: Rules, stamp: Stamp, access: Access, limits: Limits, *, keep_bots: bool = False
    ) -> None:
        self._appender = appender
        self._rules = rules
        self._stamp = stamp
        self._access = access
        self._limits = limits
        self._keep_bots = keep_bots
        self.counts: Counter[str] = Counter()
        self.traffic = Traffic()

    @property
    def memory(self) -> Memory:
        """Memory of the requests in progress."""
        return self._limits.memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        began_s = time.perf_counter()
        try:
            response = self._preflight(request) if request.method == "OPTIONS" else await self._post(request)
        except Refused as refused:
            self.counts[refused.reason] += 1
            response = _refusal(refused)
        except ClientDisconnect:
            return
        self.traffic.add(response.status_code, time.perf_counter() - began_s)
        origin = request.headers.get("origin")
        if origin is not None and self._access.knows(origin):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = "Retry-After"
        response.headers["Vary"] = "Origin"
        response.headers["Cache-Control"] = "no-store"
        await response(scope, receive, send)

    def _preflight(self, request: Request) -> Response:
        if not self._access.knows(request.headers.get("origin", "")):
            raise Refused(403, "origin-not-allowed")
        headers = {
            "Access-Control-Allow-Methods": "POST",
            "Access-Control-Allow-Headers": "authorization, content-encoding, content-type",
            "Access-Control-Max-Age": str(PREFLIGHT_AGE_S),
        }
        return Response(status_code=204, headers=headers)

    async def _post(self, request: Request) -> Response:
        address = request.client.host if request.client else ""
        memory = _Share(self._limits.memory)
        try:
            try:
                key = self._checked(request, address)
            except Refused:
                await _discard(request, self._limits.body_bytes)
                raise
            events = await self._events(request, memory)
            memory.take(len(events) * EVENT_MEMORY)
            self._limits.count(key, address, len(events))
            agent = request.headers.get("user-agent", "")
            if not self._keep_bots and is_bot(agent):
                if BOT not in self.counts:
                    _log.warning(
                        "without --keep-bots events of bots are refused and counted; the first: User-Agent %.200r",
                        agent,
                    )
                return self._results([BOT] * len(events))
            return self._results(await self._write(events, address))
        finally:
            memory.give_back()

    def _checked(self, request: Request, address: str) -> ApiKey:
        """Return the request's key. Raises Refused."""
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        secret = bearer if scheme.lower() == "bearer" else request.query_params.get("key", "")
        key = self._access.key(secret)
        if key is None:
            raise Refused(401, "unknown-key")
        if not key.allows(request.headers.get("origin")):
            raise Refused(403, "origin-not-allowed")
        wait_s = self._limits.wait_s(key, address)
        if wait_s > 0:
            raise Refused(429, "too-many-events", wait_s)
        return key

    async def _events(self, request: Request, memory: "_Share") -> list[bytes]:
        """Read the body within memory and time, and return its events. Raises Refused."""
        try:
            if _declared_bytes(request) > self._limits.body_bytes:
                raise BodyRefused("body-too-large", 413)
            body = Body(request.headers.get("content-encoding", "").strip().lower(), self._limits.body_bytes)
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    self.traffic.body_bytes += len(chunk)
                    before = len(body)
                    memory.take(len(chunk))
                    body.add(chunk)
                    memory.take(len(body) - before)
            return split(body.content(), EVENTS_MAX)
        except BodyRefused as error:
            raise Refused(error.status, str(error)) from error
        except TimeoutError as error:
            raise Refused(408, "body-too-slow") from error

    async def _write(self, events: Sequence[bytes], address: str) -> list[str | None]:
        """Write the valid events; return None or the reason for each."""
        at_ms = self._stamp.clock_ms()
        fields = self._stamp.of(address, at_ms)
        results: list[str | None] = []
        records = []
        for event in events:
            click = self._rules.judge(event)
            if isinstance(click, Reason):
                results.append(click)
            else:
                results.append(None)
                records.append((click.uid.encode(), self._stamp.add(event, fields, at_ms)))
        written = iter(await self._appender.append(records, at_ms))
        return [next(written) if reason is None else reason for reason in results]

    def _results(self, reasons: Sequence[str | None]) -> Response:
        self.counts.update(reason or "ok" for reason in reasons)
        results = [
            {"index": index, "ok": True} if reason is None else {"index": index, "ok": False, "reason": reason}
            for index, reason in enumerate(reasons)
        ]
        document = {"accepted": reasons.count(None), "results": results}
        is_final = Unwritten.NOT_ACKNOWLEDGED not in reasons
        headers = {} if is_final else {"Retry-After": str(RETRY_AFTER_S)}
        content = msgspec.json.encode(document)
        return Response(content, 200 if is_final else 503, headers, "application/json")


class _Share:
    """One request's share of the memory."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._taken = 0

    def take(self, count: int) -> None:
        """Take bytes. Raises Refused if none are left."""
        if not self._memory.take(count):
            raise Refused(503, "busy", RETRY_AFTER_S)
        self._taken += count

    def give_back(self) -> None:
        """Return all of them."""
        self._memory.give_back(self._taken)


def _declared_bytes(request: Request) -> int:
    """Return Content-Length; 0 if it is absent."""
    return int(request.headers.get("content-length", 0))


async def _discard(request: Request, bytes_max: int) -> None:
    """Read a small body without keeping it: a client that is still sending would not see the response."""
    if _declared_bytes(request) <= bytes_max:
        left = bytes_max
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    left -= len(chunk)
                    if left < 0:
                        break


def _refusal(refused: Refused) -> Response:
    # The rest of a body is not read, so the connection cannot be used again.
    headers = {"Connection": "close"}
    if refused.retry_after_s:
        headers["Retry-After"] = str(max(1, math.ceil(refused.retry_after_s)))
    return JSONResponse({"error": refused.reason}, refused.status, headers)


def script() -> bytes:
    """Return the script for web pages as it is served: without comments and indentation."""
    lines = (line.strip() for line in SCRIPT.read_text().splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//")).encode()


def create_app(endpoint: Endpoint, appender: Appender) -> Starlette:
    """Return the app; it asks every 5 s whether the topic can be written, for the health check."""
    served = script()
    is_up = True

    async def probe() -> None:
        nonlocal is_up
        while True:
            is_up = await appender.topic_exists(PROBE_SECONDS)
            await asyncio.sleep(PROBE_SECONDS)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(probe())
        try:
            yield
        finally:
            task.cancel()
            await appender.close()

    async def health(_: Request) -> Response:
        well = is_up and appender.failure is None
        return JSONResponse({"ok": well}, 200 if well else 503)

    async def tag(_: Request) -> Response:
        headers: dict[str, Any] = {
            "Cache-Control": f"public, max-age={SCRIPT_AGE_S}",
            "Cross-Origin-Resource-Policy": "cross-origin",
            "X-Content-Type-Options": "nosniff",
        }
        return Response(served, headers=headers, media_type="text/javascript")

    routes = [
        Route("/events", endpoint, methods=["POST", "OPTIONS"]),
        Route("/onceflow.js", tag),
        Route("/healthz", health),
    ]
    return Starlette(routes=routes, lifespan=lifespan)
