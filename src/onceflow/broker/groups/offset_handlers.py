"""The APIs of committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from collections.abc import Iterable
from typing import Any

from onceflow.broker.groups.handlers import instance_id_of
from onceflow.broker.groups.records import GroupRecord, OffsetCommit
from onceflow.broker.node import Node
from onceflow.broker.request import Request
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode

BATCHED_FROM_OFFSET_FETCH = 8
NO_OFFSET = OffsetCommit("", "", -1, -1)

PartitionErrors = list[tuple[str, list[tuple[int, ErrorCode]]]]


def handle_offset_commit(node: Node, request: Request) -> None:
    """Serve one OffsetCommit request; all its offsets are recorded in one batch."""
    asked = request.decode()
    error_code = node.group_requests.error_code or node.groups.commit_error(
        asked.group_id, asked.member_id, asked.generation_id_or_member_epoch, instance_id_of(asked)
    )
    retention_ms = _retention_ms(asked)
    records: list[GroupRecord] = []
    results: PartitionErrors = []
    for topic in asked.topics:
        results.append((topic.name, []))
        for each in topic.partitions:
            code = error_code or offset_error(node, topic.name, each.partition_index, each.committed_metadata)
            results[-1][1].append((each.partition_index, ErrorCode(code)))
            if code == ErrorCode.none:
                records.append(_commit_record(node, asked.group_id, topic.name, each, retention_ms))

    def answer(refusal: ErrorCode = ErrorCode.none) -> None:
        request.answer(topics=_errors_by_topic(results, refusal))

    if records:
        node.group_requests.record(records, answer)
    else:
        answer()


def _retention_ms(asked: Any) -> int:
    """Versions 2 to 4 may say how long their offsets are to be kept; -1: as long as the broker's setting says."""
    retention = getattr(asked, "retention_time", None)
    return -1 if retention is None else round(float(retention.total_seconds()) * 1000)


def offset_error(node: Node, topic: str, partition: int, metadata: str | None) -> ErrorCode:
    """Whether an offset can be committed there, in a transaction or not. Kafka counts `metadata` in UTF-16 units."""
    if node.partitions.get(topic, partition) is None:
        return ErrorCode.unknown_topic_or_partition
    if len((metadata or "").encode("utf-16-le")) // 2 > node.config.offset_metadata_bytes_max:
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none


def _commit_record(node: Node, group_id: str, topic: str, asked: Any, retention_ms: int) -> OffsetCommit:
    now_ms = node.clock.now_ms()
    return OffsetCommit(
        group_id,
        topic,
        asked.partition_index,
        asked.committed_offset,
        getattr(asked, "committed_leader_epoch", -1),
        asked.committed_metadata or "",
        now_ms,
        now_ms + retention_ms if retention_ms >= 0 else -1,
    )


def _errors_by_topic(results: PartitionErrors, refusal: ErrorCode) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "partitions": [{"partition_index": index, "error_code": code or refusal} for index, code in partitions],
        }
        for name, partitions in results
    ]


def handle_offset_fetch(node: Node, request: Request) -> None:
    """Serve one OffsetFetch request; it waits until the offsets that it reveals are durable."""
    asked = request.decode()
    is_batched = request.version >= BATCHED_FROM_OFFSET_FETCH
    is_stable = getattr(asked, "require_stable", False)
    asked_groups = asked.groups if is_batched else (asked,)

    def answer(error_code: ErrorCode) -> None:
        groups = [(each.group_id, found[number]) for number, each in enumerate(asked_groups)]
        if error_code:
            groups = [(group_id, _refused(topics, error_code)) for group_id, topics in groups]
        if is_batched:
            request.answer(
                groups=[
                    {"group_id": group_id, "topics": topics, "error_code": error_code} for group_id, topics in groups
                ]
            )
        else:
            request.answer(error_code=error_code, topics=groups[0][1])

    refusal = node.group_requests.error_code
    found = [_offsets(node, each.group_id, each.topics, is_stable=is_stable) for each in asked_groups]
    if refusal:
        answer(refusal)
    else:
        node.group_requests.settle_in_time(answer)


def _offsets(node: Node, group_id: str, asked_topics: Any, *, is_stable: bool) -> list[dict[str, Any]]:
    group = node.groups.groups.get(group_id)
    offsets = group.offsets if group is not None else {}
    asked: Iterable[tuple[str, Iterable[int]]]
    if asked_topics is None:
        by_topic: dict[str, list[int]] = {}
        for topic, index in offsets:
            by_topic.setdefault(topic, []).append(index)
        asked = by_topic.items()
    else:
        asked = [(topic.name, topic.partition_indexes) for topic in asked_topics]
    unstable = node.groups.pending.of_group(group_id) if is_stable else frozenset()
    return [
        {
            "name": topic,
            "partitions": [
                _answer_of(index, NO_OFFSET, ErrorCode.unstable_offset_commit)
                if (topic, index) in unstable
                else _answer_of(index, offsets.get((topic, index), NO_OFFSET))
                for index in indexes
            ],
        }
        for topic, indexes in asked
    ]


def _refused(topics: list[dict[str, Any]], error_code: ErrorCode) -> list[dict[str, Any]]:
    """Version 1 has an error code in each partition alone; without one, -1 would say "no offset"."""
    return [
        {
            "name": topic["name"],
            "partitions": [_answer_of(each["partition_index"], NO_OFFSET, error_code) for each in topic["partitions"]],
        }
        for topic in topics
    ]


def _answer_of(index: int, commit: OffsetCommit, error_code: ErrorCode = ErrorCode.none) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": commit.offset,
        "committed_leader_epoch": commit.leader_epoch,
        "metadata": commit.metadata,
        "error_code": error_code,
    }


def handle_offset_delete(node: Node, request: Request) -> None:
    """Serve one OffsetDelete request (KIP-496): offsets in topics that no member of the group reads."""
    asked = request.decode()
    refusal = node.group_requests.error_code or node.groups.offset_delete_error(asked.group_id)
    if refusal:
        request.answer(error_code=refusal, topics=[])
        return
    places = [(topic.name, each.partition_index) for topic in asked.topics for each in topic.partitions]
    known = {place for place in places if node.partitions.get(*place) is not None}
    records, error_codes = node.groups.decide_delete_offsets(asked.group_id, places, known)
    results: PartitionErrors = [
        (
            topic.name,
            [(each.partition_index, error_codes[topic.name, each.partition_index]) for each in topic.partitions],
        )
        for topic in asked.topics
    ]

    def answer(error_code: ErrorCode) -> None:
        topics = [] if error_code else _errors_by_topic(results, ErrorCode.none)
        request.answer(error_code=error_code, topics=topics)

    node.group_requests.record(records, answer)


HANDLERS = {
    apis.OFFSET_COMMIT: handle_offset_commit,
    apis.OFFSET_FETCH: handle_offset_fetch,
    apis.OFFSET_DELETE: handle_offset_delete,
}
