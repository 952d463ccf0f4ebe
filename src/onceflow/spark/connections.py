"""Connections of this process, kept as long as Spark keeps its Python workers: from batch to batch."""

import atexit

from onceflow.client.cluster import Cluster
from onceflow.client.security import PLAINTEXT, Security
from onceflow.errors import missing_package
from onceflow.zookeeper.session import Session

TIMEOUT_MS = 30_000

_clusters: dict[tuple[str, Security, int], Cluster] = {}
_sessions: dict[str, Session] = {}


def connect(
    bootstrap: str, security: Security = PLAINTEXT, *, first_contact_ms: int = 0, timeout_ms: int = TIMEOUT_MS
) -> Cluster:
    """Return this process's client of a cluster, closed at exit; there is one for each user and time-out.

    `first_contact_ms` is how long the very first connection may take: 0 where an address may be wrong.
    """
    cluster = _clusters.get((bootstrap, security, timeout_ms))
    if cluster is None:
        cluster = _clusters[bootstrap, security, timeout_ms] = Cluster(
            bootstrap,
            client_id="onceflow-spark",
            first_contact_ms=first_contact_ms,
            timeout_ms=timeout_ms,
            security=security,
        )
        atexit.register(cluster.close)
    return cluster


def connect_zookeeper(connect: str, *, timeout_ms: int) -> Session:
    """Return this process's session with ZooKeeper, closed at exit. Raises ZooKeeperUnavailable, ZooKeeperRefused."""
    session = _sessions.get(connect)
    if session is None:
        try:
            from onceflow.zookeeper.kazoo_session import ZooKeeper
        except ModuleNotFoundError as error:
            if error.name != "kazoo":
                raise
            message = missing_package("option zookeeperConnect", "kazoo", "cluster")
            raise ModuleNotFoundError(message, name="kazoo") from error
        session = ZooKeeper(connect, session_timeout_ms=timeout_ms, connection_timeout_ms=timeout_ms)
        session.open()
        _sessions[connect] = session
        atexit.register(session.close)
    return session
