"""The read model: the pipeline's counts as a reader of Redis sees them.

With the hash key H (by default `app::users::click`, database 1) the pipeline keeps these keys. The atomic scripts that
write the marker also write them, so they always match it at a complete batch:

    H              hash   uid → sum of clicks
    {H}:top        zset   uid → the same sum, for the ranking
    {H}:os         hash   os_type → clicks
    {H}:totals     hash   events (all that were read), clicks (their sum), bad (events that are not valid), and
                          duplicates (records that are not in events, because their id has been counted)
    {H}:bad        hash   reason → bad events
    {H}:dead       list   the newest 10,000 bad events as partition:offset:reason, newest first
    {H}:history    list   the newest 600 micro-batches as JSON, newest first
    {H}:announced  hash   plan (JSON) and topic of the job that started last, for readers while there is no marker
    {H}:onceflow   hash   the marker (written and described by `onceflow.spark.redis.marker`)

This module only reads. It imports redis and nothing of Spark, so that the dashboard and the command line start
quickly. Only functions that take a `Cluster` read the log.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

import redis

from onceflow.clicks.plan import Plan, parse_plan
from onceflow.errors import OnceflowError
from onceflow.redis import errors as redis_errors
from onceflow.redis.address import shown
from onceflow.redis.route import open_client
from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.batch import AcceptedLoss

if TYPE_CHECKING:
    from onceflow.client.cluster import Cluster
    from onceflow.client.lag import Lag
    from onceflow.wire.batch import Record

HASH_KEY = "app::users::click"
REDIS_URL = "redis://127.0.0.1:6379/1"
HISTORY_LENGTH = 600
DEAD_LENGTH = 10_000
SOCKET_TIMEOUT_S = 5.0
PLAN, TOPIC = "plan", "topic"
"""Fields of what a job announces."""
SCAN_FIELDS = 5_000
SEARCH_FIELDS = 500
_GLOB = re.compile(r"[*?\[\]^\\-]")
"""Characters with a meaning in Redis's patterns."""
_Read = TypeVar("_Read")
SNAPSHOT_ATTEMPTS = 100
SNAPSHOT_PAUSE_S = 0.1
"""Pause between attempts to read while no batch is being written."""


class RedisUnreachable(OnceflowError):
    """Redis that does not respond, or not as Redis does."""


class NothingCounted(OnceflowError):
    """Hash key without a marker: no pipeline has written there."""


class OtherJob(OnceflowError):
    """Counts under this hash key that are not those of 'onceflow run'."""


class NoConsistentSnapshot(OnceflowError):
    """No micro-batch stayed complete while its counts were read."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of the keys of one hash key; all share its slot in a cluster."""

    count: str

    @property
    def _tag(self) -> str:
        return self.count if "{" in self.count else f"{{{self.count}}}"

    def beside(self, name: str) -> str:
        """Return the key of a measure, such as `minute:os`."""
        return f"{self._tag}:{name}"

    @property
    def marker(self) -> str:
        return f"{self._tag}:onceflow"

    @property
    def top(self) -> str:
        return f"{self._tag}:top"

    @property
    def os(self) -> str:
        return f"{self._tag}:os"

    @property
    def totals(self) -> str:
        return f"{self._tag}:totals"

    @property
    def bad(self) -> str:
        return f"{self._tag}:bad"

    @property
    def dead(self) -> str:
        return f"{self._tag}:dead"

    @property
    def history(self) -> str:
        return f"{self._tag}:history"

    @property
    def verified(self) -> str:
        return f"{self._tag}:verified"

    @property
    def announced(self) -> str:
        return f"{self._tag}:announced"


PartitionOffsets = dict[str, dict[int, int]]
"""Topic → partition → offset."""


@dataclass(frozen=True, slots=True)
class MarkerView:
    """The marker's fields that a reader needs; offsets are the exclusive ends of the complete batch."""

    query: str
    batch: int
    complete: bool
    offsets: PartitionOffsets
    since: PartitionOffsets
    plan: str
    started_ms: int
    finished_ms: int
    duration_ms: int | None
    losses: tuple[AcceptedLoss, ...]
    """Accepted data loss, oldest first."""
    fields: Mapping[str, str]
    """All fields in Redis, to detect changes of the marker."""

    @property
    def identity(self) -> tuple[str, ...]:
        """Markers of one identity have the same counts: a complete batch changes only by a rebuild."""
        fields = self.fields
        return (self.query, str(self.batch), fields.get("digest", ""), str(self.complete), fields.get("rebuilt", ""))

    @property
    def topic_ids(self) -> dict[str, str]:
        """Ids of the topics that were counted, as far as the broker reports them."""
        ids: dict[str, str] = json.loads(self.fields.get("topic_ids", "{}"))
        return ids

    @property
    def counted_fields(self) -> tuple[str, str | None] | None:
        """The fields of the key and the sum of 'onceflow run'; None if another job wrote the marker."""
        plan = parse_plan(self.plan)
        return None if plan is None else (plan.key_field, plan.value_field)

    @property
    def counts_ids(self) -> bool:
        """Whether an event's id counts once."""
        plan = parse_plan(self.plan)
        return plan is not None and plan.event_ids_ms is not None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One complete micro-batch: its number, its finish time, its events and its end offsets."""

    batch: int
    finished_ms: int
    events: int
    offsets: dict[int, int]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The read model at one instant (one MULTI), with only the top users."""

    hash_key: str
    events: int
    clicks: int
    bad: int
    users: int
    top: list[tuple[str, int]]
    by_os: dict[str, int]
    bad_by_reason: dict[str, int]
    marker: MarkerView | None
    history: list[HistoryEntry]
    duplicates: int = 0
    """Records that are not counted, because another one with their id is."""

    @property
    def batch(self) -> int:
        """The last micro-batch in the marker, complete or not; -1 before the first."""
        return -1 if self.marker is None else self.marker.batch

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        marker = self.marker
        return {
            "hash_key": self.hash_key,
            "events": self.events,
            "clicks": self.clicks,
            "bad": self.bad,
            "duplicates": self.duplicates,
            "users": self.users,
            "top": [{"uid": uid, "clicks": clicks} for uid, clicks in self.top],
            "by_os": self.by_os,
            "bad_by_reason": self.bad_by_reason,
            "plan": None if marker is None else marker.plan,
            "batch": self.batch,
            "complete": None if marker is None else marker.complete,
            "offsets": None if marker is None else marker.offsets,
            "finished_ms": None if marker is None else marker.finished_ms,
            "duration_ms": None if marker is None else marker.duration_ms,
        }


@dataclass(frozen=True, slots=True)
class DeadPointer:
    """Position of a bad event in the log, and why it was not counted."""

    partition: int
    offset: int
    reason: str


class Results:
    """Reader of one hash key's results; use it as a context manager or call `close`.

    Every method raises `RedisUnreachable` if Redis is down, still loading or slower than five seconds, or if a key does
    not have the type that the pipeline gives it.
    """

    def __init__(
        self, redis_url: str = REDIS_URL, hash_key: str = HASH_KEY, *, attempts: int = SNAPSHOT_ATTEMPTS
    ) -> None:
        """`attempts` to read what belongs to one micro-batch, 0.1 s apart."""
        self._attempts = attempts
        self.redis_url = redis_url
        self.hash_key = hash_key
        self.keys = Keys(hash_key)
        self._redis = open_client(
            redis_url, hash_key, socket_timeout=SOCKET_TIMEOUT_S, socket_connect_timeout=SOCKET_TIMEOUT_S
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()

    def snapshot(self, *, top: int = 10, history: int = HISTORY_LENGTH) -> Snapshot:
        """Read everything except the single users in one MULTI, so that the parts are consistent."""
        keys = self.keys
        pipe = self._redis.pipeline(transaction=True)
        pipe.hgetall(keys.marker)
        pipe.hmget(keys.totals, ["events", "clicks", "bad", "duplicates"])
        pipe.hlen(keys.count)
        pipe.zrevrange(keys.top, 0, max(top, 1) - 1, withscores=True)
        pipe.hgetall(keys.os)
        pipe.hgetall(keys.bad)
        pipe.lrange(keys.history, 0, max(history, 1) - 1)
        marker, totals, users, ranking, by_os, bad, batches = self._ask(pipe.execute)
        return Snapshot(
            hash_key=self.hash_key,
            events=int(totals[0] or 0),
            clicks=int(totals[1] or 0),
            bad=int(totals[2] or 0),
            duplicates=int(totals[3] or 0),
            users=users,
            top=_ranking(ranking)[:top],
            by_os=_by_size(by_os),
            bad_by_reason=_by_size(bad),
            marker=parse_marker(_texts(marker)),
            history=[_history_entry(entry) for entry in batches[:history]],
        )

    def marker(self) -> MarkerView | None:
        """Read only the marker; None if no pipeline has written yet."""
        return parse_marker(_texts(self._ask(self._redis.hgetall, self.keys.marker)))

    def announced(self) -> tuple[Plan, str] | None:
        """Return plan and topic of the job that started last with this hash key; None if no job did."""
        fields = _texts(self._ask(self._redis.hgetall, self.keys.announced))
        plan = parse_plan(fields.get(PLAN, ""))
        # `h` and `{h}` share the key.
        return None if plan is None or plan.hash_key != self.hash_key else (plan, fields[TOPIC])

    def require_marker(self) -> MarkerView:
        """Read the marker, or raise `NothingCounted`."""
        marker = self.marker()
        if marker is None:
            raise NothingCounted(
                f"nothing is counted yet under '{self.hash_key}' at {shown(self.redis_url)}: "
                f"{Remedy.START_RUN}, or {Remedy.NAME_WHAT_RUNS}"
            )
        return marker

    def clicks_of(self, uid: str) -> int | None:
        """Return one user's sum, or None for a user without events."""
        value = self._ask(self._redis.hget, self.hash_key, uid)
        return None if value is None else int(value)

    def clicks_of_users(self, uids: Sequence[str]) -> tuple[MarkerView | None, dict[str, int | None]]:
        """Return the sums of these users, None for one without events, and the marker at the same instant."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.hgetall(self.keys.marker)
        if uids:
            pipe.hmget(self.hash_key, uids)
        marker, *sums = self._ask(pipe.execute)
        values = [None if value is None else int(value) for value in (sums[0] if sums else ())]
        return parse_marker(_texts(marker)), dict(zip(uids, values, strict=True))

    def ranking(self, first: int, count: int) -> list[tuple[str, int]]:
        """Return the users with most clicks, from a rank on."""
        return _ranking(self._ask(self._redis.zrevrange, self.keys.top, first, first + count - 1, True))

    def search_users(self, text: str, cursor: int, count: int, scanned_max: int) -> tuple[dict[str, int], int]:
        """Return users whose uid contains a text, and the cursor of the next search, 0 at the end.

        It ends with `count` users, or a few hundred more, or when about `scanned_max` users were compared. A user may
        be returned twice, and one that is counted first meanwhile may be missing.
        """
        pattern = f"*{_GLOB.sub(lambda match: chr(92) + match[0], text)}*"
        users: dict[str, int] = {}
        for _ in range(max(1, scanned_max // SEARCH_FIELDS)):
            cursor, fields = self._ask(self._redis.hscan, self.hash_key, cursor, pattern, SEARCH_FIELDS)
            users |= {_text(uid): int(clicks) for uid, clicks in fields.items()}
            if cursor == 0 or len(users) >= count:
                break
        return users, int(cursor)

    def users(self) -> tuple[MarkerView, dict[str, int]]:
        """Return every user's sum as of one complete micro-batch, and that batch's marker; all of it is in memory.

        The sums are read in parts, so that Redis can serve other clients, between two reads of the same marker.
        Raises NothingCounted, NoConsistentSnapshot.
        """
        return self.at_one_batch(lambda marker: (marker, self._sums_of_users()))

    def _sums_of_users(self) -> dict[str, int]:
        sums = self._ask(lambda: dict(self._redis.hscan_iter(self.hash_key, count=SCAN_FIELDS)))
        return {_text(uid): int(clicks) for uid, clicks in sums.items()}

    def at_one_batch(self, read: Callable[[MarkerView], _Read]) -> _Read:
        """Return what `read` returns when the same complete batch is in the marker before and after it.

        Raises NothingCounted, NoConsistentSnapshot.
        """
        return at_one_batch(self.hash_key, self.require_marker, read, self._attempts)

    def dead_pointers(self, count: int = DEAD_LENGTH) -> list[DeadPointer]:
        """Return up to `count` bad events, newest first."""
        entries = self._ask(self._redis.lrange, self.keys.dead, 0, max(count, 1) - 1)
        return [_dead_pointer(entry.decode()) for entry in entries[:count]]

    def _ask(self, ask: Any, *arguments: Any) -> Any:
        try:
            return ask(*arguments)
        except redis.RedisError as error:
            raise RedisUnreachable(
                f"failed to read '{self.hash_key}' from Redis at {shown(self.redis_url)} ({error}): "
                f"{redis_errors.remedy_for(error)}"
            ) from error


def at_one_batch(
    hash_key: str,
    read_marker: Callable[[], MarkerView],
    read: Callable[[MarkerView], _Read],
    attempts: int = SNAPSHOT_ATTEMPTS,
) -> _Read:
    """Return what `read` returns when the same complete batch is in the marker before and after it.

    Raises NoConsistentSnapshot, and what the functions raise.
    """
    seen: set[tuple[str, ...]] = set()
    for _ in range(attempts):
        before = read_marker()
        seen.add(before.identity)
        if before.complete:
            result = read(before)
            after = read_marker()
            if after.identity == before.identity:
                return result
        time.sleep(SNAPSHOT_PAUSE_S)
    if len(seen) == 1 and not before.complete:
        raise NoConsistentSnapshot(
            f"micro-batch {before.batch} of '{hash_key}' is being written: {Remedy.TRY_AGAIN}, or {Remedy.START_STREAM}"
        )
    raise NoConsistentSnapshot(
        f"no micro-batch was complete while '{hash_key}' was read, in {attempts} attempts: "
        f"{Remedy.START_STREAM}, {Remedy.LONGER_TRIGGER}"
    )


def snapshot(redis_url: str = REDIS_URL, hash_key: str = HASH_KEY, *, top: int = 10) -> Snapshot:
    """Read the results once, over a new connection."""
    with Results(redis_url, hash_key) as results:
        return results.snapshot(top=top)


def parse_marker(fields: Mapping[str, str]) -> MarkerView | None:
    """Parse the marker's fields; an empty mapping is None. Raises `RedisUnreachable` if they are not a marker."""
    if not fields:
        return None
    try:
        return MarkerView(
            query=fields.get("query", ""),
            batch=int(fields.get("batch", -1)),
            complete=fields.get("complete") == "1",
            offsets=_partition_offsets(fields.get("offsets", "{}")),
            since=_partition_offsets(fields.get("since", "{}")),
            plan=fields.get("plan", ""),
            started_ms=int(fields.get("started_ms") or 0),
            finished_ms=int(fields.get("finished_ms") or 0),
            duration_ms=int(fields["duration_ms"]) if fields.get("duration_ms") else None,
            losses=tuple(AcceptedLoss(**loss) for loss in json.loads(fields.get("losses", "[]"))),
            fields=dict(fields),
        )
    except (ValueError, AttributeError, TypeError) as error:
        raise RedisUnreachable(f"the marker in Redis is not one of onceflow's ({error}): {dict(fields)}") from error


def by_another_job(hash_key: str, marker: MarkerView) -> str:
    """Return the message about counts of another job, whose meaning is unknown here."""
    return (
        f"the marker {Keys(hash_key).marker} was written by another job than 'onceflow run' (its plan is "
        f"{marker.plan!r})"
    )


def refuse_other_job(hash_key: str, marker: MarkerView | None, why: str) -> None:
    """Raise OtherJob if another job than 'onceflow run' wrote the marker; `why` ends the message."""
    if marker is not None and marker.counted_fields is None:
        raise OtherJob(f"{by_another_job(hash_key, marker)}: {why}")


def lag(cluster: "Cluster", marker: MarkerView, *, now_ms: int | None = None) -> "Lag":
    """Return the lag of the marker's offsets; partitions that the marker lacks count completely."""
    from onceflow.client.lag import LogEnds, lag_behind

    reached = {
        topic: {partition: counted.get(partition, 0) for partition in cluster.require_topic(topic).partitions}
        for topic, counted in marker.offsets.items()
    }
    return lag_behind(LogEnds(cluster), reached, now_ms=now_ms)


def dead_records(
    cluster: "Cluster", topic: str, pointers: list[DeadPointer]
) -> Iterator[tuple[DeadPointer, "Record | None"]]:
    """Read each pointer's record from the log; None for one that the log no longer has."""
    from onceflow.client.lag import log_ends
    from onceflow.client.records import read_records

    known = cluster.require_topic(topic).partitions
    ends = log_ends(cluster, topic, [pointer.partition for pointer in pointers if pointer.partition in known])
    for pointer in pointers:
        begin, end = ends.get(pointer.partition, (0, 0))
        record = None
        if begin <= pointer.offset < end:
            records = read_records(cluster, topic, pointer.partition, pointer.offset, pointer.offset + 1)
            record = next(records, None)
        yield pointer, record


def _texts(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in fields.items()}


def _text(value: bytes) -> str:
    # The pipeline writes only UTF-8; another writer's bytes must not break the dashboard.
    return value.decode("utf-8", "replace")


def _ranking(entries: list[tuple[bytes, float]]) -> list[tuple[str, int]]:
    ranking = [(_text(uid), int(score)) for uid, score in entries]
    return sorted(ranking, key=lambda entry: (-entry[1], entry[0]))


def _by_size(counts: Mapping[bytes, bytes]) -> dict[str, int]:
    sized = [(_text(name), int(count)) for name, count in counts.items()]
    return dict(sorted(sized, key=lambda entry: (-entry[1], entry[0])))


def _partition_offsets(text: str) -> PartitionOffsets:
    return {
        topic: {int(partition): int(offset) for partition, offset in offsets.items()}
        for topic, offsets in json.loads(text).items()
    }


def _history_entry(entry: bytes) -> HistoryEntry:
    fields = json.loads(entry)
    return HistoryEntry(
        batch=int(fields["batch"]),
        finished_ms=int(fields["finished_ms"]),
        events=int(fields["events"]),
        offsets={int(partition): int(offset) for partition, offset in fields["offsets"].items()},
    )


def _dead_pointer(entry: str) -> DeadPointer:
    partition, offset, reason = entry.split(":", 2)
    return DeadPointer(int(partition), int(offset), reason)
