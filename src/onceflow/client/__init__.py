"""Client for any Kafka over blocking sockets, and over librdkafka where that is better.

`cluster.Cluster` is the entry point: metadata, offsets, fetches, topics and group offsets. `admin` has the
administrative requests, `records` turns fetches into records, `producer` sends events through librdkafka,
`transactional` is a producer whose transactions another process can finish, `classic` has the API of Kafka's first
clients. Nothing here knows Spark or our own broker. A `Cluster` belongs to one thread.

The names below can be imported from here; their modules are loaded on first use, since some need librdkafka (Onceflow's
extra `client`).
"""

import importlib
from typing import TYPE_CHECKING, Any

from onceflow.errors import missing_package

if TYPE_CHECKING:
    from onceflow.client.classic import (
        Blacklist,
        ConsumerConnector,
        FetchRequest,
        KeyedMessage,
        Producer,
        SimpleConsumer,
        Whitelist,
    )
    from onceflow.client.cluster import Cluster
    from onceflow.client.transactional import TransactionalProducer

__all__ = [
    "Blacklist",
    "Cluster",
    "ConsumerConnector",
    "FetchRequest",
    "KeyedMessage",
    "Producer",
    "SimpleConsumer",
    "TransactionalProducer",
    "Whitelist",
]

_MODULES = {
    "Blacklist": "onceflow.client.classic",
    "Cluster": "onceflow.client.cluster",
    "ConsumerConnector": "onceflow.client.classic",
    "FetchRequest": "onceflow.client.classic",
    "KeyedMessage": "onceflow.client.classic",
    "Producer": "onceflow.client.classic",
    "SimpleConsumer": "onceflow.client.classic",
    "TransactionalProducer": "onceflow.client.transactional",
    "Whitelist": "onceflow.client.classic",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'onceflow.client' has no attribute '{name}'")
    try:
        module = importlib.import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        if str(error.name).startswith("onceflow"):
            raise
        message = missing_package(name, str(error.name), "client")
        raise ModuleNotFoundError(message, name=error.name) from error
    return getattr(module, name)
