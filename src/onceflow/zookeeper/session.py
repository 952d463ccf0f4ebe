"""Interface of a session with the cluster's registry, a tree of nodes: ZooKeeper's, in calls that block.

A call fails with OutcomeUnknown if the connection or the session ended before its response: a write may be applied.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from onceflow.errors import OnceflowError

ANY_VERSION = -1


class OutcomeUnknown(OnceflowError):
    """The connection or the session ended before the response."""


class Conflict(OnceflowError):
    """A write was not applied: another program has created, changed or deleted one of its nodes.

    `position` is that of the operation in the write.
    """

    def __init__(self, position: int, path: str, reason: str, *, is_bad_version: bool) -> None:
        super().__init__(f"{path}: {reason}")
        self.position = position
        self.is_bad_version = is_bad_version


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node; `sequence` appends a number to its path."""

    path: str
    value: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Replace a node's value, if it has this version."""

    path: str
    value: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Put:
    """Create a node, or replace the value of the one that another program has left there."""

    path: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node without children."""

    path: str


@dataclass(frozen=True, slots=True)
class Check:
    """Apply the others only if the node has this version."""

    path: str
    version: int


Operation: TypeAlias = Create | Set | Put | Delete | Check


class StoredNode(NamedTuple):
    """A node's value with what ZooKeeper knows about it."""

    value: bytes
    version: int
    creation_id: int
    """The transaction that created it (czxid)."""
    created_ms: int
    owner: int
    """The session of an ephemeral node, else 0."""
    change_id: int
    """The transaction that changed it last (mzxid)."""


class SessionKey(NamedTuple):
    """A session's id and password, with which another client can continue it."""

    session_id: int
    password: bytes


class Session(Protocol):
    """One session after another. Its calls belong to one thread at a time, except `close`."""

    on_new_session: Callable[[], None] | None
    """Called in any thread when a new session replaced an expired one."""

    def open(self) -> None:
        """Connect."""

    @property
    def session_id(self) -> int:
        """The current session. Raises OutcomeUnknown while there is no connection."""

    @property
    def is_connected(self) -> bool:
        """Whether there is a session with a connection. Any thread."""

    @property
    def session_seconds(self) -> float:
        """Time after which a session without messages ends."""

    def read(self, path: str) -> StoredNode | None:
        """Return a node, None if it does not exist. Raises OutcomeUnknown."""

    def read_all(
        self, paths: Sequence[str], watches: Sequence[Callable[[], None]] | None = None
    ) -> list[StoredNode | None]:
        """Return the nodes in the order of their paths, None for those that do not exist. Raises OutcomeUnknown.

        The watch of an existing node is called once in any thread, when the node is changed or deleted or the session
        has expired.
        """

    def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        """Return the names of a node's children in their order; `watch` is as in `read_all`. Raises OutcomeUnknown."""

    def children_of_all(self, paths: Sequence[str]) -> list[list[str] | None]:
        """Return the names below each path, None for one that does not exist. Raises OutcomeUnknown."""

    def tree(self, path: str) -> list[str]:
        """Return the existing nodes at and below a path, each after those below it. Raises OutcomeUnknown."""

    def sync(self) -> None:
        """Let later reads see what other sessions have written so far. Raises OutcomeUnknown."""

    def ensure(self, path: str) -> None:
        """Create a node and the nodes above it if they do not exist; "" is the root. Raises OutcomeUnknown."""

    def commit(self, operations: Sequence[Operation]) -> None:
        """Apply all operations or none. Raises Conflict, OutcomeUnknown."""

    def wait_until_deleted(self, path: str, seconds: float) -> bool:
        """Wait until a node is deleted or changed; return False after `seconds`. Raises OutcomeUnknown."""

    def close(self) -> None:
        """End the session, which deletes its ephemeral nodes, and fail the call that waits in another thread."""
