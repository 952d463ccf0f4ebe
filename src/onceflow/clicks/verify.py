"""Verification: recount the log and compare it with the counts in Redis, field by field.

It counts from the marker's `since` to exactly the marker's offsets, with code independent of the pipeline: librdkafka
reads (a read_committed consumer that never joins a group or commits), the standard library's json parses, and
`onceflow.clicks.recount` has its own rules. The counts are read between two reads of the same complete marker, so this
works while the stream runs. Events after the marker are reported as not yet counted.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import redis
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from onceflow.clicks.last_verify import LastVerify
from onceflow.clicks.recount import Recount
from onceflow.clicks.recount_ids import IdRecount
from onceflow.clicks.recount_measures import MeasureRecount
from onceflow.clicks.results import (
    DEAD_LENGTH,
    Keys,
    MarkerView,
    NoConsistentSnapshot,
    at_one_batch,
    by_another_job,
    parse_marker,
)
from onceflow.clicks.verify_measures import MeasureCounts, compare_measures, read_measures
from onceflow.client.cluster import Cluster
from onceflow.client.errors import ClientError
from onceflow.client.librdkafka import error_text, librdkafka_settings
from onceflow.client.security import PLAINTEXT, Security
from onceflow.errors import OnceflowError
from onceflow.redis import errors as redis_errors
from onceflow.redis.address import shown
from onceflow.redis.route import open_client
from onceflow.remedies import Remedy
from onceflow.spark.offsets import LossKind

SCAN_FIELDS = 5_000
RESPONSE_WAIT_S = 30.0
READ_EVENTS = 10_000
READ_WAIT_S = 0.05
"""librdkafka always waits this long for READ_EVENTS events, even if it already has some."""

_log = logging.getLogger(__name__)


class VerifyInconclusive(OnceflowError):
    """Neither equal nor different: something that the comparison needs is missing."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Field that differs between the log and Redis; None if one of them lacks it."""

    key: str
    field: str
    in_log: int | str | None
    in_redis: str | None

    def __str__(self) -> str:
        log, stored = (_or_nothing(self.in_log), _or_nothing(self.in_redis))
        return f"{self.key} {self.field}: {log} in the log, {stored} in Redis"


@dataclass(frozen=True)
class Verdict:
    """Result of the recount, with every difference to Redis (none: equal)."""

    topic: str
    hash_key: str
    marker: MarkerView
    recount: Recount
    differences: list[Difference]
    not_yet_counted: int

    @property
    def is_equal(self) -> bool:
        return not self.differences

    def recorded(self, finished_ms: int) -> LastVerify:
        """Return the result in the form that is kept in Redis."""
        return LastVerify(self.marker.query, self.marker.batch, finished_ms, self.recount.events, len(self.differences))

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        recount = self.recount
        return {
            "equal": self.is_equal,
            "topic": self.topic,
            "hash_key": self.hash_key,
            "batch": self.marker.batch,
            "since": self.marker.since,
            "offsets": self.marker.offsets,
            "events": recount.events,
            "clicks": recount.clicks,
            "users": len(recount.by_user),
            "bad": recount.bad,
            "duplicates": recount.duplicates,
            "by_os": recount.by_os,
            "bad_by_reason": recount.by_reason,
            "not_yet_counted": self.not_yet_counted,
            "accepted_losses": [asdict(loss) for loss in self.marker.losses],
            "differences": [
                {"key": one.key, "field": one.field, "log": one.in_log, "redis": one.in_redis}
                for one in self.differences
            ],
        }


@dataclass(frozen=True)
class Counts:
    """All counts in Redis under one hash key at one complete batch."""

    marker: MarkerView
    hashes: dict[str, dict[bytes, bytes]]
    ranking: dict[bytes, float]
    dead: list[str]
    measures: MeasureCounts | None
    """None for a job without a file of measures."""


def verify(
    bootstrap: str,
    topic: str | None,
    redis_url: str,
    hash_key: str,
    security: Security = PLAINTEXT,
    *,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Verdict:
    """Recount and compare. `on_progress` takes the number of events read, and the number of offsets to read.

    Without `topic`, the marker's is read. Raises `VerifyInconclusive` with the reason if that is impossible.
    """
    keys = Keys(hash_key)
    counts = read_counts(redis_url, keys)
    marker = counts.marker
    topic = _counted_topic(marker, keys, topic)
    ends = marker.offsets[topic]
    key_field, value_field = _plan(marker, keys)
    begins = _begins(marker, topic)
    plan = json.loads(marker.plan)
    measures = MeasureRecount(plan) if counts.measures is not None else None
    ids = None
    _check_brokers(bootstrap, topic, security)
    if plan.get("event_ids_ms") is not None:
        ids = IdRecount(key_field, value_field, plan["event_ids_ms"])
        _read_log(bootstrap, topic, begins, ends, ids, security, on_progress)
    recount = Recount(
        key_field,
        value_field,
        set(counts.dead),
        None if measures is None else measures.add,
        () if ids is None else ids.duplicates(),
    )
    not_yet_counted = _read_log(bootstrap, topic, begins, ends, recount, security, on_progress)
    differences = compare(keys, counts, recount, measures)
    if measures is not None and counts.measures is not None:
        newest_ms = int(marker.fields.get("newest_ms") or 0)
        compared = compare_measures(counts.measures, measures, plan, newest_ms)
        differences += [
            Difference(keys.beside(target), name, in_log, in_redis) for target, name, in_log, in_redis in compared
        ]
    spread = 0 if ids is None or not differences else ids.spread()
    if spread:
        raise VerifyInconclusive(
            f"{len(differences)} fields differ, and {spread} event ids are in several partitions, whose events have no "
            "order: if those of one id are not equal, either may be counted, and both if their partitions are more "
            f"than the window apart; first difference: {differences[0]}"
        )
    return Verdict(topic, hash_key, marker, recount, differences, not_yet_counted)


def _counted_topic(marker: MarkerView, keys: Keys, topic: str | None) -> str:
    """Return the topic to recount: `topic`, else the marker's."""
    counted = {name for name, ends in marker.offsets.items() if ends}
    if not counted:
        raise VerifyInconclusive(f"the marker {keys.marker} has no offsets: no events are counted yet")
    if topic is not None and topic not in counted:
        raise VerifyInconclusive(
            f"the marker {keys.marker} has no topic '{topic}' (it has {', '.join(sorted(counted))}): "
            f"{Remedy.NAME_COUNTED_TOPIC}"
        )
    return topic or min(counted)


def _plan(marker: MarkerView, keys: Keys) -> tuple[str, str | None]:
    if marker.counted_fields is None:
        raise VerifyInconclusive(
            f"{by_another_job(keys.count, marker)}: verify supports only the counts of 'onceflow run'"
        )
    return marker.counted_fields


def _begins(marker: MarkerView, topic: str) -> dict[int, int]:
    """Return where the recount starts in each partition: after records that were deleted before they were counted.

    Raises `VerifyInconclusive` if counted records are lost by an accepted loss.
    """
    begins = dict(marker.since.get(topic, {}))
    for loss in marker.losses:
        if loss.topic != topic:
            continue
        begin = begins.get(loss.partition, loss.begin)
        if loss.kind != LossKind.TRIMMED or loss.end is None or begin < loss.begin:
            known = "; ".join(map(str, marker.losses))
            raise VerifyInconclusive(f"events counted before an accepted loss cannot be counted again: {known}")
        begins[loss.partition] = max(begin, loss.end)
    return begins


# Redis


def read_counts(redis_url: str, keys: Keys) -> Counts:
    """Read all counts between two reads of the same complete marker. Raises `VerifyInconclusive`."""
    try:
        with open_client(redis_url, keys.count, socket_timeout=RESPONSE_WAIT_S) as client:
            return at_one_batch(keys.count, lambda: _marker(client, keys), lambda marker: _counts(client, keys, marker))
    except NoConsistentSnapshot as error:
        raise VerifyInconclusive(str(error)) from error
    except redis.RedisError as error:
        raise VerifyInconclusive(
            f"failed to read '{keys.count}' from Redis at {shown(redis_url)} ({error}): "
            f"{redis_errors.remedy_for(error)}"
        ) from error


def _marker(client: Any, keys: Keys) -> MarkerView:
    fields = client.hgetall(keys.marker)
    marker = parse_marker({name.decode(): value.decode() for name, value in fields.items()})
    if marker is None:
        raise VerifyInconclusive(
            f"there is no marker {keys.marker}: nothing is counted under --hash-key {keys.count} in this Redis"
        )
    return marker


def _counts(client: Any, keys: Keys, marker: MarkerView) -> Counts:
    hashes = (keys.count, keys.os, keys.totals, keys.bad)
    plan = json.loads(marker.plan) if marker.counted_fields is not None else {}
    return Counts(
        marker,
        {key: dict(client.hscan_iter(key, count=SCAN_FIELDS)) for key in hashes},
        dict(client.zscan_iter(keys.top, count=SCAN_FIELDS)),
        [entry.decode("utf-8", "replace") for entry in client.lrange(keys.dead, 0, -1)],
        read_measures(client, keys.beside, plan) if "over_time" in plan else None,
    )


# The log


def _read_log(
    bootstrap: str,
    topic: str,
    begins: Mapping[int, int],
    ends: Mapping[int, int],
    recount: Recount | IdRecount,
    security: Security,
    on_progress: Callable[[int, int], None],
) -> int:
    """Add the events of every [begin, end) to the recount; return the number of offsets after the ends."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "onceflow-verify",
            "client.id": "onceflow-verify",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            **librdkafka_settings(security),
        },
        logger=_log,
    )
    try:
        beyond = _check_log(consumer, bootstrap, topic, begins, ends)
        wanted = {partition: end for partition, end in ends.items() if begins.get(partition, 0) < end}
        consumer.assign([TopicPartition(topic, partition, begins.get(partition, 0)) for partition in wanted])
        total = sum(end - begins.get(partition, 0) for partition, end in wanted.items())
        _consume(consumer, topic, wanted, recount, lambda read: on_progress(min(read, total), total))
    except KafkaException as error:
        raise VerifyInconclusive(
            f"failed to read '{topic}' from the broker at {bootstrap} ({error_text(error.args[0])})"
        ) from error
    finally:
        consumer.close()
    return beyond


def _check_brokers(bootstrap: str, topic: str, security: Security) -> None:
    """Raise `VerifyInconclusive` where no broker responds: librdkafka would try until its timeout."""
    try:
        with Cluster(bootstrap, timeout_ms=round(RESPONSE_WAIT_S * 1000), security=security) as cluster:
            cluster.topics(topic)
    except ClientError as error:
        raise VerifyInconclusive(str(error)) from error


def _check_log(consumer: Any, bootstrap: str, topic: str, begins: Mapping[int, int], ends: Mapping[int, int]) -> int:
    """Check that the log still has every counted event; return the number of offsets after the ends."""
    metadata = consumer.list_topics(topic, timeout=RESPONSE_WAIT_S).topics[topic]
    if metadata.error is not None or not metadata.partitions:
        raise VerifyInconclusive(f"{bootstrap} has no topic '{topic}': its events cannot be counted again")
    beyond = 0
    for partition in sorted(metadata.partitions.keys() | ends.keys()):
        if partition not in metadata.partitions:
            raise VerifyInconclusive(f"{topic}-{partition} was counted and no longer exists: the topic was recreated")
        start, log_end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=RESPONSE_WAIT_S)
        begin, end = begins.get(partition, start), ends.get(partition, start)
        if start > begin and begin < end:
            raise VerifyInconclusive(
                f"{topic}-{partition} was counted from offset {begin} and the log now starts at {start}"
            )
        if log_end < end:
            raise VerifyInconclusive(
                f"{topic}-{partition} was counted up to offset {end} and the log ends at {log_end}"
            )
        beyond += log_end - end
    return beyond


def _consume(
    consumer: Any, topic: str, ends: Mapping[int, int], recount: Recount | IdRecount, on_read: Callable[[int], None]
) -> None:
    waiting, read = dict(ends), 0
    deadline = time.monotonic() + RESPONSE_WAIT_S
    while waiting:
        messages = consumer.consume(READ_EVENTS, timeout=READ_WAIT_S)
        if messages:
            deadline = time.monotonic() + RESPONSE_WAIT_S
        elif time.monotonic() > deadline:
            missing = ", ".join(f"{topic}-{partition} up to {end}" for partition, end in sorted(waiting.items()))
            raise VerifyInconclusive(f"no event arrived for {RESPONSE_WAIT_S:.0f} s; still to be read: {missing}")
        _count_messages(messages, topic, waiting, recount)
        read += len(messages)
        on_read(read)


def _count_messages(messages: Iterable[Any], topic: str, waiting: dict[int, int], recount: Recount | IdRecount) -> None:
    """Count the events before each partition's end and remove from `waiting` the partitions that reached it."""
    for message in messages:
        partition, offset, error = message.partition(), message.offset(), message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise VerifyInconclusive(f"{topic}-{partition} cannot be read at offset {offset}: {error_text(error)}")
        end = waiting.get(partition)
        if end is None:
            continue
        if error is not None and offset < end:
            raise VerifyInconclusive(
                f"{topic}-{partition} was counted up to {end} and its committed events end at {offset}"
            )
        if error is None and offset < end:
            recount.add(partition, offset, message.value(), message.timestamp()[1])
        if error is not None or offset >= end - 1:
            del waiting[partition]


# Both


def compare(keys: Keys, counts: Counts, recount: Recount, measures: MeasureRecount | None = None) -> list[Difference]:
    """Return every field that differs: users first, then the read model of the page."""
    totals = {"events": recount.events, "clicks": recount.clicks, "bad": recount.bad} if recount.events else {}
    in_redis = dict(counts.hashes[keys.totals])
    if measures is not None and measures.is_timed and recount.events:
        totals |= {"no-time": measures.no_time, "future": measures.future}
        in_redis.pop(b"late", None)  # Whether an event was late depends on the order of arrival.
    if recount.duplicates:
        totals["duplicates"] = recount.duplicates
    differences = _compare_hash(keys.count, recount.by_user, counts.hashes[keys.count])
    differences += _compare_ranking(keys.top, recount.by_user, counts.ranking)
    differences += _compare_hash(keys.os, recount.by_os, counts.hashes[keys.os])
    differences += _compare_hash(keys.totals, totals, in_redis)
    differences += _compare_hash(keys.bad, recount.by_reason, counts.hashes[keys.bad])
    kept = min(recount.bad, DEAD_LENGTH)
    if len(counts.dead) != kept:
        differences.append(Difference(keys.dead, "length", kept, str(len(counts.dead))))
    differences += [Difference(keys.dead, pointer, None, pointer) for pointer in sorted(recount.pointers)]
    differences += [
        Difference(keys.dead, pointer, "once", f"{times} times")
        for pointer, times in sorted(Counter(counts.dead).items())
        if times > 1 and pointer not in recount.pointers
    ]
    return differences


def _compare_hash(key: str, in_log: Mapping[str, int], in_redis: Mapping[bytes, bytes]) -> list[Difference]:
    left = dict(in_redis)
    differences = []
    for field, count in in_log.items():
        stored = left.pop(field.encode(), None)
        if stored != b"%d" % count:
            differences.append(Difference(key, field, count, None if stored is None else _text(stored)))
    return differences + [Difference(key, _text(field), None, _text(stored)) for field, stored in left.items()]


def _compare_ranking(key: str, in_log: Mapping[str, int], in_redis: Mapping[bytes, float]) -> list[Difference]:
    """Compare scores, which Redis keeps as doubles."""
    left = dict(in_redis)
    differences = []
    for member, count in in_log.items():
        score = left.pop(member.encode(), None)
        if score != float(count):
            differences.append(Difference(key, member, count, None if score is None else f"{score:g}"))
    return differences + [Difference(key, _text(member), None, f"{score:g}") for member, score in left.items()]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _or_nothing(value: int | str | None) -> str:
    return "nothing" if value is None else str(value)
