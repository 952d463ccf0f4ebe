"""Produce: append each partition's batch, answer now (acks=1), after the group commit (acks=all) or not (acks=0).

An answer to acks=all says that the records survive a power cut. With acks=1 they become visible, since the high
watermark is the synced end, with the round of syncs that the append asks for.
"""

import logging

from onceflow.broker.node import Node
from onceflow.broker.partitions import Partition
from onceflow.broker.request import Request, closed_if_unanswered
from onceflow.broker.topics import CLUSTER_METADATA_TOPIC, GROUP_OFFSETS_TOPIC, NAME_CHARACTERS_MAX
from onceflow.errors import OnceflowError
from onceflow.log.errors import LogError
from onceflow.wire import apis, produce
from onceflow.wire.errors import ErrorCode
from onceflow.wire.produce import PartitionResponse

logger = logging.getLogger(__name__)

ACKS_ALL = -1
INTERNAL_TOPICS = (GROUP_OFFSETS_TOPIC, CLUSTER_METADATA_TOPIC)


class Refused(OnceflowError):
    """A partition's records are refused before they reach its log."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


class PendingProduce:
    """One Produce request whose partitions wait for their syncs."""

    __slots__ = ("_missing", "_request", "_topics")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._topics: list[tuple[str, list[PartitionResponse]]] = []
        self._missing = 1

    def add_topic(self, name: str) -> list[PartitionResponse]:
        responses: list[PartitionResponse] = []
        self._topics.append((name, responses))
        return responses

    def wait_for(self, partition: Partition, offset_end: int, responses: list[PartitionResponse], at: int) -> None:
        """Hold the answer back until the partition is synced up to `offset_end`."""
        self._missing += 1

        def synced(error_code: ErrorCode) -> None:
            if error_code != ErrorCode.none:
                responses[at] = PartitionResponse(partition.index, error_code, -1)
            self.done()

        partition.when_synced(offset_end, synced)

    def done(self) -> None:
        """One thing less to wait for; answers after the last."""
        self._missing -= 1
        if not self._missing:
            header, reply = self._request.header, self._request.reply
            with closed_if_unanswered(reply):
                reply.send([produce.encode_response(header.version, header.correlation_id, self._topics)])

    def first_error(self) -> PartitionResponse | None:
        return next((each for _name, responses in self._topics for each in responses if each.error_code), None)


def handle(node: Node, request: Request) -> None:
    """Serve one Produce request."""
    asked = produce.parse_request(request.frame, request.header)
    pending = PendingProduce(request)
    for name, partitions in asked.topics:
        responses = pending.add_topic(name)
        for index, records in partitions:
            try:
                _append(node, asked, name, index, records, pending, responses)
            except (Refused, LogError) as error:
                responses.append(PartitionResponse(index, error.error_code, -1, error_message=str(error)))
    if asked.acks == 0:
        _end_without_answer(request, pending)
    else:
        pending.done()


def _append(
    node: Node,
    asked: produce.ProduceRequest,
    name: str,
    index: int,
    records: memoryview | None,
    pending: PendingProduce,
    responses: list[PartitionResponse],
) -> None:
    partition = node.partitions.get(name, index)
    _check(asked, name, partition, records)
    assert partition is not None
    assert records is not None
    appended = partition.log.append(records)
    responses.append(PartitionResponse(index, 0, appended.base_offset, -1, partition.log.log_start_offset))
    node.group_commit.request(partition)
    if asked.acks == ACKS_ALL:
        pending.wait_for(partition, appended.last_offset + 1, responses, len(responses) - 1)


def _check(asked: produce.ProduceRequest, name: str, partition: Partition | None, records: memoryview | None) -> None:
    if asked.acks not in (ACKS_ALL, 0, 1):
        raise Refused(ErrorCode.invalid_required_acks, f"acks={asked.acks}; -1, 0 and 1 exist")
    if name in INTERNAL_TOPICS:
        raise Refused(ErrorCode.invalid_topic_exception, f"topic {name} is the broker's own; clients cannot write it")
    if partition is None:
        raise Refused(ErrorCode.unknown_topic_or_partition, f"topic {name[:NAME_CHARACTERS_MAX]} has no such partition")
    if asked.transactional_id is not None:
        raise Refused(ErrorCode.invalid_txn_state, "this broker has no transactions; produce without transactional.id")
    if not records:
        raise Refused(ErrorCode.invalid_record, f"{name}: a partition without records")


def _end_without_answer(request: Request, pending: PendingProduce) -> None:
    error = pending.first_error()
    if error is None:
        request.reply.send([])
    else:
        # The client awaits no answer: a closed connection is the only way to tell it, and Kafka's.
        request.reply.close_connection(f"acks=0, {ErrorCode(error.error_code).name}: {error.error_message}")


HANDLERS = {
    apis.PRODUCE: handle,
}
