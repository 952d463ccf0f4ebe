"""Fetch: slices of segments, sent from the file; a long poll while there is less than the client wants.

Kafka's rules apply. The limits are soft: the first partition with data returns at least one whole batch (KIP-74). Any
error is returned at once; otherwise the response waits until `min_bytes` are available or `max_wait_ms` is over, and
then takes what is available (ReplicaManager.fetchMessages, DelayedFetch). A partition that is named several times is
read once, in the first position with the last values (FetchRequest.fetchData).

A waiting fetch knows how many bytes each partition has for it. A new record makes it read one partition; it reads all
partitions again only when their sum is enough.

With isolation level READ_COMMITTED a client reads up to the last stable offset, with the list of aborted transactions
in that range (LocalLog.addAbortedTransactions). A fetch waits there, and the marker that ends the transaction wakes it.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from itertools import groupby

from onceflow.broker.loop.deferred import LARGE_REQUEST_BYTES
from onceflow.broker.network.reply import Piece
from onceflow.broker.network.request import Request, close_unless_responded
from onceflow.broker.node import Node
from onceflow.broker.security.authorizer import Access
from onceflow.broker.storage.partitions import Partition, Watchers
from onceflow.log.epochs import EpochEnd
from onceflow.log.errors import LogError
from onceflow.log.segment import Slice
from onceflow.wire import apis, fetch
from onceflow.wire.acls import AclOperation, ResourceType
from onceflow.wire.errors import ErrorCode
from onceflow.wire.fetch import FetchPartition, FetchRequest, PartitionResponse

logger = logging.getLogger(__name__)

FULL_SESSION_EPOCHS = (0, -1)
"""Epochs of a fetch that names all its partitions, to start a session or without one (KIP-227's FetchMetadata)."""

FOLLOWERS_FROM = 11
"""First version of clients that may read from followers."""

WORK_PER_PARTITION = 4
"""Approximate microseconds to read a partition."""

EMPTY_ABORTED = (
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_server_error,
    ErrorCode.topic_authorization_failed,
)
"""Errors with an empty list of aborted transactions; for all others Kafka sends null (FetchResponse)."""


_REFUSED = ErrorCode.topic_authorization_failed

TopicResponse = tuple[str, list[PartitionResponse]]


class ReadResult:
    """Result of reading all partitions of a fetch once."""

    __slots__ = ("errors", "is_final", "responses", "size_bytes", "slices")

    def __init__(self) -> None:
        self.responses: list[TopicResponse] = []
        self.slices: list[Slice] = []
        self.size_bytes = 0
        self.is_final = False
        """Whether waiting cannot improve it: after an error, or where a limit or a segment's end cut a slice short."""
        self.errors: list[ErrorCode] | None = None


class PendingFetch:
    """One Fetch request until its response."""

    __slots__ = (
        "_body",
        "_is_due",
        "_is_reading",
        "_max_bytes",
        "_may_follow",
        "_moved",
        "_node",
        "_rack",
        "_refused",
        "_request",
        "_request_bytes",
        "_size_bytes",
        "_sizes",
        "_timer",
        "_wanted_bytes",
        "_watched",
    )

    def __init__(
        self, node: Node, request: Request, body: fetch.FetchRequest, refused: Sequence[TopicResponse] = ()
    ) -> None:
        self._node = node
        self._request = request
        self._body = body
        self._refused = refused
        """Responses of topics that the client may not read; they come last, and the others are waited for."""
        self._max_bytes = min(body.max_bytes, node.config.fetch_bytes_max)
        if node.throttling.quotas.counts:
            quota_bytes_max = node.throttling.usage.fetch_bytes_max(request.principal.name, request.client_id)
            self._max_bytes = min(self._max_bytes, quota_bytes_max or self._max_bytes)
        self._may_follow = node.cluster is not None and body.replica_id < 0 and request.version >= FOLLOWERS_FROM
        """Whether a follower may serve it (KIP-392)."""
        self._rack = body.rack_id if self._may_follow and node.config.reads_by_rack else ""
        self._wanted_bytes = min(body.min_bytes, self._max_bytes)
        self._watched: dict[Partition, FetchPartition] = {}
        self._sizes: dict[Partition, int] = {}
        """Bytes for this fetch in each watched partition that has any; `_size_bytes` is their sum."""
        self._size_bytes = 0
        self._is_due = False
        self._is_reading = False
        self._request_bytes = len(request.frame)
        self._moved: set[Partition] = set()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Respond now, or start to wait; a large fetch waits at least for its turn."""
        if self._request_bytes > LARGE_REQUEST_BYTES and self._body.topics:
            self._is_due = self._body.max_wait_ms <= 0
            self._park()
            self._read_all_soon()
            return
        result = self._read_all()
        if self._is_enough(result) or self._body.max_wait_ms <= 0 or not result.responses:
            self._respond(result)
        else:
            self._park()
            self._remember_sizes(result)

    def _park(self) -> None:
        reply = self._request.reply
        reply.is_long_wait = True
        reply.on_abandoned = self._stop
        reply.on_stop = self.respond_now
        self._timer = asyncio.get_running_loop().call_later(self._body.max_wait_ms / 1000, self.respond_soon)
        watcher = self._on_moved
        for topic, partitions in self._body.topics:
            for wanted in partitions:
                partition = self._partition(topic, wanted.partition)
                if partition is not None:
                    self._watchers_of(partition)[watcher] = None
                    self._watched[partition] = wanted
        self._node.parked_fetches.add(self, len(self._watched))

    def _partition(self, topic: str, index: int) -> Partition | None:
        """Return the partition that this broker leads, or follows if that is enough for the client."""
        partition = self._node.partitions.get(topic, index)
        if partition is None and self._may_follow:
            assert self._node.cluster is not None
            following = self._node.cluster.replication.following((topic, index))
            return None if following is None else following.partition
        return partition

    def _preferred_replica(self, partition: Partition, offset: int) -> int | None:
        """Return the follower in the client's rack that it should read from."""
        assert self._node.cluster is not None
        led = self._node.cluster.replication.led(partition)
        if led is None:
            return None
        nodes = self._node.cluster.view.nodes(self._request.endpoint.listener)
        return led.preferred_replica(self._rack, offset, {broker_id: rack for broker_id, _address, rack in nodes})

    def _watchers_of(self, partition: Partition) -> Watchers:
        """Return the fetches that are woken by what this one waits for: any record, or a visible one."""
        if self._body.replica_id < 0 or partition.replica is None:
            return partition.watchers
        return partition.replica.watchers

    def _is_enough(self, result: ReadResult) -> bool:
        return result.is_final or result.size_bytes >= self._wanted_bytes

    def _remember_sizes(self, result: ReadResult) -> None:
        """Remember each partition's size. No partition is missing: that would be an error, which ends the wait."""
        responses = (response for _, responses in result.responses for response in responses)
        pairs = zip(self._watched, responses, strict=True)
        self._sizes = {partition: response.records_bytes for partition, response in pairs if response.records_bytes}
        self._size_bytes = result.size_bytes

    def _on_moved(self, partition: Partition) -> None:
        # Several partitions may wake it in one round of syncs: read once, after all of them.
        if not self._moved:
            self._node.deferred.add(self._read_moved)
        self._moved.add(partition)

    def _read_moved(self) -> None:
        if self._is_reading:
            # The running read may have passed these partitions: they are read again after it.
            return
        moved, self._moved = self._moved, set()
        if self._timer is None:
            return
        if len(self._watched) == 1:
            # Reading the only partition is the same as reading all.
            self._read_and_respond()
            return
        with close_unless_responded(self._request.reply):
            is_final = False
            for partition in moved:
                alone = ReadResult()
                self._read_one(partition.topic, self._watched[partition], alone)
                self._size_bytes += alone.size_bytes - self._sizes.get(partition, 0)
                self._sizes[partition] = alone.size_bytes
                is_final = is_final or alone.is_final
            if is_final or self._size_bytes >= self._wanted_bytes:
                self._read_all_soon()

    def _read_all_soon(self) -> None:
        """Read all partitions now, or over later turns of the loop if this fetch is large."""
        if self._request_bytes <= LARGE_REQUEST_BYTES:
            self._read_and_respond()
        elif not self._is_reading:
            self._is_reading = True
            self._node.deferred.add_large(
                self._request.timed(self._read_all_in_steps()),
                is_wanted=lambda: self._timer is not None,
                size_bytes=self._request_bytes,
            )

    def _read_all_in_steps(self) -> Iterator[int]:
        result = ReadResult()
        with close_unless_responded(self._request.reply):
            for topic, partitions in self._body.topics:
                responses: list[PartitionResponse] = []
                result.responses.append((topic, responses))
                for wanted in partitions:
                    responses.append(self._read_one(topic, wanted, result))
                    yield WORK_PER_PARTITION
            self._is_reading = False
            self._respond_if_enough(result)

    def _read_and_respond(self) -> None:
        """Respond if it is time, or if all partitions together have enough within the limits of the request."""
        if self._timer is None:
            return
        with close_unless_responded(self._request.reply):
            self._respond_if_enough(self._read_all())

    def _respond_if_enough(self, result: ReadResult) -> None:
        if self._is_due or self._is_enough(result):
            self._respond(result)
            return
        self._remember_sizes(result)
        if self._moved:
            self._node.deferred.add(self._read_moved)

    def respond_soon(self) -> None:
        """Respond with the available data, as soon as it is this fetch's turn."""
        self._is_due = True
        self._read_all_soon()

    def respond_now(self) -> None:
        """Respond with the available data."""
        self._is_due = True
        self._read_and_respond()

    def _stop(self) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        self._node.parked_fetches.remove(self)
        watcher = self._on_moved
        for partition in self._watched:
            self._watchers_of(partition).pop(watcher, None)
        self._watched.clear()

    def _read_all(self) -> ReadResult:
        result = ReadResult()
        for topic, partitions in self._body.topics:
            responses: list[PartitionResponse] = []
            for wanted in partitions:
                responses.append(self._read_one(topic, wanted, result))
            result.responses.append((topic, responses))
        return result

    def _read_one(self, topic: str, wanted: FetchPartition, result: ReadResult) -> PartitionResponse:
        partition = self._partition(topic, wanted.partition)
        if partition is None or (self._timer is not None and partition not in self._watched):
            # Also if it was created while this fetch waits: nothing would wake the fetch for it.
            return _error(result, wanted, self._node.partitions.error_of_missing(topic, wanted.partition))
        if self._body.replica_id >= 0 and partition.replica is None:
            return _error(result, wanted, ErrorCode.not_leader_or_follower)
        if wanted.current_leader_epoch > partition.leader_epoch:
            return _error(result, wanted, ErrorCode.unknown_leader_epoch)
        if 0 <= wanted.current_leader_epoch < partition.leader_epoch:
            return _error(result, wanted, ErrorCode.fenced_leader_epoch)
        if self._rack and (preferred := self._preferred_replica(partition, wanted.fetch_offset)) is not None:
            return _without_records(result, wanted, partition, preferred_read_replica=preferred)
        visible = partition.log.visible
        high_watermark, last_stable_offset = visible.high_watermark, visible.last_stable_offset
        is_replica = self._body.replica_id >= 0
        is_committed = self._body.isolation_level == fetch.READ_COMMITTED and not is_replica
        end = last_stable_offset if is_committed else high_watermark
        bytes_max = max(min(wanted.max_bytes, self._max_bytes - result.size_bytes), 0)
        try:
            if wanted.last_fetched_epoch >= 0:
                parted = partition.log.divergence(wanted.fetch_offset, wanted.last_fetched_epoch)
                if parted is not None:
                    return _without_records(result, wanted, partition, diverging_epoch=parted)
            at_least_one = not result.size_bytes
            if is_replica:
                end = partition.log.log_end_offset
                piece = visible.read_beyond(wanted.fetch_offset, bytes_max, at_least_one_batch=at_least_one)
            else:
                piece = visible.read(wanted.fetch_offset, bytes_max, offset_end=end, at_least_one_batch=at_least_one)
            aborted = visible.aborted_in(wanted.fetch_offset, piece) if is_committed else None
        except LogError as error:
            return _error(result, wanted, error.error_code)
        except OSError as error:
            logger.error("%s could not be read: %s", partition, error)
            return _error(result, wanted, ErrorCode.kafka_storage_error)
        size_bytes = 0
        if piece is not None:
            size_bytes = piece.size_bytes
            result.slices.append(piece)
            result.size_bytes += size_bytes
        if piece.is_cut if piece is not None else wanted.fetch_offset < end:
            result.is_final = True
        return PartitionResponse(
            wanted.partition,
            0,
            high_watermark,
            last_stable_offset,
            partition.log.log_start_offset,
            size_bytes,
            aborted,
        )

    def _respond(self, result: ReadResult) -> None:
        self._stop()
        for error_code in result.errors or ():
            self._request.reply.count_error(error_code)
        if self._refused:
            result.responses += self._refused
        self._request.reply.send(_interleave(_encoded(self._request, self._body, result.responses), result.slices))


def handle(node: Node, request: Request) -> None:
    """Serve one Fetch request."""
    entries_max = node.config.request_partitions_max
    body = fetch.parse_request(request.frame, request.header, entries_max=entries_max, name_of=node.topics.name_of)
    for _topic_id, partitions in body.unknown:
        for _ in partitions:
            request.reply.count_error(ErrorCode.unknown_topic_id)
    if body.session_epoch not in FULL_SESSION_EPOCHS:
        # Every response here has session id 0 (KIP-227: "no session"), so this one belongs to another broker.
        _refuse(request, ErrorCode.fetch_session_id_not_found, body._replace(topics=[], unknown=()))
    elif body.isolation_level not in (fetch.READ_UNCOMMITTED, fetch.READ_COMMITTED):
        _refuse(request, ErrorCode.unknown_server_error, body)
    elif node.authorizer is None:
        _start(node, request, distinct(body))
    else:
        allowed, refused = split(node.access(request), request, distinct(body))
        _start(node, request, allowed, refused)


def _start(node: Node, request: Request, body: FetchRequest, refused: Sequence[TopicResponse] = ()) -> None:
    if body.replica_id >= 0:
        # No quota of clients counts what replicas copy (KafkaApis.processResponseCallback).
        request.reply.limit = None
        body, unknown = _record_followers(node, body)
        refused = [*refused, *unknown]
    PendingFetch(node, request, body, refused).start()


def _record_followers(node: Node, body: FetchRequest) -> tuple[FetchRequest, list[TopicResponse]]:
    """Record how far a follower is in each partition, unless its log diverges (Partition.updateFollowerFetchState).

    Return the request without the partitions of which the sender is not a replica, and the responses of those.
    """
    known: list[tuple[str, list[FetchPartition]]] = []
    refused: list[TopicResponse] = []
    for name, partitions in body.topics:
        kept, errors = [], []
        for wanted in partitions:
            partition = node.partitions.get(name, wanted.partition)
            replica = None if partition is None else partition.replica
            if partition is None or replica is None or not _is_in_log(partition, wanted):
                is_known = True
            else:
                is_known = replica.fetched(body.replica_id, wanted.fetch_offset)
            if is_known:
                kept.append(wanted)
            else:
                errors.append(_error(ReadResult(), wanted, ErrorCode.unknown_leader_epoch))
        if kept:
            known.append((name, kept))
        if errors:
            refused.append((name, errors))
    return body._replace(topics=known), refused


def _is_in_log(partition: Partition, wanted: FetchPartition) -> bool:
    """Return whether a follower of the present epoch has the same log as the leader up to its end."""
    log = partition.log
    if wanted.current_leader_epoch != partition.leader_epoch:
        return False
    if not log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset:
        return False
    last_epoch = wanted.last_fetched_epoch
    return last_epoch < 0 or (
        last_epoch <= log.epochs.latest and log.divergence(wanted.fetch_offset, last_epoch) is None
    )


def split(access: Access, request: Request, body: FetchRequest) -> tuple[FetchRequest, list[TopicResponse]]:
    """Return the request without the topics that the client may not read, and the responses of those."""
    if body.replica_id >= 0:
        may_read = dict.fromkeys(dict(body.topics), access.may_on_cluster(AclOperation.CLUSTER_ACTION))
    else:
        may_read = {name: access.may(AclOperation.READ, ResourceType.TOPIC, name) for name in dict(body.topics)}
    refused = []
    for name, partitions in body.topics:
        if not may_read[name]:
            refused.append((name, [_error(ReadResult(), wanted, _REFUSED) for wanted in partitions]))
            request.reply.count_error(_REFUSED)
    return body._replace(topics=[topic for topic in body.topics if may_read[topic[0]]]), refused


def distinct(request: FetchRequest) -> FetchRequest:
    """Return the request with each partition once, grouped by topic, without empty topics, as in Kafka."""
    topics = request.topics
    if len(topics) == 1 and len(topics[0][1]) == 1:
        return request
    distinct = {(topic, partition.partition): partition for topic, partitions in topics for partition in partitions}
    grouped = groupby(distinct.items(), key=lambda entry: entry[0][0])
    return request._replace(topics=[(topic, [partition for _, partition in entries]) for topic, entries in grouped])


def _refuse(request: Request, error_code: ErrorCode, body: FetchRequest) -> None:
    """Refuse the whole request, with the same error for each of its partitions."""
    request.reply.count_error(error_code)
    responses = [
        (name, [_error(ReadResult(), wanted, error_code) for wanted in partitions]) for name, partitions in body.topics
    ]
    request.reply.send(_encoded(request, body, responses, error_code=error_code))


def _encoded(
    request: Request, body: FetchRequest, responses: Sequence[TopicResponse], *, error_code: int = 0
) -> list[bytes]:
    """Encode the response without its records. From version 13 on topics have ids, and unknown ones come last."""
    header = request.header
    if header.version < fetch.IDS_FROM:
        return fetch.encode_response(header.version, header.correlation_id, responses, error_code=error_code)
    by_id: list[fetch.TopicResponse] = [(body.topic_ids[name], partitions) for name, partitions in responses]
    for topic_id, partitions in body.unknown:
        by_id.append((topic_id, [_error(ReadResult(), wanted, ErrorCode.unknown_topic_id) for wanted in partitions]))
    return fetch.encode_response(header.version, header.correlation_id, by_id, error_code=error_code)


def _error(result: ReadResult, wanted: FetchPartition, error_code: ErrorCode) -> PartitionResponse:
    result.is_final = True
    if result.errors is None:
        result.errors = []
    result.errors.append(error_code)
    aborted = () if error_code in EMPTY_ABORTED else None
    return PartitionResponse(wanted.partition, error_code, -1, -1, -1, 0, aborted)


def _without_records(
    result: ReadResult,
    wanted: FetchPartition,
    partition: Partition,
    *,
    diverging_epoch: EpochEnd | None = None,
    preferred_read_replica: int = -1,
) -> PartitionResponse:
    """Return the response, at once, to a reader of records that this log does not have (KIP-320), or to a client with a
    replica in its rack (KIP-392)."""
    result.is_final = True
    visible = partition.log.visible
    return PartitionResponse(
        wanted.partition,
        0,
        visible.high_watermark,
        visible.last_stable_offset,
        partition.log.log_start_offset,
        0,
        diverging_epoch=diverging_epoch,
        preferred_read_replica=preferred_read_replica,
    )


def _interleave(pieces: Sequence[bytes], slices: Sequence[Slice]) -> list[Piece]:
    interleaved: list[Piece] = []
    for piece, records in zip(pieces, slices, strict=False):
        interleaved += (piece, records)
    interleaved.append(pieces[-1])
    return interleaved


HANDLERS = {
    apis.FETCH: handle,
}
