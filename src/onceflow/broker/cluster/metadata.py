"""The topics of a broker on ZooKeeper: decided and replayed as with a metadata log, and stored in ZooKeeper.

A change is replayed at once and queued. A thread applies the queue to ZooKeeper in order; `when_synced` calls back when
the changes recorded so far are applied. While ZooKeeper is away the queue waits, and records are served as before.

Changes that other programs write are followed (`cluster.watch`): they are replayed when ZooKeeper has all changes of
this broker, since a difference is theirs then. The broker stops when its changes cannot be applied any more, because
another broker is the controller or a topic was created twice at the same time: the next start reads the topics again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from uuid import UUID, uuid4

from onceflow.broker.cluster import nodes, writes
from onceflow.broker.cluster.image import StoredTopic, differences, missing_states, read_image
from onceflow.broker.cluster.registry import Registry, RegistryClosed, Write
from onceflow.broker.cluster.watch import Seen, Watch
from onceflow.broker.cluster.zookeeper import Delete
from onceflow.broker.loop.background import run_in_thread
from onceflow.broker.loop.work_thread import WorkThread
from onceflow.broker.storage.partitions import Partition, Synced
from onceflow.broker.topics.metadata_log import NO_PRODUCER_ID, DeleteTopics, Follow
from onceflow.broker.topics.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from onceflow.broker.topics.topics import Topic, TopicRefused, Topics
from onceflow.errors import OnceflowError
from onceflow.log.clock import Clock
from onceflow.log.errors import LogError
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

CHANGES_QUEUED_MAX = 1000

_STORED = (TopicRecord, PartitionRecord, ConfigRecord, RemoveTopicRecord)


class NotStored(LogError):
    """The change is of a kind that the broker does not store in ZooKeeper."""

    error_code = ErrorCode.invalid_request


Step = Callable[[], None]
"""Part of a change, applied in the registry's thread."""


class RegistryMetadata:
    """Stores every change of the topics in ZooKeeper, and replays it."""

    partitions: Sequence[Partition] = ()
    """There is no log."""

    def __init__(
        self,
        registry: Registry,
        topics: Topics,
        *,
        clock: Clock,
        delete_topics: bool,
        on_lost: Callable[[OnceflowError], None],
    ) -> None:
        """Read the topics of the cluster that the broker has joined. Blocks; raises SeveralBrokers, DamagedNode.

        `on_lost` is called when the changes cannot be applied any more.
        """
        self._registry = registry
        self._topics = topics
        self._delete_topics = delete_topics
        self._on_lost = on_lost
        self._thread = WorkThread("registry")
        self._loop = asyncio.get_running_loop()
        self._queue: deque[list[Step]] = deque()
        self._waiting: deque[tuple[int, Synced]] = deque()
        self._recorded = 0
        self._applied = 0
        self._is_applying = False
        self._failure: OnceflowError | None = None
        self._producer_ids = iter(range(0))
        self._waiting_for_ids: deque[Callable[[ErrorCode, int], None]] = deque()
        self._follow: Follow | None = None
        self._delete: DeleteTopics | None = None
        self._marked: set[str] = set()
        """Topics that another program has marked for deletion."""
        self._is_look_due = False
        self._is_looking = False
        self._watch = Watch(registry.zookeeper, clock, self._on_change, self._id_of)
        self._load()
        registry.zookeeper.on_new_session = self._on_new_session

    @property
    def is_disconnected(self) -> bool:
        return not self._registry.zookeeper.is_connected

    def _load(self) -> None:
        registry = self._registry
        seen = self._read(_raise)
        image = registry.read(
            lambda zookeeper: read_image(
                zookeeper, seen.topics, seen.deletions, registry.broker_id, registry.term.epoch
            )
        )
        for record in image.records:
            self._topics.replay(record)
        self._enqueue([*map(self._step, image.repairs), *map(self._deletion, image.traces)])

    def _read(self, on_damaged: Callable[[OnceflowError], None]) -> Seen:
        """Look, and give the topics an id that have none, as Kafka's controller does. Blocks."""
        seen = self._registry.read(lambda _zookeeper: self._watch.look(on_damaged))
        for topic in seen.topics:
            if topic.lacks_id and topic.name not in seen.deletions:
                self._registry.write(writes.set_topic_id(topic.name, topic.topic_id, topic.replicas))
        return seen

    def _id_of(self, name: str) -> UUID:
        """Return the id of a topic that has none in ZooKeeper: that of the topic that is served, or a new one."""
        present = self._topics.by_name.get(name)
        return uuid4() if present is None else present.topic_id

    def record(self, records: Sequence[MetadataRecord], *, from_reserve: bool = False) -> None:
        """Replay a change of the topics and apply it to ZooKeeper. Raises TopicRefused, NotStored.

        ZooKeeper's disk is not the broker's: the reserve does not matter.
        """
        if not isinstance(records[0], _STORED):
            raise NotStored(f"{type(records[0]).__name__} is not stored in ZooKeeper")
        if self._failure is not None:
            raise TopicRefused(ErrorCode.not_controller, str(self._failure))
        if len(self._queue) >= CHANGES_QUEUED_MAX:
            raise TopicRefused(
                ErrorCode.request_timed_out,
                f"ZooKeeper has not applied the last {CHANGES_QUEUED_MAX} changes of topics yet; {Remedy.TRY_AGAIN}",
            )
        for record in records:
            self._topics.replay(record)
        self._enqueue([self._step(write) for write in self._writes(records)])
        self._apply_soon()

    record_config = record

    def _step(self, write: Write) -> Step:
        return partial(self._registry.write, write)

    def _deletion(self, name: str) -> Step:
        return partial(self._registry.delete_topic, name)

    def _writes(self, records: Sequence[MetadataRecord]) -> Iterator[Write]:
        """Yield the writes of a change that was replayed."""
        place = self._registry.broker_id, self._registry.term.epoch
        match records[0]:
            case TopicRecord(_, topic_id):
                yield from writes.create_topic(self._topics.by_id[topic_id], *place)
            case PartitionRecord(start, topic_id, _):
                yield from writes.create_partitions(self._topics.by_id[topic_id], start, *place)
            case ConfigRecord(name, _, _):
                yield from writes.set_config(self._topics.by_name[name])
            case RemoveTopicRecord(topic_id):
                name = self._topics.removed[topic_id]
                if name not in self._marked:
                    yield from writes.begin_deletion(name)
                self._marked.discard(name)

    def finish_deletions(self, names: Iterable[str]) -> None:
        """Delete what ZooKeeper has of deleted topics, now that their files and offsets are deleted."""
        self._enqueue([self._deletion(name) for name in names])
        self._apply_soon()

    def when_synced(self, synced: Synced) -> None:
        """Call `synced` once ZooKeeper has the current state of the topics (at once if it has), or with the error."""
        if self._failure is not None:
            synced(ErrorCode.not_controller)
        elif self._applied == self._recorded:
            synced(ErrorCode.none)
        else:
            self._waiting.append((self._recorded, synced))

    def when_shown(self, shown: Callable[[], None]) -> None:
        """Call `shown` at once: a topic that ZooKeeper does not have yet has no open partitions."""
        shown()

    def sync(self) -> None:
        """Block until ZooKeeper has every change; for the start. Raises Superseded, RegistrationRefused."""
        while self._queue:
            for step in self._queue.popleft():
                step()
            self._applied += 1

    def close(self) -> None:
        """End the session: the broker leaves the cluster. Blocks until the running write has ended."""
        self._failure = self._failure or RegistryClosed("the broker stops")
        self._registry.close()
        self._thread.shutdown(cancel_futures=True)

    # The queue

    def _enqueue(self, steps: list[Step]) -> None:
        if steps:
            self._queue.append(steps)
            self._recorded += 1

    def _apply_soon(self) -> None:
        """Apply the queue in the loop's next turn: during the start, `sync` does."""
        self._loop.call_soon(self._apply_queue)

    def _apply_queue(self) -> None:
        """Apply everything in the queue, after what is being applied."""
        if self._is_applying or not self._queue or self._failure is not None:
            return
        self._is_applying = True
        changes = list(self._queue)
        run_in_thread(
            self._thread, partial(_apply, changes), partial(self._end_applying, len(changes)), self._end_unexpectedly
        )

    def _end_applying(self, count: int, error: OnceflowError | None) -> None:
        self._is_applying = False
        if error is not None:
            self._fail(error)
            return
        for _change in range(count):
            self._queue.popleft()
        self._applied += count
        while self._waiting and self._waiting[0][0] <= self._applied:
            _call(self._waiting.popleft()[1], ErrorCode.none)
        self._apply_queue()
        self._look_if_due()

    def _end_unexpectedly(self, reason: str) -> None:
        self._is_applying = False
        self._fail(OnceflowError(f"a change of the topics could not be written to ZooKeeper: {reason}"))

    def _on_new_session(self) -> None:
        """Tell the loop, from kazoo's thread."""
        self._loop.call_soon_threadsafe(self._rejoin)

    def _rejoin(self) -> None:
        """Register again in a new session, unless a write does it before."""
        if self._failure is not None:
            return
        run_in_thread(
            self._thread, partial(_outcome, self._registry.rejoin), self._end_rejoining, self._end_unexpectedly
        )

    def _end_rejoining(self, error: OnceflowError | None) -> None:
        if error is not None:
            self._fail(error)

    def _fail(self, error: OnceflowError) -> None:
        """Respond to everything that waits with an error; without effect when the broker stops."""
        if self._failure is not None:
            return
        self._failure = error
        while self._waiting:
            _call(self._waiting.popleft()[1], ErrorCode.not_controller)
        while self._waiting_for_ids:
            _call(self._waiting_for_ids.popleft(), ErrorCode.coordinator_not_available, NO_PRODUCER_ID)
        if not isinstance(error, RegistryClosed):
            self._on_lost(error)

    # Changes by other programs

    def follow_others(self, follow: Follow, delete: DeleteTopics) -> None:
        """Apply what other programs write, from now on."""
        self._follow, self._delete = follow, delete
        self._look_if_due()

    def _on_change(self) -> None:
        """Tell the loop, from kazoo's thread."""
        self._loop.call_soon_threadsafe(self._look_soon)

    def _look_soon(self) -> None:
        self._is_look_due = True
        self._look_if_due()

    @property
    def _is_settled(self) -> bool:
        """Whether ZooKeeper has every change of this broker: any difference is another program's then."""
        return self._applied == self._recorded

    def _look_if_due(self) -> None:
        ready = self._is_settled and self._follow is not None and self._failure is None
        if not (self._is_look_due and ready) or self._is_looking:
            return
        self._is_look_due, self._is_looking = False, True
        run_in_thread(self._thread, self._look, self._end_looking, self._end_unexpectedly)

    def _look(self) -> Seen | OnceflowError:
        try:
            return self._read(_log_not_followed)
        except OnceflowError as error:
            return error

    def _end_looking(self, seen: Seen | OnceflowError) -> None:
        self._is_looking = False
        if isinstance(seen, OnceflowError):
            self._fail(seen)
            return
        assert self._follow is not None
        self._follow(partial(self._adopt, seen))
        self._look_if_due()

    def _adopt(self, seen: Seen) -> list[tuple[Topic, int]]:
        """Replay the differences; return the changed topics, with their number of partitions before the change."""
        if not self._is_settled:
            self._watch.put_back(seen.changed)
            self._look_soon()
            return []
        topics = [topic for topic in seen.topics if topic.name not in seen.deletions]
        adopted = [self._adopt_topic(topic) for topic in topics if topic.topic_id not in self._topics.removed]
        self._adopt_deletions([name for name in seen.deletions if name in self._topics.by_name])
        return [change for change in adopted if change is not None]

    def _adopt_topic(self, stored: StoredTopic) -> tuple[Topic, int] | None:
        present = self._topics.by_name.get(stored.name)
        start = 0 if present is None else present.partition_count
        try:
            records = differences(self._topics, stored, self._registry.broker_id)
        except OnceflowError as error:
            _log_not_followed(error)
            return None
        if not records:
            return None
        logger.info("topic %s was changed in ZooKeeper by another program", stored.name)
        for record in records:
            self._topics.replay(record)
        self._enqueue([partial(self._complete, stored)])
        self._apply_soon()
        return self._topics.by_name[stored.name], start

    def _complete(self, stored: StoredTopic) -> None:
        """Write the states of new partitions, in the registry's thread."""
        registry = self._registry
        place = registry.broker_id, registry.term.epoch
        for write in registry.read(lambda zookeeper: list(missing_states(zookeeper, [stored], *place))):
            registry.write(write)

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
        self._enqueue([self._step([Delete(nodes.deletion_path(name))]) for name in names])
        self._apply_soon()

    # Producer ids

    def next_producer_id(self, respond: Callable[[ErrorCode, int], None]) -> None:
        """Respond with a producer id that was never used before, once ZooKeeper has the block that contains it."""
        producer_id = next(self._producer_ids, None)
        if producer_id is not None:
            respond(ErrorCode.none, producer_id)
        elif self._failure is not None:
            respond(ErrorCode.coordinator_not_available, NO_PRODUCER_ID)
        else:
            self._waiting_for_ids.append(respond)
            if len(self._waiting_for_ids) == 1:
                self._reserve_ids()

    def _reserve_ids(self) -> None:
        blocks: list[range] = []

        def reserve() -> None:
            blocks.append(self._registry.reserve_producer_ids())

        def reserved(error: OnceflowError | None) -> None:
            if error is not None:
                self._fail(error)
                return
            self._producer_ids = iter(blocks[0])
            waiting, self._waiting_for_ids = self._waiting_for_ids, deque()
            for respond in waiting:
                _call(self.next_producer_id, respond)

        run_in_thread(self._thread, partial(_outcome, reserve), reserved, self._end_unexpectedly)


def _raise(error: OnceflowError) -> None:
    raise error


def _log_not_followed(error: OnceflowError) -> None:
    logger.error("a change in ZooKeeper by another program is not followed: %s", error)


def _call(callback: Callable[..., None], *arguments: object) -> None:
    """Call a waiting callback; a failure is logged and does not affect the others."""
    try:
        callback(*arguments)
    except Exception:
        logger.exception("a callback of a change of the topics failed")


def _apply(changes: Sequence[Sequence[Step]]) -> OnceflowError | None:
    """Apply changes in the registry's thread; return the error of the first that could not be applied."""
    for steps in changes:
        for step in steps:
            error = _outcome(step)
            if error is not None:
                return error
    return None


def _outcome(step: Step) -> OnceflowError | None:
    try:
        step()
    except OnceflowError as error:
        return error
    return None
