"""Requests to the controller: of brokers, of clients, and of tools that write to ZooKeeper.

Each is decided at once, and responded to when ZooKeeper has the decision.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol
from uuid import UUID

from onceflow.broker.cluster import nodes
from onceflow.broker.cluster.controller import AlteredPartition, Controller, Refusal
from onceflow.broker.cluster.decision import Decision
from onceflow.broker.cluster.registry import Registry
from onceflow.broker.cluster.state import Replicas, State
from onceflow.broker.cluster.write_queue import WriteQueue
from onceflow.broker.storage.partitions import Place
from onceflow.broker.topics.topics import TopicRefused, Topics
from onceflow.wire.errors import ErrorCode
from onceflow.zookeeper.session import Delete

logger = logging.getLogger(__name__)


class Decides(Protocol):
    """Interface of the broker's topics in the registry."""

    @property
    def controller(self) -> Controller | None:
        """The controller's state, if this broker is the controller."""

    def decide(self, decision: Decision) -> None:
        """Write a decision, and send its requests."""


class ControllerRequests:
    """Serves them on the controller; other brokers respond with NOT_CONTROLLER."""

    def __init__(self, metadata: Decides, topics: Topics, registry: Registry, queue: WriteQueue) -> None:
        self._metadata = metadata
        self._topics = topics
        self._registry = registry
        self._queue = queue

    # Leaders

    def elect_leaders(
        self,
        places: Sequence[Place],
        *,
        unclean: bool,
        respond: Callable[[Mapping[Place, ErrorCode] | ErrorCode], None],
    ) -> None:
        """Elect leaders of partitions, and respond with the result of each when that is written (ElectLeaders)."""
        controller = self._metadata.controller
        if controller is None:
            respond(ErrorCode.not_controller)
            return
        decision, results = controller.elect_leaders(places, unclean=unclean)
        self._metadata.decide(decision)
        self._queue.when_applied(lambda error_code: respond(error_code or results))

    def balance_leaders(self, percent_max: int) -> None:
        """Move leaders back to their preferred replicas, as the controller."""
        controller = self._metadata.controller
        if controller is None or self._queue.failure is not None:
            return
        places = controller.imbalanced(percent_max)
        if places:
            logger.info("%d partitions get their preferred leaders again", len(places))
            decision, _results = controller.elect_leaders(places, unclean=False)
            self._metadata.decide(decision)

    def alter_partitions(
        self,
        broker_id: int,
        broker_epoch: int,
        wishes: Mapping[tuple[UUID, int], AlteredPartition],
        respond: Callable[[Mapping[tuple[UUID, int], State | ErrorCode] | ErrorCode], None],
    ) -> None:
        """Change in-sync replicas as their leader asks, and respond when that is written (AlterPartition)."""
        controller = self._metadata.controller
        if controller is None:
            respond(ErrorCode.not_controller)
            return
        places = {key: (topic.name, key[1]) for key in wishes if (topic := self._topics.by_id.get(key[0])) is not None}
        decision, results = controller.alter_partitions(
            broker_id, broker_epoch, {place: wishes[key] for key, place in places.items()}
        )
        if isinstance(results, ErrorCode):
            respond(results)
            return
        self._metadata.decide(decision)
        by_key = {key: results[places[key]] if key in places else ErrorCode.unknown_topic_id for key in wishes}
        self._queue.when_applied(lambda error_code: respond(error_code or by_key))

    def shut_down(
        self, broker_id: int, broker_epoch: int, respond: Callable[[Sequence[Place] | ErrorCode], None]
    ) -> None:
        """Move leaders from a broker that will stop, and respond with those left (ControlledShutdown)."""
        controller = self._metadata.controller
        if controller is None:
            respond(ErrorCode.not_controller)
            return
        decision, left = controller.shut_down(broker_id, broker_epoch)
        self._metadata.decide(decision)
        self._queue.when_applied(lambda error_code: respond(error_code or left))

    def allocate_producer_ids(
        self, broker_id: int, broker_epoch: int, respond: Callable[[range | ErrorCode], None]
    ) -> None:
        """Reserve a block of producer ids for another broker (KafkaController.processAllocateProducerIds)."""
        controller = self._metadata.controller
        broker = None if controller is None else controller.brokers.get(broker_id)
        if controller is None or self._queue.failure is not None:
            respond(ErrorCode.not_controller)
        elif broker is None or broker.epoch != broker_epoch:
            respond(ErrorCode.stale_broker_epoch)
        else:
            self._queue.run(partial(self._registry.reserve_producer_ids, broker_id), respond)

    # Reassignments

    def reassign(
        self,
        targets: Mapping[Place, Sequence[int] | None],
        respond: Callable[[Mapping[Place, Refusal] | ErrorCode], None],
    ) -> None:
        """Begin reassignments, cancel those with None, and respond with the refusals (AlterPartitionReassignments).

        A request replaces what a tool has asked for in ZooKeeper.
        """
        controller = self._metadata.controller
        if controller is None:
            respond(ErrorCode.not_controller)
            return
        decision, refusals = controller.reassign(targets)
        accepted = dict.fromkeys(targets.keys() - refusals.keys())
        if accepted:
            self._queue.add([partial(self._registry.end_reassignments, accepted)], can_be_dropped=True)
        self._metadata.decide(decision)
        self._queue.when_applied(lambda error_code: respond(error_code or refusals))

    def reassignments(self, places: Collection[Place] | None) -> Mapping[Place, Replicas] | ErrorCode:
        """Return the reassignments in progress, of these partitions or of all (ListPartitionReassignments)."""
        controller = self._metadata.controller
        if controller is None:
            return ErrorCode.not_controller
        wanted = controller.reassigning if places is None else controller.reassigning.intersection(places)
        return {place: controller.replicas[place] for place in sorted(wanted)}

    def refuse_while_reassigned(self, name: str) -> None:
        """Raise TopicRefused for more partitions of a topic that is being reassigned (ZkAdminManager)."""
        controller = self._metadata.controller
        if controller is not None and any(topic == name for topic, _index in controller.reassigning):
            raise TopicRefused(
                ErrorCode.reassignment_in_progress, f"A partition reassignment is in progress for the topic '{name}'."
            )

    # Requests of tools in ZooKeeper

    def adopt(self, reassignments: Mapping[Place, Sequence[int]], elections: Collection[Place] | None) -> None:
        """Do what tools have asked for in `/admin/reassign_partitions` and `/admin/preferred_replica_election`."""
        controller = self._metadata.controller
        assert controller is not None
        if reassignments:
            decision, refusals = controller.reassign(reassignments, checks_brokers=False)
            self._metadata.decide(decision)
            for (name, index), refusal in refusals.items():
                logger.error("%s-%d is not reassigned as ZooKeeper says: %s", name, index, refusal.message)
            if refusals:
                self._queue.add(
                    [partial(self._registry.end_reassignments, dict.fromkeys(refusals))], can_be_dropped=True
                )
        if elections is not None:
            decision, results = controller.elect_leaders(elections, unclean=False)
            self._metadata.decide(decision)
            for (name, index), code in results.items():
                if code not in (ErrorCode.none, ErrorCode.election_not_needed):
                    logger.error("%s-%d: no election as ZooKeeper says: %s", name, index, code.name)
            self._queue.add([self._end_elections], can_be_dropped=True)

    def _end_elections(self) -> None:
        self._registry.write_unless_changed([Delete(nodes.ELECTIONS)])
