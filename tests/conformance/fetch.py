"""Fetch: offsets, epochs, limits, sessions and isolation at their edges."""

from collections.abc import Callable
from typing import Any

from onceflow.wire import apis
from tests.broker.raw_client import batch_of, milliseconds
from tests.conformance.side import TIMEOUT, Side
from tests.conformance.valid_requests import adding, begin, fetch_fields, transactional_batch


def fetched(side: Side, topic: str, *partitions: tuple[int, int], version: int = 12, **fields: Any) -> Any:
    return side.ask(apis.FETCH, version, **fetch_fields(topic, *partitions, **fields))


def with_records(side: Side, partitions: int = 1, batches: int = 3) -> str:
    """Write some batches of one record of 1000 bytes to each partition of the case's topic."""
    topic = side.create_topic(partitions)
    for partition in range(partitions):
        for _ in range(batches):
            side.client().produce(topic, partition, batch_of(b"x" * 1000))
    return topic


def at(*offsets: int, version: int = 12, **fields: Any) -> Callable[[Side], None]:
    """Fetch partition 0, which has the offsets 0 to 2, from each offset."""

    def case(side: Side) -> None:
        topic = with_records(side)
        for offset in offsets:
            fetched(side, topic, (0, offset), version=version, **fields)

    return case


def of_partitions(*partitions: int, name: str = "", **fields: Any) -> Callable[[Side], None]:
    def case(side: Side) -> None:
        topic = with_records(side, 2)
        for version in (4, 12):
            fetched(side, name or topic, *[(partition, 0) for partition in partitions], version=version, **fields)

    return case


def changed(version: int = 12, **change: int) -> Callable[[Side], None]:
    """Send a valid Fetch of one partition with other fields in the partition's entry."""

    def case(side: Side) -> None:
        fields = fetch_fields(with_records(side), (0, 0))
        fields["topics"][0]["partitions"][0] |= change
        side.ask(apis.FETCH, version, **fields)

    return case


def after_deletion(side: Side) -> None:
    topic = with_records(side)
    asked = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 2}]}]
    side.ask_quietly(apis.DELETE_RECORDS, 2, topics=asked, timeout=TIMEOUT)
    for offset in (0, 1, 2, 3, 4):
        fetched(side, topic, (0, offset))


def a_session(session_id: int, epoch: int) -> Callable[[Side], None]:
    def case(side: Side) -> None:
        topic = with_records(side)
        fetched(side, topic, (0, 0), session_id=session_id, session_epoch=epoch)

    return case


def aborted(side: Side) -> None:
    topic = side.create_topic()
    for committed in (False, True):
        who = begin(side)
        side.ask_quietly(apis.ADD_PARTITIONS_TO_TXN, 3, **adding(who, (topic, 0)))
        transactional_batch(side, who, topic)
        side.ask_quietly(apis.END_TXN, 3, **who, committed=committed)
    who = begin(side, f"{side.topic}-2")
    side.ask_quietly(apis.ADD_PARTITIONS_TO_TXN, 3, **adding(who, (topic, 0)))
    transactional_batch(side, who, topic)
    for isolation_level in (0, 1, 2, -1):
        for version in (4, 12):
            fetched(side, topic, (0, 0), version=version, isolation_level=isolation_level)
    for offset in range(1, 7):
        fetched(side, topic, (0, offset), isolation_level=1)
    listing: dict[str, Any] = {"replica_id": -1, "isolation_level": 1}
    places = [{"partition_index": 0, "timestamp": value} for value in (-1, -3)]
    for place in places:
        side.ask(apis.LIST_OFFSETS, 7, **listing, topics=[{"name": topic, "partitions": [place]}])


def two_topics_twice(side: Side) -> None:
    topic = with_records(side)
    entry = fetch_fields(topic, (0, 0))["topics"][0]
    fetched(side, topic, topics=[entry, entry])


def two_offsets_of_one_partition(side: Side) -> None:
    topic = with_records(side, 2)
    fetched(side, topic, (0, 0), (1, 0), (0, 2))
    first, second = (fetch_fields(topic, (partition, 0))["topics"][0] for partition in (0, 1))
    last = fetch_fields(topic, (0, 2))["topics"][0]
    fetched(side, topic, topics=[first, second, last])


def nothing(side: Side) -> None:
    side.ask(apis.FETCH, 12, **fetch_fields("", topics=()))


CASES: dict[str, Callable[[Side], None]] = {
    "fetch from each offset": at(0, 1, 2, 3),
    "fetch from outside the log": at(4, -1, -2, 2**63 - 1),
    "fetch from outside the log in version 4": at(4, -1, version=4),
    "fetch after records were deleted": after_deletion,
    "fetch unknown partitions": of_partitions(-1, 2, 0),
    "fetch a partition twice": of_partitions(0, 0),
    "fetch an unknown topic": of_partitions(0, name="no-such-topic-to-fetch"),
    "fetch an impossible topic": of_partitions(0, name="a/b"),
    "fetch a topic without a name": of_partitions(0, name=""),
    "fetch of no partition": of_partitions(),
    "fetch a topic twice": two_topics_twice,
    "fetch two offsets of one partition": two_offsets_of_one_partition,
    "fetch nothing": nothing,
    "fetch 0 bytes in total": of_partitions(0, 1, max_bytes=0),
    "fetch 10 bytes in total": of_partitions(0, 1, max_bytes=10),
    "fetch -1 bytes in total": of_partitions(0, 1, max_bytes=-1),
    "fetch 1500 bytes in total": of_partitions(0, 1, max_bytes=1500),
    "fetch 2500 bytes in total": of_partitions(1, 0, max_bytes=2500),
    "fetch with a negative minimum": of_partitions(0, min_bytes=-1),
    "fetch with a negative wait": of_partitions(0, max_wait=milliseconds(-1)),
    "fetch with a minimum that is there": of_partitions(0, min_bytes=2000, max_wait=milliseconds(60_000)),
    "fetch an error instead of waiting": of_partitions(7, min_bytes=2000, max_wait=milliseconds(60_000)),
    "fetch 10 bytes of a partition": changed(partition_max_bytes=10),
    "fetch 0 bytes of a partition": changed(partition_max_bytes=0),
    "fetch -1 bytes of a partition": changed(partition_max_bytes=-1),
    "fetch 1500 bytes of a partition": changed(partition_max_bytes=1500),
    "fetch with the leader epoch": changed(current_leader_epoch=0),
    "fetch with a later leader epoch": changed(current_leader_epoch=1),
    "fetch with a leader epoch of -2": changed(current_leader_epoch=-2),
    "fetch with a last fetched epoch": changed(last_fetched_epoch=0),
    "fetch with a later last fetched epoch": changed(last_fetched_epoch=5),
    "fetch with a log start": changed(log_start_offset=7),
    "fetch as a replica": of_partitions(0, replica_id=2),
    "fetch as a debugger": of_partitions(0, replica_id=-2),
    "fetch isolated, aborted and open transactions": aborted,
    "fetch a new session": a_session(0, 0),
    "fetch without a session": a_session(0, -1),
    "fetch in an unknown session": a_session(77, 1),
    "fetch in no session amid": a_session(0, 5),
    "fetch an unknown session's end": a_session(77, -1),
    "fetch an unknown session's new beginning": a_session(77, 0),
}
