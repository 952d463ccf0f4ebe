"""One cluster's connections per process: Spark keeps its Python workers from batch to batch, so these stay too."""

import atexit

from onceflow.client.cluster import Cluster

_clusters: dict[str, Cluster] = {}


def connect(bootstrap: str, *, first_contact_ms: int = 0) -> Cluster:
    """This process's way to a cluster, closed when the process ends.

    `first_contact_ms` is how long the first connection of all may take: 0 where an address may be wrong.
    """
    if bootstrap not in _clusters:
        _clusters[bootstrap] = Cluster(bootstrap, client_id="onceflow-spark", first_contact_ms=first_contact_ms)
        atexit.register(_clusters[bootstrap].close)
    return _clusters[bootstrap]
