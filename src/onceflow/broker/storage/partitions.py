"""Open partitions of this broker, with the requests that wait for each; closing them when the broker stops."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from onceflow.broker.network.reply import Reply
from onceflow.broker.network.request import close_unless_responded
from onceflow.log.checkpoint import LEADER_EPOCH
from onceflow.log.errors import LogError
from onceflow.log.partition import PartitionLog
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

CLOSING_THREADS_MAX = 16
LOGS_PER_CLOSING_THREAD = 64
"""Fewer logs than this are closed by the calling thread alone. More threads share the file system's own commits."""

Synced = Callable[[ErrorCode], None]
Watcher = Callable[["Partition"], None]
"""Called with the partition that has new visible records."""
Watchers = dict[Watcher, None]
"""Watchers in the order in which they came."""


class Replica(Protocol):
    """Interface of what the other replicas of a partition mean for it (broker.cluster.replication)."""

    def on_stored(self) -> None:
        """React to more synced records, before their callbacks are called."""

    def on_appended(self) -> None:
        """React to more records in the log."""

    def on_failed(self) -> None:
        """React to a failed sync, or the end of this role."""

    def refusal(self) -> ErrorCode:
        """Return the error for a new record that all in-sync replicas must have."""

    def result(self) -> ErrorCode:
        """Return the error for a record that all in-sync replicas have."""

    @property
    def watchers(self) -> "Watchers":
        """Fetches of followers, which wait for any record in the log."""

    @property
    def is_end_known(self) -> bool:
        """Whether the high watermark has reached the start of the leader's epoch."""

    def fetched(self, broker_id: int, offset: int) -> bool:
        """Record a follower's fetch; return whether the broker is a replica."""


class Role(Protocol):
    """Interface of what a broker does, besides serving it, with a partition that it leads in a cluster."""

    def begin(self, partition: "Partition") -> None:
        """React to the begin of leadership, before the partition is served."""

    def end(self, partition: "Partition") -> None:
        """React to the end of leadership, or the partition's deletion, before waiting requests get an error."""


class Partition:
    """One partition: its log, the responses that wait for its next sync, and the fetches that wait for its data."""

    __slots__ = ("_waiting", "_waiting_for_disk", "index", "leader_epoch", "log", "replica", "topic", "watchers")

    def __init__(self, topic: str, index: int, log: PartitionLog) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.leader_epoch = LEADER_EPOCH
        """Epoch of the partition's leader, which the controller of a cluster increases."""
        self.replica: Replica | None = None
        """The other replicas, if there are or may be some: the high watermark waits for them."""
        self.watchers: Watchers = {}
        self._waiting: deque[tuple[int, Synced]] = deque()
        self._waiting_for_disk: deque[tuple[int, Synced]] = deque()

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def has_waiters(self) -> bool:
        """Whether callbacks wait for more of it to become visible."""
        return bool(self.watchers or self._waiting or self._waiting_for_disk)

    def when_synced(self, offset_end: int, synced: Synced) -> None:
        """Call `synced(none)` once everything below `offset_end` is durable, or with the error that prevents it."""
        if offset_end <= self.log.high_watermark:
            synced(ErrorCode.none)
        elif self.log.durability.failure is not None:
            synced(ErrorCode.kafka_storage_error)
        else:
            self._waiting.append((offset_end, synced))

    def when_durable(self, synced: Synced) -> None:
        """Call `synced` once everything in the log now is on disk, even where a flush policy responds earlier.

        The records that a transaction relies on may not be lost, whatever the topic's flush policy. With other replicas
        all in-sync ones must have them.
        """
        if self.replica is not None:
            self.when_synced(self.log.log_end_offset, synced)
        elif self.log.log_end_offset <= self.log.durability.synced_offset:
            synced(ErrorCode.none)
        elif self.log.durability.failure is not None:
            synced(ErrorCode.kafka_storage_error)
        else:
            self._waiting_for_disk.append((self.log.log_end_offset, synced))

    def settle(self) -> None:
        """Call the callbacks that waited for a sync, and wake the watchers."""
        if self.replica is not None:
            self.replica.on_stored()
        while self._waiting_for_disk and self._waiting_for_disk[0][0] <= self.log.durability.synced_offset:
            self._call(self._waiting_for_disk.popleft()[1], ErrorCode.none)
        high_watermark = self.log.high_watermark
        error_code = ErrorCode.none if self.replica is None else self.replica.result()
        while self._waiting and self._waiting[0][0] <= high_watermark:
            self._call(self._waiting.popleft()[1], error_code)
        self.wake()

    def fail(self, error_code: ErrorCode) -> None:
        """Call the waiting callbacks with an error, after a failed sync or the topic's deletion."""
        if self.replica is not None:
            self.replica.on_failed()
        while self._waiting_for_disk:
            self._call(self._waiting_for_disk.popleft()[1], error_code)
        while self._waiting:
            self._call(self._waiting.popleft()[1], error_code)
        self.wake()

    def wake(self) -> None:
        """Let every waiting fetch read this partition again."""
        for watcher in list(self.watchers):
            self._call(watcher, self)

    def _call(self, waiting: Callable[..., None], *arguments: object) -> None:
        """Call a waiting callback; a failure is logged and does not affect the others."""
        try:
            waiting(*arguments)
        except Exception:
            logger.exception("%s: callback failed", self)


def when_ends_synced(
    reply: Reply, partitions: Iterable[Partition], synced: Callable[[Mapping[Partition, ErrorCode]], None]
) -> None:
    """Call `synced` once everything in these logs now is visible or has failed, with the errors.

    Nothing waits for other replicas, as in Kafka: they may be away.

    Call it at once if nothing waits for a sync, and never if the client has disconnected meanwhile.
    """
    unsynced = {
        partition
        for partition in partitions
        if partition.log.log_end_offset > partition.log.high_watermark and partition.replica is None
    }
    left = len(unsynced)
    errors: dict[Partition, ErrorCode] = {}

    def all_synced() -> None:
        if reply.is_open:
            with close_unless_responded(reply):
                synced(errors)

    if not unsynced:
        all_synced()

    def end(partition: Partition, error_code: ErrorCode) -> None:
        nonlocal left
        left -= 1
        if error_code:
            errors[partition] = error_code
        if not left:
            all_synced()

    for partition in unsynced:
        partition.when_synced(partition.log.log_end_offset, partial(end, partition))


Place = tuple[str, int]
"""A topic's name and the index of a partition."""


class Partitions:
    """The open partitions by topic and index.

    Without a cluster a topic's partitions are all here, and served. In a cluster a broker hosts some of them, and
    serves those that it leads.
    """

    def __init__(self) -> None:
        self._by_topic: dict[str, list[Partition | None]] = {}
        """Served partitions, None for the others."""
        self._not_led: dict[Place, Partition] = {}
        """Partitions with a log here that this broker does not lead."""
        self.is_elsewhere: Callable[[str, int], bool] = lambda _topic, _index: False
        """Whether another broker of the cluster may serve a partition."""
        self.roles: dict[str, Role] = {}
        """Coordinators of the partitions of internal topics, by topic, in a cluster."""

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._by_topic.values():
            for partition in partitions:
                if partition is not None:
                    yield partition
        yield from self._not_led.values()

    def get(self, topic: str, index: int) -> Partition | None:
        """Return the partition, or None if it does not exist, is not open yet, or is led by another broker."""
        partitions = self._by_topic.get(topic)
        if partitions is None or not 0 <= index < len(partitions):
            return None
        return partitions[index]

    def error_of_missing(self, topic: str, index: int) -> ErrorCode:
        """Return the error for a partition that is not served here (ReplicaManager.getPartitionOrError)."""
        if self.is_elsewhere(topic, index):
            return ErrorCode.not_leader_or_follower
        return ErrorCode.unknown_topic_or_partition

    def hosted(self, topic: str, index: int) -> Partition | None:
        """Return the partition if its log is here, whether this broker leads it or not."""
        return self.get(topic, index) or self._not_led.get((topic, index))

    def install(self, topic: str, logs: list[PartitionLog]) -> None:
        """Add a topic; `logs` are in the order of the partitions."""
        self._by_topic[topic] = [Partition(topic, index, log) for index, log in enumerate(logs)]

    def extend(self, topic: str, logs: list[PartitionLog]) -> None:
        """Add partitions after those that the topic has."""
        present = self._by_topic.setdefault(topic, [])
        present += [Partition(topic, len(present) + number, log) for number, log in enumerate(logs)]

    def host(self, topic: str, index: int, log: PartitionLog) -> None:
        """Add one partition that this broker does not lead yet."""
        partition = self._not_led[topic, index] = Partition(topic, index, log)
        partition.leader_epoch = log.leader_epoch

    def lead(self, topic: str, index: int, leader_epoch: int) -> None:
        """Serve a hosted partition from now on, in this epoch."""
        hosted = self.hosted(topic, index)
        if hosted is not None and hosted.leader_epoch != leader_epoch:
            hosted.log.begin_epoch(leader_epoch)
            hosted.leader_epoch = leader_epoch
        partition = self._not_led.pop((topic, index), None)
        if partition is not None:
            if topic in self.roles:
                self.roles[topic].begin(partition)
            partitions = self._by_topic.setdefault(topic, [])
            partitions += [None] * (index + 1 - len(partitions))
            partitions[index] = partition

    def resign(self, topic: str, index: int) -> None:
        """Serve a hosted partition no more; its waiting requests get NOT_LEADER_OR_FOLLOWER."""
        partition = self.get(topic, index)
        if partition is not None:
            self._by_topic[topic][index] = None
            self._not_led[topic, index] = partition
            self._end_role(partition)
            partition.fail(ErrorCode.not_leader_or_follower)

    def _end_role(self, partition: Partition) -> None:
        if partition.topic in self.roles:
            self.roles[partition.topic].end(partition)

    def of_topic(self, topic: str) -> Sequence[Partition]:
        """Return the open partitions of a topic in their order."""
        served = [partition for partition in self._by_topic.get(topic, ()) if partition is not None]
        if not self._not_led:
            return served
        others = [partition for (name, _index), partition in self._not_led.items() if name == topic]
        return sorted((*served, *others), key=lambda partition: partition.index)

    def topic_names(self) -> list[str]:
        """Return the names of the open topics, in the order in which they were opened."""
        return list(dict.fromkeys((*self._by_topic, *(name for name, _index in self._not_led))))

    def count(self, topic: str) -> int:
        """Return how many partitions of the topic are open: all of them, unless some are being created."""
        return len(self._by_topic.get(topic, ()))

    def withdraw(self, topic: str) -> list[Partition]:
        """Remove a topic; its waiting requests get UNKNOWN_TOPIC_OR_PARTITION."""
        withdrawn = list(self.of_topic(topic))
        for partition in self._by_topic.pop(topic, ()):
            if partition is not None:
                self._end_role(partition)
        for partition in withdrawn:
            self._not_led.pop((topic, partition.index), None)
            partition.fail(ErrorCode.unknown_topic_or_partition)
            partition.replica = None
        return withdrawn

    def withdraw_one(self, topic: str, index: int) -> Partition | None:
        """Remove one partition, as `withdraw` does a topic."""
        partition = self.hosted(topic, index)
        if partition is not None:
            self.resign(topic, index)
            del self._not_led[topic, index]
            partition.fail(ErrorCode.unknown_topic_or_partition)
            partition.replica = None
        return partition


def close_all(partitions: Sequence[Partition]) -> bool:
    """Sync and close every log, blocking, and return whether all are whole. Raises unexpected errors of closing."""
    left = deque(partitions)
    were_whole: list[bool] = []
    failures: list[BaseException] = []

    def work() -> None:
        while True:
            try:
                partition = left.popleft()
            except IndexError:
                return
            try:
                were_whole.append(_close(partition))
            except BaseException as failure:  # noqa: BLE001 - raised by the calling thread
                failures.append(failure)

    threads = [
        threading.Thread(target=work, name=f"log-closing-{number}", daemon=True)
        for number in range(min(CLOSING_THREADS_MAX, len(partitions) // LOGS_PER_CLOSING_THREAD))
    ]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return all(were_whole)


def _close(partition: Partition) -> bool:
    was_whole = partition.log.durability.failure is None
    try:
        partition.log.close()
    except LogError as error:
        logger.error("%s", error)
        return False
    return was_whole
