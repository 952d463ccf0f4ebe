"""One look at ZooKeeper: what has changed there since the one before."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from onceflow.broker.cluster import nodes, writes
from onceflow.broker.cluster.image import read_states
from onceflow.broker.cluster.registry import Deposed, Registry
from onceflow.broker.cluster.security import OnDamaged, RegistrySecurity, SecuritySeen
from onceflow.broker.cluster.state import State
from onceflow.broker.cluster.watch import Seen, Watch
from onceflow.broker.storage.partitions import Place

logger = logging.getLogger(__name__)


class Look(NamedTuple):
    """Result of a look, with the states of the partitions that the controller does not know yet."""

    seen: Seen
    states: Mapping[Place, State]
    security: SecuritySeen


def read_changes(registry: Registry, watch: Watch, security: RegistrySecurity, on_damaged: OnDamaged) -> Look:
    """Read what has changed, and be elected if there is no controller.

    As Kafka's controller, give the topics an id that have none. Blocks.
    """
    has_resigned = False
    try:
        registry.rejoin()
    except Deposed as error:
        logger.warning("%s; this broker resigns", error)
        watch.look_again()
        has_resigned = True
    seen = registry.read(lambda _zookeeper: watch.look(on_damaged))
    if registry.resign_unless(seen.controller_session):
        logger.warning("%s was deleted by another program; this broker resigns", nodes.CONTROLLER)
        has_resigned = True
    if has_resigned:
        # The next look elects, when the decisions of the term are forgotten.
        watch.look_again()
    else:
        while not (seen.controller_session or registry.is_controller):
            registry.elect()
            # Everything is read again, since it is the former controller's until now. Also after another broker was
            # elected: only a node that exists is watched.
            watch.look_again()
            security.look_again()
            seen = registry.read(lambda _zookeeper: watch.look(on_damaged))
            registry.resign_unless(seen.controller_session)
    changed = registry.read(lambda zookeeper: security.look(zookeeper, seen.entities, on_damaged))
    try:
        _set_topic_ids(registry, seen)
    except Deposed as error:
        logger.warning("%s; this broker resigns", error)
        watch.look_again()
    if not registry.is_controller:
        return Look(seen, {}, changed)
    topics, states = registry.read(lambda zookeeper: read_states(zookeeper, seen.topics, on_damaged))
    return Look(replace(seen, topics=topics), states, changed)


def _set_topic_ids(registry: Registry, seen: Seen) -> None:
    """Write the new ids of topics that have none, as the controller. Raises Deposed."""
    if registry.is_controller:
        for topic in seen.topics:
            if topic.lacks_id and topic.name not in seen.deletions:
                registry.write(writes.set_topic_id(topic.name, topic.topic_id, topic.replicas))
