"""Throughput and latency of a producer and a consumer beside stopped consumers, slow ones, and a mirror.

    python -m benchmarks.neighbours                     each neighbour
    python -m benchmarks.neighbours stopped --runs 3     one of them

Each round is a pair of runs, with the neighbour and without, in alternating order, on a fresh topic with a backlog. The
neighbours begin at its start, the producer and the consumer at its end. Printed only: the peer is the broker alone.

- stopped: consumers that have sent requests for megabytes and read no response; their connections stay open.
- slow: consumers far behind, each with one request for 64 KiB every 50 ms, one after the other.
- mirror: `onceflow mirror` with a broker of its own. It has mirrored the backlog before, and mirrors what is measured.
"""

import argparse
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import librdkafka
from benchmarks.child import Child
from benchmarks.comparison import RUNS, in_turns, ratios, spread
from benchmarks.figures import row
from benchmarks.peers import OURS, Peer, fresh_topic, touch_memory
from benchmarks.pipeline import ONCEFLOW
from benchmarks.raw_connection import FETCH_VERSION, RawConnection, produce_request, stream
from onceflow.client.cluster import LATEST, Cluster
from onceflow.testing import BrokerProcess
from onceflow.wire import fetch
from onceflow.wire.fetch import FetchPartition, FetchRequest

CONSUMERS = 10
BACKLOG_BATCHES = 6_000
"""Batches of 16 records of 1 kB: some 100 MB."""
BATCH_RECORDS, VALUE_BYTES = 16, 1_000
STOPPED_REQUESTS = 8
STOPPED_RESPONSE_BYTES = 8 << 20
SLOW_RESPONSE_BYTES = 64 << 10
SLOW_PAUSE_S = 0.05
RATE = 2_000
"""Records per second while the latency is measured."""
CATCH_UP_S = 120.0
HEAD = (
    "| neighbour | records/s alone | beside it | beside / alone | p99 alone, ms | beside it | beside / alone "
    "| CPU of the broker, beside / alone |\n|---|---|---|---|---|---|---|---|"
)


Neighbour = Callable[[Peer, str, Path], AbstractContextManager[None]]
"""Context of a neighbour: broker, topic, and a directory for its files."""


@dataclass(frozen=True)
class Size:
    """Records of the throughput, and seconds of the latency."""

    records: int
    seconds: float


@dataclass(frozen=True)
class Result:
    """Figures of one run."""

    rate: float
    p99_ms: float
    cpu_seconds: float


def fetch_request(topic: str, offset: int, response_bytes: int) -> bytes:
    """Return a request for partition 0, with a response of that size."""
    asked = FetchPartition(0, -1, offset, -1, response_bytes)
    limits = FetchRequest(-1, 0, 1, response_bytes, 0, 0, -1, [(topic, [asked])])
    return fetch.encode_request(FETCH_VERSION, 1, "neighbour", limits)


@contextmanager
def stopped(peer: Peer, topic: str, _directory: Path) -> Iterator[None]:
    """Consumers that stopped: requests for megabytes are sent, and no response is read."""
    host, _, port = peer.bootstrap.rpartition(":")
    request = fetch_request(topic, 0, STOPPED_RESPONSE_BYTES)
    with ExitStack() as opened:
        connections = [opened.enter_context(socket.create_connection((host, int(port)))) for _ in range(CONSUMERS)]
        for connection in connections:
            connection.sendall(request * STOPPED_REQUESTS)
        yield
        for connection in connections:
            unread = connection.recv(1, socket.MSG_PEEK)
            assert unread, "the broker closed the connection of a stopped consumer"


@contextmanager
def slow(peer: Peer, topic: str, directory: Path) -> Iterator[None]:
    """Consumers far behind, in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.neighbours", "--read-slowly", peer.bootstrap, topic]
    with Child(command, directory / "slow.log") as readers:
        readers.ask("begin")
        yield
        assert not readers.has_ended, (directory / "slow.log").read_text()
        readers.kill()


def read_slowly(bootstrap: str, topic: str) -> None:
    """Read the backlog again and again, in small responses with pauses, until this process is killed."""
    assert json.loads(sys.stdin.readline())["work"] == "begin"
    end = BACKLOG_BATCHES * BATCH_RECORDS
    batches = SLOW_RESPONSE_BYTES // (BATCH_RECORDS * VALUE_BYTES)
    with ExitStack() as opened:
        connections = [opened.enter_context(RawConnection(bootstrap)) for _ in range(CONSUMERS)]
        offset = 0
        while True:
            request = fetch_request(topic, offset, SLOW_RESPONSE_BYTES)
            for connection in connections:
                connection.send(request)
                assert len(connection.respond()) > SLOW_RESPONSE_BYTES // 2
                time.sleep(SLOW_PAUSE_S / CONSUMERS)
            if offset == 0:
                print("{}", flush=True)
            offset = (offset + batches * BATCH_RECORDS) % (end - batches * BATCH_RECORDS)


@contextmanager
def mirror(peer: Peer, topic: str, directory: Path) -> Iterator[None]:
    """A mirror of the topic that has caught up, with its target."""
    words = ["mirror", "--to", "TARGET", "--from", peer.bootstrap, "--topics", re.escape(topic), "--name", topic]
    with ExitStack() as opened:
        target = opened.enter_context(BrokerProcess(directory / f"target-{topic}"))
        command = [*ONCEFLOW, *(target.bootstrap if word == "TARGET" else word for word in words)]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            await_mirrored(target.bootstrap, topic, running)
            yield
            assert running.poll() is None, "the mirror ended"
        finally:
            running.terminate()
            running.wait(60)


def await_mirrored(bootstrap: str, topic: str, running: "subprocess.Popen[bytes]") -> None:
    """Wait until the backlog is in the target."""
    deadline = time.monotonic() + CATCH_UP_S
    with Cluster(bootstrap) as cluster:
        while topic not in cluster.topics() or (
            cluster.list_offsets(topic, {0: LATEST})[0].offset < BACKLOG_BATCHES * BATCH_RECORDS
        ):
            assert running.poll() is None, "the mirror ended"
            assert time.monotonic() < deadline, f"the mirror is behind after {CATCH_UP_S:g} s"
            time.sleep(0.1)


@contextmanager
def alone(_peer: Peer, _topic: str, _directory: Path) -> Iterator[None]:
    """No neighbour."""
    yield


NEIGHBOURS: dict[str, Neighbour] = {"stopped": stopped, "slow": slow, "mirror": mirror}


def end_of(peer: Peer, topic: str) -> int:
    """Return the end of partition 0."""
    with Cluster(peer.bootstrap) as cluster:
        return cluster.list_offsets(topic, {0: LATEST})[0].offset


def written_and_read(peer: Peer, topic: str, count: int) -> float:
    """Return records per second that are written and read at the same time, until both have ended."""
    end, rates = end_of(peer, topic), list[float]()
    reading = threading.Thread(
        target=lambda: rates.append(librdkafka.consume(peer, topic, count, librdkafka.NO_PAUSE, end))
    )
    started = time.perf_counter()
    reading.start()
    librdkafka.produce(peer, topic, VALUE_BYTES, count)
    reading.join()
    assert rates, "the consumer did not come to the end"
    return count / (time.perf_counter() - started)


def measured(beside: Neighbour, peer: Peer, name: str, directory: Path, size: Size, run: int) -> Result:
    """Return the result of one run on a topic of its own."""
    with fresh_topic(peer, f"neighbours-{name}-{run}", {}) as topic:
        stream(peer.bootstrap, produce_request(topic, BATCH_RECORDS, VALUE_BYTES), BACKLOG_BATCHES)
        with beside(peer, topic, directory):
            before = peer.cpu_seconds()
            rate = written_and_read(peer, topic, size.records)
            _p50, p99 = librdkafka.end_to_end(peer, topic, RATE, size.seconds, end_of(peer, topic))
            return Result(rate, p99, peer.cpu_seconds() - before)


def line(name: str, without: Sequence[Result], beside: Sequence[Result]) -> str:
    """Return the table's line of one neighbour."""
    cells = []
    for field in ("rate", "p99_ms"):
        before, after = ([getattr(result, field) for result in results] for results in (without, beside))
        cells += [spread(before), spread(after), spread(ratios(after, before))]
    cpu = ratios([result.cpu_seconds for result in beside], [result.cpu_seconds for result in without])
    return row(name, *cells, spread(cpu)).text


def main(arguments: Sequence[str]) -> None:
    """Measure and print, or read slowly for a measurement."""
    if arguments[:1] == ["--read-slowly"]:
        read_slowly(arguments[1], arguments[2])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("neighbours", nargs="*", help=f"of {', '.join(NEIGHBOURS)}; all without")
    parser.add_argument("--runs", type=int, default=RUNS, help="pairs of runs of each (default: %(default)s)")
    parser.add_argument("--records", type=int, default=200_000, help="of each throughput (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each latency (default: %(default)s)")
    options = parser.parse_args(arguments)
    if unknown := set(options.neighbours) - NEIGHBOURS.keys():
        parser.error(f"no such neighbour: {', '.join(sorted(unknown))}; there are {', '.join(NEIGHBOURS)}")
    size = Size(options.records, options.seconds)
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as place, BrokerProcess(Path(place) / "broker") as broker:
        peer, directory = Peer(OURS, broker.bootstrap, broker.pid), Path(place)
        touch_memory()
        for name in options.neighbours or NEIGHBOURS:
            pair = {
                kind: partial(measured, beside, peer, f"{name}-{kind}", directory, size)
                for kind, beside in (("alone", alone), ("beside", NEIGHBOURS[name]))
            }
            results = in_turns(pair, options.runs, uncounted=1)
            print(line(name, results["alone"], results["beside"]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
