"""Notices in ZooKeeper that a node was written: sequential nodes below one directory.

They are deleted after 15 minutes, as by Kafka (kafka.common.ZkNodeChangeNotificationListener).
"""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from onceflow.log.clock import Clock
from onceflow.zookeeper.session import Conflict, Delete, Session

logger = logging.getLogger(__name__)

NOTICE_MS_MAX = 15 * 60_000


class Notice(NamedTuple):
    """A notice that was not read before."""

    path: str
    value: bytes


class Notices:
    """The notices below one directory, which exists. Belongs to the registry's thread."""

    def __init__(self, zookeeper: Session, directory: str, clock: Clock, on_change: Callable[[], None]) -> None:
        """`on_change` is called in kazoo's thread when there are new ones, from the first `new` on."""
        self._zookeeper = zookeeper
        self._directory = directory
        self._clock = clock
        self._on_change = on_change
        self._known: dict[str, int] | None = None
        """Notices that were read, with the time of their creation; None before the first look."""

    def new(self) -> Sequence[Notice]:
        """Return the notices since the last call, none at the first, and watch the directory. Raises OutcomeUnknown."""
        present = self._zookeeper.children(self._directory, self._on_change)
        known = self._known or {}
        paths = {name: f"{self._directory}/{name}" for name in present if name not in known}
        stored = self._zookeeper.read_all(list(paths.values()))
        read = {name: node for name, node in zip(paths, stored, strict=True) if node is not None}
        is_first = self._known is None
        self._known = {name: known[name] for name in present if name in known}
        self._known |= {name: node.created_ms for name, node in read.items()}
        self._delete_old(self._known)
        return [] if is_first else [Notice(paths[name], node.value) for name, node in read.items()]

    def _delete_old(self, known: dict[str, int]) -> None:
        oldest_ms = self._clock.now_ms() - NOTICE_MS_MAX
        for name in [name for name, created_ms in known.items() if created_ms < oldest_ms]:
            try:
                self._zookeeper.commit([Delete(f"{self._directory}/{name}")])
            except Conflict:
                logger.debug("notice %s was deleted by another program", name)
