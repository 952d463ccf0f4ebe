"""One run on three brokers that are killed, frozen and parted from each other, from ZooKeeper and from the clients.

Faults strike one broker at a time, but not before the others have caught up. Partitions last longer than
ZooKeeper's sessions and than a replica may lag, so that leaders, coordinators and the controller change under the
clients. A broker that is thawed, or whose held traffic arrives late, still believes that it leads.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from onceflow import services
from onceflow.client.cluster import Cluster
from onceflow.client.errors import ClientError, TopicExists
from tests.broker.cluster.processes import lose_machine
from tests.histories.broker_with_clock import SkewedBroker
from tests.histories.history import History
from tests.histories.network import Flow, Network
from tests.histories.run import BROKER, CALM_S_MAX, JUMPS_MS, observed
from tests.histories.workers import EVENTS, KEYS, PARTITIONS, Run

BROKERS = (1, 2, 3)
CLIENTS, ZOOKEEPER = "clients", "zookeeper"
SESSION_MS = 4_000
SETTINGS = {
    "zookeeper-session-timeout-ms": SESSION_MS,
    "default-replication-factor": 3,
    "min-insync-replicas": 2,
    "offsets-topic-num-partitions": 3,
    "transaction-state-log-num-partitions": 5,
    "replica-lag-time-max-ms": SESSION_MS,
    "leader-imbalance-check-interval-seconds": 10,
}
AWAY_S_MAX = 10.0
CREATED_WITHIN_S = 240.0
STALLED_S = 240.0
"""Longer than any fault, and than the elections after it on a busy machine."""
HANG_S = 20.0


class Stalled(AssertionError):
    """A partition acknowledges nothing although a majority of the brokers is well."""


def name_of(broker_id: int) -> str:
    return f"broker {broker_id}"


class ClusterFaults:
    """Kills, lost machines, freezes, clock jumps and partitions, one after the other."""

    def __init__(self, brokers: dict[int, SkewedBroker], network: Network, work: Run) -> None:
        self._brokers = brokers
        self._network = network
        self._work = work
        self._chance = random.Random(f"{work.seed} faults")
        self.counts: Counter[str] = Counter()

    def rage(self, seconds: float) -> None:
        """Inject faults for that many seconds; all brokers run and are connected afterwards. Raises Stalled."""
        begin = time.monotonic()
        while (left := begin + seconds - time.monotonic()) > 0:
            time.sleep(min(left, self._chance.random() * CALM_S_MAX))
            victim = self._chance.choice(BROKERS)
            strike = self._chance.choice(
                (self._kill, self._lose_machine, self._freeze, self._jump, self._part, self._part, self._part)
            )
            strike(victim)
            self._check_progress(begin)

    def _check_progress(self, begin: float) -> None:
        now = time.monotonic()
        last = {key: self._work.acknowledged.get(key, begin) for key in KEYS if key.startswith(EVENTS)}
        if stalled := {key: f"{now - at:.0f} s" for key, at in last.items() if now - at > STALLED_S}:
            raise Stalled(f"nothing is acknowledged for {stalled}")

    def _wait_away(self) -> None:
        time.sleep(self._chance.random() * AWAY_S_MAX)

    def _kill(self, victim: int) -> None:
        self.counts["kill"] += 1
        self._restart(victim, self._brokers[victim].kill)

    def _lose_machine(self, victim: int) -> None:
        self.counts["lost machine"] += 1
        self._restart(victim, lambda: lose_machine(self._brokers[victim]))

    def _restart(self, victim: int, end: Callable[[], None]) -> None:
        end()
        self._wait_away()
        self._brokers[victim].start()

    def _freeze(self, victim: int) -> None:
        self.counts["freeze"] += 1
        os.kill(self._brokers[victim].pid, signal.SIGSTOP)
        try:
            self._wait_away()
        finally:
            os.kill(self._brokers[victim].pid, signal.SIGCONT)

    def _jump(self, victim: int) -> None:
        self.counts["clock jump"] += 1
        self._brokers[victim].skew.ms += self._chance.choice((-1, 1)) * self._chance.choice(JUMPS_MS)

    def _part(self, victim: int) -> None:
        """Part a broker from some others; sometimes only one way, sometimes with the loss of what is on its way."""
        others = [name_of(broker_id) for broker_id in BROKERS if broker_id != victim]
        peers = self._chance.choice(
            ([self._chance.choice(others)], others, [ZOOKEEPER], [CLIENTS], [*others, ZOOKEEPER])
        )
        out = [Flow(name_of(victim), peer) for peer in peers]
        back = [flow.back for flow in out]
        kind = self._chance.choice(("refused", "held", "held one way"))
        self.counts["partition"] += 1
        self.counts[f"partition, {kind}"] += 1
        if kind == "refused":
            self._network.refuse(out)
        elif kind == "held":
            self._network.hold(out + back)
        else:
            self._network.hold(self._chance.choice((out, back)))
        self._wait_away()
        if self._chance.random() < 0.5:
            self._network.refuse(out)
        self._network.release()


def create_topics_on_all(bootstrap: str) -> None:
    """Create the topics once the controller knows all brokers; on a busy machine another one may be elected first."""
    deadline = time.monotonic() + CREATED_WITHIN_S
    with Cluster(bootstrap) as cluster:
        for topic, count in PARTITIONS.items():
            while True:
                try:
                    cluster.create_topic(topic, count)
                except TopicExists:
                    break
                except ClientError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)
                else:
                    break


@contextmanager
def brokers_of(network: Network, zookeeper: str, directory: Path) -> Iterator[tuple[dict[int, SkewedBroker], str]]:
    """Start brokers whose connections all pass the network; yield them and the addresses for clients."""
    host_port, _, chroot = zookeeper.partition("/")
    zookeeper_port = int(host_port.rpartition(":")[2])
    addresses = {f"127.0.0.{10 + broker_id}": name_of(broker_id) for broker_id in BROKERS}
    brokers: dict[int, SkewedBroker] = {}
    bootstrap = []
    with ExitStack() as stack:
        for address, broker_id in zip(addresses, BROKERS, strict=True):
            registry_port = network.listen(ZOOKEEPER, zookeeper_port, {}, name_of(broker_id))
            port = services.free_port()
            bootstrap.append(f"127.0.0.1:{network.listen(name_of(broker_id), port, addresses, CLIENTS)}")
            options = {
                **SETTINGS,
                "zookeeper-connect": f"127.0.0.1:{registry_port}/{chroot}",
                "broker-id": broker_id,
                "advertise": bootstrap[-1],
            }
            given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
            brokers[broker_id] = SkewedBroker(
                directory / str(broker_id), *BROKER, *given, port=port, source_address=address
            )
            stack.enter_context(brokers[broker_id])
        yield brokers, ",".join(bootstrap)


def run_on_cluster(directory: Path, zookeeper: str, seed: int, seconds: float) -> tuple[History, Counter[str]]:
    """Return the history of a run of `seconds` under faults, read to its end, and its figures.

    `zookeeper` is the address with a chroot. Raises Stalled.
    """
    with Network() as network, brokers_of(network, zookeeper, directory) as (brokers, bootstrap):
        create_topics_on_all(bootstrap)
        work = Run(bootstrap, seed)
        faults = ClusterFaults(brokers, network, work)
        history, figures = observed(work, lambda: faults.rage(seconds), hang_s=HANG_S)
    return history, figures + faults.counts
