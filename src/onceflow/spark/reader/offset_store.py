"""Where a group's offsets are: in Kafka, or in ZooKeeper with options zookeeperConnect and zookeeperConfig."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from onceflow.client.errors import ClientError
from onceflow.client.registry.offsets import ZooKeeperOffsets
from onceflow.errors import OnceflowError
from onceflow.spark.connections import connect_zookeeper
from onceflow.spark.errors import WrongOption
from onceflow.spark.reader.options import ZOOKEEPER_CONFIG, SourceOptions
from onceflow.zookeeper.session import Session


class OffsetStore(Protocol):
    """Offsets of groups; `onceflow.client.cluster.Cluster` has those in Kafka."""

    def committed_offsets(self, group: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the offset of each partition that has one. Raises ClientError."""

    def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit the next offset to read of each partition. Raises ClientError."""


class ZooKeeperStore:
    """Offsets in `/consumers/G/offsets`, where consumers before Kafka 2.0 have them."""

    def __init__(self, open_session: Callable[[], Session]) -> None:
        """`open_session` returns the open session, and raises OnceflowError."""
        self._open_session = open_session

    def committed_offsets(self, group: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        places = [(topic, partition) for partition in partitions]
        try:
            offsets = ZooKeeperOffsets(self._open_session(), group).read(places)
        except OnceflowError as error:
            raise ClientError(f"the offsets of group {group} in ZooKeeper are not available: {error}") from error
        return {partition: offset for (_, partition), offset in offsets.items()}

    def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        try:
            ZooKeeperOffsets(self._open_session(), group).commit(
                {(topic, partition): offset for partition, offset in offsets.items()}
            )
        except OnceflowError as error:
            raise ClientError(f"ZooKeeper: {error}") from error


def zookeeper_store(options: SourceOptions) -> ZooKeeperStore | None:
    """Return the offsets in ZooKeeper if the options name one. Raises WrongOption for unusable certificates.

    Later they would only fail commits, which the query survives.
    """
    if options.zookeeper is None:
        return None
    try:
        options.zookeeper.security()
    except OnceflowError as error:
        raise WrongOption(f"option {ZOOKEEPER_CONFIG}: {error}") from error
    return ZooKeeperStore(partial(connect_zookeeper, options.zookeeper))
