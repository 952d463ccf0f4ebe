"""Step 6: sends record batches to the leaders of their partitions, with several requests in flight per connection.

Every batch has its producer and sequence before it is first sent and is retried with the same bytes, so that the
leader recognises duplicates. After an error the later responses of that partition are ignored, and its batches are
sent again in order from the first unacknowledged one. The second batch of a partition waits for the response to the
first: Kafka's leader accepts any first sequence from a producer that is new to it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from typing_extensions import Buffer

from onceflow.client.cluster import Cluster
from onceflow.client.connection import Connection
from onceflow.client.errors import (
    BrokerUnreachable,
    ConnectionLost,
    CoordinatorUnavailable,
    LeaderUnavailable,
    RequestTimedOut,
    UnknownTopic,
)
from onceflow.client.requests import ProducerIdentity
from onceflow.client.routing import PAUSE_MS_MAX, PAUSE_MS_MIN
from onceflow.remedies import Remedy
from onceflow.spark.errors import SinkStopped
from onceflow.spark.kafka.steps import PRODUCE, Refused, Verdict, code_name, remedy
from onceflow.wire import TopicPartition, produce
from onceflow.wire.batch import patch_producer

IN_FLIGHT_MAX = 5
"""A leader remembers the last five batches of a producer: no more may be in flight."""
REQUEST_BYTES = 4 * 1024 * 1024
SEQUENCE_COUNT = 2**31

RETRIABLE = (
    BrokerUnreachable,
    ConnectionLost,
    CoordinatorUnavailable,
    LeaderUnavailable,
    RequestTimedOut,
    UnknownTopic,
)
"""Errors during a restart of brokers or a change of leaders; retries of them are bounded."""


class Blob(NamedTuple):
    """An encoded record batch, still without producer and CRC."""

    topic: str
    partition: int
    record_count: int
    data: Buffer


NO_PRODUCER = ProducerIdentity(None)
"""Neither transaction nor sequences: a leader does not recognise duplicates."""


@dataclass(slots=True)
class _Queue:
    """One partition's batches: those before `done` are acknowledged, those before `sent` are in flight."""

    topic_partition: TopicPartition
    batches: list[bytearray] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    done: int = 0
    sent: int = 0
    failed: bool = False

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def topic(self) -> str:
        return self.topic_partition[0]

    @property
    def partition(self) -> int:
        return self.topic_partition[1]

    @property
    def is_done(self) -> bool:
        return self.done == len(self.batches)


_Flight = tuple[int, list[tuple[_Queue, int]]]
"""A request in flight: its correlation id, and the batches of queues that it carries."""


class Sender:
    """Sends for one producer. `acknowledged` counts the acknowledged records of each partition.

    `once` sends everything once and counts the records without an acknowledgement in `lost` (mode "none").
    """

    def __init__(
        self,
        cluster: Cluster,
        producer: ProducerIdentity,
        *,
        retry_timeout_ms: int,
        once: bool = False,
        at: Callable[[str], None] = lambda _point: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.acknowledged: dict[TopicPartition, int] = {}
        self.base_offsets: dict[TopicPartition, int] = {}
        """Base offset of each partition's last batch."""
        self.lost = 0
        self._cluster = cluster
        self._producer = producer
        self._retry_timeout_ms = retry_timeout_ms
        self._once = once
        self._at = at
        self._sleep = sleep
        self._sequences: dict[TopicPartition, int] = {}
        self._reason = ""

    def send(self, blobs: Iterable[Blob]) -> None:
        """Send all blobs; return when all are acknowledged. Raises AttemptEnded, SinkStopped."""
        queues = self._queues(blobs)
        waiting_since = time.monotonic()
        pause_ms = PAUSE_MS_MIN
        while waiting := [queue for queue in queues if not queue.is_done]:
            before = sum(queue.done for queue in waiting)
            self._round(waiting)
            if all(queue.is_done for queue in waiting):
                return
            if sum(queue.done for queue in waiting) > before:
                waiting_since, pause_ms = time.monotonic(), PAUSE_MS_MIN
            if (time.monotonic() - waiting_since) * 1000 > self._retry_timeout_ms:
                raise SinkStopped(
                    f"{waiting[0]} accepted no records for {self._retry_timeout_ms} ms ({self._reason}); "
                    f"no data was lost: {Remedy.LOOK_AT_BROKER_LOG}, then {Remedy.START_AGAIN}"
                )
            self._sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)
            self._refresh({queue.topic for queue in waiting})

    def _queues(self, blobs: Iterable[Blob]) -> list[_Queue]:
        queues: dict[TopicPartition, _Queue] = {}
        for blob in blobs:
            topic_partition = (blob.topic, blob.partition)
            queue = queues.setdefault(topic_partition, _Queue(topic_partition))
            sequence = self._sequences.get(topic_partition, 0)
            batch = bytearray(blob.data)
            patch_producer(
                batch,
                producer_id=self._producer.producer_id,
                producer_epoch=self._producer.epoch,
                base_sequence=-1 if self._producer.producer_id < 0 else sequence,
                transactional=self._producer.transactional_id is not None,
            )
            queue.batches.append(batch)
            queue.counts.append(blob.record_count)
            self._sequences[topic_partition] = (sequence + blob.record_count) % SEQUENCE_COUNT
        return list(queues.values())

    def _refresh(self, topics: set[str]) -> None:
        try:
            self._cluster.topics(*topics)
        except RETRIABLE as error:
            self._reason = str(error)

    def _round(self, queues: Sequence[_Queue]) -> None:
        """Send until all batches are acknowledged or one fails; then only wait for the requests in flight."""
        routes = self._routes(queues)
        flights: dict[Connection, deque[_Flight]] = {connection: deque() for connection in routes}
        try:
            while self._fill(routes, flights) or any(flights.values()):
                for connection, waiting in flights.items():
                    if waiting:
                        self._receive(connection, waiting)
        except BaseException:
            # A response that is no longer awaited would be taken for that of the next request.
            for connection, waiting in flights.items():
                if waiting:
                    connection.close()
            raise
        for queue in queues:
            queue.sent = queue.done
            queue.failed = False

    def _routes(self, queues: Sequence[_Queue]) -> dict[Connection, list[_Queue]]:
        routes: dict[Connection, list[_Queue]] = {}
        for queue in queues:
            try:
                connection = self._cluster.router.leader_connection(*queue.topic_partition)
            except RETRIABLE as error:
                for number in range(queue.done, len(queue.batches)):
                    self._fail(queue, number, str(error))
            else:
                routes.setdefault(connection, []).append(queue)
        return routes

    def _fill(self, routes: dict[Connection, list[_Queue]], flights: dict[Connection, deque[_Flight]]) -> bool:
        """Send what may be sent now; return whether anything was sent."""
        was_sent = False
        for connection, queues in routes.items():
            while len(flights[connection]) < IN_FLIGHT_MAX and (chosen := self._choose(queues)):
                self._at(f"before {PRODUCE.name}")
                try:
                    flights[connection].append((connection.send(self._encoder(connection, chosen)), chosen))
                except RETRIABLE as error:
                    self._lose(flights[connection], chosen, str(error))
                    break
                was_sent = True
        return was_sent

    def _choose(self, queues: Sequence[_Queue]) -> list[tuple[_Queue, int]]:
        """Return the next batch of each partition that may send one, up to the size of a request."""
        if not self._once and any(queue.failed for queue in queues):
            return []
        chosen: list[tuple[_Queue, int]] = []
        size_bytes = 0
        for queue in queues:
            is_first = queue.topic_partition not in self.base_offsets
            if queue.sent == len(queue.batches) or (is_first and queue.sent > queue.done):
                continue
            size_bytes += len(queue.batches[queue.sent])
            if chosen and size_bytes > REQUEST_BYTES:
                break
            chosen.append((queue, queue.sent))
        for queue, _ in chosen:
            queue.sent += 1
        return chosen

    def _encoder(self, connection: Connection, chosen: Sequence[tuple[_Queue, int]]) -> Callable[[int], bytes]:
        version = self._version(connection)
        topics: dict[str, list[tuple[int, Buffer | None]]] = {}
        for queue, number in chosen:
            topics.setdefault(queue.topic, []).append((queue.partition, queue.batches[number]))

        def encode(correlation_id: int) -> bytes:
            pieces = produce.encode_request(
                version,
                correlation_id,
                connection.client_id,
                transactional_id=self._producer.transactional_id,
                acks=1 if self._once else -1,
                timeout_ms=connection.timeout_ms,
                topics=list(topics.items()),
            )
            return b"".join(pieces)

        return encode

    def _version(self, connection: Connection) -> int:
        return connection.version_of(PRODUCE.api_key, version_min=PRODUCE.version_min)

    def _receive(self, connection: Connection, waiting: deque[_Flight]) -> None:
        correlation_id, chosen = waiting[0]
        try:
            parse = partial(produce.parse_response, self._version(connection))
            _, topics, _ = connection.receive(correlation_id, parse)
        except RETRIABLE as error:
            waiting.popleft()
            self._lose(waiting, chosen, str(error))
            return
        waiting.popleft()
        self._at(f"after {PRODUCE.name}")
        responses = {(topic, part.partition): part for topic, partitions in topics for part in partitions}
        for queue, number in chosen:
            self._take(queue, number, responses[queue.topic_partition])

    def _lose(self, waiting: deque[_Flight], chosen: list[tuple[_Queue, int]], reason: str) -> None:
        """Fail all requests in flight on a lost connection."""
        for queue, number in [*chosen, *(batch for _, flight in waiting for batch in flight)]:
            self._fail(queue, number, reason)
        waiting.clear()

    def _fail(self, queue: _Queue, number: int, reason: str) -> None:
        self._reason = reason
        queue.failed = True
        if self._once:
            self.lost += queue.counts[number]
            queue.done = max(queue.done, number + 1)
            queue.sent = max(queue.sent, queue.done)

    def _take(self, queue: _Queue, number: int, response: produce.PartitionResponse) -> None:
        if queue.failed and not self._once:
            return  # It is sent again, in order, whatever this response says.
        reason = code_name(response.error_code) + (f": {response.error_message}" if response.error_message else "")
        verdict = PRODUCE.verdict(response.error_code)
        if verdict is Verdict.DONE:
            queue.done = number + 1
            self.acknowledged[queue.topic_partition] = (
                self.acknowledged.get(queue.topic_partition, 0) + queue.counts[number]
            )
            self.base_offsets[queue.topic_partition] = response.base_offset
        elif verdict is Verdict.RETRY or (self._once and verdict is Verdict.END_ATTEMPT):
            self._fail(queue, number, reason)
        elif verdict is Verdict.END_ATTEMPT:
            raise Refused(f"{queue} refused a batch: {reason}", response.error_code)
        else:
            raise SinkStopped(f"{queue} refused a batch: {reason}; {remedy(response.error_code)}")
