"""How many events per second does `onceflow serve` accept, and is everything that it acknowledged in the topic?

A client of our own keeps connections open and sends the next request when the last one is acknowledged, with 1, 10 and
100 events per request. Broker, server and client share the machine; with --pipeline, `onceflow run`, Redis and the
dashboard with a page in a browser do too.

python -m benchmarks.ingestion [--pipeline] [SECONDS]
"""

import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
from playwright.sync_api import sync_playwright

from benchmarks.now import TOPIC, counted_topic
from benchmarks.tabs import chromium, dashboard
from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.records import read_records
from onceflow.testing import BrokerProcess
from tests.clicks.ingest.test_server import running

SECONDS = 10.0
CONNECTIONS = 32
SIZES = (1, 10, 100)
PARTITIONS = 4


class Load(NamedTuple):
    """Acknowledged event ids and the latency of each request in ms."""

    acknowledged: list[str]
    latencies_ms: list[float]


def event(event_id: str) -> dict[str, object]:
    """Return an event as the script for web pages sends it."""
    return {
        "click_count": 1,
        "event": "click",
        "uid": f"user-{hash(event_id) % 10_000}",
        "event_id": event_id,
        "event_time": 1_700_000_000_000,
        "os_type": "Android",
        "url": "https://shop.example/basket",
        "referrer": "https://shop.example/",
    }


async def client(url: str, name: str, size: int, deadline: float, load: Load) -> None:
    """Send requests over one connection until the deadline."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    number = 0
    while time.monotonic() < deadline:
        ids = [f"{name}-{number + index}" for index in range(size)]
        number += size
        body = json.dumps([event(event_id) for event_id in ids]).encode()
        writer.write(b"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        begin = time.perf_counter()
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        document = json.loads(await reader.readexactly(length))
        if not head.startswith(b"HTTP/1.1 200 ") or document["accepted"] != size:
            raise SystemExit(f"{head!r} {document}")
        load.latencies_ms.append((time.perf_counter() - begin) * 1_000)
        load.acknowledged.extend(ids)
    writer.close()


async def clients(url: str, size: int, seconds: float) -> Load:
    """Send over all connections at a time."""
    load, deadline = Load([], []), time.monotonic() + seconds
    await asyncio.gather(*(client(url, f"{size}-{number}", size, deadline, load) for number in range(CONNECTIONS)))
    return load


def send(url: str, size: int, seconds: float) -> Load:
    """Run the clients, in a process of its own."""
    return asyncio.run(clients(url, size, seconds))


def ids_in(bootstrap: str, topic: str) -> list[str]:
    """Return the event ids in the topic; "" for an event without one."""
    with Cluster(bootstrap) as cluster:
        partitions = cluster.require_topic(topic).partitions
        starts = cluster.list_offsets(topic, dict.fromkeys(partitions, EARLIEST))
        ends = cluster.list_offsets(topic, dict.fromkeys(partitions, LATEST))
        return [
            json.loads(record.value or b"").get("event_id", "")
            for partition in partitions
            for record in read_records(cluster, topic, partition, starts[partition].offset, ends[partition].offset)
        ]


def cpu_seconds(process_id: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def pipeline(directory: Path) -> Iterator[str]:
    """Start a broker, Redis, `onceflow run` and a dashboard with a page in a browser; return the broker's address."""
    with (
        counted_topic(directory, driver=True) as (bootstrap, url),
        dashboard(directory, bootstrap, url) as (_, address),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium())
        browser.new_page().goto(address)
        yield bootstrap
        browser.close()


@contextmanager
def broker_alone(directory: Path) -> Iterator[str]:
    """Start a broker; return its address."""
    with BrokerProcess(directory / "broker") as broker:
        yield broker.bootstrap


def main(words: Sequence[str]) -> None:
    """Print a row for each size of request."""
    numbers = [word for word in words if word != "--pipeline"]
    seconds = float(numbers[0]) if numbers else SECONDS
    parts = pipeline if "--pipeline" in words else broker_alone
    print("events/request  events/s  p50 ms  p99 ms  server's CPU us/event  acknowledged  lost  twice")
    with (
        tempfile.TemporaryDirectory() as name,
        parts(Path(name)) as bootstrap,
        multiprocessing.get_context("spawn").Pool(1) as pool,
    ):
        for size in SIZES:
            with running(bootstrap, TOPIC, "--partitions", str(PARTITIONS)) as server:
                assert server.process is not None
                begin, cpu_before = time.perf_counter(), cpu_seconds(server.process.pid)
                load = pool.apply(send, (server.url, size, seconds))
                rate = len(load.acknowledged) / (time.perf_counter() - begin)
                cpu_us = (cpu_seconds(server.process.pid) - cpu_before) / len(load.acknowledged) * 1e6
            stored = [event_id for event_id in ids_in(bootstrap, TOPIC) if event_id.startswith(f"{size}-")]
            lost, twice = set(load.acknowledged) - set(stored), len(stored) - len(set(stored))
            p50, p99 = np.percentile(load.latencies_ms, [50, 99])
            figures = f"{rate:>8,.0f}  {p50:>6.1f}  {p99:>6.1f}  {cpu_us:>21.0f}  {len(load.acknowledged):>12,}"
            print(f"{size:>14}  {figures}  {len(lost):>4}  {twice:>5}", flush=True)
            if lost:
                raise SystemExit(f"{len(lost)} acknowledged events are not in the topic")


if __name__ == "__main__":
    main(sys.argv[1:])
