"""`TransactionalProducer`: records and offsets that become visible together, or not at all (KIP-98).

It sends its own requests on one blocking connection to each broker, because another process can finish a transaction
only with its producer id and epoch (`TransactionalProducer.resume`), which librdkafka does not expose. The versions are
those of `transaction.version` 1: partitions are added before they are written to, and sequences continue from
transaction to transaction.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Any, Self

from typing_extensions import Buffer

from onceflow.client import requests
from onceflow.client.cluster import Cluster
from onceflow.client.errors import (
    CoordinatorUnavailable,
    InvalidTransaction,
    LeaderUnavailable,
    ProducerFenced,
    RequestRefused,
)
from onceflow.client.requests import TRANSACTION, Build, ProducerIdentity
from onceflow.client.security import PLAINTEXT, Security
from onceflow.remedies import Remedy
from onceflow.wire import TopicPartition, apis, produce
from onceflow.wire.batch import Record, encode_batch, patch_offset, patch_producer, read_header
from onceflow.wire.codecs import Codec
from onceflow.wire.errors import ErrorCode, error_name
from onceflow.wire.murmur2 import partition_for_key

BATCH_BYTES = 512 * 1024
"""Buffered keys and values of a partition that form a batch; a batch must stay below `max.message.bytes`."""
RECORD_OVERHEAD_BYTES = 32
TRANSACTION_TIMEOUT_MS = 60_000
SEQUENCE_COUNT = 2**31
INIT_VERSION_MIN = 3
"""InitProducerId 3 lets a producer request its own next epoch (KIP-360)."""
COMMIT_VERSION_MIN = 3
"""TxnOffsetCommit 3 fences by generation and member (KIP-447)."""
NO_GENERATION = -1

_RETRIABLE = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)
_FENCED = frozenset(
    {ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced, ErrorCode.invalid_producer_id_mapping}
)

Headers = tuple[tuple[str, bytes | None], ...]


class State(Enum):
    """State of the producer; a FAILED transaction can only be aborted."""

    READY = "ready"
    OPEN = "in a transaction"
    FAILED = "in a transaction that failed"
    ENDED = "closed"


class TransactionalProducer:
    """A producer with one transaction at a time; belongs to one thread.

        with TransactionalProducer("127.0.0.1:9092", "my-job") as producer:
            producer.begin()
            producer.send("clicks", b"value", key=b"user-1")
            producer.send_offsets("my-group", "input", {0: 42})
            producer.commit()

    Creating one fences every other producer with the same transactional id and aborts its open transaction. Leaving the
    context with an open transaction aborts it. Requests that fail temporarily are retried for up to `timeout_ms`,
    always with the same bytes, which the broker recognizes. Raises ProducerFenced, InvalidTransaction, RequestRefused,
    UnknownTopic, BrokerUnreachable, ConnectionLost, RequestTimedOut.
    """

    producer_id: int
    epoch: int

    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        *,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        timeout_ms: int = 30_000,
        codec: Codec = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
        security: Security = PLAINTEXT,
    ) -> None:
        self._prepare(bootstrap, transactional_id, timeout_ms, codec, batch_bytes, security)
        self._transaction_timeout_ms = transaction_timeout_ms
        self._request_epoch()

    @classmethod
    def resume(
        cls,
        bootstrap: str,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        *,
        timeout_ms: int = 30_000,
        security: Security = PLAINTEXT,
    ) -> Self:
        """Resume another process's transaction, to end it by `commit()` or `abort()`; this fences nothing.

        That process has called `flush()` and kept `producer_id` and `epoch`. If the transaction has timed out since,
        `commit` raises ProducerFenced: its records were aborted, and the work has to be repeated. Ending it again in
        the same way succeeds, so that a killed process may repeat it. Ending it otherwise, or one that never began,
        raises InvalidTransaction. Leaving the context without either does not end it.
        """
        resumed = cls.__new__(cls)
        resumed._prepare(bootstrap, transactional_id, timeout_ms, Codec.NONE, BATCH_BYTES, security)
        resumed.producer_id = producer_id
        resumed.epoch = epoch
        resumed._state, resumed._is_resumed = State.OPEN, True
        return resumed

    def _request_epoch(self) -> None:
        """Request a new epoch, which fences older ones; sequences restart at 0 (KIP-360)."""
        build = requests.init_producer_id(self._identity(), self._transaction_timeout_ms)
        response = self._ask(apis.INIT_PRODUCER_ID, build)
        self.producer_id = int(response.producer_id)
        self.epoch = int(response.producer_epoch)
        self._next_sequence.clear()

    def _prepare(
        self,
        bootstrap: str,
        transactional_id: str,
        timeout_ms: int,
        codec: Codec,
        batch_bytes: int,
        security: Security,
    ) -> None:
        if not transactional_id:
            raise InvalidTransaction("the transactional id is empty; give the job a permanent name")
        self.transactional_id = transactional_id
        self.producer_id = -1
        self.epoch = -1
        self._cluster = Cluster(bootstrap, timeout_ms=timeout_ms, security=security)
        self._router = self._cluster.router
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._state = State.READY
        self._is_resumed = False
        self._added: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._buffers: dict[TopicPartition, list[Record]] = {}
        self._buffered_bytes: dict[TopicPartition, int] = {}
        self._next_sequence: dict[TopicPartition, int] = {}
        self._partitions: dict[str, list[int]] = {}
        self._next_without_key = 0

    def __str__(self) -> str:
        return f"transaction '{self.transactional_id}'"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._state in (State.OPEN, State.FAILED) and not self._is_resumed:
                self.abort()
        finally:
            self.close()

    def close(self) -> None:
        """Close the connections; an open transaction stays open until it is resumed, fenced or timed out."""
        self._state = State.ENDED
        self._cluster.close()

    # The transaction

    def begin(self) -> None:
        """Begin a transaction."""
        self._require(State.READY)
        self._partitions.clear()
        self._state = State.OPEN

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
    ) -> None:
        """Buffer a record; send its partition's buffer when it is large enough. Without a partition the key decides."""
        self._require(State.OPEN)
        target = (topic, self._choose(topic, key) if partition is None else partition)
        buffer = self._buffers.setdefault(target, [])
        now_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        buffer.append(Record(len(buffer), now_ms, key, value, headers))
        size_bytes = len(key or b"") + len(value or b"") + RECORD_OVERHEAD_BYTES
        size_bytes += sum(len(name) + len(content or b"") for name, content in headers)
        self._buffered_bytes[target] = self._buffered_bytes.get(target, 0) + size_bytes
        if self._buffered_bytes[target] >= self._batch_bytes:
            self._send_buffer(target)

    def _choose(self, topic: str, key: bytes | None) -> int:
        if topic not in self._partitions:
            self._partitions[topic] = sorted(self._cluster.require_topic(topic).partitions)
        partitions = self._partitions[topic]
        if key is not None:
            return partitions[partition_for_key(key, len(partitions))]
        self._next_without_key += 1
        return partitions[self._next_without_key % len(partitions)]

    def send_offsets(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, int],
        *,
        metadata: str = "",
        generation: int = NO_GENERATION,
        member_id: str = "",
        group_instance_id: str | None = None,
    ) -> None:
        """Commit a group's offsets with the transaction; generation and member fence a replaced consumer."""
        self._require(State.OPEN)
        with self._failing():
            if group not in self._groups:
                self._ask(apis.ADD_OFFSETS_TO_TXN, requests.add_offsets_to_txn(self._identity(), group))
                self._groups.add(group)
            build = requests.txn_offset_commit(
                self._identity(),
                group,
                topic,
                offsets,
                metadata,
                generation=generation,
                member_id=member_id,
                group_instance_id=group_instance_id,
            )
            self._router.retry(partial(self._commit_offsets, group, build))

    def _commit_offsets(self, group: str, build: Build) -> None:
        response = self._router.ask_coordinator(group, apis.TXN_OFFSET_COMMIT, build, COMMIT_VERSION_MIN)
        for code in requests.offset_codes(response):
            self._check(code)

    def send_batches(self, batches: Mapping[TopicPartition, bytearray]) -> dict[TopicPartition, int]:
        """Send one encoded batch to each of these partitions; return the offset of its first record.

        The batches are changed in place: they get this producer, its sequences and the transactional attribute, and
        keep everything else, compressed records included. Their records must have consecutive offsets.
        """
        self._require(State.OPEN)
        with self._failing():
            return self._send_encoded(batches)

    def flush(self) -> None:
        """Send the buffered records and wait for their acknowledgement; they are invisible until the commit."""
        self._require(State.OPEN)
        for target in [partition for partition, records in self._buffers.items() if records]:
            self._send_buffer(target)

    def commit(self) -> None:
        """Make the transaction visible. Afterwards the next one can begin."""
        self._require(State.OPEN)
        if not self._is_resumed:
            self.flush()
        self._end(commit=True)

    def abort(self) -> None:
        """Roll back the transaction."""
        if self._state not in (State.OPEN, State.FAILED):
            self._require(State.OPEN)
        self._buffers.clear()
        self._buffered_bytes.clear()
        self._end(commit=False)

    def _end(self, *, commit: bool) -> None:
        # The coordinator does not know a transaction without partitions and offsets.
        if self._added or self._groups or self._is_resumed:
            with self._failing():
                self._ask(apis.END_TXN, requests.end_txn(self._identity(), commit=commit))
        if self._state is State.FAILED:
            # It is unknown whether the last batches arrived, so their sequences cannot continue.
            self._request_epoch()
        self._added.clear()
        self._groups.clear()
        self._state = State.ENDED if self._is_resumed else State.READY

    # Requests

    def _send_buffer(self, target: TopicPartition) -> None:
        records = self._buffers.pop(target)
        del self._buffered_bytes[target]
        with self._failing():
            self._send_encoded({target: encode_batch(records, codec=self._codec)})

    def _send_encoded(self, batches: Mapping[TopicPartition, bytearray]) -> dict[TopicPartition, int]:
        """Write this producer into the batches and send them; return their base offsets."""
        self._add(batches)
        counts = {}
        for target, batch in batches.items():
            patch_offset(batch, 0, 0, -1)
            counts[target] = read_header(batch).record_count
            patch_producer(
                batch,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=self._next_sequence.get(target, 0),
                transactional=True,
            )
        base_offsets: dict[TopicPartition, int] = {}
        self._router.retry(partial(self._produce, dict(batches), base_offsets))
        for target, count in counts.items():
            self._next_sequence[target] = (self._next_sequence.get(target, 0) + count) % SEQUENCE_COUNT
        return base_offsets

    def _add(self, targets: Iterable[TopicPartition]) -> None:
        new = [target for target in targets if target not in self._added]
        if new:
            build = requests.add_partitions_to_txn(self._identity(), new)
            self._ask(apis.ADD_PARTITIONS_TO_TXN, build, requests.added_codes)
            self._added.update(new)

    def _produce(self, waiting: dict[TopicPartition, bytearray], base_offsets: dict[TopicPartition, int]) -> None:
        """Send the waiting batches, one request to each leader; move those acknowledged to `base_offsets`."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for target in waiting:
            by_leader.setdefault(self._router.leader(*target), []).append(target)
        for leader, targets in by_leader.items():
            for topic, partitions in self._request_produce(leader, {target: waiting[target] for target in targets}):
                for result in partitions:
                    self._check_produced(topic, result)
                    del waiting[topic, result.partition]
                    base_offsets[topic, result.partition] = result.base_offset

    def _request_produce(
        self, leader: int, batches: Mapping[TopicPartition, bytearray]
    ) -> list[tuple[str, list[produce.PartitionResponse]]]:
        connection = self._router.broker_connection(leader)
        version = connection.version_of(apis.PRODUCE)
        topics: dict[str, list[tuple[int, Buffer | None]]] = {}
        for (topic, partition_index), batch in batches.items():
            topics.setdefault(topic, []).append((partition_index, batch))
        _correlation_id, responses, _throttle_ms = connection.exchange(
            lambda correlation_id: b"".join(
                produce.encode_request(
                    version,
                    correlation_id,
                    connection.client_id,
                    transactional_id=self.transactional_id,
                    acks=-1,
                    timeout_ms=self._cluster.timeout_ms,
                    topics=list(topics.items()),
                )
            ),
            partial(produce.parse_response, version),
        )
        return responses

    def _check_produced(self, topic: str, result: produce.PartitionResponse) -> None:
        code = ErrorCode(result.error_code)
        if code.retriable and code not in _RETRIABLE:
            raise LeaderUnavailable(
                f"{topic}-{result.partition} accepts no records now: {error_name(code)}; {Remedy.TRY_AGAIN}"
            )
        message = f": {result.error_message}" if result.error_message else ""
        self._check(code, f"{topic}-{result.partition}{message}")

    def _ask(self, api_key: int, build: Build, codes_of: Callable[[Any], Sequence[ErrorCode]] | None = None) -> Any:
        """Send a request to the transaction's coordinator; retry while the coordinator cannot respond yet."""

        def attempt() -> Any:
            version_min = INIT_VERSION_MIN if api_key == apis.INIT_PRODUCER_ID else 0
            response = self._router.ask_coordinator(
                self.transactional_id, api_key, build, version_min, key_type=TRANSACTION
            )
            for code in [response.error_code] if codes_of is None else codes_of(response):
                self._check(code)
            return response

        return self._router.retry(attempt)

    def _identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.transactional_id, self.producer_id, self.epoch)

    def _check(self, code: ErrorCode, message: str | None = None) -> None:
        if code == ErrorCode.none:
            return
        if code in _RETRIABLE:
            raise CoordinatorUnavailable(f"{self} cannot continue now: {error_name(code)}; {Remedy.TRY_AGAIN}")
        reason = f"{error_name(code)} ({message})" if message else error_name(code)
        if code in _FENCED:
            raise ProducerFenced(
                f"{self}: producer {self.producer_id} with epoch {self.epoch} was replaced by a newer one, or its "
                f"transaction timed out and was aborted: {reason}; only one producer may use a transactional id at a"
                " time"
            )
        if code == ErrorCode.invalid_txn_state:
            raise InvalidTransaction(f"{self}: its coordinator returned {reason}; it has already ended, or never began")
        raise RequestRefused(f"{self} was refused: {reason}", code)

    def _require(self, state: State) -> None:
        if self._state is not state:
            raise InvalidTransaction(f"{self}: the producer is {self._state.value}, but must be {state.value}")

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Mark the transaction as failed if the block raises: some requests may be missing, so it must not commit."""
        try:
            yield
        except BaseException:
            if not self._is_resumed:
                self._state = State.FAILED
            raise
