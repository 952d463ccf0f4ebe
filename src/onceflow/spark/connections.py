"""Connections of this process, kept as long as Spark keeps its Python workers: from batch to batch."""

import atexit

from onceflow.client.cluster import Cluster
from onceflow.client.registry.settings import SessionSettings
from onceflow.client.security import PLAINTEXT, Security
from onceflow.zookeeper.session import Session

TIMEOUT_MS = 30_000

_clusters: dict[tuple[str, Security, int], Cluster] = {}
_sessions: dict[SessionSettings, Session] = {}


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


def connect_zookeeper(settings: SessionSettings) -> Session:
    """Return this process's session with ZooKeeper, closed at exit. Raises ZooKeeperUnavailable, ZooKeeperRefused."""
    session = _sessions.get(settings)
    if session is None:
        session = settings.new_session()
        session.open()
        _sessions[settings] = session
        atexit.register(session.close)
    return session
