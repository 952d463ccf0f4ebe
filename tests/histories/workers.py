"""Workers that send, poll, run transactions and copy with librdkafka, and record the results.

Each worker is a thread with its own clients. A client whose error leaves its state open is abandoned without a close,
as in a killed process; the worker then starts another session with new clients. A transactional id stays with its
worker, so the next session fences what the last one left open.
"""

import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.broker.test_durability import Quiet
from tests.histories.history import Operation, Outcome, Poll, Send

EVENTS, COPIES = "events", "copies"
PARTITIONS = {EVENTS: 4, COPIES: 2}
GROUP = "copiers"
CALL_S = 60.0
CLOSED_WITHIN_S = 180.0
SESSION_TIMEOUT_MS = 10_000
"""Longer than the broker is frozen."""
ABORT_CHANCE = 0.15
CRASH_CHANCE = 0.01
REWIND_CHANCE = 0.005
FROM_FIRST_CHANCE = 0.05
TAIL_MAX = 500
PAUSE_S_MAX = 0.02
POLL_S = 0.1
POLLS_BEFORE_CLOSE = 3
RECORDS_PER_POLL = 500
RECORD = b"%-500d"
"""Long enough that segments roll."""
COPIED_MAX = 50
ABANDONED_MAX = 5
RECONNECT = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 200}
PRODUCER: dict[str, Any] = {
    # Without it any call may raise a fatal error as a SystemError.
    "error_cb": lambda _error: None,
    "enable.idempotence": True,
    "linger.ms": 1,
    "message.timeout.ms": 120_000,
    "socket.timeout.ms": 10_000,
    **RECONNECT,
}
TRANSACTIONS = {
    "transaction.timeout.ms": 30_000,
    "message.timeout.ms": 30_000,
    # librdkafka 2.16 forgets its only broker when that is down and restarts with the bootstrap servers; a call of
    # send_offsets_to_transaction then waits indefinitely for the forgotten one (its issues 5511 and 5456).
    "metadata.recovery.strategy": "none",
}
CONSUMER: dict[str, Any] = {
    "error_cb": lambda _error: None,
    "group.id": "none",
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 50,
    **RECONNECT,
}
MEMBER = {
    "group.id": GROUP,
    "session.timeout.ms": SESSION_TIMEOUT_MS,
    # An abandoned member leaves then.
    "max.poll.interval.ms": SESSION_TIMEOUT_MS,
    "heartbeat.interval.ms": 1_000,
}


class SendUnsettled(Exception):
    """A send was not acknowledged in time; its client does not know whether the record exists."""


@dataclass
class Run:
    """Shared state of all workers of one run."""

    bootstrap: str
    seed: int
    stopping: threading.Event = field(default_factory=threading.Event)
    operations: list[Operation] = field(default_factory=list)
    copied: threading.Event = field(default_factory=threading.Event)
    acknowledged: dict[str, float] = field(default_factory=dict)
    """Time of the last acknowledgement of each key that has one."""
    _values: Any = field(default_factory=itertools.count)
    _sessions: Any = field(default_factory=itertools.count)

    def next_value(self) -> int:
        return next(self._values)

    def next_session(self) -> int:
        return next(self._sessions)


def key_of(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


KEYS = frozenset(key_of(topic, number) for topic, count in PARTITIONS.items() for number in range(count))


class Sends:
    """Records of one operation in flight; `settled` has the sends with their results."""

    def __init__(self, run: Run, producer: Producer) -> None:
        self._run = run
        self._producer = producer
        self._began: list[Send] = []
        self._offsets: dict[int, tuple[int, float]] = {}

    def send(self, topic: str, partition: int, *, source: int | None = None) -> None:
        value = self._run.next_value()
        self._began.append(Send(key_of(topic, partition), value, None, time.monotonic(), source=source))
        self._producer.produce(topic, RECORD % value, partition=partition, on_delivery=self._delivered)

    def _delivered(self, error: Any, message: Message) -> None:
        if error is None:
            sent = poll_of(message)
            self._offsets[sent.value] = sent.offset, sent.at
            self._run.acknowledged[sent.key] = sent.at

    def wait(self) -> None:
        """Wait for every acknowledgement. Raises SendUnsettled."""
        self._producer.flush(CALL_S)
        if not self.are_acknowledged:
            raise SendUnsettled(f"{len(self._began) - len(self._offsets)} sends")

    @property
    def are_acknowledged(self) -> bool:
        return len(self._offsets) == len(self._began)

    @property
    def settled(self) -> list[Send]:
        return [
            replace(send, offset=self._offsets[send.value][0], acknowledged=self._offsets[send.value][1])
            if send.value in self._offsets
            else send
            for send in self._began
        ]


class Worker(threading.Thread):
    """Run one session after the other until the run stops; keep an error other than KafkaException in `failure`."""

    may_be_abandoned = True
    """Whether nothing that a hung worker has done is missing in the history."""

    def __init__(self, run: Run, name: str, stopping: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.work = run
        self.chance = random.Random(f"{run.seed} {name}")
        self.stopping = stopping
        self.failure: BaseException | None = None
        self.session = -1
        self.sessions = 0
        self.progressed = time.monotonic()
        """Time of the last completed step."""
        self.is_replaced = False
        self._abandoned: deque[Any] = deque(maxlen=ABANDONED_MAX)
        self._reader: Consumer | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set() and not self.is_replaced:
                self._run_session()
            if not self.is_replaced:
                self.close()
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._end_reader()

    def _run_session(self) -> None:
        self.session = self.work.next_session()
        self.sessions += 1
        try:
            self.open()
            while not self.stopping.is_set() and not self.is_replaced:
                self.step()
                self.progressed = time.monotonic()
                self.stopping.wait(self.chance.random() * PAUSE_S_MAX)
                if self.chance.random() < CRASH_CHANCE:
                    break
        except (KafkaException, SendUnsettled):
            self.stopping.wait(self.chance.random())
        except SystemError as error:
            # So confluent-kafka raises a fatal error within a callback.
            fatal = error.__cause__
            if not isinstance(fatal, KafkaException):
                raise
            # A coordinator fences the producer of a transaction that has lasted too long.
            if fatal.args[0].code() != KafkaError._FENCED:
                self.work.operations.append(Operation(self.session, Outcome.UNKNOWN, refused=str(fatal)))

    def open(self) -> None:
        """Create the clients of a session."""
        raise NotImplementedError

    def step(self) -> None:
        """Run one operation."""
        raise NotImplementedError

    def close(self) -> None:
        """End the last session cleanly."""

    def record(self, outcome: Outcome, sends: Iterable[Send] = (), polls: Iterable[Poll] = (), **more: Any) -> None:
        operation = Operation(self.session, outcome, tuple(sends), tuple(polls), **more)
        if operation.sends or operation.polls or operation.moved:
            self.work.operations.append(operation)

    def producer(self, **config: Any) -> Producer:
        """Return a producer that outlives its session: a zombie, whose sends must be fenced."""
        producer = Producer({**PRODUCER, "bootstrap.servers": self.work.bootstrap, **config}, logger=Quiet())
        self._abandoned.append(producer)
        return producer

    def reader(self) -> Consumer:
        """Return a new reader of committed data in place of the one before."""
        self._end_reader()
        self._reader = consumer_at(self.work.bootstrap)
        return self._reader

    def _end_reader(self) -> None:
        """Close the reader in a thread of its own.

        Two threads of librdkafka 2.16 may wait for each other's locks for good. Then the end of the client waits too,
        and where Python drops the client, that is with Python's lock.
        """
        if self._reader is not None:
            threading.Thread(target=self._reader.close, daemon=True).start()

    def beginning(self, consumer: Consumer) -> list[TopicPartition]:
        """Return a reader's start: some records before the ends, sometimes the first ones.

        The offsets are numbers: librdkafka may resolve its logical offset "N before the end" again later, and reads
        twice. Raises KafkaException.
        """
        partitions = everything()
        if self.chance.random() >= FROM_FIRST_CHANCE:
            before = self.chance.randrange(1, TAIL_MAX)
            for partition in partitions:
                marks = consumer.get_watermark_offsets(partition, CALL_S)
                assert marks is not None
                partition.offset = max(0, marks[1] - before)
        return partitions

    def anywhere(self) -> int:
        return self.chance.randrange(PARTITIONS[EVENTS])


def consumer_at(bootstrap: str, **config: Any) -> Consumer:
    """Return a reader of committed data."""
    return Consumer({**CONSUMER, "bootstrap.servers": bootstrap, **config}, logger=Quiet())


def leave(member: Consumer) -> None:
    """Close a member of the group, after the rebalances in its queue.

    `close` of librdkafka 2.16 serves them too, but waits for good, with Python's lock, if the group's thread has ended
    by then: the callback asks it for the rebalance protocol.
    """
    for _ in range(POLLS_BEFORE_CLOSE):
        member.consume(RECORDS_PER_POLL, 0)
    member.close()


def everything() -> list[TopicPartition]:
    """Return every partition from its first offset."""
    return [TopicPartition(topic, number, 0) for topic, count in PARTITIONS.items() for number in range(count)]


def poll(consumer: Consumer, seconds: float = POLL_S) -> list[Poll]:
    """Return the records of one poll; none if the broker is down."""
    messages = consumer.consume(RECORDS_PER_POLL, seconds)
    return [poll_of(message) for message in messages if message.error() is None]


def poll_of(message: Message) -> Poll:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None and partition is not None and offset is not None
    return Poll(key_of(topic, partition), offset, int(message.value() or b""), time.monotonic())


class Sender(Worker):
    """Sends a few records without a transaction."""

    may_be_abandoned = False

    def open(self) -> None:
        self._producer = self.producer()

    def step(self) -> None:
        sends = Sends(self.work, self._producer)
        try:
            for _ in range(self.chance.randrange(1, 6)):
                sends.send(EVENTS, self.anywhere())
            sends.wait()
        finally:
            settled = sends.settled
            self.record(Outcome.OK, [send for send in settled if send.offset is not None])
            self.record(Outcome.UNKNOWN, [send for send in settled if send.offset is None])


class Reader(Worker):
    """Polls every partition, and sometimes restarts at another offset.

    It does that with another client: a second `assign` of librdkafka 2.16 waits for good, with Python's lock, if two
    threads of the client wait for each other's locks.
    """

    def open(self) -> None:
        self._consumer = self.reader()
        self._consumer.assign(self.beginning(self._consumer))
        self.record(Outcome.OK, moved=KEYS)

    def step(self) -> None:
        if self.chance.random() < REWIND_CHANCE:
            self.open()
        self.record(Outcome.OK, polls=poll(self._consumer))


class Transactional(Worker):
    """Runs transactions with its own id; `fill` determines their content.

    It aborts only what is acknowledged, and leaves the rest to its next session, which gets another epoch. For
    librdkafka 2.16 drops at an abort a record that it may have sent, and gives its sequence to the next record of the
    epoch. A broker, Apache Kafka 4.1.1 too, takes that one for a repetition, and it is lost with the aborted
    transaction.
    """

    is_committing = False

    def open(self) -> None:
        self._producer = self.producer(**{"transactional.id": self.name, **TRANSACTIONS})
        self._call(lambda: self._producer.init_transactions(CALL_S))

    def close(self) -> None:
        """Let another session abort what the last one left open; wait for coordinators that are just elected."""
        deadline = time.monotonic() + CLOSED_WITHIN_S
        while True:
            try:
                self.open()
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
            else:
                return

    def step(self) -> None:
        sends, polls, committing, outcome = Sends(self.work, self._producer), list[Poll](), None, Outcome.FAILED
        self._producer.begin_transaction()
        try:
            self.fill(sends, polls)
            chance = self.chance.random()
            if chance < CRASH_CHANCE:
                raise SendUnsettled("the client crashes within the transaction")
            sends.wait()
            if chance < ABORT_CHANCE:
                self._call(lambda: self._producer.abort_transaction(CALL_S))
            elif self.is_replaced:
                raise SendUnsettled("another worker has this transactional id")
            else:
                self.is_committing = True
                committing, outcome = time.monotonic(), Outcome.UNKNOWN
                self._call(lambda: self._producer.commit_transaction(CALL_S))
                outcome = Outcome.OK
        except KafkaException as error:
            if not (error.args[0].txn_requires_abort() and sends.are_acknowledged):
                raise
            self._call(lambda: self._producer.abort_transaction(CALL_S))
            outcome = Outcome.FAILED
        finally:
            self.record(
                outcome,
                sends.settled,
                polls,
                committing=None if outcome is Outcome.FAILED else committing,
                aborts=outcome is Outcome.FAILED,
                moved=self.moved(),
            )
            self.is_committing = False
        if outcome is Outcome.FAILED:
            self.aborted(polls)

    def fill(self, sends: Sends, polls: list[Poll]) -> None:
        """Send and poll within the transaction."""
        raise NotImplementedError

    def moved(self) -> frozenset[str]:
        """Return the keys whose position was set since the last operation."""
        return frozenset()

    def aborted(self, polls: list[Poll]) -> None:
        """Seek to the transaction's start, if its polls belong to it."""

    def _call(self, call: Callable[[], None]) -> None:
        """Repeat what librdkafka marks as retriable, for CALL_S at most. Raises KafkaException."""
        deadline = time.monotonic() + CALL_S
        while True:
            try:
                call()
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise


class Mixer(Transactional):
    """Sends to several partitions and polls in one transaction."""

    def open(self) -> None:
        super().open()
        self._consumer = self.reader()
        self._consumer.assign(self.beginning(self._consumer))

    def fill(self, sends: Sends, polls: list[Poll]) -> None:
        for _ in range(self.chance.randrange(1, 5)):
            sends.send(EVENTS, self.anywhere())
            if self.chance.random() < 0.5:
                polls += poll(self._consumer, 0.02)


class Copier(Transactional):
    """Consumes events in a group, and commits the records produced from them with their offsets."""

    _consumer: Consumer | None = None

    def open(self) -> None:
        # A member that fails leaves; one that is only abandoned keeps its partitions for the session timeout.
        if self._consumer is not None:
            leave(self._consumer)
        super().open()
        self._moved = KEYS
        self._polls: list[Poll] = []
        self._consumer = consumer_at(self.work.bootstrap, **MEMBER)
        self._consumer.subscribe([EVENTS], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def close(self) -> None:
        super().close()
        assert self._consumer is not None
        leave(self._consumer)

    def fill(self, sends: Sends, polls: list[Poll]) -> None:
        assert self._consumer is not None
        self._polls = polls
        for _ in range(COPIED_MAX):
            message = self._consumer.poll(0 if polls else POLL_S)
            if message is None:
                break
            if message.error() is None:
                polls.append(poll_of(message))
        ends: dict[int, int] = {}
        for copied in polls:
            sends.send(COPIES, self.chance.randrange(PARTITIONS[COPIES]), source=copied.value)
            ends[partition_of(copied)] = copied.offset + 1
        if ends:
            positions = [TopicPartition(EVENTS, number, offset) for number, offset in ends.items()]
            self._call(lambda: self._producer.send_offsets_to_transaction(positions, self._member, CALL_S))

    def moved(self) -> frozenset[str]:
        moved, self._moved = self._moved, frozenset()
        return moved

    def aborted(self, polls: list[Poll]) -> None:
        assert self._consumer is not None
        begins = {partition_of(poll): poll.offset for poll in reversed(polls)}
        # A rebalance may have revoked the partition meanwhile; its next owner starts at the committed offset.
        owned = {assigned.partition for assigned in self._consumer.assignment()}
        for number, offset in begins.items():
            if number in owned:
                self._consumer.seek(TopicPartition(EVENTS, number, offset))
        self._moved = KEYS

    def _on_assign(self, consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        """Keep the member and its generation.

        The call holds Python's lock while it waits for librdkafka's own thread. That one can wait for good, since two
        threads of librdkafka 2.16 take the locks of its topics and its partitions in different orders; then this whole
        process would.
        """
        self._member = consumer.consumer_group_metadata()
        self._forget()

    def _on_revoke(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._forget()

    def _forget(self) -> None:
        """Drop what was polled under the previous assignment: the next owner starts at the committed offset."""
        self._moved = KEYS
        self._polls.clear()


def partition_of(polled: Poll) -> int:
    return int(polled.key.rpartition("-")[2])
