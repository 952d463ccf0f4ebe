"""The process of a `SessionCloser`: it reads a pipe until its end, then closes the last session that it has read.

The first line has the settings, each other one a session's id and password, or nothing after the session was closed.
Each is written at once, so none is cut. What it needs to close a session is imported then: until then it has little
memory, as long as the broker runs.
"""

import os
import signal

IGNORED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals for all processes of a service: this one ends after the process that it watches."""
_READ_BYTES = 65536


def main() -> None:
    """Read to the end, and close the last session."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    lines = _lines()
    if len(lines) > 1 and lines[-1]:
        _close(lines[0], lines[-1])


def _lines() -> list[str]:
    """Return the first line, and the last one if there are more."""
    read = b""
    while part := os.read(0, _READ_BYTES):
        first, *others = (read + part).split(b"\n")
        read = b"\n".join((first, *others[-2:]))
    return read.decode().split("\n")[:-1]


def _close(settings: str, key: str) -> None:
    import json
    import logging

    from onceflow.errors import OnceflowError
    from onceflow.zookeeper.kazoo_session import ZooKeeper
    from onceflow.zookeeper.security import ZooKeeperSecurity
    from onceflow.zookeeper.session import SessionKey

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logger = logging.getLogger(__name__)
    logger.setLevel(logging.INFO)
    named = json.loads(settings)
    session_id, password = key.split()
    continued = SessionKey(int(session_id, 16), bytes.fromhex(password))
    try:
        security = ZooKeeperSecurity(**named.pop("security"))
        session = ZooKeeper(**named, security=security, continued=continued)
        session.open()
    except OnceflowError as error:
        logger.warning("the session of a broker that died ends by its timeout: %s", error)
        return
    session.close()
    logger.info("the broker has died: its session %s with ZooKeeper is closed", session_id)
