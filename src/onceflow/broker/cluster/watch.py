"""Changes of the topics that other programs write to ZooKeeper, such as Kafka's tools before 3.0.

ZooKeeper's watches fire once. They are set at the start, and again by each `look`, which reads what they are about: the
live brokers, the controller, the names of the topics, the partitions of the topics that were changed, topics to delete,
and the notices about changed configurations. A new session has no watches; all of them fire then, so that the next look
reads everything again.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from onceflow.broker.cluster import nodes
from onceflow.broker.cluster.image import StoredTopic, read_topics
from onceflow.broker.cluster.notices import Notices
from onceflow.broker.cluster.security_nodes import entity_of
from onceflow.broker.cluster.state import LiveBroker
from onceflow.broker.storage.partitions import Place
from onceflow.log.clock import Clock
from onceflow.zookeeper.nodes import BROKER_IDS, TOPICS, DamagedNode, broker_path, decode
from onceflow.zookeeper.session import Session

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seen:
    """Result of a look: new and changed topics, the names of all, those of all to delete, and the live brokers."""

    topics: Sequence[StoredTopic]
    names: Collection[str]
    deletions: Sequence[str]
    brokers: Sequence[LiveBroker]
    controller_session: int
    """Session that `/controller` belongs to, 0 without a controller."""
    reassignments: Mapping[Place, Sequence[int]]
    """Partitions that a tool reassigns."""
    elections: Collection[Place] | None
    """Partitions for which a tool wants preferred leaders; None without a request."""
    changed: Collection[str]
    """Names of the new and changed topics, to be put back if this is not applied."""
    entities: Collection[str]
    """Paths of the users, client ids and addresses that were changed."""


class Watch:
    """Watches of one broker. `look` belongs to the registry's thread; watches fire in kazoo's."""

    def __init__(
        self, zookeeper: Session, clock: Clock, on_change: Callable[[], None], id_of: Callable[[str], UUID]
    ) -> None:
        """Watch from the first look on; `on_change` is called in kazoo's thread when there is something to look at.

        `id_of` returns the id for a topic that has none in ZooKeeper.
        """
        self._id_of = id_of
        self._zookeeper = zookeeper
        self._notices = Notices(zookeeper, nodes.CONFIG_CHANGES, clock, self._fire)
        self._on_change = on_change
        self._lock = threading.Lock()
        self._changed: set[str] = set()
        self._known: set[str] = set()
        self._entities: set[str] = set()
        """Paths of the users, client ids and addresses with a notice that no look has returned yet."""

    def _fire(self, name: str | None = None) -> None:
        if name is not None:
            self.put_back([name])
        self._on_change()

    def put_back(self, names: Collection[str]) -> None:
        """Let the next look read these topics again."""
        with self._lock:
            self._changed |= set(names)

    def look_again(self) -> None:
        """Let the next look read all topics."""
        self._known.clear()

    def look(self, on_damaged: Callable[[DamagedNode], None]) -> Seen:
        """Read what has changed, and watch it; `on_damaged` is as in `read_topics`. Raises OutcomeUnknown."""
        with self._lock:
            changed, self._changed = self._changed, set()
        try:
            return self._look(changed, on_damaged)
        except BaseException:
            self.put_back(changed)
            raise

    def _look(self, changed: set[str], on_damaged: Callable[[DamagedNode], None]) -> Seen:
        self._zookeeper.sync()
        brokers = self._read_brokers()
        (controller,) = self._zookeeper.read_all([nodes.CONTROLLER], [self._fire])
        names = self._zookeeper.children(TOPICS, self._fire)
        deletions = self._zookeeper.children(nodes.DELETIONS, self._fire)
        reassignments, elections = self._read_requests()
        topics_noticed, entities = self._read_notices()
        changed |= topics_noticed
        self._entities |= entities
        wanted = [name for name in names if name in changed or name not in self._known]
        topics = read_topics(self._zookeeper, wanted, lambda name: partial(self._fire, name), on_damaged, self._id_of)
        seen = Seen(
            list(topics),
            set(names),
            deletions,
            brokers,
            0 if controller is None else controller.owner,
            reassignments,
            elections,
            wanted,
            frozenset(self._entities),
        )
        self._entities.clear()
        self._known = set(names)
        return seen

    def _read_requests(self) -> tuple[Mapping[Place, Sequence[int]], Collection[Place] | None]:
        """Return the reassignments and elections that tools want. A damaged request is left there, as by Kafka."""
        present = set(self._zookeeper.children(nodes.ADMIN, self._fire))
        paths = [path for path in (nodes.REASSIGNMENTS, nodes.ELECTIONS) if path.rpartition("/")[2] in present]
        stored = dict(zip(paths, self._zookeeper.read_all(paths, [self._fire] * len(paths)), strict=True))
        reassignments: dict[Place, Sequence[int]] = {}
        elections: list[Place] | None = None
        try:
            if (node := stored.get(nodes.REASSIGNMENTS)) is not None:
                wanted = decode(nodes.ReassignmentsNode, nodes.REASSIGNMENTS, node.value)
                reassignments = {(entry.topic, entry.partition): tuple(entry.replicas) for entry in wanted.partitions}
            if (node := stored.get(nodes.ELECTIONS)) is not None:
                asked = decode(nodes.ElectionsNode, nodes.ELECTIONS, node.value)
                elections = [(entry.topic, entry.partition) for entry in asked.partitions]
        except DamagedNode as error:
            logger.error("a request of a tool is ignored: %s", error)
        return reassignments, elections

    def _read_brokers(self) -> list[LiveBroker]:
        ids = [name for name in self._zookeeper.children(BROKER_IDS, self._fire) if name.isdecimal()]
        stored = self._zookeeper.read_all([broker_path(int(broker_id)) for broker_id in ids])
        brokers = []
        for broker_id, node in zip(ids, stored, strict=True):
            if node is not None:
                try:
                    brokers.append(nodes.live_broker(int(broker_id), node))
                except DamagedNode as error:
                    logger.error("a broker is ignored: %s", error)
        return brokers

    def _read_notices(self) -> tuple[set[str], set[str]]:
        """Return the topics, and the paths of other entities, with configurations that have changed."""
        topics: set[str] = set()
        entities: set[str] = set()
        for path, value in self._notices.new():
            try:
                entity = decode(nodes.ConfigChangeNode, path, value).entity_path
            except DamagedNode as error:
                logger.error("a change of a configuration is not applied: %s", error)
                continue
            kind, _, name = entity.partition("/")
            if kind == "topics":
                topics.add(name)
            elif entity_of(entity) is not None:
                entities.add(entity)
            else:
                logger.warning("the configuration of %s in ZooKeeper has no effect: it is not read there", entity)
        return topics, entities
