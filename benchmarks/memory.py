"""Memory of the broker: idle, with one producer and consumer, and for 1,000 idle connections.

Resident memory as the system counts it (VmRSS), a new process for each run. Apache Kafka's heap is fixed at 1 GB by
its own scripts, so what it takes says more about that setting than about what it needs.
"""

import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import kafka
from benchmarks.comparison import spread
from benchmarks.figures import Line, Table, row
from benchmarks.librdkafka import consume, produce
from benchmarks.peers import Peer
from onceflow.testing import BrokerProcess

RUNS = 3
CONNECTIONS = 1000
RECORDS = 100_000
RECORD_BYTES = 1000


def resident_mb(pid: int) -> float:
    """Resident memory of a process in MB (10^6 bytes)."""
    return _mb(Path(f"/proc/{pid}/status"), "VmRSS:")


def proportional_mb(pid: int) -> float:
    """Memory of a process in MB, with its share of the pages that it has in common with others (Pss)."""
    return _mb(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")


def _mb(path: Path, name: str) -> float:
    kib = next(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(name))
    return kib * 1024 / 1e6


def family(pid: int) -> list[int]:
    """Return a process and its children."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


@contextmanager
def brokers(directory: Path) -> Iterator[list[tuple[str, str, int]]]:
    """(name, bootstrap, process id) of each peer, new processes."""
    with ExitStack() as exits:
        ours = exits.enter_context(BrokerProcess(directory / "onceflow"))
        running = [("onceflow", ours.bootstrap, ours.pid)]
        classpath = kafka.jars()
        if classpath is not None:
            theirs = exits.enter_context(kafka.KafkaProcess(directory / "kafka", classpath))
            running.append((theirs.name, theirs.bootstrap, theirs.pid))
        yield running


def measure(name: str, bootstrap: str, pid: int) -> tuple[float, float, float]:
    """(idle, more for the idle connections, with a producer and a consumer) in MB."""
    host, _, port = bootstrap.rpartition(":")
    time.sleep(1)
    idle = resident_mb(pid)
    clients = [socket.create_connection((host, int(port))) for _ in range(CONNECTIONS)]
    time.sleep(1)
    connected = resident_mb(pid) - idle
    for client in clients:
        client.close()
    peer = Peer(name, bootstrap, pid)
    produce(peer, "memory", RECORD_BYTES, RECORDS)
    consume(peer, "memory", RECORDS)
    return idle, connected, resident_mb(pid)


def measured(_names: Sequence[str]) -> Iterator[Line]:
    """A line for each broker."""
    results: dict[str, list[tuple[float, float, float]]] = {}
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as directory, brokers(Path(directory)) as peers:
            for name, bootstrap, pid in peers:
                results.setdefault(name, []).append(measure(name, bootstrap, pid))
    for name, runs in results.items():
        yield row(name, *(spread(column) for column in zip(*runs, strict=True)))


TABLE = Table(
    "Memory",
    (
        "broker",
        "idle, MB",
        f"{CONNECTIONS:,} idle connections, MB more",
        f"after {RECORDS:,} records in and out, MB",
    ),
    ["both brokers"],
    measured,
    says=f"Median of {RUNS} runs (least to most).",
)
