"""The consumer group APIs: requests of any version become the coordinator's values, its answers become responses."""

from typing import Any

from onceflow.broker.groups.coordinator import METADATA_CHARACTERS_MAX, JoinRequest, SyncRequest
from onceflow.broker.groups.group import JoinAnswer, SyncAnswer
from onceflow.broker.groups.records import GroupRecord, OffsetCommit
from onceflow.broker.node import Node
from onceflow.broker.request import Request
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode

KEY_TYPE_GROUP = 0
KEY_TYPE_TRANSACTION = 1
KNOWN_MEMBER_ID_FROM = 4
MEMBERS_FROM = 3
BATCHED_FROM_FIND_COORDINATOR = 4
BATCHED_FROM_OFFSET_FETCH = 8
NO_OFFSET = OffsetCommit("", "", -1, -1)


def handle_find_coordinator(node: Node, request: Request) -> None:
    """Serve one FindCoordinator request: this broker is the coordinator of everything.

    Of transactions too, though there are none yet: so InitProducerId is asked, whose refusal librdkafka shows and
    Java's and Python's clients do not retry.
    """
    asked = request.decode()
    keys = asked.coordinator_keys if request.version >= BATCHED_FROM_FIND_COORDINATOR else (asked.key,)
    if getattr(asked, "key_type", KEY_TYPE_GROUP) in (KEY_TYPE_GROUP, KEY_TYPE_TRANSACTION):
        host, port = node.advertised_host, node.advertised_port
        found = {
            "error_code": ErrorCode.none,
            "error_message": None,
            "node_id": node.node_id,
            "host": host,
            "port": port,
        }
    else:
        message = f"key type {asked.key_type}: groups (0) and transactions (1) have a coordinator here"
        code = ErrorCode.invalid_request
        found = {"error_code": code, "error_message": message, "node_id": -1, "host": "", "port": -1}
    request.answer(**found, coordinators=[{**found, "key": key} for key in keys])


def handle_join(node: Node, request: Request) -> None:
    """Serve one JoinGroup request."""
    asked = request.decode()

    def answer(joined: JoinAnswer) -> None:
        request.answer(
            error_code=joined.error_code,
            generation_id=joined.generation,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol if request.version >= 7 else joined.protocol or "",
            leader=joined.leader,
            member_id=joined.member_id,
            members=[{"member_id": each, "metadata": metadata} for each, metadata in joined.members],
        )

    if _is_static(asked):
        answer(JoinAnswer(ErrorCode.unsupported_version, asked.member_id))
        return
    session_timeout_ms = _milliseconds(asked.session_timeout)
    # Version 0 has no rebalance time-out of its own: the session's stands for both.
    has_rebalance_timeout = hasattr(asked, "rebalance_timeout")
    node.group_requests.carry_out(
        node.groups.join(
            JoinRequest(
                asked.group_id,
                asked.member_id,
                request.client_id,
                f"/{request.peer_host}",
                session_timeout_ms,
                _milliseconds(asked.rebalance_timeout) if has_rebalance_timeout else session_timeout_ms,
                asked.protocol_type,
                tuple((each.name, each.metadata) for each in asked.protocols),
                request.version >= KNOWN_MEMBER_ID_FROM,
            ),
            answer,
        )
    )


def _is_static(asked: Any) -> bool:
    """Whether the client wants static membership (KIP-345), which is refused, not ignored."""
    return getattr(asked, "group_instance_id", None) is not None


def _milliseconds(duration: Any) -> int:
    return round(float(duration.total_seconds()) * 1000)


def handle_sync(node: Node, request: Request) -> None:
    """Serve one SyncGroup request."""
    asked = request.decode()

    def answer(synced: SyncAnswer) -> None:
        request.answer(
            error_code=synced.error_code,
            protocol_type=synced.protocol_type,
            protocol_name=synced.protocol,
            assignment=synced.assignment,
        )

    if _is_static(asked):
        answer(SyncAnswer(ErrorCode.unsupported_version))
        return
    node.group_requests.carry_out(
        node.groups.sync(
            SyncRequest(
                asked.group_id,
                asked.generation_id,
                asked.member_id,
                getattr(asked, "protocol_type", None),
                getattr(asked, "protocol_name", None),
                {each.member_id: each.assignment for each in asked.assignments},
            ),
            answer,
        )
    )


def handle_heartbeat(node: Node, request: Request) -> None:
    """Serve one Heartbeat request."""
    asked = request.decode()
    error_code = node.group_requests.error_code
    if error_code == ErrorCode.none:
        error_code = node.groups.heartbeat(asked.group_id, asked.member_id, asked.generation_id)
    request.answer(error_code=ErrorCode.unsupported_version if _is_static(asked) else error_code)


def handle_leave(node: Node, request: Request) -> None:
    """Serve one LeaveGroup request."""
    asked = request.decode()
    members = asked.members if request.version >= MEMBERS_FROM else (asked,)
    error_codes, outcome = node.groups.leave(asked.group_id, [each.member_id for each in members])

    def answer(refusal: ErrorCode = ErrorCode.none) -> None:
        single = refusal if request.version >= MEMBERS_FROM or refusal else error_codes[0]
        request.answer(
            error_code=single,
            members=[
                {"member_id": member.member_id, "group_instance_id": None, "error_code": error_code}
                for member, error_code in zip(members, error_codes, strict=True)
            ],
        )

    outcome.answers.append(answer)
    outcome.refusals.append(answer)
    node.group_requests.carry_out(outcome)


def handle_offset_commit(node: Node, request: Request) -> None:
    """Serve one OffsetCommit request; all its offsets are recorded in one batch."""
    asked = request.decode()
    generation = getattr(asked, "generation_id_or_member_epoch", -1)
    error_code = node.groups.commit_error(asked.group_id, asked.member_id, generation)
    if _is_static(asked):
        error_code = ErrorCode.unsupported_version
    records: list[GroupRecord] = []
    results: list[tuple[str, list[tuple[int, ErrorCode]]]] = []
    for topic in asked.topics:
        results.append((topic.name, []))
        for each in topic.partitions:
            code = error_code or _commit_error(node, topic.name, each)
            results[-1][1].append((each.partition_index, ErrorCode(code)))
            if code == ErrorCode.none:
                records.append(_commit_record(node, asked.group_id, topic.name, each))

    def answer(refusal: ErrorCode = ErrorCode.none) -> None:
        request.answer(topics=[_committed(name, partitions, refusal) for name, partitions in results])

    node.group_requests.record(records, answer)


def _commit_error(node: Node, topic: str, asked: Any) -> ErrorCode:
    if len(asked.committed_metadata or "") > METADATA_CHARACTERS_MAX:
        return ErrorCode.offset_metadata_too_large
    if node.partitions.get(topic, asked.partition_index) is None:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none


def _commit_record(node: Node, group_id: str, topic: str, asked: Any) -> OffsetCommit:
    return OffsetCommit(
        group_id,
        topic,
        asked.partition_index,
        asked.committed_offset,
        getattr(asked, "committed_leader_epoch", -1),
        asked.committed_metadata or "",
        node.clock.now_ms(),
    )


def _committed(name: str, partitions: list[tuple[int, ErrorCode]], refusal: ErrorCode) -> dict[str, Any]:
    return {
        "name": name,
        "partitions": [{"partition_index": index, "error_code": code or refusal} for index, code in partitions],
    }


def handle_offset_fetch(node: Node, request: Request) -> None:
    """Serve one OffsetFetch request; it waits until the offsets that it reveals are durable."""
    asked = request.decode()
    if request.version >= BATCHED_FROM_OFFSET_FETCH:
        groups = [(each.group_id, _offsets(node, each.group_id, each.topics)) for each in asked.groups]
        node.group_requests.when_synced(lambda code: _answer_groups(request, groups, code))
        return
    topics = _offsets(node, asked.group_id, asked.topics)

    def answer(error_code: ErrorCode) -> None:
        request.answer(error_code=error_code, topics=_refused_offsets(topics, error_code) if error_code else topics)

    node.group_requests.when_synced(answer)


def _answer_groups(request: Request, groups: list[tuple[str, Any]], error_code: ErrorCode) -> None:
    request.answer(
        groups=[
            {
                "group_id": group_id,
                "topics": _refused_offsets(topics, error_code) if error_code else topics,
                "error_code": error_code,
            }
            for group_id, topics in groups
        ]
    )


def _offsets(node: Node, group_id: str, asked_topics: Any) -> list[dict[str, Any]]:
    group = node.groups.groups.get(group_id)
    offsets = group.offsets if group is not None else {}
    asked: dict[str, list[int]] = {}
    if asked_topics is None:
        for topic, index in offsets:
            asked.setdefault(topic, []).append(index)
    else:
        asked = {topic.name: list(topic.partition_indexes) for topic in asked_topics}
    return [
        {"name": topic, "partitions": [_fetched(index, offsets.get((topic, index), NO_OFFSET)) for index in indexes]}
        for topic, indexes in asked.items()
    ]


def _refused_offsets(topics: list[dict[str, Any]], error_code: ErrorCode) -> list[dict[str, Any]]:
    """Versions 0 and 1 have an error code in each partition alone; without one, -1 would say "no offset"."""
    return [
        {
            "name": topic["name"],
            "partitions": [
                {**_fetched(each["partition_index"], NO_OFFSET), "error_code": error_code}
                for each in topic["partitions"]
            ],
        }
        for topic in topics
    ]


def _fetched(index: int, commit: OffsetCommit) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": commit.offset,
        "committed_leader_epoch": commit.leader_epoch,
        "metadata": commit.metadata,
        "error_code": ErrorCode.none,
    }


HANDLERS = {
    apis.OFFSET_COMMIT: handle_offset_commit,
    apis.OFFSET_FETCH: handle_offset_fetch,
    apis.FIND_COORDINATOR: handle_find_coordinator,
    apis.JOIN_GROUP: handle_join,
    apis.HEARTBEAT: handle_heartbeat,
    apis.LEAVE_GROUP: handle_leave,
    apis.SYNC_GROUP: handle_sync,
}
