"""A process that closes a session with ZooKeeper as soon as the process that used it has died.

ZooKeeper keeps the session of a killed process until its timeout, since from another machine it may only be slow. On
the same machine there is no doubt: the kernel closes the dead process's end of a pipe. So other brokers need not wait
for the timeout to elect leaders, nor the broker's next process to register again.

The closer dies with its machine or its container. The session then ends by its timeout, as without a closer.
"""

import json
import logging
import subprocess
import sys
from dataclasses import fields

from onceflow.zookeeper import closing
from onceflow.zookeeper.security import ZooKeeperSecurity
from onceflow.zookeeper.session import SessionKey

logger = logging.getLogger(__name__)

_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import main; main()"


class SessionCloser:
    """A process that watches the one that started it. It is a small one: it imports kazoo when it needs it."""

    def __init__(
        self, connect: str, *, session_timeout_ms: int, connection_timeout_ms: int, security: ZooKeeperSecurity
    ) -> None:
        """Take what `kazoo_session.ZooKeeper` takes."""
        self._settings = {
            "connect": connect,
            "session_timeout_ms": session_timeout_ms,
            "connection_timeout_ms": connection_timeout_ms,
            "security": {setting.name: getattr(security, setting.name) for setting in fields(ZooKeeperSecurity)},
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; a warning says why it cannot be started."""
        # In a group of its own: it must outlive the signals to this one. The settings may have a password, so they go
        # through the pipe.
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM.format(path=sys.path, module=closing.__name__)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            logger.warning("no closer of the session with ZooKeeper: %s; after a crash it has to expire", error)
        self._tell(json.dumps(self._settings))

    def follow(self, key: SessionKey | None) -> None:
        """Close this session from now on, None after this process has closed its own. Any thread."""
        self._tell("" if key is None else f"{key.session_id:x} {key.password.hex()}")

    def _tell(self, line: str) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
        except OSError:
            logger.warning("the closer of the session with ZooKeeper has died: after a crash the session has to expire")
            self._process.stdin.close()
            self._process.wait()
            self._process = None
