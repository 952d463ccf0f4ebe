"""Cluster of brokers in this process, for tests: `with Cluster(brokers=3) as cluster: cluster.bootstrap_servers`.

The brokers are those of `onceflow.testing.Broker`, each with an event loop in a thread of its own. They find each other
in a registry in this process instead of ZooKeeper; everything else is as in a cluster of `onceflow broker`: sockets,
replicas, controller, elections.

Each broker has a disk that loses what was not synced when the broker is killed.
"""

import asyncio
import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING

from onceflow.remedies import Remedy
from onceflow.testing.faults import Fault, Faults
from onceflow.testing.in_process import Broker, BrokerNotUsable, Setting

if TYPE_CHECKING:
    from onceflow.broker.cluster.joining import Cluster as Members
    from onceflow.broker.server import Broker as Server
    from onceflow.testing.registry import MemoryRegistry, MemorySession
    from onceflow.wire.inter_broker import UpdateMetadataPartition

WAIT_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.002
REPLICATION_FACTOR_MAX = 3
BROKERS_MAX = 20
FETCH_BACKOFF_MS = 20
"""A follower that asks a moment too early must not wait for a second."""


class ClusterPause:
    """The network between two brokers, until `remove` or the end of a `with` statement."""

    def __init__(self, faults: list[Fault]) -> None:
        self._faults = faults

    def remove(self) -> None:
        """Let the requests and responses pass that were held."""
        for fault in self._faults:
            fault.remove()

    def __enter__(self) -> "ClusterPause":
        return self

    def __exit__(self, _kind: object, _error: BaseException | None, _traceback: TracebackType | None) -> None:
        self.remove()


class _Member(Broker):
    """One broker of the cluster."""

    def __init__(
        self, path: Path, settings: Mapping[str, Setting], registry: "MemoryRegistry", peers: frozenset[str]
    ) -> None:
        from onceflow.testing.disk import FaultyDisk

        path.mkdir(parents=True, exist_ok=True)
        self.power: FaultyDisk = FaultyDisk(path)
        super().__init__(path, settings=settings, disk=self.power)
        self.faults = Faults(peers)
        self._registry = registry
        self._session: MemorySession | None = None

    def _new_session(self) -> "MemorySession":
        self._session = self._registry.session()
        return self._session

    @property
    def session(self) -> "MemorySession":
        """The session of its last start."""
        assert self._session is not None
        return self._session

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not stopped or killed since."""
        return self._run is not None

    @property
    def server(self) -> "Server":
        """The broker itself. Raises BrokerNotUsable if it does not run."""
        server = self._running()._server
        assert server is not None
        return server

    @property
    def members(self) -> "Members":
        """The other brokers, as this one knows them."""
        cluster = self.server.node.cluster
        assert cluster is not None
        return cluster

    def call(self, function: Callable[[], None]) -> None:
        """Call a function on the broker's event loop, and wait for its end."""

        async def run() -> None:
            function()

        loop = self._running()._loop
        assert loop is not None
        asyncio.run_coroutine_threadsafe(run(), loop).result(WAIT_SECONDS_MAX)

    def stop_with_others(self) -> None:
        """Stop while the other brokers stop too: its leaders stay."""
        if self.is_running:
            self.server.config = replace(self.server.config, controlled_shutdown=False)
        self.stop()

    def kill(self) -> None:
        """Cut its power: its session and its connections end, and what was not synced is lost."""
        from onceflow.testing.disk import PowerCut

        run = self._running()
        self._run = None
        self.power.cut_power()
        self.session.disconnect()
        with contextlib.suppress(PowerCut):
            run.kill()
        self.power.crash(seed=0, drop_all=True)


class Cluster:
    """Brokers with the ids 1 to `brokers` on 127.0.0.1, in this process.

    `path` is a directory for their data, kept; None uses a temporary one that `stop` removes. `settings` are those of
    each broker, by Kafka's names. Two have another default: `default.replication.factor` is up to three, and
    `replica.fetch.backoff.ms` is short.
    Methods that wait raise BrokerNotUsable after 30 s.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        path: str | os.PathLike[str] | None = None,
        settings: Mapping[str, Setting] | None = None,
    ) -> None:
        if not 1 <= brokers <= BROKERS_MAX:
            raise BrokerNotUsable(f"a cluster of {brokers} brokers: from 1 to {BROKERS_MAX} are possible")
        settings = settings or {}
        if "broker.id" in settings or "node.id" in settings:
            raise BrokerNotUsable("settings must not contain broker.id; the brokers have the ids from 1")
        self._count = brokers
        self._path = None if path is None else Path(path)
        self._settings: dict[str, Setting] = {
            "default.replication.factor": min(brokers, REPLICATION_FACTOR_MAX),
            "replica.fetch.backoff.ms": FETCH_BACKOFF_MS,
            **settings,
        }
        self._members: dict[int, _Member] = {}
        self._temporary: Path | None = None
        self._registry: MemoryRegistry | None = None

    def start(self) -> "Cluster":
        """Start all brokers; return when each knows all. Raises as Broker.start."""
        if self._members:
            raise BrokerNotUsable(f"the cluster is already running; {Remedy.STOP_TEST_BROKER}")
        from onceflow.testing.registry import MemoryRegistry

        directory = self._path
        if directory is None:
            directory = self._temporary = Path(tempfile.mkdtemp(prefix="onceflow-cluster-"))
        self._registry = MemoryRegistry()
        try:
            ids = range(1, self._count + 1)
            for broker_id in ids:
                settings = {**self._settings, "broker.id": broker_id}
                peers = frozenset(name for peer in ids for name in _client_ids(peer, broker_id))
                self._members[broker_id] = _Member(directory / str(broker_id), settings, self._registry, peers)
            _in_threads([member.start for member in self._members.values()])
            self._await(self._is_complete, "not all brokers know each other")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop all brokers, and remove a temporary directory. No effect if the cluster is not running."""
        members, self._members = self._members, {}
        try:
            _in_threads([member.stop_with_others for member in members.values()])
        finally:
            if self._temporary is not None:
                shutil.rmtree(self._temporary)
                self._temporary = None

    def __enter__(self) -> "Cluster":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def brokers(self) -> Mapping[int, Broker]:
        """All brokers by their ids, also those that do not run; `brokers[1].faults` fail on demand."""
        return MappingProxyType(self._members)

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT,HOST:PORT of the brokers that run. Raises BrokerNotUsable if none does."""
        running = self._running()
        if not running:
            raise BrokerNotUsable(f"no broker of the cluster is running; {Remedy.START_TEST_BROKER}")
        return ",".join(member.bootstrap_servers for member in running.values())

    @property
    def controller(self) -> int:
        """The id of the controller, once there is one."""
        return self._member_of_controller()[0]

    def leader(self, topic: str, partition: int = 0) -> int:
        """The broker that leads a partition, once there is one."""
        leaders: list[int] = []

        def has_leader() -> bool:
            state = self._state(topic, partition)
            if state is None or state.leader not in self._running():
                return False
            leaders.append(state.leader)
            return True

        self._await(has_leader, f"{topic}-{partition} has no leader")
        return leaders[-1]

    def in_sync(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """The brokers with an in-sync replica of a partition; empty if it does not exist."""
        state = self._state(topic, partition)
        return () if state is None else tuple(state.isr)

    def wait_in_sync(self, topic: str, partition: int = 0) -> None:
        """Return when all replicas of a partition are in sync."""

        def are_in_sync() -> bool:
            state = self._state(topic, partition)
            return state is not None and {*state.isr} == {*state.replicas}

        self._await(are_in_sync, f"replicas of {topic}-{partition} are not in sync")

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        replication_factor: int | None = None,
    ) -> str:
        """Create a topic; when this returns, every broker knows the leaders, and all replicas are in sync.

        Returns `name`. Raises BrokerNotUsable, with the reason, if it is refused.
        """
        _id, controller = self._member_of_controller()
        controller._create_topic(name, partitions, configs, replication_factor=replication_factor or -1)
        running = self._running().values()
        for partition in range(partitions):
            self._await(
                lambda: all(_has_leader(member, name, partition) for member in running),  # noqa: B023
                f"not all brokers know {name}-{partition}",
            )
            self.wait_in_sync(name, partition)
        return name

    def kill(self, broker_id: int) -> None:
        """Cut the power of a broker: its session and its connections end at once, and what was not synced is lost."""
        self._of(broker_id).kill()

    def stop_broker(self, broker_id: int) -> None:
        """Stop a broker in order: its leaders move first. No effect if it does not run."""
        self._of(broker_id).stop()

    def start_broker(self, broker_id: int) -> None:
        """Start a broker that was killed or stopped, on the same port, with the data that it has."""
        self._of(broker_id).start()
        self._await(self._is_complete, f"not all brokers know broker {broker_id}")

    def expire_session(self, broker_id: int) -> None:
        """End a broker's session with the registry, as after a long pause; it begins another one."""
        self._of(broker_id).session.expire()

    def pause(self, first: int, second: int) -> ClusterPause:
        """Pause the network between two brokers: no request of one arrives at the other. Clients reach both."""
        if first == second:
            raise BrokerNotUsable(f"pause between broker {first} and itself: two brokers are needed")
        return ClusterPause(
            [
                self._of(at).faults.pause(client_id)
                for at, peer in ((first, second), (second, first))
                for client_id in _client_ids(peer, at)
            ]
        )

    def move_leader(self, topic: str, partition: int, broker_id: int) -> None:
        """Let an in-sync replica lead a partition, in the next leader epoch.

        Raises BrokerNotUsable if the broker has no in-sync replica.
        """
        if self.leader(topic, partition) == broker_id:
            return
        if broker_id not in self.in_sync(topic, partition):
            raise BrokerNotUsable(
                f"{topic}-{partition} cannot be led by broker {broker_id}: in sync are {self.in_sync(topic, partition)}"
            )
        _id, controller = self._member_of_controller()
        controller.call(lambda: _elect(controller.members, (topic, partition), broker_id))
        running = self._running().values()
        self._await(
            lambda: all(_is_led_by(member, topic, partition, broker_id) for member in running),
            f"{topic}-{partition} is not led by broker {broker_id}",
        )

    # Inside

    def _of(self, broker_id: int) -> _Member:
        member = self._members.get(broker_id)
        if member is None:
            known = ", ".join(map(str, self._members)) or "none: the cluster is not running"
            raise BrokerNotUsable(f"broker {broker_id} is not one of the cluster's: {known}")
        return member

    def _running(self) -> dict[int, _Member]:
        return {broker_id: member for broker_id, member in self._members.items() if member.is_running}

    def _member_of_controller(self) -> tuple[int, _Member]:
        elected: list[tuple[int, _Member]] = []

        def is_elected() -> bool:
            elected.extend(item for item in self._running().items() if item[1].members.metadata.is_controller)
            return bool(elected)

        self._await(is_elected, "no broker is the controller")
        return elected[-1]

    def _is_complete(self) -> bool:
        """Return whether the running brokers know each other, and the controller."""
        running = self._running()
        views = [member.members.view for member in running.values()]
        return all(view.brokers.keys() == running.keys() and view.controller_id in running for view in views)

    def _state(self, topic: str, partition: int) -> "UpdateMetadataPartition | None":
        """Return a partition's state as the controller has sent it."""
        return self._member_of_controller()[1].members.view.state(topic, partition)

    def _await(self, condition: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not condition():
            if time.monotonic() > deadline:
                raise BrokerNotUsable(f"{problem} after {WAIT_SECONDS_MAX:g} s")
            time.sleep(LOOK_SECONDS)


def _client_ids(broker_id: int, to: int) -> tuple[str, ...]:
    """Return the client ids of a broker's requests to another one: as controller or to it, and as follower."""
    return str(broker_id), f"broker-{broker_id}", f"broker-{broker_id}-fetcher-{to}"


def _has_leader(member: _Member, topic: str, partition: int) -> bool:
    view = member.members.view
    return view.leader(topic, partition) is not None


def _is_led_by(member: _Member, topic: str, partition: int, broker_id: int) -> bool:
    state = member.members.view.state(topic, partition)
    return state is not None and state.leader == broker_id


def _elect(cluster: "Members", place: tuple[str, int], broker_id: int) -> None:
    """Elect a replica as the preferred one, which it is only while the controller decides."""
    controller = cluster.metadata.controller
    assert controller is not None
    wanted = controller.replicas[place]
    first = (broker_id, *(other for other in wanted.replicas if other != broker_id))
    controller.replicas[place] = wanted._replace(replicas=first)
    try:
        cluster.metadata.requests.elect_leaders([place], unclean=False, respond=lambda _results: None)
    finally:
        controller.replicas[place] = wanted


def _in_threads(calls: list[Callable[[], object]]) -> None:
    """Call all at the same time; raise the first error when all have ended."""
    errors: list[BaseException] = []

    def call(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=call, args=(function,)) for function in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
