"""Fetch: slices of segments, sent from the file; a long poll where there is less than the client wants.

Kafka's rules: the limits are soft, the first partition that has data gives at least one whole batch (KIP-74); any
error answers at once; otherwise the answer waits until `min_bytes` are there or `max_wait_ms` is over, and then
takes what exists (ReplicaManager.fetchMessages, DelayedFetch). A partition that is named several times is asked once,
in the first place with the last values (FetchRequest.fetchData).

A waiting fetch knows how many bytes each partition has for it. A record that arrives costs it a look at one partition;
all are gathered again only when their sum is enough.

Who reads committed data gets it up to the last stable offset, with the list of aborted transactions whose records may
be among it (LocalLog.addAbortedTransactions); it waits there, and the marker that ends the transaction wakes it.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from itertools import groupby

from onceflow.broker.loop.turn import LARGE_REQUEST_BYTES
from onceflow.broker.network.reply import Piece
from onceflow.broker.network.request import Request, close_unless_responded
from onceflow.broker.node import Node
from onceflow.broker.storage.partitions import Partition
from onceflow.log.checkpoint import LEADER_EPOCH
from onceflow.log.errors import LogError
from onceflow.log.segment import Slice
from onceflow.wire import apis, fetch
from onceflow.wire.errors import ErrorCode
from onceflow.wire.fetch import FetchPartition, FetchRequest, PartitionAnswer

logger = logging.getLogger(__name__)

FULL_SESSION_EPOCHS = (0, -1)
"""Of a fetch that names all its partitions, to begin a session or without one (KIP-227's FetchMetadata)."""

WORK_PER_PARTITION = 4
"""Microseconds, about, to look at a partition."""

EMPTY_ABORTED = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_server_error)
"""Errors with an empty list of aborted transactions; with all others Kafka has null (FetchResponse)."""


class Gathered:
    """What one look at the partitions found."""

    __slots__ = ("answers", "is_final", "size_bytes", "slices")

    def __init__(self) -> None:
        self.answers: list[tuple[str, list[PartitionAnswer]]] = []
        self.slices: list[Slice] = []
        self.size_bytes = 0
        self.is_final = False
        """Whether waiting could not better it: an error, or a limit or a segment's end that cut a slice short."""


class PendingFetch:
    """One Fetch request, until it is answered."""

    __slots__ = (
        "_asked",
        "_is_due",
        "_is_gathering",
        "_max_bytes",
        "_moved",
        "_node",
        "_request",
        "_request_bytes",
        "_size_bytes",
        "_sizes",
        "_timer",
        "_wanted_bytes",
        "_watched",
    )

    def __init__(self, node: Node, request: Request, asked: fetch.FetchRequest) -> None:
        self._node = node
        self._request = request
        self._asked = asked
        self._max_bytes = min(asked.max_bytes, node.config.fetch_bytes_max)
        self._wanted_bytes = min(asked.min_bytes, self._max_bytes)
        self._watched: dict[Partition, FetchPartition] = {}
        self._sizes: dict[Partition, int] = {}
        """Bytes for this fetch in each watched partition that has any; `_size_bytes` is their sum."""
        self._size_bytes = 0
        self._is_due = False
        self._is_gathering = False
        self._request_bytes = len(request.frame)
        self._moved: set[Partition] = set()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Answer now, or begin to wait; a large fetch waits for its turn at least."""
        if self._request_bytes > LARGE_REQUEST_BYTES:
            self._is_due = self._asked.max_wait_ms <= 0
            self._park()
            self._gather_soon()
            return
        found = self._gather()
        if self._is_enough(found) or self._asked.max_wait_ms <= 0 or not found.answers:
            self._answer(found)
        else:
            self._park()
            self._remember_sizes(found)

    def _park(self) -> None:
        reply = self._request.reply
        reply.is_long_wait = True
        reply.on_abandoned = self._stop
        reply.on_stop = self.respond_now
        self._timer = asyncio.get_running_loop().call_later(self._asked.max_wait_ms / 1000, self.respond_soon)
        watcher = self._woken
        for topic, partitions in self._asked.topics:
            for each in partitions:
                partition = self._node.partitions.get(topic, each.partition)
                if partition is not None:
                    partition.watchers.add(watcher)
                    self._watched[partition] = each
        self._node.parked_fetches.add(self, len(self._watched))

    def _is_enough(self, found: Gathered) -> bool:
        return found.is_final or found.size_bytes >= self._wanted_bytes

    def _remember_sizes(self, found: Gathered) -> None:
        """None of the partitions is missing: that is an error, and an error is enough."""
        answers = (answer for _, answers in found.answers for answer in answers)
        pairs = zip(self._watched, answers, strict=True)
        self._sizes = {partition: answer.records_bytes for partition, answer in pairs if answer.records_bytes}
        self._size_bytes = found.size_bytes

    def _woken(self, partition: Partition) -> None:
        # Several partitions may wake it in one round of syncs: look once, after all of them.
        if not self._moved:
            self._node.turn.soon(self._look_again)
        self._moved.add(partition)

    def _look_again(self) -> None:
        if self._is_gathering:
            # It may have passed what moved: looked at again after it.
            return
        moved, self._moved = self._moved, set()
        if self._timer is None:
            return
        if len(self._watched) == 1:
            # A look at the only partition would be the same as to gather.
            self._gather_again()
            return
        with close_unless_responded(self._request.reply):
            is_final = False
            for partition in moved:
                alone = Gathered()
                self._look(partition.topic, self._watched[partition], alone)
                self._size_bytes += alone.size_bytes - self._sizes.get(partition, 0)
                self._sizes[partition] = alone.size_bytes
                is_final = is_final or alone.is_final
            if is_final or self._size_bytes >= self._wanted_bytes:
                self._gather_soon()

    def _gather_soon(self) -> None:
        """Gather now, or over later turns of the loop if this fetch is large."""
        if self._request_bytes <= LARGE_REQUEST_BYTES:
            self._gather_again()
        elif not self._is_gathering:
            self._is_gathering = True
            self._node.turn.large(
                self._gather_in_steps(), is_wanted=lambda: self._timer is not None, size_bytes=self._request_bytes
            )

    def _gather_in_steps(self) -> Iterator[int]:
        found = Gathered()
        with close_unless_responded(self._request.reply):
            for topic, partitions in self._asked.topics:
                answers: list[PartitionAnswer] = []
                found.answers.append((topic, answers))
                for each in partitions:
                    answers.append(self._look(topic, each, found))
                    yield WORK_PER_PARTITION
            self._is_gathering = False
            self._respond_if_enough(found)

    def _gather_again(self) -> None:
        """Answer if it is time, or if there is enough in all partitions together within the limits of the request."""
        if self._timer is None:
            return
        with close_unless_responded(self._request.reply):
            self._respond_if_enough(self._gather())

    def _respond_if_enough(self, found: Gathered) -> None:
        if self._is_due or self._is_enough(found):
            self._answer(found)
            return
        self._remember_sizes(found)
        if self._moved:
            self._node.turn.soon(self._look_again)

    def respond_soon(self) -> None:
        """Answer with what there is, as soon as it is this fetch's turn."""
        self._is_due = True
        self._gather_soon()

    def respond_now(self) -> None:
        """Answer with what there is."""
        self._is_due = True
        self._gather_again()

    def _stop(self) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        self._node.parked_fetches.remove(self)
        watcher = self._woken
        for partition in self._watched:
            partition.watchers.discard(watcher)
        self._watched.clear()

    def _gather(self) -> Gathered:
        found = Gathered()
        for topic, partitions in self._asked.topics:
            answers: list[PartitionAnswer] = []
            for each in partitions:
                answers.append(self._look(topic, each, found))
            found.answers.append((topic, answers))
        return found

    def _look(self, topic: str, asked: FetchPartition, found: Gathered) -> PartitionAnswer:
        partition = self._node.partitions.get(topic, asked.partition)
        if partition is None or (self._timer is not None and partition not in self._watched):
            # Also one that was made while this fetch waits, which nothing would wake it for.
            return _error(found, asked, ErrorCode.unknown_topic_or_partition)
        if self._asked.replica_id >= 0:
            return _error(found, asked, ErrorCode.not_leader_or_follower)
        if asked.current_leader_epoch > LEADER_EPOCH:
            return _error(found, asked, ErrorCode.unknown_leader_epoch)
        log = partition.log
        high_watermark, last_stable_offset = log.high_watermark, log.last_stable_offset
        is_committed = self._asked.isolation_level == fetch.READ_COMMITTED
        end = last_stable_offset if is_committed else high_watermark
        room_bytes = max(min(asked.max_bytes, self._max_bytes - found.size_bytes), 0)
        try:
            piece = log.read(asked.fetch_offset, room_bytes, offset_end=end, at_least_one_batch=not found.size_bytes)
            aborted = log.aborted_in(asked.fetch_offset, piece) if is_committed else None
        except LogError as error:
            return _error(found, asked, error.error_code)
        except OSError as error:
            logger.error("%s could not be read: %s", partition, error)
            return _error(found, asked, ErrorCode.kafka_storage_error)
        size_bytes = 0
        if piece is not None:
            size_bytes = piece.size_bytes
            found.slices.append(piece)
            found.size_bytes += size_bytes
        if piece.is_cut if piece is not None else asked.fetch_offset < end:
            found.is_final = True
        return PartitionAnswer(
            asked.partition, 0, high_watermark, last_stable_offset, log.log_start_offset, size_bytes, aborted
        )

    def _answer(self, found: Gathered) -> None:
        self._stop()
        header = self._request.header
        pieces = fetch.encode_response(header.version, header.correlation_id, found.answers)
        self._request.reply.send(_interleave(pieces, found.slices))


def handle(node: Node, request: Request) -> None:
    """Serve one Fetch request."""
    asked = fetch.parse_request(request.frame, request.header, entries_max=node.config.request_partitions_max)
    if asked.session_epoch not in FULL_SESSION_EPOCHS:
        # Every answer here has session id 0 (KIP-227: "no session"), so this one belongs to another broker.
        _refuse(request, ErrorCode.fetch_session_id_not_found, [])
    elif asked.isolation_level not in (fetch.READ_UNCOMMITTED, fetch.READ_COMMITTED):
        _refuse(request, ErrorCode.unknown_server_error, asked.topics)
    else:
        PendingFetch(node, request, _distinct(asked)).start()


def _distinct(request: FetchRequest) -> FetchRequest:
    """Each partition once; neighbours of one topic together, topics without partitions left out, as in Kafka."""
    topics = request.topics
    if len(topics) == 1 and len(topics[0][1]) == 1:
        return request
    asked = {(topic, each.partition): each for topic, partitions in topics for each in partitions}
    grouped = groupby(asked.items(), key=lambda entry: entry[0][0])
    return request._replace(topics=[(topic, [each for _, each in entries]) for topic, entries in grouped])


def _refuse(request: Request, error_code: ErrorCode, topics: Sequence[tuple[str, Sequence[FetchPartition]]]) -> None:
    """The whole request, with the same error for each of its partitions."""
    header = request.header
    answers = [(name, [_error(Gathered(), each, error_code) for each in partitions]) for name, partitions in topics]
    request.reply.send(fetch.encode_response(header.version, header.correlation_id, answers, error_code=error_code))


def _error(found: Gathered, asked: FetchPartition, error_code: ErrorCode) -> PartitionAnswer:
    found.is_final = True
    aborted = () if error_code in EMPTY_ABORTED else None
    return PartitionAnswer(asked.partition, error_code, -1, -1, -1, 0, aborted)


def _interleave(pieces: Sequence[bytes], slices: Sequence[Slice]) -> list[Piece]:
    interleaved: list[Piece] = []
    for piece, records in zip(pieces, slices, strict=False):
        interleaved += (piece, records)
    interleaved.append(pieces[-1])
    return interleaved


HANDLERS = {
    apis.FETCH: handle,
}
