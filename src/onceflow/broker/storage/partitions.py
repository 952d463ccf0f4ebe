"""The open partitions of this broker, and who waits for what in each."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from onceflow.broker.network.reply import Reply
from onceflow.broker.network.request import close_unless_responded
from onceflow.log.partition import PartitionLog
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

Synced = Callable[[ErrorCode], None]
Watcher = Callable[["Partition"], None]
"""Called with the partition that moved."""


class Partition:
    """One partition: its log, the answers that wait for its next sync, and the fetches that wait for its data."""

    __slots__ = ("_waiting", "_waiting_for_disk", "index", "log", "topic", "watchers")

    def __init__(self, topic: str, index: int, log: PartitionLog) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.watchers: set[Watcher] = set()
        self._waiting: deque[tuple[int, Synced]] = deque()
        self._waiting_for_disk: deque[tuple[int, Synced]] = deque()

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def is_awaited(self) -> bool:
        """Whether anybody has to be told when more of it becomes visible."""
        return bool(self.watchers or self._waiting or self._waiting_for_disk)

    def when_synced(self, offset_end: int, synced: Synced) -> None:
        """Call `synced(none)` once everything below `offset_end` is durable, or with the error that prevents it."""
        if offset_end <= self.log.high_watermark:
            synced(ErrorCode.none)
        elif self.log.failure is not None:
            synced(ErrorCode.kafka_storage_error)
        else:
            self._waiting.append((offset_end, synced))

    def when_durable(self, synced: Synced) -> None:
        """As `when_synced` for all that is in the log now, and on disk even where a flush policy answers earlier.

        What a transaction rests on may not be lost, whatever was chosen for the records beside it.
        """
        if self.log.log_end_offset <= self.log.synced_offset:
            synced(ErrorCode.none)
        elif self.log.failure is not None:
            synced(ErrorCode.kafka_storage_error)
        else:
            self._waiting_for_disk.append((self.log.log_end_offset, synced))

    def settle(self) -> None:
        """After a sync: answer who waited for it, wake who watches."""
        while self._waiting_for_disk and self._waiting_for_disk[0][0] <= self.log.synced_offset:
            self._call(self._waiting_for_disk.popleft()[1], ErrorCode.none)
        high_watermark = self.log.high_watermark
        while self._waiting and self._waiting[0][0] <= high_watermark:
            self._call(self._waiting.popleft()[1], ErrorCode.none)
        self.wake()

    def fail(self, error_code: ErrorCode) -> None:
        """Answer who waits with an error: the sync failed, or the topic was deleted."""
        while self._waiting_for_disk:
            self._call(self._waiting_for_disk.popleft()[1], error_code)
        while self._waiting:
            self._call(self._waiting.popleft()[1], error_code)
        self.wake()

    def wake(self) -> None:
        """Let every waiting fetch look again at this partition."""
        for watcher in list(self.watchers):
            self._call(watcher, self)

    def _call(self, waiting: Callable[..., None], *arguments: object) -> None:
        """One answer that fails must not take with it those of the others."""
        try:
            waiting(*arguments)
        except Exception:
            logger.exception("%s: what waited for this partition failed", self)


def when_ends_synced(
    reply: Reply, partitions: Iterable[Partition], synced: Callable[[Mapping[Partition, ErrorCode]], None]
) -> None:
    """Call `synced` once everything that is in these logs now is visible, or cannot be; with the errors, if any.

    At once where nothing waits for a sync; not at all for a client that has left meanwhile.
    """
    unsynced = {each for each in partitions if each.log.log_end_offset > each.log.high_watermark}
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

    for each in unsynced:
        each.when_synced(each.log.log_end_offset, partial(end, each))


class Partitions:
    """All open partitions by topic and index."""

    def __init__(self) -> None:
        self._by_topic: dict[str, list[Partition]] = {}

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._by_topic.values():
            yield from partitions

    def get(self, topic: str, index: int) -> Partition | None:
        """The partition, or None if it does not exist or is not open yet."""
        partitions = self._by_topic.get(topic)
        if partitions is None or not 0 <= index < len(partitions):
            return None
        return partitions[index]

    def install(self, topic: str, logs: list[PartitionLog]) -> None:
        """Serve a topic; `logs` are in the order of the partitions."""
        self._by_topic[topic] = [Partition(topic, index, log) for index, log in enumerate(logs)]

    def extend(self, topic: str, logs: list[PartitionLog]) -> None:
        """Serve a topic's further partitions, which follow those that it has."""
        present = self._by_topic.setdefault(topic, [])
        present += [Partition(topic, len(present) + number, log) for number, log in enumerate(logs)]

    def of_topic(self, topic: str) -> Sequence[Partition]:
        """The open partitions of a topic, in their order."""
        return self._by_topic.get(topic, ())

    def count(self, topic: str) -> int:
        """How many partitions of the topic are open: all of them, unless some are being made."""
        return len(self._by_topic.get(topic, ()))

    def withdraw(self, topic: str) -> list[Partition]:
        """Stop serving a topic; who waits for it is told that it is gone."""
        gone = self._by_topic.pop(topic, [])
        for partition in gone:
            partition.fail(ErrorCode.unknown_topic_or_partition)
        return gone

    def has_topic(self, topic: str) -> bool:
        return topic in self._by_topic
