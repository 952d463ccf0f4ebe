"""Live counts: everything that the log has acknowledged, without waiting for the next micro-batch.

`Live` reads the read model and the marker in one step, and the records beyond the marker's offsets from the log, with
the pipeline's isolation level and rules. `onceflow.clicks.now` adds the two. The sums are functions of the set of
records in a range, so other measures join them as further fields of `Counts`: a bucket's sums are names with amounts,
and a range's sessions are intervals that merge in any order.

One thread per leader reads the log by long polls, and one thread follows the marker. The counts are exact as of
`View.as_of_ms`, when the end of every partition was last seen; a new partition is found within a second. While the
broker or Redis is away, the last state is kept and its age grows. There are only counted numbers, with the reason, if
there is no such state: before the first complete micro-batch was read and the log's end was reached, when the records
beyond the marker need more memory than `bytes_max`, and when the log has lost records that were not counted.
"""

import functools
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceflow.clicks.events import KEY_FIELD, VALUE_FIELD, Rules
from onceflow.clicks.now import Counts, Lookup, Now, Position, sums_of
from onceflow.clicks.plan import Plan, parse_plan
from onceflow.clicks.results import MarkerView, OtherJob, RedisUnreachable, Results, Snapshot, refuse_other_job
from onceflow.client.cluster import EARLIEST, LATEST, Cluster, Fetched
from onceflow.client.errors import ClientError, OffsetOutOfRange
from onceflow.client.metadata import TopicMetadata
from onceflow.client.records import read_records
from onceflow.client.security import PLAINTEXT, Security
from onceflow.errors import OnceflowError

BYTES_MAX = 256 * 1024 * 1024
"""Estimated memory for the sums of records that are not counted; beyond it, there are only counted numbers."""
TOP_USERS = 10
POLL_S = 0.05
"""Interval at which the marker is read."""
METADATA_S = 1.0
WAIT_MS = 100
"""Maximum time of a long poll; the counts of a quiet topic are up to twice as old."""
FETCH_BYTES = 1024 * 1024
TIMEOUT_MS = 2_000
RETRY_S = 0.2
PAUSE_S = 0.001
"""Pause after each range that is added to the counted numbers."""
USER_WAIT_S = 2.0
LOOKUP_USERS = 5_000
"""Users of one request, so that Redis can serve other clients in between."""
Fields = tuple[str, str | None]
"""Event fields of the key and the sum."""
DEFAULT_PLAN = Plan("", KEY_FIELD, VALUE_FIELD)
"""Fields of events until a job says otherwise."""
JOB = "the live numbers are only those of 'onceflow run'"


@dataclass(frozen=True, slots=True)
class View:
    """The numbers at one moment."""

    snapshot: Snapshot | None
    """Counted and not yet counted records; None if only counted numbers are available."""
    as_of_ms: int | None
    """Time up to which every acknowledged record is included."""
    not_counted: int
    """Records in the snapshot that are not counted yet."""
    reason: str | None
    """Why there is no snapshot, or why it is not renewed."""

    def as_json(self) -> dict[str, Any]:
        """Return everything except the snapshot, as plain values for `json.dumps`."""
        is_live = self.snapshot is not None
        return {"live": is_live, "as_of_ms": self.as_of_ms, "not_counted": self.not_counted, "reason": self.reason}


NOT_LIVE = View(None, None, 0, None)


@dataclass(frozen=True, slots=True)
class UserView:
    """One user's clicks; None for a user without events."""

    clicks: int | None
    is_live: bool
    """Whether records that are not counted yet are included."""


class _Unavailable(OnceflowError):
    """No live numbers can be computed at present."""


class Live:
    """Live counts of one hash key, from `start` to `close`. Every method may be called by any thread.

    `reading` belongs to the object, which closes it. `top` is the number of top users.
    """

    def __init__(
        self,
        reading: Results,
        bootstrap: str,
        topic: str,
        *,
        security: Security = PLAINTEXT,
        top: int = TOP_USERS,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._results = reading
        self._open_cluster = functools.partial(
            Cluster, bootstrap, timeout_ms=TIMEOUT_MS, client_id="onceflow-live", security=security
        )
        self._topic = topic
        self._top = top
        self._bytes_max = bytes_max
        self._fields: Fields | None = None
        self._rules = Rules()
        self._changed = threading.Condition()
        # All of these belong to the condition's lock.
        self._now: Now | None = None
        self._reason = "the counts are being read"
        self._log_error: str | None = None
        self._redis_error: str | None = None
        self._end_ms: dict[int, int] = {}
        self._log_starts: dict[int, int] = {}
        self._version = 0
        self._resume_below: int | None = None
        self._is_starting = True
        # These belong to the thread that follows the marker.
        self._plan = DEFAULT_PLAN
        self._metadata: TopicMetadata | None = None
        self._metadata_at = 0.0
        self._readers: list[_Reader] = []
        self._stop = threading.Event()
        self._follower = threading.Thread(target=self._follow, name="live counts", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._follower.start()

    def close(self) -> None:
        """Stop all threads and close the connections."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        if self._follower.ident is not None:
            self._follower.join()
        self._results.close()

    # For readers of the numbers

    @property
    def version(self) -> int:
        """Number of changes so far."""
        return self._version

    @property
    def is_starting(self) -> bool:
        """Whether the numbers have not been live yet, and nothing prevents that."""
        return self._is_starting

    def wait(self, seen: int, timeout_s: float) -> int:
        """Return the version as soon as it is not `seen`, or after the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != seen or self._stop.is_set(), timeout_s)
            return self._version

    def wait_until_live(self, timeout_s: float) -> View:
        """Return the numbers as soon as they are live, or something prevents that; else after the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_starting, timeout_s)
            return self.view()

    def view(self) -> View:
        """Return the numbers of this moment."""
        with self._changed:
            if not self._is_live:
                return View(None, None, 0, self._log_error or self._redis_error or self._reason)
            assert self._now is not None
            as_of_ms = min(self._end_ms.values(), default=_now_ms())
            reason = self._log_error or self._redis_error
            return View(self._now.snapshot(), as_of_ms, self._now.pending.events, reason)

    def counted(self) -> Snapshot:
        """Return the counted numbers. Raises RedisUnreachable, NothingCounted."""
        self._results.require_marker()
        return self._results.snapshot(top=self._top)

    def clicks_of(self, uid: str) -> UserView:
        """Return one user's clicks. Raises RedisUnreachable."""
        with self._changed:
            clicks = self._now.clicks_of(uid) if self._now is not None and self._is_live else None
        if clicks is not None:
            return UserView(clicks, is_live=True)
        deadline = time.monotonic() + USER_WAIT_S
        while True:
            lookup = self._look_up([uid])
            with self._changed:
                now = self._now if self._is_live else None
                # Records of this user may have arrived meanwhile.
                clicks = None if now is None else now.clicks_of(uid)
                if clicks is not None:
                    return UserView(clicks, is_live=True)
                is_live = now is not None and now.is_usable(lookup, {uid}, {})
                if is_live or now is None or time.monotonic() > deadline:
                    return UserView(lookup.clicks[uid], is_live)
                # Redis has lost a micro-batch, or has one that is not read yet: until base or readers have followed.
                self._changed.wait(POLL_S)

    @property
    def _is_live(self) -> bool:
        return self._now is not None and self._now.pending.ends.keys() <= self._end_ms.keys()

    # The marker's thread

    def _follow(self) -> None:
        with self._open_cluster() as cluster:
            while not self._stop.wait(POLL_S):
                try:
                    self._follow_marker(cluster)
                except ClientError as error:
                    self._note(log_error=str(error))
                    cluster.close()
                except (_Unavailable, OtherJob) as error:
                    self._reset(str(error))
                except OnceflowError as error:
                    self._note(redis_error=str(error))
                except (ValueError, KeyError, AttributeError, TypeError) as error:
                    self._reset(f"onceflow did not write the data under '{self._results.hash_key}' ({error})")
                else:
                    continue
                self._stop.wait(RETRY_S)
        self._stop_readers()

    def _follow_marker(self, cluster: Cluster) -> None:
        with self._changed:
            log_starts = dict(self._log_starts)
        marker = self._results.marker()
        self._note(redis_error=None)
        refuse_other_job(self._results.hash_key, marker, JOB)
        fields, topic = self._counted(marker)
        if self._now is not None and fields != self._fields:
            self._reset("other fields of the events are counted")
        if topic != self._topic:
            self._topic = topic
            self._metadata = None
            if self._now is not None:
                self._reset("the counts are those of another topic")
        counted = {} if marker is None else marker.offsets.get(self._topic, {})
        self._refuse_lost(log_starts, counted)
        position = Position.of(marker, self._topic)
        now = self._now
        if now is None or now.is_advanced or position.identity != now.position.identity:
            self._follow_base(cluster, marker)
        if time.monotonic() - self._metadata_at > METADATA_S or self._metadata is None:
            self._follow_partitions(cluster, marker)

    def _counted(self, marker: MarkerView | None) -> tuple[Fields, str]:
        """Return fields and topic by the marker, else by the job that has started, else as before.

        Raises _Unavailable if an event's id counts once.
        """
        topic = self._topic
        if marker is not None:
            self._plan = parse_plan(marker.plan) or self._plan
            topic = next(iter(marker.offsets), topic)
        elif (announced := self._results.announced()) is not None:
            self._plan, topic = announced
        if self._plan.event_ids_ms is not None:
            raise _Unavailable("each event id counts once, and only a micro-batch knows which events are duplicates")
        return (self._plan.key_field, self._plan.value_field), topic

    def _refuse_lost(self, log_starts: Mapping[int, int], counted: Mapping[int, int]) -> None:
        """Raise _Unavailable if the log lost records that are not counted."""
        now = self._now
        starts = {} if now is None else now.starts
        for partition, start in log_starts.items():
            offset = counted.get(partition, starts.get(partition, start))
            if offset < start:
                raise _Unavailable(
                    f"the log of {self._topic}-{partition} starts at {start}, but is counted only up to {offset}"
                )

    def _follow_base(self, cluster: Cluster, marker: MarkerView | None) -> None:
        """Take the present read model as the base, if it is complete."""
        if marker is not None and not marker.complete:
            with self._changed:
                if self._now is None:
                    self._reason = f"micro-batch {marker.batch} is being written"
            return
        if self._metadata is None:
            self._require_topic(cluster, marker)
        base = self._results.snapshot(top=self._top, history=1)
        if base.marker is not None and not base.marker.complete:
            return
        if base.marker is None and (base.events or base.users):
            raise _Unavailable("there are counts without a marker")
        begins = self._begins(cluster, base)
        now = self._now
        query = Position.of(base.marker, self._topic).query
        fields, _topic = self._counted(base.marker)
        if now is not None and now.position.query not in (None, query):
            self._reset("the counts are those of another query")
        elif now is not None and fields == self._fields:
            self._replace_base(cluster, now, base, begins)
        elif now is None:
            self._begin(cluster, base, begins, fields)

    def _begin(self, cluster: Cluster, base: Snapshot, begins: dict[int, int], fields: Fields) -> None:
        """Start at this base without pending records."""
        starts = cluster.list_offsets(self._topic, dict.fromkeys(begins, EARLIEST))
        self._refuse_lost({partition: at.offset for partition, at in starts.items()}, begins)
        if self._resume_below is not None:
            ends = cluster.list_offsets(self._topic, dict.fromkeys(begins, LATEST))
            if sum(ends[partition].offset - begin for partition, begin in begins.items()) > self._resume_below:
                return
        rules = Rules(*fields)
        with self._changed:
            self._fields, self._rules = fields, rules
            self._resume_below = None
            self._end_ms, self._log_starts = {}, {}
            self._now = Now(base, self._topic, begins, top=self._top)
            self._reason = "the records that are not counted yet are being read"
            self._change()

    def _replace_base(self, cluster: Cluster, now: Now, base: Snapshot, begins: dict[int, int]) -> None:
        """Replace the base; the next poll tries it again if Redis or the pending records change meanwhile."""
        with self._changed:
            missing = now.pending.missing(begins)
        pieces: dict[int, Counts] = {}
        spare_bytes = self._bytes_max
        for number, (begin, end) in missing.items():
            pieces[number] = self._read(cluster, number, begin, end, spare_bytes)
            spare_bytes -= pieces[number].size_bytes
        while self._advance(now, begins):
            # Readers of the numbers and of the log get the lock before the next range.
            self._stop.wait(PAUSE_S)
        with self._changed:
            known_stay = now.differs_only_by(pieces, base, self._topic, begins)
            users = [] if known_stay else now.users
        users += [uid for counts in pieces.values() for uid in counts.by_user]
        wanted = Position.of(base.marker, self._topic)
        counted: dict[str, int | None] = {}
        for index in range(0, len(users), LOOKUP_USERS):
            lookup = self._look_up(users[index : index + LOOKUP_USERS])
            if lookup.at.identity != wanted.identity:
                return
            counted |= lookup.clicks
        with self._changed:
            was_live = self._is_live
            if now is self._now and now.replace_base(
                base, self._topic, begins, missing, pieces, counted, known_stay=known_stay
            ):
                self._expect_ends(now, was_live)
                self._change()

    def _advance(self, now: Now, begins: dict[int, int]) -> bool:
        with self._changed:
            return now is self._now and now.advance(begins)

    def _begins(self, cluster: Cluster, base: Snapshot) -> dict[int, int]:
        """Return the base's offset of every partition; a partition without one is counted from its start."""
        counted = {} if base.marker is None else base.marker.offsets.get(self._topic, {})
        assert self._metadata is not None
        with self._changed:
            starts = {} if self._now is None else self._now.starts
        begins = {**dict.fromkeys(self._metadata.partitions, -1), **starts, **counted}
        unknown = [number for number, offset in begins.items() if offset < 0]
        if unknown:
            earliest = cluster.list_offsets(self._topic, dict.fromkeys(unknown, EARLIEST))
            begins |= {number: at.offset for number, at in earliest.items()}
        return begins

    def _read(self, cluster: Cluster, partition: int, begin: int, end: int, bytes_max: int) -> Counts:
        """Return the sums of these offsets. Raises _Unavailable if they need more memory."""
        counts = Counts()
        try:
            for number, record in enumerate(read_records(cluster, self._topic, partition, begin, end)):
                counts.add(self._rules.judge(record.value))
                if number % 10_000 == 9_999 and counts.size_bytes > bytes_max:
                    raise _Unavailable(self._too_large())
        except OffsetOutOfRange as error:
            raise _Unavailable(str(error)) from error
        return counts

    def _too_large(self) -> str:
        return f"the records that are not counted yet need more than {self._bytes_max:,} bytes"

    # Partitions and their leaders

    def _require_topic(self, cluster: Cluster, marker: MarkerView | None) -> None:
        metadata = cluster.require_topic(self._topic)
        self._metadata_at = time.monotonic()
        if marker is not None and metadata.topic_id is not None:
            counted_id = marker.topic_ids.get(self._topic, str(metadata.topic_id))
            if counted_id != str(metadata.topic_id):
                raise _Unavailable(f"topic {self._topic} was deleted and created again since its events were counted")
        self._metadata = metadata

    def _follow_partitions(self, cluster: Cluster, marker: MarkerView | None) -> None:
        """Read new partitions too, and each partition from its present leader."""
        known = None if self._metadata is None else self._metadata.partitions
        self._require_topic(cluster, marker)
        assert self._metadata is not None
        partitions = self._metadata.partitions
        now = self._now
        if now is None:
            self._note(log_error=None)
        new = [number for number in partitions if now is not None and number not in now.pending.ends]
        if now is not None and new:
            starts = cluster.list_offsets(self._topic, dict.fromkeys(new, EARLIEST))
            with self._changed:
                was_live = self._is_live
                now.add_partitions({number: at.offset for number, at in starts.items()})
                self._expect_ends(now, was_live)
        if partitions != known or not self._readers:
            self._stop_readers()
            by_leader: dict[int, list[int]] = {}
            for partition, leader in partitions.items():
                by_leader.setdefault(leader, []).append(partition)
            self._readers = [_Reader(self, self._open_cluster, numbers) for numbers in by_leader.values()]

    def _stop_readers(self) -> None:
        for reader in self._readers:
            reader.stop.set()
        with self._changed:
            self._changed.notify_all()
        for reader in self._readers:
            reader.join()
        self._readers = []

    # For the readers

    def _positions(self, partitions: Sequence[int], stop: threading.Event) -> tuple[Now, dict[int, int]] | None:
        """Wait until there is a state; return it and the next offsets to read. None when the reader is to stop."""

        def is_ready() -> bool:
            known = self._now is not None and any(number in self._now.pending.ends for number in partitions)
            return stop.is_set() or self._stop.is_set() or known

        with self._changed:
            self._changed.wait_for(is_ready)
            if stop.is_set() or self._stop.is_set():
                return None
            assert self._now is not None
            ends = self._now.pending.ends
            return self._now, {number: ends[number] for number in partitions if number in ends}

    def _take(
        self, now: Now, begins: Mapping[int, int], fetched: Mapping[int, Fetched], at_ms: int, stop: threading.Event
    ) -> None:
        """Add the records fetched since `at_ms`, some at a time."""
        sums = [sums_of(part, begins[number], self._rules) for number, part in fetched.items()]
        ends = dict(begins)
        for some in itertools.zip_longest(*sums):
            parts = dict(zip(fetched, some, strict=True))
            filled = {number: part for number, part in parts.items() if part is not None and part[0] > ends[number]}
            self._take_some(now, ends, filled, stop)
            ends |= {number: end for number, (end, _) in filled.items()}
        with self._changed:
            self._see_ends(now, fetched, at_ms)

    def _take_some(
        self, now: Now, begins: Mapping[int, int], filled: Mapping[int, tuple[int, Counts]], stop: threading.Event
    ) -> None:
        """Add these sums as soon as the clicks of their users can be looked up."""
        lookup: Lookup | None = None
        while not stop.is_set() and not self._stop.is_set():
            with self._changed:
                if now is not self._now:
                    return
                # Those that the base has moved beyond are read again, from its end on.
                ends = now.pending.ends
                filled = {number: part for number, part in filled.items() if ends.get(number) == begins[number]}
                places = {number: begins[number] for number in filled}
                unknown = now.unknown_users(counts for _, counts in filled.values())
                if not unknown or (lookup is not None and now.is_usable(lookup, unknown, places)):
                    self._add(now, begins, filled, lookup)
                    return
                if lookup is not None:
                    # Redis has written or lost a micro-batch: until the base has followed.
                    self._changed.wait(POLL_S)
            lookup = self._look_up(sorted(unknown))

    def _add(
        self,
        now: Now,
        begins: Mapping[int, int],
        parts: Mapping[int, tuple[int, Counts]],
        lookup: Lookup | None,
    ) -> None:
        for number, (end, counts) in parts.items():
            now.add(number, begins[number], end, counts, lookup)
        while now.pending.size_bytes > self._bytes_max and now.pending.shrink():
            pass
        if now.pending.size_bytes > self._bytes_max:
            self._resume_below = now.pending.events // 2
            self._reset(self._too_large())
        elif parts:
            self._change()

    def _see_ends(self, now: Now, fetched: Mapping[int, Fetched], at_ms: int) -> None:
        """Record which partitions were read up to their end, and where their logs start."""
        if now is not self._now:
            return
        was_live = self._is_live
        for number, part in fetched.items():
            self._log_starts[number] = part.log_start_offset
            if now.pending.ends[number] >= part.last_stable_offset:
                self._end_ms[number] = at_ms
        self._log_error = None
        if self._is_live != was_live:
            self._is_starting = False
            self._change()

    def _expect_ends(self, now: Now, was_live: bool) -> None:
        """Let new partitions be as old as the oldest of the others until their ends are seen."""
        if was_live and self._end_ms:
            oldest_ms = min(self._end_ms.values())
            self._end_ms = dict.fromkeys(now.pending.ends, oldest_ms) | self._end_ms

    def _look_up(self, uids: Sequence[str]) -> Lookup:
        marker, clicks = self._results.clicks_of_users(uids)
        return Lookup(Position.of(marker, self._topic), clicks)

    # State

    def _note(self, **errors: str | None) -> None:
        """Record or remove the error of one of the two services."""
        with self._changed:
            for name, error in errors.items():
                if getattr(self, f"_{name}") != error:
                    setattr(self, f"_{name}", error)
                    self._is_starting &= error is None
                    self._change()

    def _reset(self, reason: str) -> None:
        """Forget everything; a later base begins again."""
        with self._changed:
            if self._now is not None or self._reason != reason:
                self._now = None
                self._reason = reason
                self._is_starting = False
                self._end_ms, self._log_starts = {}, {}
                self._change()

    def _change(self) -> None:
        self._version += 1
        self._changed.notify_all()


class _Reader(threading.Thread):
    """Reader of the partitions of one leader, from its creation until `stop` is set."""

    def __init__(self, live: Live, open_cluster: Callable[[], Cluster], partitions: Sequence[int]) -> None:
        super().__init__(name=f"live reader {partitions[0]}", daemon=True)
        self.stop = threading.Event()
        self._live = live
        self._open_cluster = open_cluster
        self._partitions = list(partitions)
        self.start()

    def run(self) -> None:
        """Read until the stop; an error is recorded, and reading continues where it ended."""
        with self._open_cluster() as cluster:
            while not self.stop.is_set():
                try:
                    if not self._read_once(cluster):
                        return
                except OffsetOutOfRange as error:
                    self._live._reset(str(error))
                except ClientError as error:
                    self._live._note(log_error=str(error))
                    cluster.close()
                    self.stop.wait(RETRY_S)
                except RedisUnreachable as error:
                    self._live._note(redis_error=str(error))
                    self.stop.wait(RETRY_S)
                except OnceflowError as error:
                    self._live._note(log_error=str(error))
                    self.stop.wait(RETRY_S)

    def _read_once(self, cluster: Cluster) -> bool:
        place = self._live._positions(self._partitions, self.stop)
        if place is None:
            return False
        now, offsets = place
        # Each partition is the first in turn, which gets the most of a response.
        self._partitions.append(self._partitions.pop(0))
        at_ms = _now_ms()
        fetched = cluster.fetch_partitions(self._live._topic, offsets, wait_ms=WAIT_MS, size_bytes_max=FETCH_BYTES)
        self._live._take(now, offsets, fetched, at_ms, self.stop)
        return True


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
