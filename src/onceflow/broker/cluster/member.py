"""A broker's obedience to the controller: LeaderAndIsr, UpdateMetadata and StopReplica, applied one after another.

A request of an older controller, or for a former process of this broker, is refused (KafkaApis.isBrokerEpochStale,
ReplicaManager.becomeLeaderOrFollower). `cluster.replication` leads and follows the partitions.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Protocol
from uuid import UUID

from onceflow.broker.cluster.replication import Replication
from onceflow.broker.cluster.view import ClusterView
from onceflow.broker.loop.background import reporting_failure
from onceflow.broker.storage.partitions import Partitions, Place
from onceflow.broker.topics.operations import TopicOperations
from onceflow.broker.topics.topics import Topic, Topics
from onceflow.wire.errors import ErrorCode
from onceflow.wire.inter_broker import (
    LeaderAndIsrPartition,
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopic,
    LeaderAndIsrTopicError,
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)

logger = logging.getLogger(__name__)

Respond = Callable[[Any], None]


class Source(Protocol):
    """Interface of the broker's topics in the registry."""

    @property
    def broker_epoch(self) -> int:
        """Epoch of this broker's registration."""

    def when_read(self, topics: Sequence[str], read: Callable[[], None]) -> None:
        """Call `read` once these topics have been read from ZooKeeper as they are now."""


class Member:
    """Applies the controller's requests to this broker. All methods belong to the event loop's thread."""

    def __init__(
        self,
        broker_id: int,
        view: ClusterView,
        topics: Topics,
        partitions: Partitions,
        operations: TopicOperations,
        source: Source,
        replication: Replication,
        on_topics_deleted: Callable[[Set[str]], None],
    ) -> None:
        """`on_topics_deleted` is called with topics that the controller deletes, whether they are here or not."""
        self._broker_id = broker_id
        self._view = view
        self._topics = topics
        self._partitions = partitions
        self._operations = operations
        self._source = source
        self._replication = replication
        self._on_topics_deleted = on_topics_deleted
        self._controller_epoch = 0
        self._leader_epochs: dict[tuple[UUID, int], int] = {}
        """(topic id, partition) → epoch: a topic that is created again begins with the first one."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_busy = False

    def deliver(self, message: Any, respond: Respond) -> None:
        """Apply a message after those before it, then respond."""

        def responded(response: Any) -> None:
            try:
                respond(response)
            finally:
                self._next()

        def failed(reason: str) -> None:
            # No response: the controller repeats the request.
            logger.error("a request of the controller failed: %s", reason)
            self._next()

        self._waiting.append(reporting_failure(failed, lambda: self._apply(message, responded)))
        if not self._is_busy:
            self._next()

    def _apply(self, message: Any, respond: Respond) -> None:
        match message:
            case LeaderAndIsrRequest():
                self._lead_and_follow(message, respond)
            case StopReplicaRequest():
                self._stop(message, respond)
            case _:
                self._update_metadata(message, respond)

    def when_idle(self, idle: Callable[[], None]) -> None:
        """Call `idle` when the messages delivered so far are applied; at once if they are."""
        if not self._is_busy:
            idle()
            return

        def reached() -> None:
            try:
                idle()
            finally:
                self._next()

        self._waiting.append(reached)

    def _next(self) -> None:
        self._is_busy = bool(self._waiting)
        if self._waiting:
            self._waiting.popleft()()

    def _refusal(self, request: Any) -> ErrorCode:
        """Return the error of a request that is not of now."""
        if request.controller_epoch < self._controller_epoch:
            return ErrorCode.stale_controller_epoch
        if 0 <= request.broker_epoch < self._source.broker_epoch:
            return ErrorCode.stale_broker_epoch
        self._controller_epoch = request.controller_epoch
        return ErrorCode.none

    def _update_metadata(self, request: UpdateMetadataRequest, respond: Respond) -> None:
        refusal = self._refusal(request)
        if not refusal:
            deleted = self._view.apply(request)
            if deleted:
                self._on_topics_deleted(set(deleted))
                known = self._topics.by_id
                self._leader_epochs = {key: epoch for key, epoch in self._leader_epochs.items() if key[0] in known}
        respond(UpdateMetadataResponse(error_code=refusal))

    # LeaderAndIsr

    def _lead_and_follow(self, request: LeaderAndIsrRequest, respond: Respond) -> None:
        refusal = self._refusal(request)
        if refusal:
            respond(LeaderAndIsrResponse(error_code=refusal, topics=()))
            return
        unknown = [topic.topic_name for topic in request.topic_states if not self._knows(topic)]
        if unknown:
            self._source.when_read(unknown, lambda: self._open_and_lead(request, respond))
        else:
            self._open_and_lead(request, respond)

    def _knows(self, wanted: LeaderAndIsrTopic) -> bool:
        topic = self._topic(wanted)
        return topic is not None and all(p.partition_index < topic.partition_count for p in wanted.partition_states)

    def _topic(self, wanted: LeaderAndIsrTopic) -> Topic | None:
        return None if wanted.topic_id is None else self._topics.by_id.get(wanted.topic_id)

    def _open_and_lead(self, request: LeaderAndIsrRequest, respond: Respond) -> None:
        """Open the logs of all partitions, then lead or follow each."""
        errors: dict[Place, ErrorCode] = {}
        accepted: list[tuple[Topic, LeaderAndIsrPartition]] = []
        for wanted in request.topic_states:
            topic = self._topic(wanted)
            for state in wanted.partition_states:
                place = wanted.topic_name, state.partition_index
                errors[place] = self._error(topic, state)
                if topic is not None and not errors[place]:
                    accepted.append((topic, state))

        def hosted(failures: Mapping[Place, str]) -> None:
            left = 1

            def begun() -> None:
                nonlocal left
                left -= 1
                if not left:
                    respond(_leader_response(request, errors))

            for topic, state in accepted:
                place = topic.name, state.partition_index
                if place in failures:
                    logger.error("%s-%d cannot be led or followed: %s", *place, failures[place])
                    errors[place] = ErrorCode.kafka_storage_error
                else:
                    left += 1
                    self._leader_epochs[topic.topic_id, state.partition_index] = state.leader_epoch
                    self._begin(topic, state, begun)
            begun()

        self._operations.host([(topic, state.partition_index) for topic, state in accepted], hosted)

    def _begin(self, topic: Topic, state: LeaderAndIsrPartition, begun: Callable[[], None]) -> None:
        """Lead or follow a partition whose log is open."""
        place = topic.name, state.partition_index
        partition = self._partitions.hosted(*place)
        assert partition is not None
        if state.leader == self._broker_id:

            def leading() -> None:
                self._partitions.lead(*place, state.leader_epoch)
                begun()

            self._replication.lead(partition, topic.topic_id, state, leading)
        else:
            self._partitions.resign(*place)
            self._replication.follow(partition, state)
            begun()

    def _error(self, topic: Topic | None, state: LeaderAndIsrPartition) -> ErrorCode:
        if topic is None or state.partition_index >= topic.partition_count:
            return ErrorCode.unknown_topic_or_partition
        if state.leader_epoch < self._leader_epochs.get((topic.topic_id, state.partition_index), 0):
            return ErrorCode.stale_controller_epoch
        if self._broker_id not in state.replicas:
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.none

    # StopReplica

    def _stop(self, request: StopReplicaRequest, respond: Respond) -> None:
        refusal = self._refusal(request)
        if refusal:
            respond(StopReplicaResponse(error_code=refusal, partition_errors=()))
            return
        places = [(topic.topic_name, state) for topic in request.topic_states for state in topic.partition_states]
        to_delete = [(name, state.partition_index) for name, state in places if state.delete_partition]
        for name, state in places:
            self._partitions.resign(name, state.partition_index)

        def deleted(left: Set[Place]) -> None:
            respond(
                StopReplicaResponse(
                    error_code=ErrorCode.none,
                    partition_errors=tuple(
                        StopReplicaPartitionError(
                            topic_name=name,
                            partition_index=state.partition_index,
                            error_code=ErrorCode.kafka_storage_error
                            if (name, state.partition_index) in left
                            else ErrorCode.none,
                        )
                        for name, state in places
                    ),
                )
            )

        waiting = len(places) + 1

        def stopped() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting:
                return
            if to_delete:
                self._operations.delete_replicas(to_delete, deleted)
            else:
                deleted(set())

        for name, state in places:
            self._replication.stop((name, state.partition_index), stopped)
        stopped()


def _leader_response(request: LeaderAndIsrRequest, errors: Mapping[Place, ErrorCode]) -> LeaderAndIsrResponse:
    return LeaderAndIsrResponse(
        error_code=ErrorCode.none,
        topics=tuple(
            LeaderAndIsrTopicError(
                topic_id=topic.topic_id,
                partition_errors=tuple(
                    LeaderAndIsrPartitionError(
                        partition_index=state.partition_index,
                        error_code=errors[topic.topic_name, state.partition_index],
                    )
                    for state in topic.partition_states
                ),
            )
            for topic in request.topic_states
        ),
    )
