"""One consumer of a group in ZooKeeper: its registration, what it watches, and the partitions that it owns."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from onceflow.client.errors import ClientError
from onceflow.client.registry import nodes
from onceflow.client.registry.nodes import Registration
from onceflow.wire import TopicPartition
from onceflow.zookeeper.nodes import TOPICS, TopicNode, decode, topic_path
from onceflow.zookeeper.session import Check, Conflict, Create, Delete, Operation, OutcomeUnknown, Session, StoredNode

OPERATIONS_AT_ONCE = 500
"""ZooKeeper refuses requests over 1 MB."""


class SessionEnded(ClientError):
    """The consumer's nodes are deleted: its session has expired, or another program has deleted them."""


class PartitionsOwned(ClientError):
    """Other consumers own partitions that this one wants."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The members of a group with their number of streams by topic, and the partitions of these topics."""

    members: Mapping[str, Mapping[str, int]]
    partitions: Mapping[str, Sequence[int]]


class Member:
    """Nodes of one consumer. Its calls belong to one thread; watches fire in the session's.

    Every write has the condition that the registration exists. ZooKeeper deletes it with the session, and only
    `register` creates it, so a consumer that was frozen for too long writes nothing before it has noticed.
    """

    def __init__(self, session: Session, group: str, registration: Registration, consumer_id: str) -> None:
        self.consumer_id = consumer_id
        self.has_changed = threading.Event()
        """Set when `look` would see something else, at first too."""
        self.may_retry = threading.Event()
        """Set when another consumer has released a partition for which `claim` failed."""
        self._session = session
        self._group = group
        self._registration = registration
        self._path = f"{nodes.ids_path(group)}/{consumer_id}"
        self._lock = threading.Lock()
        self._watched: set[str] = set()
        self._claimed: set[str] = set()
        """Paths of owners that this consumer may have created."""

    @property
    def conditions(self) -> list[Check]:
        """The condition of every write: this consumer is registered."""
        return [Check(self._path, 0)]

    def register(self) -> None:
        """Create the consumer's node in a new session. Raises ClientError if its id is taken, and OutcomeUnknown."""
        with self._lock:
            self._watched.clear()
        self.has_changed.set()
        self._session.ensure(nodes.ids_path(self._group))
        try:
            self._session.commit([Create(self._path, self._registration.encode(), ephemeral=True)])
        except Conflict as conflict:
            node = self._session.read(self._path)
            if node is None:
                raise OutcomeUnknown(str(conflict)) from conflict
            if node.owner != self._session.session_id:
                raise ClientError(f"{self._path}: another consumer is registered with this id") from conflict

    def is_registered(self) -> bool:
        """Return whether the registration of this session exists. Raises OutcomeUnknown."""
        node = self._session.read(self._path)
        return node is not None and node.owner == self._session.session_id

    # What others write

    def look(self) -> Seen:
        """Read the members and partitions, and watch them. Raises DamagedNode, OutcomeUnknown."""
        self.has_changed.clear()
        try:
            return self._look()
        except BaseException:
            self.has_changed.set()
            raise

    def _look(self) -> Seen:
        ids = nodes.ids_path(self._group)
        consumers = self._children(ids)
        existing = self._children(TOPICS)
        paths = [f"{ids}/{consumer}" for consumer in consumers]
        members = {}
        for consumer, path, node in zip(consumers, paths, self._session.read_all(paths), strict=True):
            if node is not None:
                members[consumer] = nodes.decode_registration(path, node.value).streams_by_topic(existing)
        topics = sorted({topic for streams in members.values() for topic in streams})
        topic_paths = [topic_path(topic) for topic in topics]
        partitions = {}
        for topic, path, node in zip(
            topics, topic_paths, self._read_watched(topic_paths, self.has_changed.set), strict=True
        ):
            if node is not None:
                numbers = decode(TopicNode, path, node.value).partitions
                partitions[topic] = sorted(int(number) for number in numbers)
        return Seen(members, partitions)

    def _children(self, path: str) -> list[str]:
        if not self._begin_watch(path):
            return self._session.children(path)
        try:
            return self._session.children(path, partial(self._fire, path, self.has_changed.set))
        except BaseException:
            self._end_watch(path)
            raise

    def _read_watched(self, paths: Sequence[str], on_change: Callable[[], None]) -> list[StoredNode | None]:
        """Return the nodes; a change of an existing one fires its watch. Each node has one watch at a time."""
        unwatched = [path for path in paths if self._begin_watch(path)]
        watches = [partial(self._fire, path, on_change) for path in unwatched]
        try:
            stored = dict(zip(unwatched, self._session.read_all(unwatched, watches), strict=True))
        except BaseException:
            for path in unwatched:
                self._end_watch(path)
            raise
        others = [path for path in paths if path not in stored]
        for path in (path for path, node in stored.items() if node is None):
            self._end_watch(path)
        stored |= dict(zip(others, self._session.read_all(others), strict=True))
        return [stored[path] for path in paths]

    def _begin_watch(self, path: str) -> bool:
        with self._lock:
            is_new = path not in self._watched
            self._watched.add(path)
            return is_new

    def _end_watch(self, path: str) -> None:
        with self._lock:
            self._watched.discard(path)

    def _fire(self, path: str, on_change: Callable[[], None]) -> None:
        self._end_watch(path)
        on_change()

    # Partitions

    def claim(self, owners: Mapping[TopicPartition, str]) -> None:
        """Own all these partitions, each for one of the consumer's streams, or none.

        Raises PartitionsOwned, SessionEnded, OutcomeUnknown. `may_retry` is set when an owner releases one.
        """
        self.may_retry.clear()
        for topic in sorted({topic for topic, _ in owners}):
            self._session.ensure(nodes.owners_path(self._group, topic))
        creations: dict[str, Operation] = {}
        for place, stream in owners.items():
            path = nodes.owner_path(self._group, place)
            creations[path] = Create(path, stream.encode(), ephemeral=True)
        for some in _chunks(creations.values()):
            self._claimed |= {operation.path for operation in some}
            try:
                self._session.commit([*self.conditions, *some])
            except Conflict as conflict:
                if conflict.position == 0:
                    raise SessionEnded(f"{self._path} does not exist any more") from conflict
                self.release()
                raise self._owned(list(creations), conflict) from conflict

    def _owned(self, paths: Sequence[str], conflict: Conflict) -> PartitionsOwned:
        held = self._read_watched(paths, self.may_retry.set)
        owners = [(path, node.value.decode(errors="replace")) for path, node in zip(paths, held, strict=True) if node]
        if not owners:
            self.may_retry.set()
            return PartitionsOwned(str(conflict))
        path, owner = owners[0]
        return PartitionsOwned(f"{len(owners)} partitions have owners, {path} the owner {owner}")

    def release(self) -> None:
        """Delete the owners' nodes that this consumer has created. Raises OutcomeUnknown."""
        while self._claimed:
            paths = sorted(self._claimed)
            session_id = self._session.session_id
            existing = zip(paths, self._session.read_all(paths), strict=True)
            own = [path for path, node in existing if node is not None and node.owner == session_id]
            try:
                for some in _chunks(Delete(path) for path in own):
                    self._session.commit(some)
            except Conflict:
                # Another program has deleted one of them meanwhile.
                continue
            self._claimed.clear()


def _chunks(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    left = iter(operations)
    while some := list(islice(left, OPERATIONS_AT_ONCE)):
        yield some
