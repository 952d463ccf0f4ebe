"""Check that something listens where ZooKeeper should, for commands: a session would try for many seconds."""

import socket

from kazoo.hosts import collect_hosts

from onceflow.remedies import Remedy
from onceflow.zookeeper.kazoo_session import ZooKeeperUnavailable

CONNECT_SECONDS = 5.0


def require_listening(connect: str) -> None:
    """Connect to one of the servers of HOST:PORT,HOST:PORT/CHROOT. Raises ZooKeeperUnavailable."""
    reasons = []
    try:
        for host, port in collect_hosts(connect)[0]:
            try:
                socket.create_connection((host, port), CONNECT_SECONDS).close()
                return
            except OSError as error:
                reasons.append(f"{host}:{port}: {error.strerror or error}")
    except ValueError as error:
        raise ZooKeeperUnavailable(f"ZooKeeper '{connect}' is not HOST:PORT,…/CHROOT: {error}") from error
    raise ZooKeeperUnavailable(f"no ZooKeeper at {connect}: {', '.join(reasons)}; {Remedy.START_ZOOKEEPER}")
