"""Responses of the API's routes: each handler asks the service and returns rows with the route's fields."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from onceflow.clicks import time_queries
from onceflow.clicks.analytics import Analytics, UserSummary
from onceflow.clicks.counted import Counted
from onceflow.clicks.measures import RETENTION_MS
from onceflow.clicks.time_queries import Range
from onceflow.clicks.windows import WIDTHS, Width
from onceflow.dashboard.api.refusals import NoUser
from onceflow.dashboard.api.service import Service
from onceflow.dashboard.api.table import Parsed, Reply
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

Row = Mapping[str, Any]
SEARCHED_MAX = 100_000
"""Users that one search compares."""
BATCHES_MAX = 60
COUNTS, ARCHIVE, LIVE, LOG = "counts", "archive", "live", "log"
"""Sources of responses."""


def _width(name: str) -> Width:
    return next(width for width in WIDTHS if width.name == name)


def _range(given: Parsed) -> Range:
    begin = given["from"]
    if begin == "all":
        return Range(None, given["to"], from_oldest=True)
    return Range(begin, given["to"])


# Numbers of a time


async def totals(service: Service, given: Parsed) -> Reply:
    asked, users = _range(given), given["users"]
    counts, source = await service.numbers(given, lambda numbers: time_queries.totals(numbers, asked, users=users))
    return Reply([counts], source)


async def series(service: Service, given: Parsed) -> Reply:
    asked, width, zone = _range(given), _width(given["per"]), given["tz"]
    options = {"by": given["by"], "values": given["values"], "users": given["users"]}
    rows, source = await service.numbers(
        given, lambda numbers: time_queries.series(numbers, width, asked, zone, **options)
    )
    return Reply(rows, source)


async def windows(service: Service, given: Parsed) -> Reply:
    options = {"by": given["by"], "values": given["values"], "begin_ms": given["from"], "end_ms": given["to"]}
    rows = await service.of_counts(lambda analytics: analytics.windows(given["length"], given["slide"], **options))
    return Reply(rows, COUNTS)


async def today(service: Service, given: Parsed) -> Reply:
    at_ms, zone, users = given["at"], given["tz"], given["users"]
    rows, source = await service.numbers(given, lambda numbers: time_queries.today(numbers, at_ms, zone, users=users))
    return Reply(rows, source)


async def today_total(service: Service, given: Parsed) -> Reply:
    at_ms, zone, users = given["at"], given["tz"], given["users"]
    row, source = await service.numbers(
        given, lambda numbers: time_queries.today_total(numbers, at_ms, zone, users=users)
    )
    return Reply([row], source)


async def top(service: Service, given: Parsed) -> Reply:
    asked, dimension, count = _range(given), given["dimension"], given["limit"]
    rows, source = await service.numbers(given, lambda numbers: time_queries.top(numbers, dimension, asked, count))
    return Reply(rows, source)


# Users and sessions


async def users(service: Service, given: Parsed) -> Reply:
    search, count = given["search"], given["limit"]
    first = given["cursor"][0] if given["cursor"] else 0

    def ask(analytics: Analytics) -> tuple[list[tuple[str, int]], int]:
        analytics.settings()
        if search is None:
            page = analytics.ranking(first, count)
            return page, first + count if len(page) == count else 0
        users, cursor = analytics.search_users(search, first, count, SEARCHED_MAX)
        return list(users.items()), cursor

    page, after = await service.of_counts(ask)
    return Reply([{"uid": uid, "clicks": clicks} for uid, clicks in page], COUNTS, (after,) if after else None)


async def user(service: Service, given: Parsed) -> Reply:
    uid = given["uid"]

    def ask(analytics: Analytics) -> tuple[Counted | None, UserSummary | None, tuple[int, int | None]]:
        counted = analytics.settings()
        if counted is None or not counted.has_sessions:
            return counted, None, (0, None)
        return counted, analytics.user(uid, sessions=1), analytics.session_count(uid)

    counted, summary, (count, _) = await service.of_counts(ask)
    view = await service.feed.clicks_of(uid)
    if view.clicks is None:
        raise NoUser(f"{uid} has no event in {service.addresses.hash_key}")
    has_sessions = counted is not None and counted.has_sessions
    last_ms = summary.sessions[0].ended_ms if summary is not None and summary.sessions else None
    active = None
    if counted is not None and has_sessions and counted.newest_ms is not None:
        active = last_ms is not None and last_ms >= counted.newest_ms - counted.session_gap_ms
    row = {"uid": uid, "clicks": view.clicks, "live": view.is_live, "active": active, "last_ms": last_ms}
    return Reply([{**row, "sessions": count if has_sessions else None}], LIVE if view.is_live else COUNTS)


async def sessions(service: Service, given: Parsed) -> Reply:
    count, times = given["limit"], {"begin_ms": given["from"], "end_ms": given["to"]}
    rows = await service.of_counts(
        lambda analytics: analytics.newest_sessions(given["uid"], **times, count=count, before=given["cursor"])
    )
    after = (rows[-1].started_ms, rows[-1].uid) if len(rows) == count else None
    return Reply(rows, COUNTS, after)


async def sessions_summary(service: Service, given: Parsed) -> Reply:
    summary = await service.of_counts(
        lambda analytics: analytics.sessions_summary(begin_ms=given["from"], end_ms=given["to"])
    )
    return Reply([summary], COUNTS)


async def sessions_series(service: Service, given: Parsed) -> Reply:
    width = _width(given["per"])
    rows = await service.of_counts(
        lambda analytics: analytics.sessions_per(width, begin_ms=given["from"], end_ms=given["to"])
    )
    return Reply(rows, COUNTS)


async def timeline(service: Service, given: Parsed) -> Reply:
    uid, count, before = given["uid"], given["limit"], given["cursor"]
    rows = await service.of_archive(
        lambda numbers: numbers.timeline(uid, given["from"], given["to"], count, before), given["where"]
    )
    last = rows[-1] if len(rows) == count else None
    return Reply(rows, ARCHIVE, None if last is None else (last["time_ms"], last["partition"], last["offset"]))


# Now


async def now(service: Service, _: Parsed) -> Reply:
    document = await service.feed.document()
    active, counted = await service.of_counts(lambda analytics: (analytics.active(), analytics.settings()))
    has_sessions = counted is not None and counted.has_sessions
    row = {
        **document["now"],
        **{name: document["totals"][name] for name in ("events", "clicks", "users", "bad")},
        "active": active,
        "active_gap_ms": counted.session_gap_ms if counted is not None and has_sessions else None,
        "newest_ms": None if counted is None else counted.newest_ms,
    }
    return Reply([row], LIVE if document["now"]["live"] else COUNTS)


async def latest(service: Service, given: Parsed) -> Reply:
    return Reply(await service.latest(given["limit"]), LOG)


async def quality(service: Service, _: Parsed) -> Reply:
    return Reply([await service.of_counts(lambda analytics: analytics.quality())], COUNTS)


async def bad(service: Service, _: Parsed) -> Reply:
    document = await service.feed.document()
    shown = service.feed.shown
    rows = [] if shown is None else [{"reason": name, "events": n} for name, n in shown.bad_by_reason.items()]
    return Reply(rows, LIVE if document["now"]["live"] else COUNTS)


async def bad_records(service: Service, given: Parsed) -> Reply:
    return Reply(await service.bad_records(given["limit"]), LOG)


# The server and its sources


async def health(service: Service, _: Parsed) -> Reply:
    document = await service.feed.document()
    services = document["services"]
    history = [] if service.feed.counts is None else service.feed.counts.history[:BATCHES_MAX]
    row = {
        "ok": all(one["state"] == "up" for one in services.values()),
        **services,
        "lag": document["lag"],
        "batch": document["batch"],
        "events_per_second": document["rate"]["last_minute"],
        "stopped_since_ms": document["stopped_since_ms"],
        "batches": [
            {"batch": entry.batch, "finished_ms": entry.finished_ms, "events": entry.events} for entry in history
        ],
        "links": [{"name": name, "url": url} for name, url in service.links],
        "archive": await _archive_health(service),
        "verify": await _last_verify(service),
    }
    return Reply([row], LIVE)


async def _last_verify(service: Service) -> Row | None:
    try:
        last = await service.of_counts(lambda analytics: analytics.last_verify())
    except OnceflowError:  # The state of Redis is in the same response.
        return None
    return None if last is None else {**asdict(last), "equal": last.is_equal}


async def _archive_health(service: Service) -> Row | None:
    if service.archive is None:
        return None
    try:
        return {**asdict(await service.archive_state()), "error": None}
    except OnceflowError as error:
        unknown = dict.fromkeys(("events", "files", "behind_messages", "as_of_ms"))
        return {**unknown, "error": service.shown(error)}


async def capabilities(service: Service, _: Parsed) -> Reply:
    counted, reason = None, None
    try:
        counted = await service.of_counts(lambda analytics: analytics.settings())
    except OnceflowError as error:
        reason = service.shown(error)
    has_archive = service.archive is not None
    unavailable = [] if reason is None else [{"what": "counts", "reason": reason}]
    if not has_archive:
        needed = f"the server has no archive; {Remedy.SHOW_ARCHIVE}"
        unavailable += [{"what": what, "reason": needed} for what in ("filters", "timeline")]
    measures = None if counted is None else counted.measures
    if measures is not None:
        unavailable += [
            {"what": what, "reason": f"the job does not count this: {Remedy.COUNT_OVER_TIME}"}
            for what in ("over_time", "sessions")
            if not getattr(measures, what)
        ]
    topic = None if counted is None else counted.topic
    row = {
        "topic": topic or service.addresses.topic,
        "hash_key": service.addresses.hash_key,
        "login": service.login,
        "counted": counted is not None,
        "over_time": None if measures is None else measures.over_time,
        "sessions": None if measures is None else measures.sessions,
        "session_gap_ms": None if measures is None else measures.session_gap_ms,
        "exact_users_max": None if measures is None else measures.exact_users_max,
        "dimensions": [
            {"name": name, "field": field} for name, field in (measures.dimensions if measures else {}).items()
        ],
        "newest_ms": None if counted is None else counted.newest_ms,
        "kept_from_ms": {} if counted is None else {name: _kept_from(counted, name) for name in RETENTION_MS},
        "archive": has_archive,
        "timeline": has_archive,
        "filters": has_archive,
        "unavailable": unavailable,
    }
    return Reply([row], COUNTS)


def _kept_from(counted: Counted, target: str) -> int | None:
    is_kept = counted.measures.retention_of(target) is None
    return None if is_kept or counted.newest_ms is None else counted.floor_ms(target)
