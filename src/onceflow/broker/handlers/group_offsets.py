"""APIs of committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from onceflow.broker.groups.records import OffsetCommit
from onceflow.broker.groups.requests import GroupBatch, GroupRequests
from onceflow.broker.handlers.groups import group_refusal, instance_id_of
from onceflow.broker.handlers.sliced_responses import Element, Send, at_once, once_durable, respond_in_slices, tags_of
from onceflow.broker.network.request import Request
from onceflow.broker.node import Node
from onceflow.broker.security.authorizer import Access
from onceflow.wire import apis
from onceflow.wire.acls import AclOperation, ResourceType
from onceflow.wire.errors import ErrorCode
from onceflow.wire.primitives import INT16, INT32, INT64, append_count, append_string

ERROR_FROM_OFFSET_FETCH = 2
THROTTLED_FROM_OFFSET_FETCH = 3
LEADER_EPOCH_FROM_OFFSET_FETCH = 5
BATCHED_FROM_OFFSET_FETCH = 8
WORK_PER_OFFSET = 2
WORK_PER_COMMIT = 6
NO_OFFSET = OffsetCommit("", "", -1, -1)

Offset = tuple[int, OffsetCommit, ErrorCode]
"""(partition, committed offset, error)."""
Offsets = Sequence[tuple[str, Sequence[Offset]]]
"""Offsets by topic."""
PartitionErrors = list[tuple[str, list[tuple[int, ErrorCode]]]]


def handle_offset_commit(node: Node, request: Request) -> None:
    """Serve one OffsetCommit request; all its offsets are recorded in one batch."""
    body = request.decode()
    refusal = group_refusal(node, request, body.group_id)
    unauthorized = refusal if refusal == ErrorCode.group_authorization_failed else ErrorCode.none
    groups = node.group_shards.of(body.group_id)

    def error_now() -> ErrorCode:
        return groups.error_code or groups.groups.commit_error(
            body.group_id, body.member_id, body.generation_id_or_member_epoch, instance_id_of(body)
        )

    refusal = refusal or error_now()
    offsets = CheckedOffsets(node, bytes_max=0 if refusal else groups.batch_bytes_max)

    def record() -> None:
        # Its turn decides: the member may have left, and topics may have been deleted, since the first one.
        error_code = refusal or error_now()
        if error_code:
            offsets.refuse(error_code)
        batch = offsets.take()
        if batch.records:
            groups.record(batch, respond)
        else:
            respond()

    def respond(failure: ErrorCode = ErrorCode.none) -> None:
        request.respond(topics=_errors_by_topic(offsets.results, failure))

    request.prepare(offsets.check(body, node.access(request), unauthorized, _retention_ms(body)), record)


def _retention_ms(body: Any) -> int:
    """Return how long versions 2 to 4 keep their offsets; -1: as long as the broker's setting."""
    retention = getattr(body, "retention_time", None)
    return -1 if retention is None else round(float(retention.total_seconds()) * 1000)


class CheckedOffsets:
    """Offsets that a request commits, in a transaction or not: checked and encoded over several turns of the loop."""

    def __init__(self, node: Node, *, bytes_max: int) -> None:
        """Encode records up to `bytes_max`: 0 for a request that is refused, else what the log takes in one batch.

        Each record has the group's id: a request with a long one would grow a thousand times.
        """
        self.results: PartitionErrors = []
        """Errors so far, in the request's order."""
        self._node = node
        self._bytes_max = bytes_max
        self._now_ms = node.clock.now_ms()
        self._batch = GroupBatch(self._now_ms)
        self._topic_ids: dict[str, uuid.UUID | None] = {}
        """Ids of the topics when they were checked."""
        self.are_none_valid = True
        """Whether every offset has an error of its own."""

    def check(self, body: Any, access: Access, refusal: ErrorCode, retention_ms: int = -1) -> Iterator[int]:
        """Check each offset, and yield the work; a `refusal` is the error of all.

        A `retention_ms` of -1 is the broker's setting.
        """
        for topic in body.topics:
            errors: list[tuple[int, ErrorCode]] = []
            self.results.append((topic.name, errors))
            self._topic_ids.setdefault(topic.name, self._topic_id(topic.name))
            is_allowed = access.may(AclOperation.READ, ResourceType.TOPIC, topic.name)
            topic_refusal = refusal or (ErrorCode.none if is_allowed else ErrorCode.topic_authorization_failed)
            yield WORK_PER_OFFSET
            for entry in topic.partitions:
                code = topic_refusal or self._error(topic.name, entry.partition_index, entry.committed_metadata)
                errors.append((entry.partition_index, code))
                if code == ErrorCode.none:
                    self.are_none_valid = False
                    self._add(body.group_id, topic.name, entry, retention_ms)
                yield WORK_PER_COMMIT

    def _topic_id(self, name: str) -> uuid.UUID | None:
        topic = self._node.topics.by_name.get(name)
        return None if topic is None else topic.topic_id

    def _error(self, topic: str, partition: int, metadata: str | None) -> ErrorCode:
        """Return why no offset can be committed there. Kafka counts `metadata` in UTF-16 units."""
        if not self._node.has_partition(topic, partition):
            return ErrorCode.unknown_topic_or_partition
        if metadata and len(metadata.encode("utf-16-le")) // 2 > self._node.config.offset_metadata_bytes_max:
            return ErrorCode.offset_metadata_too_large
        return ErrorCode.none

    def _add(self, group_id: str, topic: str, entry: Any, retention_ms: int) -> None:
        if self._batch.encoded.size_bytes >= self._bytes_max:
            return
        self._batch.add(
            OffsetCommit(
                group_id,
                topic,
                entry.partition_index,
                entry.committed_offset,
                getattr(entry, "committed_leader_epoch", -1),
                entry.committed_metadata or "",
                self._now_ms,
                self._now_ms + retention_ms if retention_ms >= 0 else -1,
            )
        )

    def refuse(self, error_code: ErrorCode) -> None:
        """Commit nothing; the error goes before all but those of topics without permission."""
        unauthorized = ErrorCode.topic_authorization_failed
        for _topic, errors in self.results:
            errors[:] = [(index, code if code == unauthorized else error_code) for index, code in errors]
        self._batch = GroupBatch(self._now_ms)

    def take(self) -> GroupBatch:
        """Return the records of the offsets without an error once, for an append in this turn.

        Topics that were deleted after their check have an error now, even if there are others with their names.
        """
        deleted = {name for name, topic_id in self._topic_ids.items() if self._topic_id(name) != topic_id}
        for topic, errors in self.results:
            if topic in deleted:
                unknown = ErrorCode.unknown_topic_or_partition
                errors[:] = [(index, code or unknown) for index, code in errors]
        batch, self._batch = self._batch, GroupBatch(self._now_ms)
        if not deleted:
            return batch
        kept = GroupBatch(self._now_ms)
        for record in batch.records:
            assert isinstance(record, OffsetCommit)
            if record.topic not in deleted:
                kept.add(record)
        return kept


def _errors_by_topic(results: PartitionErrors, refusal: ErrorCode) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "partitions": [{"partition_index": index, "error_code": code or refusal} for index, code in partitions],
        }
        for name, partitions in results
    ]


def handle_offset_fetch(node: Node, request: Request) -> None:
    """Serve one OffsetFetch request; it waits until the offsets in its response are durable."""
    body = request.decode()
    is_stable = getattr(body, "require_stable", False)
    access = node.access(request)

    shards: set[GroupRequests] = set()

    def respond(failure: ErrorCode, when_built: Callable[[Send], None]) -> None:
        def error_of(group: Any) -> ErrorCode:
            if not access.may(AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id):
                return ErrorCode.group_authorization_failed
            shard = node.group_shards.of(group.group_id)
            if not failure and shard.error_code:
                request.reply.count_error(shard.error_code)
            elif not failure:
                shards.add(shard)
            return failure or shard.error_code

        def offsets_of(group: Any, error_code: ErrorCode) -> Offsets:
            if error_code == ErrorCode.group_authorization_failed and request.version >= ERROR_FROM_OFFSET_FETCH:
                return ()
            if error_code:
                return _refused(group.topics, error_code)
            return _offsets(node, access, group.group_id, group.topics, is_stable=is_stable)

        def groups() -> Iterator[Element]:
            for group in body.groups:
                error_code = error_of(group)
                yield _group_element(request, group, offsets_of(group, error_code), error_code)

        head = INT32.pack(0) if request.version >= THROTTLED_FROM_OFFSET_FETCH else b""
        tail = tags_of(request)
        if request.version >= BATCHED_FROM_OFFSET_FETCH:
            elements = groups()
        else:
            error_code = error_of(body)
            offsets = offsets_of(body, error_code)
            elements = (_topic_element(request, name, partitions) for name, partitions in offsets)
            if request.version >= ERROR_FROM_OFFSET_FETCH:
                tail = INT16.pack(error_code) + tail
        respond_in_slices(request, head, elements, tail, when_built=when_built)

    def refuse(error_code: ErrorCode) -> None:
        request.reply.count_error(error_code)
        respond(error_code, at_once)

    respond(ErrorCode.none, once_durable(partial(node.group_shards.settle_in_time, shards), refuse))


def _offsets(node: Node, access: Access, group_id: str, asked_topics: Any, *, is_stable: bool) -> Offsets:
    """Return a group's offsets; a list of all leaves out topics that the client may not describe."""
    groups = node.group_shards.of(group_id).groups
    group = groups.groups.get(group_id)
    offsets = group.offsets if group is not None else {}
    wanted: Iterable[tuple[str, Iterable[int]]]
    if asked_topics is None:
        by_topic: dict[str, list[int]] = {}
        for topic, index in offsets:
            by_topic.setdefault(topic, []).append(index)
        wanted = [
            entry for entry in by_topic.items() if access.may(AclOperation.DESCRIBE, ResourceType.TOPIC, entry[0])
        ]
    else:
        wanted = [(topic.name, topic.partition_indexes) for topic in asked_topics]
    unstable = groups.pending.of_group(group_id) if is_stable else frozenset()

    def offset_of(topic: str, index: int) -> Offset:
        if (topic, index) in unstable:
            return index, NO_OFFSET, ErrorCode.unstable_offset_commit
        return index, offsets.get((topic, index), NO_OFFSET), ErrorCode.none

    results: list[tuple[str, Sequence[Offset]]] = []
    for topic, indexes in wanted:
        if asked_topics is None or access.may(AclOperation.DESCRIBE, ResourceType.TOPIC, topic):
            results.append((topic, [offset_of(topic, index) for index in indexes]))
        else:
            results.append((topic, [(index, NO_OFFSET, ErrorCode.topic_authorization_failed) for index in indexes]))
    return results


def _refused(topics: Any, error_code: ErrorCode) -> Offsets:
    """Return an error for each partition. Version 1 has no other error code; without one, -1 would mean "no offset"."""
    return [
        (topic.name, [(index, NO_OFFSET, error_code) for index in topic.partition_indexes]) for topic in topics or ()
    ]


def _group_element(request: Request, group: Any, offsets_by_topic: Offsets, error_code: ErrorCode) -> Element:
    """Encode a group of version 8, the first with several, by hand: kio needs ten times as long."""
    topics = [_topic_element(request, name, offsets) for name, offsets in offsets_by_topic]
    buffer = bytearray()
    append_string(buffer, group.group_id, flexible=True)
    append_count(buffer, len(topics), flexible=True)
    buffer += b"".join(element for element, _work in topics) + INT16.pack(error_code) + tags_of(request)
    return bytes(buffer), sum((work for _element, work in topics), start=WORK_PER_OFFSET)


def _topic_element(request: Request, name: str, offsets: Sequence[Offset]) -> Element:
    tags = tags_of(request)
    flexible = tags != b""
    buffer = bytearray()
    append_string(buffer, name, flexible=flexible)
    append_count(buffer, len(offsets), flexible=flexible)
    for index, commit, error_code in offsets:
        if error_code in (ErrorCode.unstable_offset_commit, ErrorCode.topic_authorization_failed):
            request.reply.count_error(error_code)
        assert commit.offset is not None
        buffer += INT32.pack(index) + INT64.pack(commit.offset)
        if request.version >= LEADER_EPOCH_FROM_OFFSET_FETCH:
            buffer += INT32.pack(commit.leader_epoch)
        append_string(buffer, commit.metadata, flexible=flexible)
        buffer += INT16.pack(error_code) + tags
    return bytes(buffer + tags), WORK_PER_OFFSET * (1 + len(offsets))


def handle_offset_delete(node: Node, request: Request) -> None:
    """Serve one OffsetDelete request (KIP-496): offsets in topics that no member of the group reads."""
    body = request.decode()
    access = node.access(request)
    refusal = group_refusal(node, request, body.group_id, AclOperation.DELETE)
    groups = node.group_shards.of(body.group_id)
    refusal = refusal or groups.groups.offset_delete_error(body.group_id)
    if refusal:
        request.respond(error_code=refusal, topics=[])
        return
    is_allowed = {topic.name: access.may(AclOperation.READ, ResourceType.TOPIC, topic.name) for topic in body.topics}
    places = [
        (topic.name, entry.partition_index)
        for topic in body.topics
        if is_allowed[topic.name]
        for entry in topic.partitions
    ]
    known = {place for place in places if node.has_partition(*place)}
    records, error_codes = groups.groups.decide_delete_offsets(body.group_id, places, known)
    refused = ErrorCode.topic_authorization_failed
    results: PartitionErrors = [
        (
            topic.name,
            [
                (entry.partition_index, error_codes.get((topic.name, entry.partition_index), refused))
                for entry in topic.partitions
            ],
        )
        for topic in body.topics
    ]

    def respond(error_code: ErrorCode) -> None:
        topics = [] if error_code else _errors_by_topic(results, ErrorCode.none)
        request.respond(error_code=error_code, topics=topics)

    groups.record(records, respond)


HANDLERS = {
    apis.OFFSET_COMMIT: handle_offset_commit,
    apis.OFFSET_FETCH: handle_offset_fetch,
    apis.OFFSET_DELETE: handle_offset_delete,
}
