"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: offsets of a partition, listed and moved."""

from collections.abc import Callable
from typing import Any

from onceflow.wire import apis
from tests.broker.raw_client import batch_of
from tests.conformance.side import TIMEOUT, Side

BASE_MS = 1_700_000_000_000


def with_records(side: Side, *timestamps: int, **configs: str) -> str:
    """Write a batch of two records for each timestamp to partition 0 of the case's topic of two partitions."""
    topic = side.create_topic(2, **configs)
    for timestamp in timestamps or (BASE_MS, BASE_MS + 10, BASE_MS + 5):
        side.client().produce(topic, 0, batch_of(b"a", b"b", timestamp_ms=timestamp))
    return topic


def listed(side: Side, topic: str, *places: tuple[int, int], version: int = 7, epoch: int = -1, **fields: Any) -> None:
    """Send ListOffsets of (partition, timestamp)."""
    asked = [{"partition_index": at, "timestamp": time, "current_leader_epoch": epoch} for at, time in places]
    topics = [{"name": topic, "partitions": asked}]
    side.ask(
        apis.LIST_OFFSETS,
        version,
        **{"replica_id": -1, "isolation_level": 0, "timeout": TIMEOUT, "topics": topics, **fields},
    )


def times(*timestamps: int, version: int = 7) -> Callable[[Side], None]:
    def case(side: Side) -> None:
        topic = with_records(side)
        for timestamp in timestamps:
            listed(side, topic, (0, timestamp), (1, timestamp), version=version)

    return case


def listing(*places: tuple[int, int], name: str = "", **fields: Any) -> Callable[[Side], None]:
    def case(side: Side) -> None:
        topic = with_records(side)
        for version in (1, 7):
            listed(side, name or topic, *places, version=version, **fields)

    return case


def with_epoch(epoch: int) -> Callable[[Side], None]:
    def case(side: Side) -> None:
        listed(side, with_records(side), (0, -1), epoch=epoch)

    return case


def deleted(side: Side, topic: str, *places: tuple[int, int], version: int = 2, **fields: Any) -> None:
    """Send DeleteRecords of (partition, offset)."""
    asked = [{"partition_index": at, "offset": offset} for at, offset in places]
    topics = [{"name": topic, "partitions": asked}]
    side.ask(apis.DELETE_RECORDS, version, **{"topics": topics, "timeout": TIMEOUT, **fields})


def deletions(*places: tuple[int, int], name: str = "", **configs: str) -> Callable[[Side], None]:
    """Send one request for each (partition, offset); the log ends at 6."""

    def case(side: Side) -> None:
        topic = with_records(side, **configs)
        for place in places:
            deleted(side, name or topic, place)
        for timestamp in (-2, -1, BASE_MS):
            listed(side, topic, (0, timestamp))

    return case


def deletions_at_once(*places: tuple[int, int]) -> Callable[[Side], None]:
    def case(side: Side) -> None:
        deleted(side, with_records(side), *places)

    return case


def deletion_of_nothing(side: Side) -> None:
    deleted(side, "", topics=())
    deleted(side, side.create_topic())


def deletion_where_nothing_is_deleted(policy: str) -> Callable[[Side], None]:
    return deletions((0, 2), cleanup_policy=policy)


def epochs(*asked: tuple[int, int], partition: int = 0, name: str = "") -> Callable[[Side], None]:
    """Send OffsetForLeaderEpoch of (current epoch, epoch)."""

    def case(side: Side) -> None:
        topic = with_records(side)
        for current, epoch in asked:
            place = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
            for version, replica_id in ((2, -1), (4, -1), (4, -2)):
                topics = [{"topic": name or topic, "partitions": [place]}]
                side.ask(apis.OFFSET_FOR_LEADER_EPOCH, version, replica_id=replica_id, topics=topics)

    return case


def no_records_yet(side: Side) -> None:
    topic = side.create_topic()
    for timestamp in (-1, -2, -3, 0, BASE_MS):
        listed(side, topic, (0, timestamp))
    place = {"partition": 0, "current_leader_epoch": 0, "leader_epoch": 0}
    side.ask(apis.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=-1, topics=[{"topic": topic, "partitions": [place]}])


def under_log_append_time(side: Side) -> None:
    topic = with_records(side, BASE_MS, message_timestamp_type="LogAppendTime")
    for timestamp in (-3, 0, BASE_MS, 4_000_000_000_000):
        listed(side, topic, (0, timestamp))


CASES: dict[str, Callable[[Side], None]] = {
    "list offsets by special timestamps": times(-1, -2, -3),
    "list offsets by special timestamps of old": times(-1, -2, -3, version=6),
    **{f"list offsets of tiered storage in {at}": times(-4, -5, -6, version=at) for at in (7, 8, 9, 10)},
    "list offsets by unknown special timestamps": times(-7, -100, version=10),
    "list offsets by time": times(0, BASE_MS, BASE_MS + 1, BASE_MS + 2, BASE_MS + 10, BASE_MS + 11, BASE_MS + 12),
    "list offsets by a time to come": times(4_000_000_000_000, 2**63 - 1),
    "list offsets of unknown partitions": listing((-1, -1), (2, -1), (0, -1)),
    "list offsets of a partition twice": listing((0, -1), (0, -2)),
    "list offsets of an unknown topic": listing((0, -1), name="no-such-topic-to-list"),
    "list offsets of an impossible topic": listing((0, -1), name="a/b"),
    "list offsets of no partition": listing(),
    "list offsets of no topic": listing(topics=()),
    "list offsets as a replica": listing((0, -1), replica_id=1),
    "list offsets as a debugger": listing((0, -1), replica_id=-2),
    "list offsets with an unknown isolation": listing((0, -1), isolation_level=5),
    "list offsets with the leader epoch": with_epoch(0),
    "list offsets with a later leader epoch": with_epoch(1),
    "list offsets with a leader epoch of -2": with_epoch(-2),
    "list offsets of no records": no_records_yet,
    "list offsets under log append time": under_log_append_time,
    "delete records in steps": deletions((0, 0), (0, 2), (0, 1), (0, 6), (0, -1)),
    "delete records within a batch": deletions((0, 3), (0, 3)),
    "delete records outside the log": deletions((0, 7), (0, -2), (0, -3), (0, 2**63 - 1)),
    "delete records of an unknown partition": deletions((2, 0), (-1, 0)),
    "delete records of an unknown topic": deletions((0, 0), name="no-such-topic-to-delete"),
    "delete records of an impossible topic": deletions((0, 0), name="a/b"),
    "delete records of the groups' topic": deletions((0, 0), name="__consumer_offsets"),
    "delete records of the cluster's topic": deletions((0, 0), name="__cluster_metadata"),
    "delete records of a partition twice": deletions_at_once((0, 1), (0, 2), (1, 0), (9, 0)),
    "delete no records": deletion_of_nothing,
    "delete records of a compacted topic": deletion_where_nothing_is_deleted("compact"),
    "delete records of a topic without a policy": deletion_where_nothing_is_deleted(""),
    "delete records of a topic that does both": deletion_where_nothing_is_deleted("compact,delete"),
    "epochs' ends": epochs((-1, 0), (0, 0), (-1, 1), (0, 5)),
    "epochs' ends of wrong current epochs": epochs((1, 0), (-2, 0)),
    "epochs' ends of negative epochs": epochs((-1, -1), (-1, -2)),
    "epochs' ends of an unknown partition": epochs((-1, 0), partition=7),
    "epochs' ends of an unknown topic": epochs((-1, 0), name="no-such-topic-with-epochs"),
}
