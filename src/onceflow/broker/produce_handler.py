"""Produce: append each partition's batch, answer now (acks=1), after the group commit (acks=all) or not (acks=0).

An answer to acks=all says that the records survive a power cut. With acks=1 they become visible, since the high
watermark is the synced end, with the round of syncs that the append asks for.
"""

import logging

from onceflow.broker.connection import Reply
from onceflow.broker.node import Node
from onceflow.broker.partitions import Partition, Synced
from onceflow.broker.request import Request, close_unanswered
from onceflow.broker.topics import INTERNAL_TOPICS, NAME_CHARACTERS_MAX
from onceflow.errors import OnceflowError
from onceflow.log.errors import LogError
from onceflow.wire import apis, produce
from onceflow.wire.batch import HEADER_BYTES, read_header
from onceflow.wire.codecs import Codec
from onceflow.wire.errors import ErrorCode
from onceflow.wire.known_produce import KNOWN_VERSION, Known
from onceflow.wire.produce import PartitionResponse

logger = logging.getLogger(__name__)

ACKS_ALL = -1
_NOT_YET = PartitionResponse(-1, 0, -1)
"""In an answer's place until it is there."""

_ATTRIBUTES_LOW_BYTE = 22
_CODEC_MASK = 0x07
_TRANSACTIONAL = 0x10
ZSTD_FROM = 7
"""The first version that may carry zstd (KIP-110)."""


def is_transactional(batch: memoryview) -> bool:
    """Whether a batch says that it belongs to a transaction; what is no whole header is the log's to refuse."""
    return len(batch) >= HEADER_BYTES and bool(batch[_ATTRIBUTES_LOW_BYTE] & _TRANSACTIONAL)


class Refused(OnceflowError):
    """A partition's records are refused before they reach its log."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


class PendingProduce:
    """One Produce request whose partitions wait for their syncs."""

    __slots__ = ("_acks", "_correlation_id", "_missing", "_reply", "_topics", "version")

    def __init__(self, reply: Reply, version: int, correlation_id: int, acks: int) -> None:
        self._reply = reply
        self.version = version
        self._correlation_id = correlation_id
        self._acks = acks
        self._topics: list[tuple[str, list[PartitionResponse]]] = []
        self._missing = 1

    def add_topic(self, name: str) -> list[PartitionResponse]:
        responses: list[PartitionResponse] = []
        self._topics.append((name, responses))
        return responses

    def hold(self) -> None:
        """Hold the answer back until one more `done`."""
        self._missing += 1

    def expect(self, partition: Partition, responses: list[PartitionResponse], at: int) -> Synced:
        """Hold the answer back until what is returned is called: when the partition is synced, or cannot be."""
        self._missing += 1

        def synced(error_code: ErrorCode) -> None:
            if error_code != ErrorCode.none:
                responses[at] = PartitionResponse(partition.index, error_code, -1)
            self.done()

        return synced

    def done(self) -> None:
        """One thing less to wait for; answers after the last."""
        self._missing -= 1
        if self._missing:
            return
        if self._acks == 0:
            self._end_without_answer()
            return
        try:
            self._reply.send([produce.encode_response(self.version, self._correlation_id, self._topics)])
        except BaseException as error:
            close_unanswered(self._reply, error)
            raise

    def _end_without_answer(self) -> None:
        error = next((each for _name, responses in self._topics for each in responses if each.error_code), None)
        if error is None:
            self._reply.send([])
        else:
            # The client awaits no answer: a closed connection is the only way to tell it, and Kafka's.
            reason = f"acks=0, {ErrorCode(error.error_code).name}: {error.error_message}"
            self._reply.close_connection(reason)


def handle(node: Node, request: Request) -> None:
    """Serve one Produce request."""
    header = request.header
    asked = produce.parse_request(request.frame, header, entries_max=node.config.request_partitions_max)
    node.known_requests.learn(request.frame, header, asked)
    pending = PendingProduce(request.reply, header.version, header.correlation_id, asked.acks)
    for name, partitions in asked.topics:
        responses = pending.add_topic(name)
        for index, records in partitions:
            _take(node, asked, name, index, records, pending, responses)
    pending.done()


def handle_known(node: Node, known: Known, correlation_id: int, batch: memoryview, reply: Reply) -> None:
    """Serve one that `node.known_requests` knows."""
    pending = PendingProduce(reply, KNOWN_VERSION, correlation_id, known.asked.acks)
    _take(node, known.asked, known.topic, known.partition, batch, pending, pending.add_topic(known.topic))
    pending.done()


def _take(
    node: Node,
    asked: produce.ProduceRequest,
    name: str,
    index: int,
    records: memoryview | None,
    pending: PendingProduce,
    responses: list[PartitionResponse],
) -> None:
    """One partition's records; what is to be answered is added to `responses`."""
    responses.append(_NOT_YET)
    try:
        _append_or_queue(node, asked, name, index, records, pending, responses)
    except (Refused, LogError) as error:
        responses[-1] = _refused(index, error, node.partitions.get(name, index))


def _refused(index: int, error: Refused | LogError, partition: Partition | None) -> PartitionResponse:
    log_start_offset = -1
    if partition is not None and isinstance(error, LogError) and error.tells_log_start:
        log_start_offset = partition.log.log_start_offset
    return PartitionResponse(index, error.error_code, -1, log_start_offset=log_start_offset, error_message=str(error))


def _append_or_queue(
    node: Node,
    asked: produce.ProduceRequest,
    name: str,
    index: int,
    records: memoryview | None,
    pending: PendingProduce,
    responses: list[PartitionResponse],
) -> None:
    """Append now, or once a thread has looked at the records; the last one of `responses` is the answer's place."""
    at = len(responses) - 1
    partition = node.partitions.get(name, index)
    _check(asked, pending.version, name, partition, records)
    assert partition is not None
    assert records is not None
    if not node.record_checks.must_wait(partition, records):
        _append(node, asked, partition, records, pending, responses, at)
        return
    pending.hold()
    # The request's own buffer is used again after this turn.
    batch = memoryview(bytearray(records))

    def checked(error: LogError | None) -> None:
        try:
            if error is not None:
                raise error
            # The topic may have been deleted meanwhile, and made again.
            current = node.partitions.get(name, partition.index)
            _check(asked, pending.version, name, current if current is partition else None, batch)
            _append(node, asked, partition, batch, pending, responses, at, is_checked=True)
        except (Refused, LogError) as refusal:
            responses[at] = _refused(partition.index, refusal, partition)
        finally:
            pending.done()

    node.record_checks.check(partition, batch, checked)


def _append(
    node: Node,
    asked: produce.ProduceRequest,
    partition: Partition,
    records: memoryview,
    pending: PendingProduce,
    responses: list[PartitionResponse],
    at: int,
    *,
    is_checked: bool = False,
) -> None:
    in_transaction = is_transactional(records)
    if in_transaction:
        _check_transaction(node, asked.transactional_id, partition, records, pending)
    log = partition.log
    appended = log.append(records, is_checked=is_checked)
    responses[at] = PartitionResponse(
        partition.index, 0, appended.base_offset, appended.timestamp_ms, log.log_start_offset
    )
    if in_transaction:
        # Whatever acks and flush policy say: after a crash the producer goes on, and commits what it was told is there.
        node.group_commit.flush(partition)
        if asked.acks:
            partition.when_durable(pending.expect(partition, responses, at))
        return
    node.group_commit.request(partition)
    if asked.acks == ACKS_ALL and appended.last_offset >= log.high_watermark:
        synced = pending.expect(partition, responses, at)
        partition.when_synced(appended.last_offset + 1, synced)


def _check(
    asked: produce.ProduceRequest, version: int, name: str, partition: Partition | None, records: memoryview | None
) -> None:
    """In Kafka's order: KafkaApis.handleProduceRequest, ProduceRequest.validateRecords, ReplicaManager."""
    if partition is None:
        raise Refused(ErrorCode.unknown_topic_or_partition, f"topic {name[:NAME_CHARACTERS_MAX]} has no such partition")
    if not records:
        raise Refused(ErrorCode.invalid_record, f"{name}: a partition without records")
    if version < ZSTD_FROM and _codec(records) == Codec.ZSTD:
        message = f"{name}: zstd in Produce {version}, where readers need not know it; send it in {ZSTD_FROM} or later"
        raise Refused(ErrorCode.unsupported_compression_type, message)
    if asked.acks not in (ACKS_ALL, 0, 1):
        raise Refused(ErrorCode.invalid_required_acks, f"acks={asked.acks}; -1, 0 and 1 exist")
    if name in INTERNAL_TOPICS:
        raise Refused(ErrorCode.invalid_topic_exception, f"topic {name} is the broker's own; clients cannot write it")


def _codec(batch: memoryview) -> int:
    return batch[_ATTRIBUTES_LOW_BYTE] & _CODEC_MASK if len(batch) >= HEADER_BYTES else Codec.NONE


def _check_transaction(
    node: Node, transactional_id: str | None, partition: Partition, records: memoryview, pending: PendingProduce
) -> None:
    """Coordinator and partition decide in one turn of the loop: no batch enters a transaction that is not open."""
    if transactional_id is None:
        raise Refused(
            ErrorCode.transactional_id_authorization_failed,
            f"{partition}: a transactional batch in a request without transactional id; send it with its own",
        )
    header = read_header(records)
    error_code = node.transactions.check_produce(
        header.producer_id, header.producer_epoch, transactional_id, partition.topic, partition.index
    )
    if error_code:
        # Who is told that it is fenced must not find it otherwise after a crash.
        pending.hold()
        node.transactions.when_synced(lambda _code: pending.done())
        raise Refused(
            error_code,
            f"{partition}: producer {header.producer_id} of epoch {header.producer_epoch} has no ongoing transaction"
            f" of {transactional_id!r} with this partition; add the partition first",
        )


HANDLERS = {
    apis.PRODUCE: handle,
}
