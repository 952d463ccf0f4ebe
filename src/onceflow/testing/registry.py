"""Registry of a cluster for tests: ZooKeeper's tree of nodes in this process, with sessions, versions and watches.

It replaces the server. Brokers use it through `zookeeper.session`, as they use ZooKeeper: ephemeral nodes end with
their session, a watch fires once, a write of several operations is applied as a whole.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from onceflow.zookeeper.session import (
    ANY_VERSION,
    Check,
    Conflict,
    Create,
    Delete,
    Operation,
    OutcomeUnknown,
    Put,
    Set,
    StoredNode,
)

SESSION_SECONDS = 6.0
NO_NODE, NODE_EXISTS, BAD_VERSION, NOT_EMPTY = "NoNode", "NodeExists", "BadVersion", "NotEmpty"

WatchCall = tuple["MemorySession", Callable[[], None]]


@dataclass
class _Node:
    value: bytes
    creation_id: int
    created_ms: int
    owner: int = 0
    version: int = 0
    children: set[str] = field(default_factory=set)
    sequence: int = 0
    change_id: int = 0

    def stored(self) -> StoredNode:
        return StoredNode(self.value, self.version, self.creation_id, self.created_ms, self.owner, self.change_id)


class MemoryRegistry:
    """The tree, and its sessions. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._nodes: dict[str, _Node] = {"": _Node(b"", 0, 0)}
        self._transactions = itertools.count(1)
        self._sessions = itertools.count(1)
        self._value_watches: dict[str, list[WatchCall]] = {}
        self._child_watches: dict[str, list[WatchCall]] = {}

    def session(self) -> "MemorySession":
        """Return a session that has not begun yet."""
        return MemorySession(self)

    def value(self, path: str) -> bytes | None:
        """Return the value of a node, None if it does not exist."""
        with self._lock:
            node = self._nodes.get(path)
            return None if node is None else node.value

    def _begin(self) -> int:
        with self._lock:
            return next(self._sessions)

    def _end(self, session: "MemorySession", session_id: int) -> None:
        """Delete the ephemeral nodes of a session, and forget its watches."""
        fired: list[WatchCall] = []
        with self._lock:
            for watches in (self._value_watches, self._child_watches):
                for path in list(watches):
                    watches[path] = [call for call in watches[path] if call[0] is not session]
            for path in [path for path, node in self._nodes.items() if node.owner == session_id]:
                self._delete(path, fired)
        _fire(fired)

    def _commit(self, session_id: int, operations: Sequence[Operation]) -> None:
        fired: list[WatchCall] = []
        with self._lock:
            self._check(operations)
            transaction = next(self._transactions)
            for operation in operations:
                self._apply(operation, session_id, transaction, fired)
        _fire(fired)

    def _check(self, operations: Sequence[Operation]) -> None:
        """Raise Conflict for the first operation that cannot be applied after those before it."""
        changed: dict[str, int | None] = {}

        def version_of(path: str) -> int | None:
            if path in changed:
                return changed[path]
            node = self._nodes.get(path)
            return None if node is None else node.version

        for position, operation in enumerate(operations):
            path = operation.path
            version, reason = version_of(path), None
            match operation:
                case Create(sequence=is_sequence):
                    if version_of(path.rpartition("/")[0]) is None:
                        reason = NO_NODE
                    elif version is not None and not is_sequence:
                        reason = NODE_EXISTS
                    changed[path] = 0
                case Put():
                    changed[path] = 0 if version is None else version + 1
                case Delete():
                    node = self._nodes.get(path)
                    below = {f"{path}/{name}" for name in node.children} if node is not None else set()
                    below |= {other for other in changed if other.rpartition("/")[0] == path}
                    is_empty = all(version_of(other) is None for other in below)
                    reason = NO_NODE if version is None else None if is_empty else NOT_EMPTY
                    changed[path] = None
                case Set(version=expected) | Check(version=expected):
                    if version is None:
                        reason = NO_NODE
                    elif expected not in (ANY_VERSION, version):
                        reason = BAD_VERSION
                    elif isinstance(operation, Set):
                        changed[path] = version + 1
            if reason is not None:
                raise Conflict(position, path, reason, is_bad_version=reason == BAD_VERSION)

    def _apply(self, operation: Operation, session_id: int, transaction: int, fired: list[WatchCall]) -> None:
        match operation:
            case Create(path, value, is_ephemeral, is_sequence):
                if is_sequence:
                    above = self._nodes[path.rpartition("/")[0]]
                    path, above.sequence = f"{path}{above.sequence:010}", above.sequence + 1
                self._create(path, value, session_id if is_ephemeral else 0, transaction, fired)
            case Put(path, value) if path not in self._nodes:
                self._create(path, value, 0, transaction, fired)
            case Put(path, value) | Set(path, value):
                node = self._nodes[path]
                node.value, node.version, node.change_id = value, node.version + 1, transaction
                fired += self._value_watches.pop(path, [])
            case Delete(path):
                self._delete(path, fired)
            case Check():
                pass

    def _create(self, path: str, value: bytes, owner: int, transaction: int, fired: list[WatchCall]) -> None:
        above, _, name = path.rpartition("/")
        self._nodes[above].children.add(name)
        self._nodes[path] = _Node(value, transaction, int(time.time() * 1000), owner, change_id=transaction)
        fired += self._value_watches.pop(path, [])
        fired += self._child_watches.pop(above, [])

    def _delete(self, path: str, fired: list[WatchCall]) -> None:
        above, _, name = path.rpartition("/")
        self._nodes[above].children.discard(name)
        del self._nodes[path]
        fired += self._value_watches.pop(path, [])
        fired += self._child_watches.pop(path, [])
        fired += self._child_watches.pop(above, [])


def _fire(calls: Sequence[WatchCall]) -> None:
    for session, call in calls:
        if session.is_connected:
            call()


class MemorySession:
    """One session after another with a `MemoryRegistry` (`zookeeper.session.Session`)."""

    def __init__(self, registry: MemoryRegistry) -> None:
        self._registry = registry
        self._id = 0
        self.on_new_session: Callable[[], None] | None = None
        """Called when a new session replaced an expired one."""

    def open(self) -> None:
        """Begin the session."""
        self._id = self._registry._begin()

    def expire(self) -> None:
        """End the session as a registry does that has heard nothing of it, and begin another one."""
        self.disconnect()
        self.open()
        if self.on_new_session is not None:
            self.on_new_session()

    def disconnect(self) -> None:
        """End the session, if there is one; no call succeeds until another one begins."""
        former, self._id = self._id, 0
        if former:
            self._registry._end(self, former)

    @property
    def session_id(self) -> int:
        """The current session. Raises OutcomeUnknown while there is none."""
        if not self._id:
            raise OutcomeUnknown("the session with the registry has ended")
        return self._id

    @property
    def is_connected(self) -> bool:
        """Whether there is a session."""
        return self._id != 0

    @property
    def session_seconds(self) -> float:
        """Time after which the session of a former process has ended."""
        return SESSION_SECONDS

    def read(self, path: str) -> StoredNode | None:
        """Return a node, None if it does not exist."""
        return self.read_all([path])[0]

    def read_all(
        self, paths: Sequence[str], watches: Sequence[Callable[[], None]] | None = None
    ) -> list[StoredNode | None]:
        """Return the nodes in the order of their paths; the watch of an existing one fires once."""
        with self._tree() as nodes:
            read = [nodes.get(path) for path in paths]
            for path, node, watch in zip(paths, read, watches or (), strict=False):
                if node is not None:
                    self._registry._value_watches.setdefault(path, []).append((self, watch))
            return [None if node is None else node.stored() for node in read]

    def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        """Return the names of a node's children in their order."""
        with self._tree() as nodes:
            if watch is not None:
                self._registry._child_watches.setdefault(path, []).append((self, watch))
            return sorted(nodes[path].children)

    def children_of_all(self, paths: Sequence[str]) -> list[list[str] | None]:
        """Return the names below each path, None for one that does not exist."""
        with self._tree() as nodes:
            return [sorted(nodes[path].children) if path in nodes else None for path in paths]

    def tree(self, path: str) -> list[str]:
        """Return the existing nodes at and below a path, each after those below it."""
        with self._tree() as nodes:
            return sorted((other for other in nodes if other == path or other.startswith(f"{path}/")), reverse=True)

    def sync(self) -> None:
        """Do nothing: every read sees the last write."""
        self.session_id  # noqa: B018 - it raises

    def ensure(self, path: str) -> None:
        """Create a node and the nodes above it if they do not exist."""
        parts = path.split("/")
        for depth in range(2, len(parts) + 1):
            with self._tree() as nodes:
                if "/".join(parts[:depth]) not in nodes:
                    self.commit([Create("/".join(parts[:depth]))])

    def commit(self, operations: Sequence[Operation]) -> None:
        """Apply all operations or none. Raises Conflict, OutcomeUnknown."""
        self._registry._commit(self.session_id, operations)

    def wait_until_deleted(self, path: str, seconds: float) -> bool:
        """Wait until a node is deleted or changed; return False after `seconds`."""
        changed = threading.Event()
        return self.read_all([path], [changed.set])[0] is None or changed.wait(max(seconds, 0))

    def close(self) -> None:
        """End the session, which deletes its ephemeral nodes."""
        self.disconnect()

    @contextmanager
    def _tree(self) -> Iterator[dict[str, _Node]]:
        """Lock the tree. Raises OutcomeUnknown without a session."""
        with self._registry._lock:
            self.session_id  # noqa: B018 - it raises
            yield self._registry._nodes
