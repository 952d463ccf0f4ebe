"""A session with ZooKeeper, in calls that block: reads, and writes of several nodes that are applied together.

kazoo keeps the session in threads of its own: it reconnects, and begins a new session when the old one has expired.
A call fails with OutcomeUnknown if the connection or the session ended before its response: a write may be applied.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.zookeeper.session import (
    Check,
    Conflict,
    Create,
    Delete,
    Operation,
    OutcomeUnknown,
    Put,
    SessionKey,
    Set,
    StoredNode,
)

logger = logging.getLogger(__name__)

READS_AT_ONCE = 1000
_UNKNOWN = (
    ConnectionClosedError,
    ConnectionLoss,
    KazooTimeoutError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
_CONFLICTS = (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError)


class ZooKeeperUnavailable(OnceflowError):
    """ZooKeeper cannot be reached at the start."""


class ZooKeeperRefused(OnceflowError):
    """ZooKeeper refuses a request for a reason that a repetition does not change."""


class _Unrepeated(logging.Filter):
    """Drops messages of kazoo's attempts to connect that equal earlier ones, until there is a connection."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to keep the message. One for each request, below INFO, is kept, and not remembered."""
        if record.levelno < logging.INFO:
            return True
        message = record.getMessage()
        is_new = message not in self._seen
        self._seen.add(message)
        return is_new

    def forget(self) -> None:
        """Let all messages through again, once."""
        self._seen.clear()


class Security(Protocol):
    """TLS, authentication and ACLs of a session."""

    @property
    def client_settings(self) -> dict[str, Any]:
        """The arguments of KazooClient."""

    def acl_of(self, path: str) -> list[Any]:
        """Return the ACL of a node that is created; `path` is without the chroot."""


class ZooKeeper:
    """One session after another. Its calls belong to one thread at a time, except `close`."""

    def __init__(
        self,
        connect: str,
        *,
        session_timeout_ms: int,
        connection_timeout_ms: int,
        security: Security | None = None,
        continued: SessionKey | None = None,
    ) -> None:
        """Prepare a session; `connect` is HOST:PORT,HOST:PORT/CHROOT. Without `security` it is open.

        The first session is `continued`, if it has not expired.
        """
        self._connect = connect
        hosts, _, chroot = connect.partition("/")
        self._chroot = f"/{chroot.strip('/')}" if chroot.strip("/") else ""
        self._session_seconds = session_timeout_ms / 1000
        self._connection_seconds = connection_timeout_ms / 1000
        self._security = security
        settings: dict[str, Any] = {} if security is None else security.client_settings
        self._unrepeated = _Unrepeated()
        # Of this session alone: loggers by name are shared, and are never removed.
        kazoo_logger = logging.Logger(f"{__name__}.kazoo")
        kazoo_logger.parent = logger
        kazoo_logger.addFilter(self._unrepeated)
        self._client: Any = KazooClient(
            hosts=hosts, timeout=self._session_seconds, client_id=continued, logger=kazoo_logger, **settings
        )
        self._client.add_listener(self._on_state)
        self.on_new_session: Callable[[], None] | None = None
        """Called in kazoo's thread when a new session replaced an expired one."""
        self.on_session: Callable[[SessionKey | None], None] | None = None
        """Called in kazoo's thread with the session of each connection, and with None after the last was closed."""
        self._is_session_lost = False

    def _acl_of(self, path: str) -> list[Any] | None:
        return None if self._security is None else self._security.acl_of(path)

    def open(self) -> None:
        """Connect. Raises ZooKeeperUnavailable."""
        # kazoo's `start` also fails when the new connection is lost at once, which does not end the session.
        if not self._client.start_async().wait(self._connection_seconds):
            self.close()
            raise ZooKeeperUnavailable(
                f"zookeeper.connect {self._connect}: no session within {self._connection_seconds:g} s;"
                f" {Remedy.START_ZOOKEEPER}"
            )

    @property
    def session_id(self) -> int:
        """The current session. Raises OutcomeUnknown while there is no connection."""
        client_id = self._client.client_id
        if client_id is None:
            raise OutcomeUnknown(f"ZooKeeper {self._connect}: not connected")
        session: int = client_id[0]
        return session

    @property
    def is_connected(self) -> bool:
        """Whether there is a session with a connection. Any thread."""
        return bool(self._client.connected)

    @property
    def session_seconds(self) -> float:
        """Time after which ZooKeeper ends a session without messages, as requested."""
        return self._session_seconds

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._unrepeated.forget()
            if self.on_session is not None:
                self.on_session(SessionKey(*self._client.client_id))
        if state == KazooState.SUSPENDED:
            logger.warning("ZooKeeper %s: the connection is lost; reconnecting", self._connect)
        elif state == KazooState.LOST:
            self._is_session_lost = True
            logger.warning("ZooKeeper %s: the session has ended", self._connect)
        elif self._is_session_lost:
            self._is_session_lost = False
            logger.info("ZooKeeper %s: a new session has begun", self._connect)
            if self.on_new_session is not None:
                self.on_new_session()
        else:
            logger.info("ZooKeeper %s: connected", self._connect)

    def read(self, path: str) -> StoredNode | None:
        """Return a node, None if it does not exist. Raises OutcomeUnknown."""
        return self.read_all([path])[0]

    def read_all(
        self, paths: Sequence[str], watches: Sequence[Callable[[], None]] | None = None
    ) -> list[StoredNode | None]:
        """Return the nodes in the order of their paths, None for those that do not exist. Raises OutcomeUnknown.

        The watch of an existing node is called once in kazoo's thread, when the node is changed or deleted or the
        session has expired.
        """
        nodes: list[StoredNode | None] = []
        for first in range(0, len(paths), READS_AT_ONCE):
            some = paths[first : first + READS_AT_ONCE]
            calls = [None] * len(some) if watches is None else watches[first : first + READS_AT_ONCE]
            asked = [
                self._client.get_async(self._chroot + path, watch=_ignoring_event(watch))
                for path, watch in zip(some, calls, strict=True)
            ]
            nodes += [self._node(request) for request in asked]
        return nodes

    def _node(self, asked: Any) -> StoredNode | None:
        node = self._or_none(asked)
        if node is None:
            return None
        value, stat = node
        # Kafka creates some nodes with null.
        return StoredNode(value or b"", stat.version, stat.czxid, stat.ctime, stat.ephemeralOwner, stat.mzxid)

    def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        """Return the names of a node's children in their order; `watch` is as in `read_all`. Raises OutcomeUnknown."""
        return sorted(self._wait(self._client.get_children_async(self._chroot + path, watch=_ignoring_event(watch))))

    def tree(self, path: str) -> list[str]:
        """Return the existing nodes at and below a path, each after those below it. Raises OutcomeUnknown."""
        nodes: list[str] = []
        level = [path]
        while level:
            names = self.children_of_all(level)
            nodes += [above for above, below in zip(level, names, strict=True) if below is not None]
            level = [f"{above}/{name}" for above, below in zip(level, names, strict=True) for name in below or ()]
        return nodes[::-1]

    def children_of_all(self, paths: Sequence[str]) -> list[list[str] | None]:
        """Return the names below each path, None for one that does not exist. Raises OutcomeUnknown."""
        names: list[list[str] | None] = []
        for first in range(0, len(paths), READS_AT_ONCE):
            some = paths[first : first + READS_AT_ONCE]
            asked = [self._client.get_children_async(self._chroot + path) for path in some]
            names += [self._or_none(request) for request in asked]
        return names

    def _or_none(self, asked: Any) -> Any:
        try:
            return self._wait(asked)
        except NoNodeError:
            return None

    def sync(self) -> None:
        """Let later reads see what other sessions have written so far. Raises OutcomeUnknown."""
        self._wait(self._client.sync_async(self._chroot or "/"))

    def ensure(self, path: str) -> None:
        """Create a node and the nodes above it if they do not exist; "" is the chroot. Raises OutcomeUnknown."""
        if self._chroot or path:
            self._wait(self._client.ensure_path_async(self._chroot + path, acl=self._acl_of(path)))

    def commit(self, operations: Sequence[Operation]) -> None:
        """Apply all operations or none. Raises Conflict, OutcomeUnknown."""
        transaction = self._client.transaction()
        for operation in operations:
            path = self._chroot + operation.path
            match operation:
                case Create(_, value, ephemeral, sequence):
                    acl = self._acl_of(operation.path)
                    transaction.create(path, value, acl=acl, ephemeral=ephemeral, sequence=sequence)
                case Set(_, value, version):
                    transaction.set_data(path, value, version)
                case Put(_, value) if self.read(operation.path) is not None:
                    transaction.set_data(path, value)
                case Put(_, value):
                    transaction.create(path, value, acl=self._acl_of(operation.path))
                case Delete():
                    transaction.delete(path)
                case Check(_, version):
                    transaction.check(path, version)
        for position, result in enumerate(self._wait(transaction.commit_async())):
            if isinstance(result, _CONFLICTS):
                is_bad_version = isinstance(result, BadVersionError)
                path, reason = operations[position].path, type(result).__name__
                raise Conflict(position, path, reason, is_bad_version=is_bad_version)
            if isinstance(result, Exception) and not isinstance(result, RolledBackError):
                raise ZooKeeperRefused(f"{operations[position].path} in ZooKeeper cannot be written: {result!r}")

    def wait_until_deleted(self, path: str, seconds: float) -> bool:
        """Wait until a node is deleted or changed; return False after `seconds`. Raises OutcomeUnknown."""
        changed = threading.Event()
        exists = self._client.exists_async(self._chroot + path, watch=lambda _event: changed.set())
        return self._wait(exists) is None or changed.wait(max(seconds, 0))

    def _wait(self, asked: Any) -> Any:
        try:
            return asked.get(timeout=self._session_seconds)
        except _UNKNOWN as error:
            raise OutcomeUnknown(f"ZooKeeper {self._connect}: {type(error).__name__}") from error
        except NoAuthError as error:
            raise ZooKeeperRefused(
                f"ZooKeeper {self._connect}: its ACLs do not allow this user to use a node of the cluster"
            ) from error

    def close(self) -> None:
        """End the session, which deletes its ephemeral nodes, and fail the call that waits in another thread."""
        can_end = self.is_connected
        self._client.remove_listener(self._on_state)
        self._client.stop()
        self._client.close()
        if can_end and self.on_session is not None:
            self.on_session(None)


def _ignoring_event(watch: Callable[[], None] | None) -> Callable[[object], None] | None:
    return None if watch is None else lambda _event: watch()
