"""Kafka's ProducerPerformance and ConsumerPerformance, from the jars of the compared Kafka."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import kafka
from benchmarks.peers import Peer
from onceflow import services

TIMEOUT_SECONDS = 300


def run(tool: str, *arguments: str) -> str:
    """Run a tool and return its output."""
    classpath = kafka.jars()
    assert classpath is not None, "Kafka's jars were found when the peer was started"
    with tempfile.TemporaryDirectory() as directory:
        java = str(services.find_java(Path(directory)) / "bin" / "java")
        command = [java, "-cp", f"{classpath}/*", f"org.apache.kafka.tools.{tool}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_SECONDS).stdout


@contextmanager
def config(peer: Peer, option: str) -> Iterator[tuple[str, ...]]:
    """Return the option with a file of the peer's settings; nothing without settings."""
    if not peer.java_clients:
        yield ()
        return
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
        file.writelines(f"{name}={value}\n" for name, value in peer.java_clients.items())
        file.flush()
        yield option, file.name


def produce(peer: Peer, topic: str, size_bytes: int, count: int) -> tuple[float]:
    """Return records per second by ProducerPerformance."""
    properties = [f"bootstrap.servers={peer.settings['bootstrap.servers']}", "acks=all"]
    work = ["--topic", topic, "--record-size", str(size_bytes), "--num-records", str(count), "--throughput", "-1"]
    with config(peer, "--producer.config") as secured:
        output = run("ProducerPerformance", *work, *secured, "--producer-props", *properties)
    return (float(re.findall(r"([0-9.]+) records/sec", output)[-1]),)


def consume(peer: Peer, topic: str, size_bytes: int, count: int) -> tuple[float]:
    """Return records per second by ConsumerPerformance, without the start of its group."""
    produce(peer, topic, size_bytes, count)
    address = ("--bootstrap-server", peer.settings["bootstrap.servers"])
    work = ("--topic", topic, "--messages", str(count), "--timeout", "60000")
    with config(peer, "--consumer.config") as secured:
        output = run("ConsumerPerformance", *address, *work, *secured)
    head, *rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if "," in line]
    return (float(rows[-1][head.index("fetch.nMsg.sec")]),)
