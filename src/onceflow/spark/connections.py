"""One cluster's connections per process: Spark keeps its Python workers from batch to batch, so these stay too."""

import atexit

from onceflow.client.cluster import Cluster
from onceflow.client.security import PLAINTEXT, Security

TIMEOUT_MS = 30_000

_clusters: dict[tuple[str, Security, int], Cluster] = {}


def connect(
    bootstrap: str, security: Security = PLAINTEXT, *, first_contact_ms: int = 0, timeout_ms: int = TIMEOUT_MS
) -> Cluster:
    """This process's way to a cluster, closed when the process ends; one for each user and time-out.

    `first_contact_ms` is how long the first connection of all may take: 0 where an address may be wrong.
    """
    found = _clusters.get((bootstrap, security, timeout_ms))
    if found is None:
        found = _clusters[bootstrap, security, timeout_ms] = Cluster(
            bootstrap,
            client_id="onceflow-spark",
            first_contact_ms=first_contact_ms,
            timeout_ms=timeout_ms,
            security=security,
        )
        atexit.register(found.close)
    return found
