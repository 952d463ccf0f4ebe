"""This broker in ZooKeeper: its registration, its terms as controller, and its writes to the topics' nodes.

Every write of a controller is applied together with a check of `/controller_epoch`'s version: a broker that lost
`/controller` without knowing cannot change anything (KafkaZkClient, `controllerEpochZkVersion`).

A write whose outcome is unknown is repeated until it is applied. That it failed because its nodes exist, or do not,
then means that the first attempt was applied: no other broker writes during a term, and a write is applied as a whole.
If the first attempt fails like this, another program has written: the controller resigns, and the next one, which may
be this broker again, reads everything.
A new session continues the term in the next epoch. If another controller was elected between them, the topics that this
broker knows may not be those in ZooKeeper: it deletes `/controller` again and resigns. A broker that is not the
controller is elected by `elect`, which fails while there is one.

Methods block and belong to one thread at a time, except `close`.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from onceflow.broker.cluster import nodes
from onceflow.broker.cluster.decision import Write as StateWrite
from onceflow.broker.config import Endpoint
from onceflow.broker.storage.partitions import Place
from onceflow.errors import OnceflowError
from onceflow.log.clock import Clock
from onceflow.remedies import Remedy
from onceflow.zookeeper.nodes import BrokerNode, DamagedNode, broker_path, decode, topic_path
from onceflow.zookeeper.session import (
    Check,
    Conflict,
    Create,
    Delete,
    Operation,
    OutcomeUnknown,
    Session,
    Set,
    StoredNode,
)

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.1
FORMER_SESSIONS = 1.5
"""Wait for a former session, in time-outs: ZooKeeper ends it up to a tick late, and a time-out is two ticks or more."""
OPERATIONS_IN_A_WRITE = 500
"""About 200 KB of states; ZooKeeper's limit of a request is 1 MB (jute.maxbuffer)."""
DELETIONS_IN_A_WRITE = 1000
ATTEMPTS_MAX = 100
"""Attempts at a change that other brokers make too, such as reserving producer ids: one of them succeeds each time."""

Result = TypeVar("Result")
Write = Sequence[Operation]
"""Operations that are applied together."""


class RegistrationRefused(OnceflowError):
    """Another broker has this broker's id."""


class Superseded(OnceflowError):
    """Another program changed the cluster's topics, or became its controller."""


class Deposed(Superseded):
    """This broker is not the controller any more: its session ended, or another program deleted `/controller`."""


class RegistryClosed(OnceflowError):
    """The broker stops."""


@dataclass(frozen=True, slots=True)
class Term:
    """A time in which this broker is the controller."""

    epoch: int
    version: int
    """Version of `/controller_epoch`."""
    former_start: int = 0
    """The transaction that began the term before; 0 if there was none, or it is unknown."""


class Registry:
    """Registration of one broker in ZooKeeper."""

    def __init__(self, zookeeper: Session, broker_id: int, clock: Clock) -> None:
        self.zookeeper = zookeeper
        self.broker_id = broker_id
        self._clock = clock
        self._own = BrokerNode(host=None, port=-1)
        self._registered_session = 0
        self._term: Term | None = None
        self.broker_epoch = -1
        """The czxid of this broker's node."""
        self._closing = threading.Event()

    @classmethod
    def open(cls, session: Session, broker_id: int, clock: Clock) -> "Registry":
        """Begin the session, and create Kafka's nodes without a value.

        Raises ZooKeeperUnavailable, ZooKeeperRefused.
        """
        session.open()
        registry = cls(session, broker_id, clock)
        try:
            registry._repeat(registry._create_persistent_nodes)
        except BaseException:
            registry.close()
            raise
        return registry

    def _create_persistent_nodes(self) -> None:
        for path in (nodes.ROOT, *nodes.PERSISTENT):
            self.zookeeper.ensure(path)

    def close(self) -> None:
        """End the session, and any call that waits in another thread: it raises RegistryClosed."""
        self._closing.set()
        self.zookeeper.close()

    @property
    def term(self) -> Term:
        """The current term as controller."""
        assert self._term is not None, "the broker is not the controller"
        return self._term

    @property
    def is_controller(self) -> bool:
        """Whether this broker has a term, as far as it knows."""
        return self._term is not None

    def _repeat(self, work: Callable[[], Result]) -> Result:
        """Repeat `work` while its outcome is unknown. Raises RegistryClosed when the broker stops."""
        while True:
            if self._closing.is_set():
                raise RegistryClosed("ZooKeeper: the session is closed, because the broker stops")
            try:
                return work()
            except OutcomeUnknown as error:
                logger.debug("%s; repeating", error)
                self._closing.wait(RETRY_SECONDS)

    def read(self, read: Callable[[Session], Result]) -> Result:
        """Return what `read` returns, repeated while its outcome is unknown. Raises RegistryClosed."""
        return self._repeat(lambda: read(self.zookeeper))

    def cluster_id(self, wanted: str | None, make_id: Callable[[], str]) -> str:
        """Return the id of the cluster; the first broker writes it, as `wanted` or as a new one."""
        return self._repeat(lambda: self._cluster_id(wanted, make_id))

    def _cluster_id(self, wanted: str | None, make_id: Callable[[], str]) -> str:
        while (stored := self.zookeeper.read(nodes.CLUSTER_ID)) is None:
            self.zookeeper.ensure("/cluster")
            new = nodes.ClusterNode(id=wanted or make_id())
            try:
                self.zookeeper.commit([Create(nodes.CLUSTER_ID, nodes.encode(new))])
            except Conflict:
                continue
        cluster_id = decode(nodes.ClusterNode, nodes.CLUSTER_ID, stored.value).id
        if wanted not in (None, cluster_id):
            raise RegistrationRefused(
                f"cluster.id {wanted}: the cluster in ZooKeeper is {cluster_id}; {Remedy.OTHER_CHROOT}"
            )
        return cluster_id

    # Joining

    def join(self, endpoints: Sequence[Endpoint], protocols: Mapping[str, str], rack: str | None = None) -> None:
        """Register this broker with its addresses and rack, and become the controller if there is none.

        Raises RegistrationRefused.
        """
        self._own = nodes.broker(endpoints, protocols, self._clock.now_ms(), rack)
        self._repeat(self._join)
        self.elect()

    def rejoin(self) -> None:
        """Register again if the session was replaced.

        Raises RegistrationRefused, RegistryClosed, Superseded, and Deposed if this broker is not the controller any
        more.
        """
        self._repeat(self._join)

    def resign_unless(self, session: int) -> bool:
        """End the term if `/controller` belongs to another session, or to none (0); return whether it has ended
        (KafkaController.maybeResign)."""
        if self._term is None or session == self._registered_session:
            return False
        self._term = None
        return True

    def elect(self) -> bool:
        """Become the controller unless there is one; return whether this broker is. Raises as `rejoin`."""
        return self._repeat(self._elect)

    def _elect(self) -> bool:
        self._join()
        if self._term is None:
            self._term = self._become_controller(self._registered_session)
        return self._term is not None

    def _join(self) -> None:
        """Create the ephemeral nodes of the current session, unless it has them."""
        session = self.zookeeper.session_id
        if session == self._registered_session:
            return
        self._register(session, time.monotonic() + FORMER_SESSIONS * self.zookeeper.session_seconds)
        if self._term is not None:
            former, term = self._term, self._become_controller(session)
            is_next = term is not None and term.epoch == former.epoch + 1
            if term is not None and not is_next:
                self._leave_office(term)
            self._term = term if is_next else None
            if self._term is None:
                self._registered_session = session
                raise Deposed(f"another broker was elected as the controller after epoch {former.epoch}")
        self._registered_session = session

    def _leave_office(self, term: Term) -> None:
        """Delete `/controller` of this session, so that a controller is elected that reads everything."""
        try:
            self.zookeeper.commit([Check(nodes.CONTROLLER_EPOCH, term.version), Delete(nodes.CONTROLLER)])
        except Conflict:
            logger.debug("%s was deleted by another program", nodes.CONTROLLER)

    def _register(self, session: int, deadline: float) -> None:
        path = broker_path(self.broker_id)
        while True:
            try:
                self.zookeeper.commit([Create(path, nodes.encode(self._own), ephemeral=True)])
            except Conflict:
                logger.debug("%s exists", path)
            stored = self.zookeeper.read(path)
            if stored is None:
                continue
            if stored.owner == session:
                self.broker_epoch = stored.creation_id
                return
            self._await_end_of_former(path, stored, deadline)

    def _await_end_of_former(self, path: str, stored: StoredNode, deadline: float) -> None:
        """Wait for the session of this broker's former process to end; raise RegistrationRefused for another broker."""
        former = decode(BrokerNode, path, stored.value)
        is_own = former.endpoints == self._own.endpoints
        if not is_own or not self._wait_until_deleted(path, deadline):
            raise RegistrationRefused(
                f"broker.id {self.broker_id} is registered in ZooKeeper by the broker on"
                f" {', '.join(former.endpoints)};"
                f" {Remedy.STOP_BROKER}, {Remedy.OTHER_BROKER_ID}, or {Remedy.OTHER_CHROOT}"
            )

    def _wait_until_deleted(self, path: str, deadline: float) -> bool:
        left = deadline - time.monotonic()
        return left > 0 and self.zookeeper.wait_until_deleted(path, left)

    def _become_controller(self, session: int) -> Term | None:
        """Create `/controller` and increment the epoch together (registerControllerAndIncrementControllerEpoch).

        None if another broker is the controller.
        """
        own = nodes.ControllerNode(brokerid=self.broker_id, timestamp=str(self._clock.now_ms()))
        while True:
            stored = self.zookeeper.read(nodes.CONTROLLER_EPOCH)
            if stored is None:
                self._create_first_epoch()
                continue
            epoch = nodes.decode_number(nodes.CONTROLLER_EPOCH, stored.value)
            try:
                self.zookeeper.commit(
                    [
                        Create(nodes.CONTROLLER, nodes.encode(own), ephemeral=True),
                        Set(nodes.CONTROLLER_EPOCH, str(epoch + 1).encode(), stored.version),
                    ]
                )
            except Conflict:
                controller = self.zookeeper.read(nodes.CONTROLLER)
                if controller is not None:
                    return Term(epoch, stored.version) if controller.owner == session else None
            else:
                return Term(epoch + 1, stored.version + 1, stored.change_id if epoch else 0)

    def _create_first_epoch(self) -> None:
        try:
            self.zookeeper.commit([Create(nodes.CONTROLLER_EPOCH, nodes.FIRST_EPOCH)])
        except Conflict:
            logger.debug("%s was created by another broker", nodes.CONTROLLER_EPOCH)

    # Writes

    def write(self, write: Write) -> None:
        """Apply the operations as the controller. Raises Superseded, RegistrationRefused, RegistryClosed."""
        is_repeated = False

        def attempt() -> None:
            nonlocal is_repeated
            self._require_term()
            try:
                self.zookeeper.commit([Check(nodes.CONTROLLER_EPOCH, self.term.version), *write])
            except OutcomeUnknown:
                is_repeated = True
                raise
            except Conflict as conflict:
                if conflict.position == 0:
                    raise self._deposed() from conflict
                if not is_repeated:
                    raise self._contradicted(conflict) from conflict

        self._repeat(attempt)

    def _require_term(self) -> None:
        self._join()
        if self._term is None:
            raise Deposed("this broker is not the controller any more")

    def _deposed(self) -> Deposed:
        """End the term, after `/controller_epoch` was changed by the next controller."""
        epoch, self._term = self.term.epoch, None
        return Deposed(f"this broker is not the controller of epoch {epoch} any more")

    def _contradicted(self, conflict: Conflict) -> Deposed:
        """End the term in which another program has changed what this controller writes."""
        self._leave_office(self.term)
        self._term = None
        return Deposed(f"ZooKeeper was changed by another program: {conflict}")

    def write_unless_changed(self, write: Write) -> bool:
        """Apply the operations as the controller; return whether the nodes were as expected. Raises as `write`."""

        def attempt() -> bool:
            self._require_term()
            try:
                self.zookeeper.commit([Check(nodes.CONTROLLER_EPOCH, self.term.version), *write])
            except Conflict as conflict:
                if conflict.position == 0:
                    raise self._deposed() from conflict
                return False
            return True

        return self._repeat(attempt)

    def end_reassignments(self, ended: Mapping[Place, Sequence[int] | None]) -> None:
        """Remove partitions from `/admin/reassign_partitions`: with these replicas, or None for any.

        The node is deleted with its last partition (KafkaController.maybeRemoveFromZkReassignment).
        """
        path = nodes.REASSIGNMENTS
        for _attempt in range(ATTEMPTS_MAX):
            stored = self._repeat(lambda: self.zookeeper.read(path))
            if stored is None:
                return
            try:
                present = decode(nodes.ReassignmentsNode, path, stored.value).partitions
            except DamagedNode as error:
                logger.error("%s", error)
                return
            left = [
                entry
                for entry in present
                if (place := (entry.topic, entry.partition)) not in ended
                or ended[place] not in (None, tuple(entry.replicas))
            ]
            change: Operation = Delete(path)
            if left:
                change = Set(path, nodes.encode(nodes.ReassignmentsNode(partitions=left)))
            if len(left) == len(present) or self.write_unless_changed([Check(path, stored.version), change]):
                return
        raise Superseded(f"{path} in ZooKeeper changed {ATTEMPTS_MAX} times; {Remedy.START_BROKER_AGAIN}")

    def write_states(self, states: Sequence[StateWrite]) -> None:
        """Write the states of partitions, in their order, with the nodes above those of new ones."""
        new = [write.place for write in states if write.is_new]
        above = dict.fromkeys(f"{topic_path(name)}/partitions" for name, _index in new)
        above |= dict.fromkeys(nodes.partition_path(*place) for place in new)
        stored = self._repeat(lambda: self.zookeeper.read_all(list(above)))
        creations = [Create(path) for path, node in zip(above, stored, strict=True) if node is None]
        for first in range(0, len(creations), OPERATIONS_IN_A_WRITE):
            self.write(creations[first : first + OPERATIONS_IN_A_WRITE])
        operations = [_state_operation(write) for write in states]
        for first in range(0, len(operations), OPERATIONS_IN_A_WRITE):
            self.write(operations[first : first + OPERATIONS_IN_A_WRITE])

    def write_as_member(self, write: Write) -> None:
        """Apply operations that every broker may do, such as a change of a configuration."""

        def attempt() -> None:
            self._join()
            self.zookeeper.commit(write)

        try:
            self._repeat(attempt)
        except Conflict as conflict:
            logger.error("a change was not written to ZooKeeper: %s", conflict)

    def merge(self, attempt: Callable[[Session], Write | None]) -> None:
        """Apply what `attempt` returns after it has read the nodes, again after each change by another program.

        None: there is nothing to write. Raises Superseded, RegistrationRefused, RegistryClosed.
        """

        def once() -> None:
            self._join()
            for _attempt in range(ATTEMPTS_MAX):
                write = attempt(self.zookeeper)
                if write is None:
                    return
                try:
                    self.zookeeper.commit(write)
                except Conflict as conflict:
                    logger.debug("%s; reading it again", conflict)
                else:
                    return
            raise Superseded(f"nodes in ZooKeeper changed {ATTEMPTS_MAX} times; {Remedy.START_BROKER_AGAIN}")

        self._repeat(once)

    def delete_topic(self, name: str) -> None:
        """Delete the nodes of a topic whose files are deleted, that of its deletion last (completeDeleteTopic)."""
        for top in (topic_path(name), nodes.config_path(name), nodes.deletion_path(name)):
            paths = self._repeat(partial(self.zookeeper.tree, top))
            for first in range(0, len(paths), DELETIONS_IN_A_WRITE):
                self.write([Delete(path) for path in paths[first : first + DELETIONS_IN_A_WRITE]])

    def reserve_producer_ids(self, broker_id: int | None = None, *, at_least: int = 0) -> range:
        """Reserve a block of producer ids for a broker, or for this one (ZkProducerIdManager).

        None is below `at_least`.
        """
        owner = self.broker_id if broker_id is None else broker_id
        return self._repeat(lambda: self._reserve_producer_ids(owner, at_least))

    def _reserve_producer_ids(self, broker_id: int, at_least: int) -> range:
        for _attempt in range(ATTEMPTS_MAX):
            stored = self.zookeeper.read(nodes.PRODUCER_IDS)
            first = 0
            if stored is not None and stored.value:
                block = decode(nodes.ProducerIdsNode, nodes.PRODUCER_IDS, stored.value)
                first = nodes.decode_number(nodes.PRODUCER_IDS, block.block_end.encode()) + 1
            first = max(first, at_least)
            end = first + nodes.PRODUCER_IDS_IN_A_BLOCK
            own = nodes.ProducerIdsNode(broker=broker_id, block_start=str(first), block_end=str(end - 1))
            value = nodes.encode(own)
            write: Operation = Create(nodes.PRODUCER_IDS, value)
            if stored is not None:
                write = Set(nodes.PRODUCER_IDS, value, stored.version)
            try:
                self.zookeeper.commit([write])
            except Conflict:
                continue
            return range(first, end)
        raise Superseded(f"{nodes.PRODUCER_IDS} in ZooKeeper changed {ATTEMPTS_MAX} times; {Remedy.START_BROKER_AGAIN}")


def _state_operation(write: StateWrite) -> Operation:
    path, value = nodes.state_path(*write.place), nodes.encode(nodes.state_node(write.state))
    return Create(path, value) if write.is_new else Set(path, value, write.state.version - 1)
