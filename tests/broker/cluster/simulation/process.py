"""One broker of the simulation: everything of the product that replicates, on a simulated disk, clock and network.

Logs, group commit, fetchers, the state of leaders, the handlers of the brokers' requests, the member that obeys the
controller, the controller and its channels are the broker's own. Threads are queues; see `tests.broker.simulation`.
"""

import asyncio
import contextlib
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from onceflow.broker.cluster.controller_client import ControllerClient
from onceflow.broker.cluster.fetcher import Fetchers, FetchLimits
from onceflow.broker.cluster.member import Member
from onceflow.broker.cluster.replicas import Lag
from onceflow.broker.cluster.replication import Led, Replication
from onceflow.broker.cluster.to_controller import ToController
from onceflow.broker.cluster.view import ClusterView
from onceflow.broker.handlers import fetch, inter_broker, list_offsets
from onceflow.broker.loop.deferred import DeferredCalls
from onceflow.broker.network.reply import Reply
from onceflow.broker.network.request import Request
from onceflow.broker.security.authorizer import FULL_ACCESS
from onceflow.broker.storage import group_commit
from onceflow.broker.storage.housekeeping import Housekeeping
from onceflow.broker.storage.parked_fetches import ParkedFetches
from onceflow.broker.storage.partitions import Partition, Partitions, Place
from onceflow.broker.topics.topics import Topic
from onceflow.log.config import LogConfig
from onceflow.log.offset_checkpoint import HIGH_WATERMARK_FILE, OffsetCheckpoint
from onceflow.log.partition import PartitionLog
from onceflow.testing import FaultyDisk, ManualClock
from onceflow.wire import apis
from onceflow.wire.frames import read_request_header
from tests.broker.cluster.simulation.network import Line, Network
from tests.broker.cluster.simulation.registry import TOPIC, TOPIC_ID, Metadata, Registry
from tests.broker.simulation.stepped_broker import SteppedLoop, SteppedRounds, SteppedThread, Unexpected

LAG = Lag(time_max_ms=300)
LIMITS = FetchLimits(wait_max_ms=60, partition_bytes_max=300, backoff_ms=50, socket_timeout_ms=600)
HANDLERS: Mapping[int, Callable[[Any, Request], None]] = {
    apis.FETCH: fetch.handle,
    apis.LIST_OFFSETS: list_offsets.handle_list_offsets,
    **inter_broker.HANDLERS,
}
ANYTHING: Any = SimpleNamespace
TURNS = 6


class Process:
    """A broker's machine; `start` and `stop` are the lives of its process."""

    def __init__(
        self,
        broker_id: int,
        root: Path,
        *,
        chance: random.Random,
        network: Network,
        registry: Registry,
        min_isr: int,
        unexpected: Unexpected,
    ) -> None:
        root.mkdir()
        self.id = broker_id
        self.disk = FaultyDisk(root)
        self.is_up = False
        self.is_frozen = False
        self.metadata: Metadata | None = None
        self.needs_power_cut = False
        """Whether a sync has failed: the page cache may show what the disk does not have."""
        self.last_ms = 0.0
        self._root = root
        self._chance = chance
        self._network = network
        self._registry = registry
        self._unexpected = unexpected
        self._config = LogConfig(segment_bytes=1200, index_interval_bytes=200, min_insync_replicas=min_isr)
        self._rate = chance.choice((0.8, 1.0, 1.25))
        """Speed of the clock."""
        network.hosts[broker_id] = self

    def start(self) -> None:
        """Start the process; it registers once the session of the one before has ended."""
        self.clock = ManualClock()
        self._fraction_ms = 0.0
        self.loop = SteppedLoop(self.clock)
        self.loop.set_exception_handler(self._note)
        self.threads: list[SteppedThread] = [SteppedThread("housekeeping")]
        self.partitions = Partitions()
        self.is_up, self.is_frozen = True, False
        self.high_watermarks = OffsetCheckpoint(self.disk, self._root / HIGH_WATERMARK_FILE)
        with self.inside():
            self._build()
            for place in self._registry.replicas:
                if self.disk.exists(self._directory(place)):
                    self._open(place)
            self.replication.start()

    def _build(self) -> None:
        deferred = DeferredCalls()
        with mock.patch.object(group_commit, "RoundThread", self._new_rounds):
            self.group_commit = group_commit.GroupCommit(deferred, lambda: True, lambda: None)
        view = ClusterView()
        topics: Any = ANYTHING(by_id={TOPIC_ID: Topic(TOPIC, TOPIC_ID, len(self._registry.replicas))})
        metadata = self.metadata = Metadata(
            self.id,
            self._registry,
            self._network,
            lambda message, respond: self.member.deliver(message, respond),
            topics,
        )
        stood_in: Any = metadata
        fetchers = Fetchers(
            self.id,
            LIMITS,
            group_commit=self.group_commit,
            thread=self.threads[0],
            address_of=view.inter_broker_address,
            advance_start=ANYTHING(),
            is_busy=lambda _partition: False,
            lower_offsets=lambda topic, index, offset: self.high_watermarks.lower({(topic, index): offset}),
        )
        self.replication = Replication(
            self.id,
            fetchers,
            lag=LAG,
            clock=self.clock,
            deferred=deferred,
            is_alive=lambda broker_id: broker_id in view.brokers,
            controller=ControllerClient(self.id, ToController(view, f"broker-{self.id}"), stood_in),
            stored_high_watermark=self.high_watermarks.get,
        )
        operations = ANYTHING(host=self._host)
        self.member = Member(
            self.id, view, topics, self.partitions, operations, stood_in, self.replication, lambda _topics: None
        )
        self.node = ANYTHING(
            partitions=self.partitions,
            topics=ANYTHING(name_of=lambda _topic_id: TOPIC),
            config=ANYTHING(fetch_bytes_max=1000, request_partitions_max=100),
            throttling=ANYTHING(quotas=ANYTHING(counts=False)),
            parked_fetches=ParkedFetches(1000),
            deferred=deferred,
            authorizer=None,
            access=lambda _request: FULL_ACCESS,
            cluster=ANYTHING(member=self.member, metadata=metadata),
        )

    def _new_rounds(self, name: str, end: Callable[[Any], None]) -> SteppedRounds:
        rounds = SteppedRounds(name, self.loop, end)
        self.threads.append(rounds)
        return rounds

    def _directory(self, place: Place) -> Path:
        return self._root / f"{place[0]}-{place[1]}"

    def _open(self, place: Place) -> None:
        log = PartitionLog.open(
            self._directory(place), self._config, disk=self.disk, clock=self.clock, clean=False, is_replica=True
        )
        self.partitions.host(*place, log)

    def _host(self, wanted: Sequence[tuple[Topic, int]], hosted: Callable[[Mapping[Place, str]], None]) -> None:
        failures: dict[Place, str] = {}
        for topic, index in wanted:
            place = topic.name, index
            if self.partitions.hosted(*place) is None:
                try:
                    self._open(place)
                except OSError as error:
                    failures[place] = str(error)
        hosted(failures)

    def _note(self, _loop: object, context: dict[str, Any]) -> None:
        self._unexpected.note(str(context.get("message")), context.get("exception"))

    # Its life

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Let its loop be the running one."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self.loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    def advance_ms(self, duration_ms: float) -> None:
        """Let its clock run, at its own speed."""
        self._fraction_ms += duration_ms * self._rate
        whole_ms = int(self._fraction_ms)
        self._fraction_ms -= whole_ms
        self.clock.advance_ms(whole_ms)

    def run(self, disk_speed: float) -> None:
        """Make some turns of the loop; the disk does some of its work."""
        for thread in self.threads:
            if thread.work and self._chance.random() < disk_speed:
                thread.step()
        for _ in range(TURNS):
            if self.loop.is_idle and not self._is_timer_due():
                return
            self.loop.turn()

    def _is_timer_due(self) -> bool:
        scheduled = self.loop._scheduled  # type: ignore[attr-defined]
        return bool(scheduled) and scheduled[0].when() <= self.loop.time()

    def look(self) -> None:
        """Follow the registry."""
        if self.is_up and self.metadata is not None:
            with self.inside():
                self.metadata.look()

    def checkpoint(self) -> None:
        """Store the high watermarks, as the housekeeping does from time to time."""
        stood_in: Any = ANYTHING(
            _partitions=self.partitions,
            _directory=ANYTHING(high_watermarks=self.high_watermarks),
            _in_thread=lambda work: self.loop.run_in_executor(self.threads[0], work),
        )

        async def store() -> None:
            with contextlib.suppress(OSError):
                await Housekeeping.store_high_watermarks(stood_in)

        with self.inside():
            self.loop.create_task(store())

    def serve(self, frame: bytes, line: Line) -> None:
        """Handle a request of another broker."""
        with self.inside():
            view = memoryview(bytearray(frame))
            header = read_request_header(view, served=apis.CLUSTER_APIS)
            line.reply = Reply(line)
            try:
                HANDLERS[header.api.key](self.node, Request(header, view, line.reply, line.peer_host))
            except Exception as error:  # noqa: BLE001 - what a connection would log as a failed request
                self._unexpected.note(f"a {header.api.name} request failed", error)
                line.close(None)

    def stop(self, *, cuts_power: bool, drop_all: bool = False) -> None:
        """Kill the process, or cut the power of its machine."""
        self.disk.cut_power()
        self._network.break_some(self.id)
        for thread in self.threads:
            thread.work.clear()
        self._cancel_tasks()
        self.is_up = False
        for partition in self.partitions:
            partition.log.close_files()
        self.loop._ready.clear()  # type: ignore[attr-defined]
        self.loop.close()
        if cuts_power:
            self.disk.fail_next_syncs(0)
            self.disk.fail_next_directory_syncs(0)
            self.needs_power_cut = False
            self.disk.crash(self._chance.randrange(1 << 30), drop_all=drop_all)
        else:
            self.disk.kill()

    def repair(self) -> None:
        """Give the disk space again."""
        self.disk.space_bytes = None

    def lose_disk(self) -> None:
        """Let the process that is down start with an empty disk."""
        for child in self._root.iterdir():
            shutil.rmtree(child) if child.is_dir() else child.unlink()
        self.disk = FaultyDisk(self._root)

    def _cancel_tasks(self) -> None:
        for _ in range(20):
            tasks = asyncio.all_tasks(self.loop)
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            self.loop.turn()

    # What the world looks at

    def hosted(self, place: Place) -> Partition | None:
        """Return a partition of a running process."""
        return self.partitions.hosted(*place) if self.is_up else None

    def led(self, place: Place) -> Led | None:
        """Return the state of a partition that the process leads, as far as it knows."""
        partition = self.partitions.get(*place) if self.is_up else None
        return None if partition is None else self.replication.led(partition)

    @property
    def is_serving(self) -> bool:
        """Whether it is up and has registered; the requests to it are those of its own broker epoch then."""
        return self.is_up and self.metadata is not None and self.metadata.broker_epoch >= 0

    @property
    def has_failed(self) -> bool:
        """Whether a log accepts no more records."""
        return self.is_up and any(
            partition.log.durability.failure is not None and not partition.log.is_truncating
            for partition in self.partitions
        )
