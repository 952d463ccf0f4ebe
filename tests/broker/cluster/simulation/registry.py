"""Simulated registry, and what connects a broker's controller with it.

`Registry` has what ZooKeeper has: sessions, the controller with its epoch, and the states of partitions with versions.
`Metadata` takes the place of `cluster.metadata.RegistryMetadata`: it elects itself, gives the controller its events,
and writes its decisions one after another before their requests are sent.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from onceflow.broker.cluster.channels import Channels
from onceflow.broker.cluster.controller import Controller, PartitionImage
from onceflow.broker.cluster.controller_requests import ControllerRequests
from onceflow.broker.cluster.decision import Decision, Write
from onceflow.broker.cluster.state import LiveBroker, Replicas, State
from onceflow.broker.config import Endpoint
from onceflow.broker.storage.partitions import Place
from onceflow.wire.errors import ErrorCode
from tests.broker.cluster.simulation.network import REGISTRY, Network

TOPIC = "t"
TOPIC_ID = UUID(int=1)


class Registry:
    """The nodes of a cluster with one topic."""

    def __init__(self, network: Network, replicas: Mapping[Place, tuple[int, ...]]) -> None:
        self.replicas = replicas
        self.states: dict[Place, State] = {}
        self.sessions: dict[int, int] = {}
        """Epoch of each registered broker."""
        self.controller: int | None = None
        self.controller_epoch = 0
        self.watchers: dict[int, Callable[[], None]] = {}
        self.counts: Counter[str] = Counter()
        self._network = network
        self._zxid = 0
        self._term_start = 0
        self.former_start = 0
        """Transaction that began the term before the present one."""

    def live(self) -> list[LiveBroker]:
        return [
            LiveBroker(broker_id, epoch, (Endpoint("127.0.0.1", broker_id, "PLAINTEXT"),), ("PLAINTEXT",))
            for broker_id, epoch in sorted(self.sessions.items())
        ]

    def register(self, broker_id: int) -> int:
        """Begin a session; return its epoch."""
        assert broker_id not in self.sessions
        self._zxid += 1
        self.sessions[broker_id] = self._zxid
        self._changed()
        return self._zxid

    def expire(self, broker_id: int) -> None:
        """End a session."""
        del self.sessions[broker_id]
        if self.controller == broker_id:
            self.controller = None
        self._changed()

    def elect(self, broker_id: int) -> int:
        """Make a broker the controller; return the epoch of its term."""
        assert self.controller is None
        assert broker_id in self.sessions
        self.controller = broker_id
        self.controller_epoch += 1
        self._zxid += 1
        self.former_start, self._term_start = self._term_start, self._zxid
        self.counts["controllers"] += 1
        self._changed()
        return self.controller_epoch

    def write(self, epoch: int, writes: Sequence[Write]) -> bool:
        """Apply the writes of a term, unless there was another controller since."""
        if epoch != self.controller_epoch:
            self.counts["writes of former controllers"] += 1
            return False
        for place, state, is_new in writes:
            before = self.states.get(place)
            version = -1 if before is None else before.version
            assert is_new == (before is None), f"{place} is written as new: {is_new}"
            assert state.version == version + 1, f"{place}: version {state.version} is written after {version}"
            if before is not None:
                assert set(state.isr) & set(before.isr), f"{place}: no in-sync replica of {before} is left in {state}"
                self.counts["elections"] += state.leader not in (before.leader, -1)
                self.counts["changes of in-sync replicas"] += state.leader_epoch == before.leader_epoch
            self.states[place] = state
        return True

    def _changed(self) -> None:
        for broker_id, watcher in self.watchers.items():
            self._network.reach(REGISTRY, broker_id, watcher)


class Metadata:
    """One broker's session in the registry, and its terms as controller."""

    def __init__(
        self,
        broker_id: int,
        registry: Registry,
        network: Network,
        deliver: Callable[[Any, Callable[[Any], None]], None],
        topics: Any,
    ) -> None:
        """Begin without a session, in the loop of the broker."""
        self.controller: Controller | None = None
        self.broker_epoch = -1
        self._id = broker_id
        self._registry = registry
        self._network = network
        self._channels = Channels(broker_id, deliver, lambda _request, _response: None, self._refresh)
        self._queue: deque[tuple[Decision, list[Callable[[ErrorCode], None]]]] = deque()
        self._is_writing = False
        stood_in: Any = self
        self.requests = ControllerRequests(self, topics, stood_in, stood_in)

    @property
    def is_controller(self) -> bool:
        return self.controller is not None

    def when_read(self, _topics: Sequence[str], read: Callable[[], None]) -> None:
        read()

    def look(self) -> None:
        """Follow the registry: register, become the controller or resign, learn of brokers."""
        registry = self._registry
        epoch = registry.sessions.get(self._id)
        if epoch is None or epoch != self.broker_epoch:
            if epoch is not None:
                return  # The session of a former process has not ended.
            self._resign()
            self.broker_epoch = registry.register(self._id)
        if registry.controller is None:
            self._begin_term(registry.elect(self._id))
        elif registry.controller != self._id:
            self._resign()
        if self.controller is not None:
            self.decide(self.controller.brokers_changed(registry.live()))

    def _begin_term(self, epoch: int) -> None:
        registry = self._registry
        self.controller = Controller(self._id, epoch, is_unclean_allowed=lambda _topic: False)
        images = {
            place[1]: PartitionImage(Replicas(replicas), registry.states.get(place))
            for place, replicas in registry.replicas.items()
        }
        self.decide(
            self.controller.begin(registry.live(), {TOPIC: (TOPIC_ID, images)}, (), former_start=registry.former_start)
        )

    def _resign(self) -> None:
        self.controller = None
        queue, self._queue = self._queue, deque()
        for _decision, waiting in queue:
            for applied in waiting:
                applied(ErrorCode.not_controller)
        self._channels.close()

    def _refresh(self, broker_id: int) -> None:
        if self.controller is not None:
            self.decide(self.controller.refresh(broker_id))

    def decide(self, decision: Decision) -> None:
        """Write a decision after those before it, then send its requests."""
        if decision.writes or decision.requests:
            self._queue.append((decision, []))
            self._write_next()

    def _write_next(self) -> None:
        if self._is_writing or not self._queue or self.controller is None:
            return
        self._is_writing = True
        controller, epoch, decision = self.controller, self.controller.epoch, self._queue[0][0]

        def attempt() -> None:
            is_written = self._registry.write(epoch, decision.writes)
            self._network.reach(REGISTRY, self._id, lambda: self._run(lambda: self._written(controller, is_written)))

        self._network.reach(self._id, REGISTRY, attempt)

    def _run(self, work: Callable[[], None]) -> None:
        host = self._network.hosts[self._id]
        if host.is_up and getattr(host, "metadata", None) is self:
            with host.inside():
                work()

    def _written(self, controller: Controller, is_written: bool) -> None:
        self._is_writing = False
        if self.controller is controller:
            if not is_written:
                self._resign()
                return
            decision, waiting = self._queue.popleft()
            self._channels.follow(controller.brokers)
            self._channels.send(decision.requests)
            for applied in waiting:
                applied(ErrorCode.none)
        self._write_next()

    def when_applied(self, applied: Callable[[ErrorCode], None]) -> None:
        """Call `applied` once the decisions so far are written (`WriteQueue.when_applied`)."""
        if self._queue:
            self._queue[-1][1].append(applied)
        else:
            applied(ErrorCode.none)
