"""Millions of events by HTTP, gzip in batches: events per second, memory, and whether each event is counted once.

A client of our own sends the events over some connections at a time, repeats a refused request, and broker, server and
client share the machine. The memory of server and broker is read twice a second. Afterwards each event's number must be
in the topic once, and `onceflow run` must count as many events as were sent.

python -m benchmarks.ingestion_many [EVENTS [EVENTS_PER_REQUEST]]
"""

import asyncio
import gzip
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np

from benchmarks.ingestion import cpu_seconds
from benchmarks.memory import resident_mb
from onceflow import services
from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.records import read_records
from onceflow.testing import BrokerProcess
from tests.clicks.ingest.test_server import running

EVENTS, EVENTS_PER_REQUEST = 10_000_000, 1_000
CONNECTIONS = 8
PARTITIONS = 4
TOPIC = "many"
ONCEFLOW = [sys.executable, "-m", "onceflow"]
EVENT = '{"uid":"user-%d","event_id":"%d","click_count":1,"event_time":1700000000000,"os_type":"Android"}'
USERS = 100_000


class Sent(NamedTuple):
    """Results of the client."""

    seconds: float
    latencies_ms: list[float]
    refused: int


async def client(url: str, ranges: "list[range]", latencies_ms: list[float]) -> int:
    """Send ranges of event numbers over one connection while there are any; return the number of refused requests."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    refused = 0
    while ranges:
        numbers = ranges.pop()
        events = ",".join(EVENT % (number % USERS, number) for number in numbers)
        body = gzip.compress(f"[{events}]".encode(), compresslevel=1)
        head = b"POST /events HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
        begin = time.perf_counter()
        writer.write(head + body)
        response = await reader.readuntil(b"\r\n\r\n")
        length = int(response.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        document = json.loads(await reader.readexactly(length))
        latencies_ms.append((time.perf_counter() - begin) * 1_000)
        if response.startswith((b"HTTP/1.1 429 ", b"HTTP/1.1 503 ")) and not document.get("accepted"):
            refused += 1
            ranges.append(numbers)
            await asyncio.sleep(0.1)
        elif not response.startswith(b"HTTP/1.1 200 ") or document["accepted"] != len(numbers):
            raise SystemExit(f"{response!r} {document}")
    writer.close()
    return refused


async def clients(url: str, count: int, size: int) -> Sent:
    """Send all events over all connections."""
    ranges = [range(first, min(first + size, count)) for first in range(0, count, size)]
    latencies_ms: list[float] = []
    begin = time.perf_counter()
    refused = await asyncio.gather(*(client(url, ranges, latencies_ms) for _ in range(CONNECTIONS)))
    return Sent(time.perf_counter() - begin, latencies_ms, sum(refused))


def send(url: str, count: int, size: int) -> Sent:
    """Run the clients, in a process of its own."""
    return asyncio.run(clients(url, count, size))


class Memory(threading.Thread):
    """Reader of the resident memory of processes, in MB."""

    def __init__(self, processes: dict[str, int]) -> None:
        super().__init__()
        self._processes = processes
        self._end = threading.Event()
        self.seen: dict[str, list[float]] = {name: [] for name in processes}

    def run(self) -> None:
        """Read until `end`."""
        while not self._end.wait(0.5):
            for name, process_id in self._processes.items():
                self.seen[name].append(resident_mb(process_id))

    def end(self) -> None:
        """End the thread."""
        self._end.set()
        self.join()


def times_in_topic(bootstrap: str, count: int) -> np.ndarray:
    """Return for each event's number how often it is in the topic."""
    times = np.zeros(count, np.uint8)
    with Cluster(bootstrap) as cluster:
        partitions = cluster.require_topic(TOPIC).partitions
        starts = cluster.list_offsets(TOPIC, dict.fromkeys(partitions, EARLIEST))
        ends = cluster.list_offsets(TOPIC, dict.fromkeys(partitions, LATEST))
        for partition in partitions:
            for record in read_records(cluster, TOPIC, partition, starts[partition].offset, ends[partition].offset):
                times[int(json.loads(record.value or b"")["event_id"])] += 1
    return times


def counted(bootstrap: str, directory: Path) -> int:
    """Return the number of events that `onceflow run` counts in the topic."""
    port = services.free_port()
    (directory / "redis").mkdir()
    arguments = services.redis_arguments(services.find_redis_server(), directory / "redis", port)
    server = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    try:
        url = ["--redis", f"redis://127.0.0.1:{port}/1"]
        environment = {**os.environ, "JAVA_HOME": str(services.find_java(directory / "java"))}
        run = [*ONCEFLOW, "run", "--bootstrap", bootstrap, "--topic", TOPIC, *url, "--trigger", "available-now"]
        subprocess.run(
            [*run, "--checkpoint", str(directory / "checkpoint"), "-q"],
            check=True,
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        clicks = subprocess.run([*ONCEFLOW, "clicks", *url, "--json"], check=True, capture_output=True)
        events: int = json.loads(clicks.stdout)["events"]
        return events
    finally:
        server.terminate()
        server.wait()


def main(count: int = EVENTS, size: int = EVENTS_PER_REQUEST) -> None:
    """Print the figures. Raises SystemExit for an event that is lost, or there twice."""
    with tempfile.TemporaryDirectory() as name, BrokerProcess(Path(name) / "broker") as broker:
        with running(broker.bootstrap, TOPIC, "--partitions", str(PARTITIONS)) as server:
            assert server.process is not None
            memory = Memory({"server": server.process.pid, "broker": broker.pid})
            before = cpu_seconds(server.process.pid)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                memory.start()
                sent = pool.apply(send, (server.url, count, size))
                memory.end()
            cpu_us = (cpu_seconds(server.process.pid) - before) / count * 1e6
        p50, p99 = np.percentile(sent.latencies_ms, [50, 99])
        print(f"{count:,} events, {size:,} per request, gzip, {CONNECTIONS} connections: {count / sent.seconds:,.0f}/s")
        print(f"a request: p50 {p50:.0f} ms, p99 {p99:.0f} ms; {sent.refused} refused and sent again")
        print(f"server: {cpu_us:.1f} us of CPU per event")
        for process, sizes in memory.seen.items():
            half = len(sizes) // 2
            print(f"{process}: at most {max(sizes[:half]):.0f} MB in the first half, {max(sizes[half:]):.0f} MB later")
        times = times_in_topic(broker.bootstrap, count)
        lost, twice = int((times == 0).sum()), int((times > 1).sum())
        events = counted(broker.bootstrap, Path(name))
        print(f"{lost} lost, {twice} twice; onceflow run counted {events:,}")
        if (lost, twice, events) != (0, 0, count):
            raise SystemExit("the events in the topic or the count differ from what was sent")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
