"""The topics of a broker on ZooKeeper: decided by the controller, stored in ZooKeeper, and followed by every broker.

The broker that is the controller decides and replays a change at once, as with a metadata log, and queues it: a thread
applies the queue to ZooKeeper in order (`cluster.write_queue`). The requests of the controller's state machine
(`cluster.controller`) go to the brokers when the write before them is applied. Other brokers refuse such changes.

Every broker follows what is written there (`cluster.watch`): what the controller writes and, on the controller, what
other programs write. A difference is replayed when ZooKeeper has all changes of this broker, since it is another's
then. When there is no controller, one of the brokers is elected, reads everything, and begins its term.

A controller whose session has ended may find another one elected. Then it resigns. Its decisions about leaders and
replicas that are not applied yet are dropped, and so are new topics, which it forgets with the next look. Another
change by a client that is not applied is in its memory, but will never be in ZooKeeper, so it stops, as it does when a
topic was created twice at the same time. The next start reads the topics again.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from onceflow.broker.cluster import nodes, writes
from onceflow.broker.cluster.channels import Channels, Deliver
from onceflow.broker.cluster.controller import Controller, PartitionImage
from onceflow.broker.cluster.controller_requests import ControllerRequests
from onceflow.broker.cluster.decision import Assignment, ControlRequest, Decision, assignment_of
from onceflow.broker.cluster.image import (
    StoredTopic,
    TopicReplaced,
    differences,
    log_not_followed,
    records_of,
    refuse_damaged,
)
from onceflow.broker.cluster.look import Look, read_changes
from onceflow.broker.cluster.peer import Others
from onceflow.broker.cluster.producer_ids import ProducerIds
from onceflow.broker.cluster.registry import Registry, RegistryClosed, Write
from onceflow.broker.cluster.security import OnDamaged, RegistrySecurity
from onceflow.broker.cluster.state import Replicas, State
from onceflow.broker.cluster.watch import Seen, Watch
from onceflow.broker.cluster.write_queue import Step, WriteQueue, call
from onceflow.broker.storage.partitions import Partition, Place, Synced
from onceflow.broker.topics.metadata_log import DeleteTopics, Follow
from onceflow.broker.topics.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from onceflow.broker.topics.security_state import SECURITY_RECORDS
from onceflow.broker.topics.topics import Topic, TopicRefused, Topics
from onceflow.errors import OnceflowError
from onceflow.log.clock import Clock
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode
from onceflow.wire.inter_broker import LeaderAndIsrResponse, StopReplicaRequest
from onceflow.zookeeper.nodes import DamagedNode
from onceflow.zookeeper.session import Delete

logger = logging.getLogger(__name__)

UNCLEAN = "unclean.leader.election.enable"

Released = Callable[[Iterable[str]], None]
"""Called with the names of topics of which nothing is left."""


class RegistryMetadata:
    """Stores every change of the topics in ZooKeeper, and replays it."""

    partitions: Sequence[Partition] = ()
    """There is no log."""

    def __init__(
        self,
        registry: Registry,
        topics: Topics,
        security: RegistrySecurity,
        others: Others,
        *,
        clock: Clock,
        delete_topics: bool,
        unclean_default: bool,
        on_lost: Callable[[OnceflowError], None],
        on_removed: Callable[[str], None],
    ) -> None:
        """Read the topics of the cluster that the broker has joined.

        `on_lost` is called when the changes cannot be applied any more, `on_removed` with a topic that another broker
        has deleted. Blocks; raises DamagedNode.
        """
        self._registry = registry
        self._topics = topics
        self._security = security
        self.others = others
        self.can_store_acls_of = security.can_store_acls_of
        self.can_store_entity = security.can_store_entity
        self._delete_topics = delete_topics
        self._unclean_default = unclean_default
        self._on_lost = on_lost
        self._on_removed = on_removed
        self._queue = WriteQueue(self._on_failed, self._look_if_due, self._on_deposed)
        self._producer_ids = ProducerIds(registry, self._queue)
        self.next_producer_id = self._producer_ids.next
        self._controller: Controller | None = None
        self.requests = ControllerRequests(self, topics, registry, self._queue)
        """Requests to the controller."""
        self._channels: Channels | None = None
        self._unsent: list[ControlRequest] = []
        """Requests decided before the broker can serve any."""
        self._when_idle: Callable[[Callable[[], None]], None] = call
        self._follow: Follow | None = None
        self._delete: DeleteTopics | None = None
        self._marked: set[str] = set()
        """Topics that another program has marked for deletion."""
        self._finished: set[str] = set()
        """Deleted topics without files here, from the time before this broker was elected."""
        self._to_release: dict[str, Released] = {}
        """Deleted topics of which other brokers still have files."""
        self._is_look_due = False
        self._is_looking = False
        self._unread: list[Callable[[], None]] = []
        """Callbacks for the next look."""
        self._watch = Watch(registry.zookeeper, clock, self._on_change, self._id_of)
        security.open(clock, self._on_change)
        self._load()
        registry.zookeeper.on_new_session = self._on_new_session

    @property
    def is_disconnected(self) -> bool:
        return not self._registry.zookeeper.is_connected

    @property
    def broker_epoch(self) -> int:
        return self._registry.broker_epoch

    @property
    def is_controller(self) -> bool:
        return self._controller is not None

    @property
    def controller(self) -> Controller | None:
        """The controller's state, if this broker is the controller."""
        return self._controller

    def _load(self) -> None:
        look = self._look(refuse_damaged)
        seen = look.seen
        self._security.adopt(look.security)
        self._adopt_brokers(seen)
        for topic in seen.topics:
            for record in records_of(topic):
                self._topics.replay(record)
            if topic.name in seen.deletions:
                self._topics.replay(RemoveTopicRecord(topic.topic_id))
        if self._registry.is_controller:
            self._begin_term(look)
            self._repair(seen)

    def _adopt_brokers(self, seen: Seen) -> None:
        self._topics.brokers = [broker.broker_id for broker in seen.brokers]
        self._topics.racks = {broker.broker_id: broker.rack for broker in seen.brokers if broker.rack is not None}

    def _repair(self, seen: Seen) -> None:
        """Complete the writes that a crash of a controller has prevented."""
        present = [topic for topic in seen.topics if topic.name not in seen.deletions]
        repairs = [writes.set_missing_config(topic.name) for topic in present if topic.configs is None]
        names = {topic.name for topic in seen.topics}
        traces = [name for name in seen.deletions if name not in names]
        steps = [self._create_missing_features, *map(self._step, repairs), *map(self._deletion, traces)]
        self._queue.add(steps, can_be_dropped=True)

    def _create_missing_features(self) -> None:
        """Create the node unless it exists. In the registry's thread: ZooKeeper may be away."""
        if self._registry.read(lambda zookeeper: zookeeper.read(nodes.FEATURES)) is None:
            self._registry.write(writes.create_features())

    def _id_of(self, name: str) -> UUID:
        """Return the id of a topic that has none in ZooKeeper: that of the topic that is served, or a new one."""
        present = self._topics.by_name.get(name)
        return uuid4() if present is None else present.topic_id

    # Changes by this broker

    def require_controller(self) -> None:
        """Raise TopicRefused unless this broker may change topics."""
        if self._queue.failure is not None:
            raise TopicRefused(ErrorCode.not_controller, str(self._queue.failure))
        if self._controller is None:
            raise TopicRefused(ErrorCode.not_controller, "This is not the correct controller for this cluster.")

    def record(self, records: Sequence[MetadataRecord], *, from_reserve: bool = False) -> None:
        """Replay a change and apply it to ZooKeeper. Raises TopicRefused, TooManyAcls.

        ZooKeeper's disk is not the broker's: the reserve does not matter.
        """
        if self._queue.failure is not None or not isinstance(records[0], (ConfigRecord, *SECURITY_RECORDS)):
            self.require_controller()
        if isinstance(records[0], PartitionRecord):
            self.requests.refuse_while_reassigned(self._topics.by_id[records[0].topic_id].name)
        if self._queue.is_full:
            raise TopicRefused(
                ErrorCode.request_timed_out,
                f"ZooKeeper has not applied the last changes of topics yet; {Remedy.TRY_AGAIN}",
            )
        if isinstance(records[0], SECURITY_RECORDS):
            self._queue.add(self._security.record(records))
            return
        for record in records:
            self._topics.replay(record)
        self._store(records[0])

    record_config = record

    def _store(self, first: MetadataRecord) -> None:
        """Queue the write of a change that was replayed, with what the controller decides about it."""
        match first:
            case TopicRecord(_, topic_id):
                topic = self._topics.by_id[topic_id]
                self.decide(self._assigned(topic, 0, {}), [writes.create_topic(topic)], can_be_dropped=True)
            case PartitionRecord(start, topic_id, _):
                topic = self._topics.by_id[topic_id]
                decision = self._assigned(topic, start, {})
                assert self._controller is not None
                self.decide(decision, [writes.assign(assignment_of(self._controller, topic.name))])
            case ConfigRecord(name, _, _):
                write = writes.set_config(self._topics.by_name[name])
                apply = self._registry.write if self.is_controller else self._registry.write_as_member
                self._queue.add([partial(apply, write)])
                if self._controller is not None:
                    self.decide(self._controller.config_changed(name))
            case RemoveTopicRecord(topic_id):
                name = self._topics.removed[topic_id]
                is_marked = name in self._marked
                self._marked.discard(name)
                assert self._controller is not None
                reassigned = [place for place in self._controller.reassigning if place[0] == name]
                decision = self._controller.delete_topic(name)
                self.decide(decision, [] if is_marked else [writes.begin_deletion(name)])
                if reassigned:
                    self._queue.add([partial(self._registry.end_reassignments, dict.fromkeys(reassigned))])

    def _step(self, write: Write) -> Step:
        return partial(self._registry.write, write)

    def _deletion(self, name: str) -> Step:
        return partial(self._registry.delete_topic, name)

    def _assigned(self, topic: Topic, start: int, states: Mapping[Place, State]) -> Decision:
        """Let the controller decide about a topic's partitions from `start` on."""
        assert self._controller is not None
        images = {
            index: PartitionImage(Replicas(topic.replicas[index]), states.get((topic.name, index)))
            for index in range(start, topic.partition_count)
        }
        return self._controller.add_partitions(topic.name, topic.topic_id, images)

    def decide(self, decision: Decision, before: Sequence[Write] = (), *, can_be_dropped: bool | None = None) -> None:
        """Queue the writes of a decision, after those in `before`; its requests are sent when they are applied.

        `can_be_dropped`: as in the queue; by default, if there is nothing in `before`. Then complete the reassignments
        that can be.
        """
        self._queue_decision(decision, before, can_be_dropped=not before if can_be_dropped is None else can_be_dropped)
        assert self._controller is not None
        further, completed = self._controller.complete_reassignments()
        for other in further:
            self._queue_decision(other, (), can_be_dropped=True)
        if completed:
            logger.info("reassigned: %s", ", ".join(f"{name}-{index}" for name, index in completed))
            self._queue.add([partial(self._registry.end_reassignments, completed)], can_be_dropped=True)

    def _is_unclean_allowed(self, name: str) -> bool:
        topic = self._topics.by_name.get(name)
        value = None if topic is None else topic.configs.get(UNCLEAN)
        return self._unclean_default if value is None else value == "true"

    def _queue_decision(self, decision: Decision, before: Sequence[Write], *, can_be_dropped: bool) -> None:
        for (name, index), leader, isr in decision.unclean:
            logger.warning(
                "%s-%d: broker %d leads without having been in sync; the records that only %s had are lost",
                name,
                index,
                leader,
                list(isr),
            )
        for assignment in decision.assignments:
            self._adopt_replicas(assignment)
        steps = [self._step(write) for write in (*before, *map(writes.assign, decision.assignments))]
        if decision.writes:
            steps.append(partial(self._registry.write_states, decision.writes))
        then = partial(self._send, decision.requests) if decision.requests else None
        self._queue.add(steps, then, can_be_dropped=can_be_dropped)

    def _adopt_replicas(self, assignment: Assignment) -> None:
        topic = self._topics.by_id[assignment.topic_id]
        for index, (replicas, _adding, _removing) in assignment.replicas.items():
            if topic.replicas[index] != replicas:
                self._topics.replay(PartitionRecord(index, topic.topic_id, replicas[0], replicas))

    def finish_deletions(self, names: Iterable[str], released: Released) -> None:
        """Delete what ZooKeeper has of topics without files and offsets here, once no other broker has files."""
        for name in names:
            self._finished.add(name)
            if self._controller is None:
                released([name])
            elif name not in self._controller.deleting or self._controller.own_replicas_deleted(name):
                self._complete_deletion(name, released)
            else:
                self._to_release[name] = released

    def _complete_deletion(self, name: str, released: Released) -> None:
        assert self._controller is not None
        self._queue.add([self._deletion(name)])
        self._controller.topic_deleted(name)
        self._finished.discard(name)
        released([name])

    @property
    def has_acls(self) -> bool:
        """Whether ACLs are stored."""
        return self._security.has_acls

    def skip_producer_ids(self, first: int) -> None:
        """Assign no producer id below `first`. Blocks; for the start."""
        if first:
            self._registry.reserve_producer_ids(at_least=first)

    def when_synced(self, synced: Synced) -> None:
        """Call `synced` once ZooKeeper has the current state of the topics, and this broker leads its partitions.

        At once if they are; with an error if that cannot be.
        """
        self._queue.when_applied(lambda error_code: self._when_idle(lambda: synced(error_code)))

    def when_shown(self, shown: Callable[[], None]) -> None:
        """Call `shown` at once: a topic that ZooKeeper does not have yet has no open partitions."""
        shown()

    def sync(self) -> None:
        """Block until ZooKeeper has every change; for the start. Raises Superseded, RegistrationRefused."""
        self._queue.apply_all()

    def close(self) -> None:
        """End the session: the broker leaves the cluster. Blocks until the running write has ended."""
        self._queue.fail(RegistryClosed("the broker stops"))
        if self._channels is not None:
            self._channels.close()
        self._registry.close()
        self._queue.close()

    def _on_failed(self, error: OnceflowError) -> None:
        self._producer_ids.fail()
        unread, self._unread = self._unread, []
        for read in unread:
            call(read)
        if self._channels is not None:
            self._channels.close()
        self._on_lost(error)

    def _on_deposed(self, error: OnceflowError) -> None:
        """Leave the decisions to the new controller, read what it has decided, and forget new topics."""
        logger.warning("%s; this broker resigns", error)
        self._resign()
        self._queue.run(self._watch.look_again, lambda _none: self._look_soon())

    def _on_new_session(self) -> None:
        """Tell the loop, from kazoo's thread."""
        self._security.look_again()
        self._queue.call_from_thread(self._look_soon)

    # The controller's term

    def _begin_term(self, look: Look) -> None:
        """Begin a term with everything that is in ZooKeeper."""
        seen = look.seen
        topics: dict[str, tuple[UUID, dict[int, PartitionImage]]] = {}
        for topic in seen.topics:
            topics[topic.name] = (
                topic.topic_id,
                {
                    index: PartitionImage(replicas, look.states.get((topic.name, index)))
                    for index, replicas in topic.replicas.items()
                },
            )
        unserved = [name for name in seen.deletions if name in topics and name not in self._topics.by_name]
        epoch = self._registry.term.epoch
        logger.info("broker %d is the controller of epoch %d", self._registry.broker_id, epoch)
        self._controller = Controller(
            self._registry.broker_id,
            epoch,
            is_unclean_allowed=self._is_unclean_allowed,
            address_of=self.others.address,
        )
        self.decide(
            self._controller.begin(seen.brokers, topics, unserved, former_start=self._registry.term.former_start)
        )
        for name in self._finished & set(unserved):
            self.finish_deletions([name], lambda _names: None)

    def _resign(self) -> None:
        """Leave the decisions to the new controller, which continues deletions too."""
        self._controller = None
        self._to_release.clear()
        self._topics.being_deleted.clear()
        if self._channels is not None:
            self._channels.close()

    def connect(self, deliver: Deliver, when_idle: Callable[[Callable[[], None]], None]) -> None:
        """Send the controller's requests from now on; `deliver` handles those to this broker.

        `when_idle` calls back when those delivered so far are applied.
        """
        self._when_idle = when_idle
        self._channels = Channels(self._registry.broker_id, deliver, self._on_response, self._refresh, self.others)
        requests, self._unsent = self._unsent, []
        self._send(requests)

    def _send(self, requests: Sequence[ControlRequest]) -> None:
        if self._channels is None:
            self._unsent += requests
        elif self._controller is not None and self._queue.failure is None:
            self._channels.follow(self._controller.brokers)
            self._channels.send(requests)

    def _refresh(self, broker_id: int) -> None:
        if self._controller is not None:
            self.decide(self._controller.refresh(broker_id))

    def _on_response(self, request: ControlRequest, response: Any) -> None:
        if response.error_code:
            logger.warning("broker %d refused a request: %s", request.broker_id, ErrorCode(response.error_code).name)
        elif isinstance(response, LeaderAndIsrResponse):
            for topic in response.topics:
                for partition in topic.partition_errors:
                    if partition.error_code:
                        name = ErrorCode(partition.error_code).name
                        index = partition.partition_index
                        logger.error("broker %d: %s-%d: %s", request.broker_id, topic.topic_id, index, name)
        elif isinstance(request.message, StopReplicaRequest):
            self._on_stopped(request, response)

    def _on_stopped(self, request: ControlRequest, response: Any) -> None:
        failed = {(e.topic_name, e.partition_index) for e in response.partition_errors if e.error_code}
        for topic in request.message.topic_states:
            for state in topic.partition_states:
                place = topic.topic_name, state.partition_index
                if self._controller is None or not state.delete_partition:
                    continue
                if place in failed:
                    logger.error("broker %d could not delete %s-%d", request.broker_id, *place)
                elif self._controller.replica_deleted(*place, request.broker_id):
                    self._complete_deletion(place[0], self._to_release.pop(place[0], lambda _names: None))

    # Changes by others

    def follow_others(self, follow: Follow, delete: DeleteTopics) -> None:
        """Apply what others write, from now on."""
        self._follow, self._delete = follow, delete
        self._look_if_due()

    def when_read(self, topics: Sequence[str], read: Callable[[], None]) -> None:
        """Call `read` once these topics have been read as they are now; at once if nothing can be read any more.

        A change may be older than this call, and ZooKeeper's event about it not handled yet.
        """
        if self._queue.failure is not None:
            call(read)
            return
        self._watch.put_back(topics)
        self._unread.append(read)
        self._look_soon()

    def _on_change(self) -> None:
        """Tell the loop, from kazoo's thread."""
        self._queue.call_from_thread(self._look_soon)

    def _look_soon(self) -> None:
        self._is_look_due = True
        self._look_if_due()

    def _look_if_due(self) -> None:
        ready = self._queue.is_settled and self._follow is not None and self._queue.failure is None
        if not (self._is_look_due and ready) or self._is_looking:
            return
        self._is_look_due, self._is_looking = False, True
        unread, self._unread = self._unread, []
        ended = partial(self._end_looking, unread, self._queue.recorded)
        self._queue.run(partial(self._look, log_not_followed), ended)

    def _look(self, on_damaged: OnDamaged) -> Look:
        """Read what has changed. In the registry's thread, except at the start."""
        return read_changes(self._registry, self._watch, self._security, on_damaged)

    def _end_looking(self, unread: Sequence[Callable[[], None]], recorded: int, look: Look) -> None:
        self._is_looking = False
        if self._controller is not None and not self._registry.is_controller:
            self._resign()
            self._is_look_due = True
        live = [broker.broker_id for broker in look.seen.brokers]
        # Without this broker, it was a look between two sessions: another one follows.
        if self._registry.broker_id in live:
            self._adopt_brokers(look.seen)
            if self._controller is not None:
                # Another epoch if the session was replaced.
                self._controller.epoch = self._registry.term.epoch
                self.decide(self._controller.brokers_changed(look.seen.brokers))
        assert self._follow is not None
        self._follow(partial(self._adopt, look, recorded, unread))
        self._look_if_due()

    def _adopt(self, look: Look, recorded: int, unread: Sequence[Callable[[], None]]) -> list[tuple[Topic, int]]:
        """Replay the differences; return the changed topics, with their number of partitions before the change.

        Look again if this broker has changed anything since, when `recorded` changes were recorded.
        """
        seen = look.seen
        if not self._queue.is_settled or self._queue.recorded != recorded:
            self._watch.put_back(seen.changed)
            self._security.put_back(look.security)
            self._unread += unread
            self._look_soon()
            return []
        self._security.adopt(look.security)
        if not self.is_controller:
            self._remove_others(seen)
        topics = [topic for topic in seen.topics if topic.name not in seen.deletions]
        adopted = [self._adopt_topic(topic, look) for topic in topics if topic.topic_id not in self._topics.removed]
        if self._registry.is_controller and self._controller is None:
            self._begin_term(look)
            self._repair(seen)
        if self._controller is not None:
            self._adopt_deletions([name for name in seen.deletions if name in self._topics.by_name])
            self.requests.adopt(seen.reassignments, seen.elections)
        for callback in unread:
            call(callback)
        return [change for change in adopted if change is not None]

    def _adopt_topic(self, stored: StoredTopic, look: Look) -> tuple[Topic, int] | None:
        present = self._topics.by_name.get(stored.name)
        if present is not None and present.topic_id != stored.topic_id and not self.is_controller:
            self._remove(present)
            present = None
        start = 0 if present is None else present.partition_count
        try:
            records = differences(self._topics, stored, is_controller=self.is_controller)
        except (TopicReplaced, DamagedNode) as error:
            log_not_followed(error)
            return None
        if not records:
            return None
        if self.is_controller:
            logger.info("topic %s was changed in ZooKeeper by another program", stored.name)
        for record in records:
            self._topics.replay(record)
        topic = self._topics.by_name[stored.name]
        if self._controller is not None:
            self.decide(self._assigned(topic, start, look.states))
            self.decide(self._controller.config_changed(topic.name))
        return topic, start

    def _remove_others(self, seen: Seen) -> None:
        """Forget the topics that the controller has deleted."""
        for topic in [topic for topic in self._topics.by_name.values() if topic.name not in seen.names]:
            self._remove(topic)

    def _remove(self, topic: Topic) -> None:
        self._topics.replay(RemoveTopicRecord(topic.topic_id))
        self._finished.discard(topic.name)
        self._on_removed(topic.name)

    def _adopt_deletions(self, names: Sequence[str]) -> None:
        if not names:
            return
        if not self._delete_topics:
            logger.warning("marked for deletion in ZooKeeper, but kept (delete.topic.enable): %s", ", ".join(names))
            self._unmark(names)
            return
        assert self._delete is not None
        self._marked |= set(names)
        self._delete(partial(self._present, names), self._deleted)

    def _present(self, names: Sequence[str]) -> list[Topic]:
        return [topic for name in names if (topic := self._topics.by_name.get(name)) is not None]

    def _deleted(self, results: Sequence[tuple[Topic, ErrorCode, str | None]]) -> None:
        refused = {topic.name: message for topic, error_code, message in results if error_code}
        for name, message in refused.items():
            logger.error("topic %s, marked for deletion in ZooKeeper, is not deleted: %s", name, message)
        self._unmark([name for name in refused if name in self._topics.by_name])

    def _unmark(self, names: Sequence[str]) -> None:
        self._marked -= set(names)
        self._queue.add([self._step([Delete(nodes.deletion_path(name))]) for name in names])
