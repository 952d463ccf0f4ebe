"""One run: workers on a broker that is killed, frozen and whose clock jumps; its history and its figures."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from onceflow.client.cluster import Cluster
from tests.histories.broker_with_clock import SkewedBroker
from tests.histories.crew import Crew
from tests.histories.history import History, Operation, Outcome, Poll
from tests.histories.workers import (
    EVENTS,
    KEYS,
    PARTITIONS,
    POLL_S,
    RECORDS_PER_POLL,
    Copier,
    Mixer,
    Reader,
    Run,
    Sender,
    Worker,
    consumer_at,
    everything,
    key_of,
    poll_of,
)

BROKER = (
    *("--log-retention-ms", "-1", "--log-segment-bytes", "1048576"),
    # After a backward jump the clients' timestamps are in the future.
    *("--log-message-timestamp-after-max-ms", str(2**63 - 1)),
)
CALM_S_MAX = 4.0
FROZEN_S_MAX = 7.0
JUMPS_MS = (1_000, 60_000, 3_600_000)
"""Maximum jump: after days the broker would forget idempotent producers and offsets."""
FIGURES = "figures.json"
COPIED_WITHIN_S = 300.0
HUNG_CALL_S = 150.0
"""Longer than the calls of one step, which have limits of 60 s."""
ENDS_WITHIN_S = 60.0
WRITERS = (Sender, Sender, Mixer, Mixer)
READERS = (Reader, Reader)
COPIERS = (Copier, Copier)


class Faults:
    """Kills, freezes and clock jumps, one after the other."""

    def __init__(self, broker: SkewedBroker, seed: int) -> None:
        self._broker = broker
        self._chance = random.Random(f"{seed} faults")
        self.counts: Counter[str] = Counter()

    def rage(self, seconds: float) -> None:
        """Inject faults for that many seconds; the broker runs afterwards."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, self._chance.random() * CALM_S_MAX))
            kind = self._chance.choice(("kill", "freeze", "clock jump"))
            self.counts[kind] += 1
            if kind == "kill":
                self._broker.kill()
                time.sleep(self._chance.random())
                self._broker.start()
            elif kind == "freeze":
                self._freeze()
            else:
                self._broker.skew.ms += self._chance.choice((-1, 1)) * self._chance.choice(JUMPS_MS)

    def _freeze(self) -> None:
        os.kill(self._broker.pid, signal.SIGSTOP)
        try:
            time.sleep(self._chance.random() * FROZEN_S_MAX)
        finally:
            os.kill(self._broker.pid, signal.SIGCONT)


def run(directory: Path, seed: int, seconds: float) -> tuple[History, Counter[str]]:
    """Return the history of a run of `seconds` under faults, read to its end, and its figures."""
    with SkewedBroker(directory, *BROKER) as broker:
        create_topics(broker.bootstrap)
        faults = Faults(broker, seed)  # type: ignore[arg-type]
        work = Run(broker.bootstrap, seed)
        history, figures = observed(work, lambda: faults.rage(seconds))
    return history, figures + faults.counts


def create_topics(bootstrap: str) -> None:
    with Cluster(bootstrap) as cluster:
        for topic, count in PARTITIONS.items():
            cluster.create_topic(topic, count)


def observed(work: Run, rage: Callable[[], None], *, hang_s: float | None = None) -> tuple[History, Counter[str]]:
    """Return the history of all workers during `rage`, read to its end, and its figures.

    With `hang_s`, a copier without progress for that long is replaced, as a killed process would be; others are after
    HUNG_CALL_S.
    """
    copied = threading.Event()
    others_s = hang_s and HUNG_CALL_S
    with Crew(work, READERS, copied, others_s) as readers, Crew(work, COPIERS, copied, hang_s) as copiers:
        with Crew(work, WRITERS, work.stopping, others_s) as writers:
            rage()
        await_copies(work)
    _read_to_end(work)
    history = History(work.operations, consumed=frozenset(key for key in KEYS if key.startswith(EVENTS)))
    figures = _figures(work, [*readers.all, *copiers.all, *writers.all])
    if hang_s is not None:
        figures["replaced copiers"] = sum(worker.is_replaced for worker in copiers.all)
        figures["replaced others"] = sum(worker.is_replaced for worker in (*readers.all, *writers.all))
    return history, figures


def await_copies(work: Run) -> None:
    """Wait until each visible event has a visible copy, or for COPIED_WITHIN_S; the checker reports missing ones.

    Nothing else sends events. A slow broker may pause for seconds, so only the events' ends show that all are read.
    """
    ends = {key: end for key, end in _ends(work.bootstrap).items() if key.startswith(EVENTS)}
    consumer, session = consumer_at(work.bootstrap, **{"enable.partition.eof": True}), work.next_session()
    consumer.assign(everything())
    events, copies, reached = set[int](), set[int](), dict.fromkeys(KEYS, 0)
    deadline = time.monotonic() + COPIED_WITHIN_S
    while time.monotonic() < deadline:
        polls = _poll(consumer, reached)
        if polls:
            work.operations.append(Operation(session, Outcome.OK, (), tuple(polls)))
        events |= {poll.value for poll in polls if poll.key.startswith(EVENTS)}
        copies |= {poll.value for poll in polls if not poll.key.startswith(EVENTS)}
        if all(reached[key] >= end for key, end in ends.items()) and events <= _sources(work, copies):
            break
    consumer.close()


def _sources(work: Run, copies: set[int]) -> set[int]:
    sends = (send for operation in list(work.operations) for send in operation.sends)
    return {send.source for send in sends if send.source is not None and send.value in copies}


def _read_to_end(work: Run) -> None:
    """Read every key from its first offset to its end. Raises AssertionError if a transaction is still open."""
    ends = _ends(work.bootstrap)
    consumer, session = consumer_at(work.bootstrap, **{"enable.partition.eof": True}), work.next_session()
    consumer.assign(everything())
    reached = dict.fromkeys(ends, 0)
    deadline = time.monotonic() + COPIED_WITHIN_S
    while any(reached[key] < end for key, end in ends.items()):
        assert time.monotonic() < deadline, f"read to {reached} of {ends}"
        polls = _poll(consumer, reached)
        if polls:
            work.operations.append(Operation(session, Outcome.OK, (), tuple(polls)))
    consumer.close()


def _poll(consumer: Consumer, reached: dict[str, int]) -> list[Poll]:
    """Return the records of one poll; set the ends that it has reached."""
    polls: list[Poll] = []
    for message in consumer.consume(RECORDS_PER_POLL, POLL_S):
        error = message.error()
        if error is None:
            polls.append(poll_of(message))
        elif error.code() == KafkaError._PARTITION_EOF:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None and partition is not None and offset is not None
            reached[key_of(topic, partition)] = offset
    return polls


def _ends(bootstrap: str) -> dict[str, int]:
    """Return the end of each key, open transactions included."""
    consumer: Consumer = consumer_at(bootstrap, **{"isolation.level": "read_uncommitted"})
    ends = {}
    for topic, count in PARTITIONS.items():
        for number in range(count):
            ends[key_of(topic, number)] = _end(consumer, TopicPartition(topic, number))
    consumer.close()
    return ends


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    """Return the end of a partition, which may just get another leader. Raises KafkaException."""
    deadline = time.monotonic() + ENDS_WITHIN_S
    while True:
        try:
            marks = consumer.get_watermark_offsets(partition, 30)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            assert marks is not None
            return marks[1]


def _figures(work: Run, workers: list[Worker]) -> Counter[str]:
    figures: Counter[str] = Counter()
    for operation in work.operations:
        figures["operations"] += 1
        figures["sends"] += len(operation.sends)
        figures["polled records"] += len(operation.polls)
        if operation.is_transaction:
            figures["transactions"] += 1
            figures[f"{operation.outcome.name.lower()} transactions"] += 1
    figures["client sessions"] = sum(worker.sessions for worker in workers)
    return figures
