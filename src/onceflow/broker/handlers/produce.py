"""Produce: append each partition's batch, then respond at once (acks=1), after the group commit (acks=all) or never
(0).

A response to acks=all means that the records survive a power failure. With acks=1 they become visible in the next round
of syncs, which the append requests, since the high watermark is the synced end.
"""

import asyncio
import logging
from collections.abc import Callable

from onceflow.broker.network.reply import Reply
from onceflow.broker.network.request import Request, close_without_response
from onceflow.broker.node import Node
from onceflow.broker.security.authorizer import Access
from onceflow.broker.security.principal import KafkaPrincipal
from onceflow.broker.storage.partitions import Partition, Synced
from onceflow.broker.topics.topics import INTERNAL_TOPICS, NAME_CHARACTERS_MAX
from onceflow.errors import OnceflowError
from onceflow.log.errors import LogError
from onceflow.wire import apis, produce
from onceflow.wire.acls import AclOperation, ResourceType
from onceflow.wire.batch import HEADER_BYTES, read_header
from onceflow.wire.codecs import Codec
from onceflow.wire.errors import ErrorCode, error_name
from onceflow.wire.known_produce import KNOWN_VERSION, Known
from onceflow.wire.produce import PartitionResponse, SinglePartitionResponse

logger = logging.getLogger(__name__)

ACKS_ALL = -1

_ATTRIBUTES_LOW_BYTE = 22
_CODEC_MASK = 0x07
_TRANSACTIONAL = 0x10
_UNAUTHORIZED = "Authorization failed."
_UNDECIDED = PartitionResponse(-1, 0, -1)
"""Stands for the response of a partition until it is known."""
ZSTD_FROM = 7
"""First version that may carry zstd (KIP-110)."""


def is_transactional(batch: memoryview) -> bool:
    """Return whether a batch belongs to a transaction; the log refuses an incomplete header."""
    return len(batch) >= HEADER_BYTES and bool(batch[_ATTRIBUTES_LOW_BYTE] & _TRANSACTIONAL)


class Refused(OnceflowError):
    """Records of a partition that are refused before they reach its log."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


class PendingProduce:
    """One Produce request with partitions that wait for their syncs."""

    __slots__ = (
        "_correlation_id",
        "_missing",
        "_reply",
        "_single_partition_response",
        "_timeout_ms",
        "_topics",
        "acks",
        "requester",
        "transactional_id",
        "version",
    )

    def __init__(
        self,
        reply: Reply,
        version: int,
        correlation_id: int,
        transactional_id: str | None,
        acks: int,
        timeout_ms: int,
        single_partition_response: SinglePartitionResponse | None = None,
    ) -> None:
        self.version = version
        self.transactional_id = transactional_id
        self.acks = acks
        self.requester = reply.connection
        self._timeout_ms = timeout_ms
        self._reply = reply
        self._correlation_id = correlation_id
        self._single_partition_response = single_partition_response
        self._topics: list[tuple[str, list[PartitionResponse]]] = []
        self._missing = 1

    def add_topic(self, name: str) -> list[PartitionResponse]:
        responses: list[PartitionResponse] = []
        self._topics.append((name, responses))
        return responses

    def hold(self) -> None:
        """Delay the response until one more `done`."""
        self._missing += 1

    def expect(self, partition: Partition, responses: list[PartitionResponse], at: int) -> Synced:
        """Delay the response until the returned callback is called: when the partition is synced, or cannot be.

        Other replicas may be away: with some, the request's timeout ends the wait.
        """
        self._missing += 1

        def synced(error_code: ErrorCode) -> None:
            if error_code != ErrorCode.none:
                responses[at] = PartitionResponse(partition.index, error_code, -1)
                self.count_error(error_code)
            self.done()

        return synced if partition.replica is None else _once_within(self._timeout_ms, synced)

    def done(self) -> None:
        """Count one awaited event; respond after the last."""
        self._missing -= 1
        if self._missing:
            return
        if self.acks == 0:
            self._end_without_response()
            return
        try:
            self._reply.send([self._encoded()])
        except BaseException as error:
            close_without_response(self._reply, error)
            raise

    def _encoded(self) -> bytes:
        if self._single_partition_response is not None:
            response = self._topics[0][1][0]
            if response.error_message is None:
                return self._single_partition_response.encode(self._correlation_id, response)
        return produce.encode_response(self.version, self._correlation_id, self._topics)

    def count_error(self, error_code: ErrorCode) -> None:
        """Count a refused or failed partition, if the broker counts errors."""
        self._reply.count_error(error_code)

    def first_error(self) -> PartitionResponse | None:
        """Return the first error among the responses so far, if any."""
        return next(
            (response for _name, responses in self._topics for response in responses if response.error_code), None
        )

    def _end_without_response(self) -> None:
        error = self.first_error()
        if error is None:
            self._reply.send([])
        else:
            # The client awaits no response: closing the connection is the only way to report the error, and Kafka's.
            reason = f"acks=0, {error_name(error.error_code)}: {error.error_message}"
            self._reply.close_connection(reason)


def _once_within(timeout_ms: int, synced: Synced) -> Synced:
    """Return a callback for `synced`, which is called once: then, or with REQUEST_TIMED_OUT when the time is over."""
    is_over = False

    def end(error_code: ErrorCode) -> None:
        nonlocal is_over
        if not is_over:
            is_over = True
            timer.cancel()
            synced(error_code)

    timer = asyncio.get_running_loop().call_later(max(timeout_ms, 0) / 1000, end, ErrorCode.request_timed_out)
    return end


def handle(node: Node, request: Request) -> None:
    """Serve one Produce request."""
    frame, header = request.frame, request.header
    body = produce.parse_request(frame, header, entries_max=node.config.request_partitions_max)
    pending = PendingProduce(
        request.reply, header.version, header.correlation_id, body.transactional_id, body.acks, body.timeout_ms
    )
    refused = {} if node.authorizer is None else _refused_topics(node.access(request), body)
    for name, partitions in body.topics:
        responses = pending.add_topic(name)
        for index, records in partitions:
            if name in refused:
                pending.count_error(refused[name])
                responses.append(PartitionResponse(index, refused[name], -1, error_message=_UNAUTHORIZED))
            else:
                _take(node, name, index, records, pending, responses)
    if pending.first_error() is None:
        node.known_requests.learn(frame, header, body)
    pending.done()


def _refused_topics(access: Access, body: produce.ProduceRequest) -> dict[str, ErrorCode]:
    """Return the topics that the client may not write to, with their error (KafkaApis.handleProduceRequest).

    A transactional batch requires the permission to write with its transactional id: without it all are refused.
    """
    has_transaction = any(
        records is not None and is_transactional(records)
        for _name, partitions in body.topics
        for _at, records in partitions
    )
    if has_transaction and not _may_write_transaction(access, body.transactional_id):
        return dict.fromkeys(
            (name for name, _partitions in body.topics), ErrorCode.transactional_id_authorization_failed
        )
    return {
        name: ErrorCode.topic_authorization_failed
        for name in dict(body.topics)
        if not access.may(AclOperation.WRITE, ResourceType.TOPIC, name)
    }


def _may_write_transaction(access: Access, transactional_id: str | None) -> bool:
    return transactional_id is not None and access.may(
        AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    )


def may_repeat(node: Node, known: Known, principal: KafkaPrincipal, host: str) -> bool:
    """Return whether a client may send a known request; one that may not is served by `handle`, which refuses it."""
    if node.authorizer is None:
        return True
    access = node.authorizer.access(principal, host)
    may_write = access.may(AclOperation.WRITE, ResourceType.TOPIC, known.topic)
    return may_write and (known.transactional_id is None or _may_write_transaction(access, known.transactional_id))


def handle_known(node: Node, known: Known, correlation_id: int, batch: memoryview, reply: Reply) -> None:
    """Serve one request of a form that `node.known_requests` knows."""
    transactional_id, acks, timeout_ms, topic, partition, single_partition_response = known
    pending = PendingProduce(
        reply, KNOWN_VERSION, correlation_id, transactional_id, acks, timeout_ms, single_partition_response
    )
    _take(node, topic, partition, batch, pending, pending.add_topic(topic))
    pending.done()


def _take(
    node: Node,
    name: str,
    index: int,
    records: memoryview | None,
    pending: PendingProduce,
    responses: list[PartitionResponse],
) -> None:
    """Append one partition's records, now or once a thread has checked them, and add its response to `responses`."""
    at = len(responses)
    responses.append(_UNDECIDED)
    partition = node.partitions.get(name, index)
    try:
        if partition is None:
            raise _missing(node, name, index)
        _check(pending, name, records)
        assert records is not None
        if node.record_checks.must_wait(partition, records):
            _append_checked(node, partition, records, pending, responses, at)
        elif node.cluster is not None and _must_verify(node, partition, records, pending):
            _append_verified(node, partition, memoryview(bytearray(records)), pending, responses, at)
        else:
            _append(node, partition, records, pending, responses, at)
    except (Refused, LogError) as error:
        pending.count_error(error.error_code)
        responses[at] = _refused(index, error, partition)


def _refused(index: int, error: Refused | LogError, partition: Partition | None) -> PartitionResponse:
    log_start_offset = -1
    if partition is not None and isinstance(error, LogError) and error.reports_log_start:
        log_start_offset = partition.log.log_start_offset
    return PartitionResponse(index, error.error_code, -1, log_start_offset=log_start_offset, error_message=str(error))


def _append_checked(
    node: Node,
    partition: Partition,
    records: memoryview,
    pending: PendingProduce,
    responses: list[PartitionResponse],
    at: int,
) -> None:
    """Append the records when a thread has checked them."""
    # The request's own buffer is reused after this turn.
    batch = memoryview(bytearray(records))

    def append() -> None:
        _check(pending, partition.topic, batch)
        if node.cluster is not None and _must_verify(node, partition, batch, pending):
            _append_verified(node, partition, batch, pending, responses, at, is_checked=True)
        else:
            _append(node, partition, batch, pending, responses, at, is_checked=True)

    resume = _later(node, partition, pending, responses, at, append)
    node.record_checks.check(partition, batch, resume)


def _must_verify(node: Node, partition: Partition, records: memoryview, pending: PendingProduce) -> bool:
    """Return whether another broker must confirm first that a batch belongs to a transaction."""
    assert node.cluster is not None
    return (
        is_transactional(records)
        and pending.transactional_id is not None
        and node.cluster.verifications.is_needed(
            partition,
            read_header(records).producer_id,
            is_coordinated_here=not node.transactions.of(pending.transactional_id).is_elsewhere,
        )
    )


def _append_verified(
    node: Node,
    partition: Partition,
    batch: memoryview,
    pending: PendingProduce,
    responses: list[PartitionResponse],
    at: int,
    *,
    is_checked: bool = False,
) -> None:
    """Append the records of a transaction when its coordinator has confirmed that it includes the partition."""
    assert node.cluster is not None
    assert pending.transactional_id is not None
    header = read_header(batch)
    claim = (pending.transactional_id, header.producer_id, header.producer_epoch, partition.topic, partition.index)

    def append() -> None:
        _append(node, partition, batch, pending, responses, at, is_checked=is_checked, is_verified=True)

    resume = _later(node, partition, pending, responses, at, append)

    def verified(error_code: ErrorCode) -> None:
        resume(Refused(error_code, f"{partition}: the transaction does not include it") if error_code else None)

    node.cluster.verifications.verify(partition, claim, verified)


def _later(
    node: Node,
    partition: Partition,
    pending: PendingProduce,
    responses: list[PartitionResponse],
    at: int,
    append: Callable[[], None],
) -> Callable[[Refused | LogError | None], None]:
    """Let the response wait for these records; return a function that appends them, or takes their refusal."""
    pending.hold()

    def resume(error: Refused | LogError | None) -> None:
        try:
            if error is not None:
                raise error
            # The topic may have been deleted meanwhile, and recreated.
            current = node.partitions.get(partition.topic, partition.index)
            if current is not partition:
                raise _missing(node, partition.topic, partition.index)
            append()
        except (Refused, LogError) as refusal:
            pending.count_error(refusal.error_code)
            responses[at] = _refused(partition.index, refusal, partition)
        except Exception as failure:
            # The batch may or may not be in the log. During the request's own turn this would close the connection.
            logger.exception("%s: a batch could not be appended", partition)
            pending.count_error(_code_of(failure))
            responses[at] = PartitionResponse(partition.index, _code_of(failure), -1)
        finally:
            pending.done()

    return resume


def _code_of(failure: Exception) -> ErrorCode:
    """Return the code of Kafka's ReplicaManager for an unexpected error."""
    return ErrorCode.kafka_storage_error if isinstance(failure, OSError) else ErrorCode.unknown_server_error


def _append(
    node: Node,
    partition: Partition,
    records: memoryview,
    pending: PendingProduce,
    responses: list[PartitionResponse],
    at: int,
    *,
    is_checked: bool = False,
    is_verified: bool = False,
) -> None:
    in_transaction = is_transactional(records)
    if in_transaction and not is_verified:
        _check_transaction(node, partition, records, pending)
    if partition.replica is not None and pending.acks == ACKS_ALL and (error_code := partition.replica.refusal()):
        raise Refused(error_code, f"{partition}: fewer replicas are in sync than min.insync.replicas")
    log = partition.log
    appended = log.append(records, is_checked=is_checked)
    responses[at] = PartitionResponse(
        partition.index, 0, appended.base_offset, appended.timestamp_ms, log.segments.start_offset
    )
    if in_transaction:
        # Regardless of acks and flush policy: after a crash the producer continues, and commits the acknowledged
        # records.
        node.group_commit.flush(partition, pending.requester)
        if partition.replica is not None:
            partition.replica.on_appended()
        if pending.acks:
            partition.when_durable(pending.expect(partition, responses, at))
        return
    node.group_commit.request(partition, pending.requester)
    if pending.acks == ACKS_ALL and appended.last_offset >= log.visible.high_watermark:
        synced = pending.expect(partition, responses, at)
        partition.when_synced(appended.last_offset + 1, synced)


def _missing(node: Node, name: str, index: int) -> Refused:
    """Return the refusal of records for a partition that is not served here."""
    error_code = node.partitions.error_of_missing(name, index)
    if error_code is ErrorCode.not_leader_or_follower:
        return Refused(error_code, f"another broker leads {name}-{index}")
    return Refused(error_code, f"topic {name[:NAME_CHARACTERS_MAX]} has no such partition")


def _check(pending: PendingProduce, name: str, records: memoryview | None) -> None:
    """Check in Kafka's order: KafkaApis.handleProduceRequest, ProduceRequest.validateRecords, ReplicaManager."""
    if not records:
        raise Refused(ErrorCode.invalid_record, f"{name}: a partition without records")
    if pending.version < ZSTD_FROM and _codec(records) == Codec.ZSTD:
        raise Refused(
            ErrorCode.unsupported_compression_type,
            f"{name}: zstd in Produce version {pending.version}; use version {ZSTD_FROM} or later",
        )
    if pending.acks not in (ACKS_ALL, 0, 1):
        raise Refused(ErrorCode.invalid_required_acks, f"acks={pending.acks} is not supported; use -1, 0 or 1")
    if name in INTERNAL_TOPICS:
        raise Refused(ErrorCode.invalid_topic_exception, f"topic {name} is internal; clients cannot write to it")


def _codec(batch: memoryview) -> int:
    return batch[_ATTRIBUTES_LOW_BYTE] & _CODEC_MASK if len(batch) >= HEADER_BYTES else Codec.NONE


def _check_transaction(node: Node, partition: Partition, records: memoryview, pending: PendingProduce) -> None:
    """Check coordinator and partition in one turn of the loop: a batch enters only an open transaction."""
    transactional_id = pending.transactional_id
    if transactional_id is None:
        raise Refused(
            ErrorCode.transactional_id_authorization_failed,
            f"{partition}: a transactional batch in a request without a transactional id; send it with one",
        )
    header = read_header(records)
    shard = node.transactions.of(transactional_id)
    if shard.is_elsewhere:
        # It is open in the log: the coordinator had confirmed it, and will end it there with a marker.
        return
    error_code = shard.check_produce(
        header.producer_id, header.producer_epoch, transactional_id, partition.topic, partition.index
    )
    if error_code:
        # A producer that was fenced in a response must remain fenced after a crash.
        pending.hold()
        shard.when_synced(lambda _code: pending.done())
        raise Refused(
            error_code,
            f"{partition}: producer {header.producer_id} of epoch {header.producer_epoch} has no ongoing transaction"
            f" of {transactional_id!r} with this partition; add the partition first",
        )


HANDLERS = {
    apis.PRODUCE: handle,
}
