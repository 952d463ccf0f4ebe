"""A process that closes a session with ZooKeeper as soon as the process that used it has died.

ZooKeeper keeps the session of a killed process until its timeout, since from another machine it may only be slow. On
the same machine there is no doubt: the kernel closes the dead process's end of a pipe. Its brokers then need not wait
for the timeout to elect other leaders, nor its next process to register again.

The closer dies with its machine or its container. The session then ends by its timeout, as without a closer.
"""

import logging
import os
import signal
from collections.abc import Callable
from typing import NamedTuple, Protocol

from onceflow.errors import OnceflowError

logger = logging.getLogger(__name__)

IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals for the whole group or service: the closer ends after the process that it watches."""
_READ_BYTES = 4096


class SessionKey(NamedTuple):
    """A session's id and password, with which another client can continue it."""

    session_id: int
    password: bytes


class ClosableSession(Protocol):
    """Interface of a session that is continued in order to close it."""

    def open(self) -> None: ...

    def close(self) -> None: ...


class SessionCloser:
    """A process that watches the one that started it."""

    def __init__(self, continued: Callable[[SessionKey], ClosableSession]) -> None:
        """Take `continued`, which prepares to continue a session. It is called in the other process."""
        self._continued = continued
        self._pipe: int | None = None

    def start(self) -> None:
        """Fork the closer. This process must not have threads yet. Raises OSError."""
        ours, own = os.pipe()
        if os.fork():
            os.close(ours)
            self._pipe = own
            return
        status = 1
        try:
            os.close(own)
            _leave_group()
            self._watch(ours)
            status = 0
        except Exception:
            logger.exception("the closer of the session with ZooKeeper failed")
        finally:
            os._exit(status)

    def follow(self, key: SessionKey | None) -> None:
        """Close this session from now on, None after this process has closed its own. Any thread."""
        if self._pipe is None:
            return
        try:
            os.write(self._pipe, b"\n" if key is None else b"%x %b\n" % (key.session_id, key.password.hex().encode()))
        except BrokenPipeError:
            logger.warning("the closer of the session with ZooKeeper has died: after a crash the session has to expire")
            os.close(self._pipe)
            self._pipe = None

    def _watch(self, pipe: int) -> None:
        """Read keys until the other end of the pipe is closed, then close the last one's session."""
        read = b""
        while part := os.read(pipe, _READ_BYTES):
            # Only the last line counts, which may be followed by a cut one.
            read = b"\n".join((read + part).split(b"\n")[-2:])
        line = read.split(b"\n")[0]
        if not line:
            return
        session_id, password = line.decode().split()
        session = self._continued(SessionKey(int(session_id, 16), bytes.fromhex(password)))
        try:
            session.open()
        except OnceflowError as error:
            logger.warning("the session of a broker that died ends by its timeout: %s", error)
            return
        session.close()
        logger.info("the broker has died: its session %s with ZooKeeper is closed", session_id)


def _leave_group() -> None:
    """Outlive the signals to the watched process's group, and hold none of its standard streams but that for errors."""
    os.setsid()
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
