"""Kafka's own test of transactions: a topic is copied in transactions while the broker or the copiers are bounced.

Rules: tests/kafkatest/tests/core/transactions_test.py and group_mode_transactions_test.py of Apache Kafka. Two checks
are added: every transaction is visible as a whole or not at all, and a record read uncommitted is read again at the
same offset. The original has three brokers; the one here is bounced at least as often as all of them.
"""

import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.copiers import Copier
from tests.compat.output_readers import ConsoleReader, Read, UncommittedReader, by_partition, once, read_to_end, twice

INPUT = "input"
OUTPUT = "output"
GROUP = "copiers"
SOONER = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}
"""A broker's setting: copiers killed in a transaction cost their timeout, and not ten seconds more."""
BROKER_BOUNCES_AT = (0.15, 0.3, 0.45, 0.6, 0.75)
CLIENT_BOUNCES = 3
CLIENT_BOUNCES_AT = 0.2
WITHIN_A_TRANSACTION_SECONDS = 0.1
PROGRESS_SECONDS = 90
DONE_SECONDS = 180
COPY_SECONDS_OF_CLIENT_BOUNCES = 10
"""Transaction timeout of killed copiers: their pending offsets delay their successors by as much."""
COPY_SECONDS_OF_BROKER_BOUNCES = 40


class Bounceable(Protocol):
    """A broker that restarts with its data at its address."""

    @property
    def bootstrap(self) -> str: ...

    def start(self) -> object: ...

    def kill(self) -> None: ...

    def stop(self) -> object: ...


@dataclass(frozen=True)
class Cell:
    """One way to bounce, and its checks."""

    hard: bool
    bounced: str
    ordered: bool
    group_metadata: bool
    group_mode: bool = False
    messages: int = 100_000
    transaction_size: int = 750

    def __str__(self) -> str:
        group = "group mode" if self.group_mode else ("" if self.group_metadata else "no ") + "group metadata"
        parts = f"{self.partitions} partition" + ("s" if self.partitions > 1 else "")
        return f"{'hard' if self.hard else 'clean'}, {self.bounced}, {parts}, {group}"

    @property
    def partitions(self) -> int:
        """Number of partitions; in the original 1, 2 and 9."""
        return 1 if self.ordered else 9 if self.group_mode else 2

    @property
    def copiers(self) -> int:
        return 3 if self.group_mode else self.partitions

    @property
    def signal(self) -> signal.Signals:
        return signal.SIGKILL if self.hard else signal.SIGTERM


@dataclass(frozen=True)
class Figures:
    """Figures of a run."""

    cell: Cell
    committed: int
    aborted: int
    aborted_messages: int
    bounces: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.cell}: {self.cell.messages:,} messages, {self.committed:,} transactions committed,"
            f" {self.aborted:,} aborted with {self.aborted_messages:,} messages,"
            f" {self.bounces} bounces, {self.seconds:.1f} s"
        )


def until(condition: Callable[[], bool], seconds: float, what: Callable[[], object]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what()}"
        time.sleep(0.01)


def seed(bootstrap: str, cell: Cell) -> dict[int, list[int]]:
    """Write numbers from 0 in turn to every input partition; create both topics."""
    topics = [NewTopic(name, cell.partitions, 1) for name in (INPUT, OUTPUT)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(topics).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    outcomes: Counter[KafkaError | None] = Counter()
    for number in range(cell.messages):
        count_outcome = lambda error, _message: outcomes.update([error])  # noqa: E731
        producer.produce(INPUT, str(number), partition=number % cell.partitions, on_delivery=count_outcome)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert outcomes == {None: cell.messages}
    return {partition: list(range(partition, cell.messages, cell.partitions)) for partition in range(cell.partitions)}


def copiers_of(cell: Cell, bootstrap: str, jars: Path, directory: Path) -> list[Copier]:
    """Return a copier for each partition, or three that share them."""
    timeout_seconds = COPY_SECONDS_OF_BROKER_BOUNCES if cell.bounced == "broker" else COPY_SECONDS_OF_CLIENT_BOUNCES
    options = {
        "--broker-list": bootstrap,
        "--consumer-group": GROUP,
        "--input-topic": INPUT,
        "--output-topic": OUTPUT,
        "--transaction-size": cell.transaction_size,
        "--transaction-timeout": timeout_seconds * 1000,
    }
    words = [str(word) for option in options.items() for word in option] + ["--enable-random-aborts"]
    words += ["--use-group-metadata"] * (cell.group_metadata or cell.group_mode) + ["--group-mode"] * cell.group_mode
    tool = "TransactionalMessageCopier"
    own = [("--transactional-id", f"copier-{place}", "--input-partition", str(place)) for place in range(cell.copiers)]
    return [Copier(f"copier-{place}", jars, directory, tool, *words, *value) for place, value in enumerate(own)]


class Copy:
    """One run of a cell."""

    def __init__(
        self, cell: Cell, broker: Bounceable, jars: Path, directory: Path, *, may_read_again: bool = False
    ) -> None:
        """`may_read_again`: with this broker the console's consumer may return to an offset committed earlier."""
        self._may_read_again = may_read_again
        self.cell = cell
        self.broker = broker
        self.bounces = 0
        self._copiers = copiers_of(cell, broker.bootstrap, jars, directory)
        self._console = ConsoleReader(broker.bootstrap, OUTPUT, jars, directory)

    def run(self) -> Figures:
        """Seed, copy, bounce, read and compare."""
        source = seed(self.broker.bootstrap, self.cell)
        begun = time.monotonic()
        self._uncommitted = uncommitted = UncommittedReader(self.broker.bootstrap, OUTPUT, self.cell.partitions)
        uncommitted.start()
        try:
            self._copy()
            seconds = time.monotonic() - begun
            everything, ends = read_to_end(self.broker.bootstrap, OUTPUT, self.cell.partitions, "read_uncommitted")
            until(lambda: len(uncommitted.read) >= len(everything), 60, lambda: uncommitted.lacks(everything))
        finally:
            for process in (*self._copiers, self._console):
                process.end(signal.SIGKILL)
            seen = uncommitted.finish()
        assert dict(seen) == dict(everything), "what was read uncommitted is not what stayed"
        by_partition(seen)
        committed, stable_ends = read_to_end(self.broker.bootstrap, OUTPUT, self.cell.partitions, "read_committed")
        assert stable_ends == ends, f"a transaction was left open: {stable_ends} of {ends} are stable"
        self._compare(source, committed)
        self._compare(source, self._read_by_console())
        self._compare_offsets(source)
        kept, dropped = transactions(everything, committed, ends)
        lost = len(everything) - len(committed)
        return Figures(self.cell, kept, dropped, lost, self.bounces, seconds)

    def _copy(self) -> None:
        for process in (*self._copiers, self._console):
            process.start()
        if self.cell.bounced == "broker":
            self._bounce_broker()
        else:
            self._bounce_copiers()
        for copier in self._copiers:
            until(lambda copier=copier: copier.is_done, DONE_SECONDS, lambda copier=copier: self._state(copier))  # type: ignore[misc]
        until(lambda: self._console.count >= self.cell.messages, 90, lambda: self._console.count)
        until(lambda: len(self._read_by_console()) >= self.cell.messages, 90, lambda: self._console.count)
        self._console.end(signal.SIGTERM)

    def _read_by_console(self) -> Read:
        return once(self._console.read) if self._may_read_again else self._console.read

    def _state(self, copier: Copier) -> tuple[object, ...]:
        return copier.name, copier.code, copier.progress, copier.log

    def _wait_for(self, copier: Copier, share: float, moments: random.Random) -> None:
        """Wait for this share or the end; then for a moment within a transaction, or while its records arrive."""

        def far_enough() -> bool:
            return copier.is_done or ((progress := copier.progress) is not None and progress.share >= share)

        until(far_enough, PROGRESS_SECONDS, lambda: self._state(copier))
        if moments.random() < 0.5:
            time.sleep(moments.uniform(0, WITHIN_A_TRANSACTION_SECONDS))
        elif not copier.is_done:
            count = len(self._uncommitted.read)
            until(lambda: len(self._uncommitted.read) > count or copier.is_done, PROGRESS_SECONDS, lambda: count)

    def _bounce_broker(self) -> None:
        moments = random.Random(str(self.cell))
        for place, share in enumerate(BROKER_BOUNCES_AT):
            self._wait_for(self._copiers[place % len(self._copiers)], share, moments)
            self.bounces += not all(copier.is_done for copier in self._copiers)
            if self.cell.hard:
                self.broker.kill()
            else:
                self.broker.stop()
            self.broker.start()

    def _bounce_copiers(self) -> None:
        with ThreadPoolExecutor(len(self._copiers)) as pool:
            self.bounces = sum(pool.map(self._bounce_copier, self._copiers))

    def _bounce_copier(self, copier: Copier) -> int:
        """Bounce, and return how often; a copier of a group may have nothing to do."""
        moments = random.Random(copier.name + str(self.cell))
        for bounces in range(CLIENT_BOUNCES):
            self._wait_for(copier, CLIENT_BOUNCES_AT, moments)
            if copier.is_done:
                return bounces
            if self.cell.bounced == "zombies":
                self._succeed(copier, moments)
            else:
                copier.restart(self.cell.signal)
        return CLIENT_BOUNCES

    def _succeed(self, copier: Copier, moments: random.Random) -> None:
        """Stop it, let another with its transactional id replace it, and check that it is fenced when it continues."""
        copier.send(signal.SIGSTOP)
        copier.start()
        self._wait_for(copier, CLIENT_BOUNCES_AT / 2, moments)
        code, said = copier.end_of_the_one_before()
        assert code == 1 and re.search("ProducerFenced|InvalidProducerEpoch|claimed by another", said), (code, said)

    def _compare(self, source: dict[int, list[int]], output: Read) -> None:
        """Check that the output is the input: nothing twice, nothing else, each partition in order."""
        more_than_once, values = twice(output), {value for _, value in output}
        assert not more_than_once, f"{len(more_than_once)} messages more than once, {more_than_once[:5]} among them"
        missing = [value for value in range(self.cell.messages) if value not in values]
        assert not missing, f"{len(missing)} messages are missing, {missing[:5]} among them"
        assert by_partition(output) == source, "a partition's messages are not those of the input in their order"

    def _compare_offsets(self, source: dict[int, list[int]]) -> None:
        """Check that the group's offsets, moved by the transactions, are at the input's end."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": GROUP})
        asked = [TopicPartition(INPUT, partition) for partition in source]
        committed = {partition.partition: partition.offset for partition in consumer.committed(asked, timeout=30)}
        consumer.close()
        ends = {partition: len(values) for partition, values in source.items()}
        assert committed == ends, f"the group's offsets are {committed}, the input ends at {ends}"


def transactions(everything: Read, committed: Read, ends: dict[int, int]) -> tuple[int, int]:
    """Return the (committed, aborted) markers, after a check that all or no records between two of them are committed.

    An offset without a record is a marker. One writer has a partition at a time, so the records between two markers are
    one transaction; in group mode a transaction has a marker in each of its partitions.
    """
    visible = {position for position, _ in committed}
    written = {position for position, _ in everything}
    kept = dropped = 0
    for partition, end in ends.items():
        outcome: set[bool] = set()
        for offset in range(end):
            if (partition, offset) in written:
                outcome.add((partition, offset) in visible)
                continue
            assert len(outcome) <= 1, f"half a transaction before offset {offset} of partition {partition}"
            kept += True in outcome
            dropped += True not in outcome
            outcome = set()
        assert not outcome, f"records behind the last marker of partition {partition}"
    return kept, dropped
