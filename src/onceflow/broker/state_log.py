"""A partition that holds the broker's own memory: appended record by record, replayed whole at start-up."""

from collections.abc import Iterator, Sequence

from onceflow.broker.group_commit import GroupCommit
from onceflow.broker.partitions import Partition, Synced
from onceflow.log.clock import Clock
from onceflow.wire.batch import Record, batches, decode_batch, encode_batch

READ_BYTES = 1024 * 1024

KeyValue = tuple[bytes | None, bytes | None]


class StateLog:
    """Writes and reads the records of one partition of this broker."""

    def __init__(self, partition: Partition, clock: Clock, group_commit: GroupCommit) -> None:
        self.partition = partition
        self._clock = clock
        self._group_commit = group_commit

    def append(self, entries: Sequence[KeyValue]) -> None:
        """Append all of `entries` in one batch: after a crash all are there, or none. Raises LogError."""
        now_ms = self._clock.now_ms()
        records = [Record(offset, now_ms, key, value) for offset, (key, value) in enumerate(entries)]
        self.partition.log.append(encode_batch(records))
        self._group_commit.request(self.partition)

    def when_synced(self, synced: Synced) -> None:
        """Call back once everything that is in the log now is durable."""
        self.partition.when_synced(self.partition.log.log_end_offset, synced)

    def records(self) -> Iterator[Record]:
        """Every record that the log holds."""
        log = self.partition.log
        offset = log.log_start_offset
        while offset < log.high_watermark:
            found = log.read(offset, READ_BYTES)
            if found is None:
                return
            data = found.read()
            for position, header in batches(data):
                yield from decode_batch(data, position)
                offset = header.last_offset + 1
