"""Kafka's ProducerPerformance and ConsumerPerformance, from the jars of the compared Kafka."""

import re
import subprocess
import tempfile
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


def produce(peer: Peer, topic: str, size_bytes: int, count: int) -> tuple[float]:
    """Return records per second by ProducerPerformance."""
    properties = [f"bootstrap.servers={peer.bootstrap}", "acks=all"]
    size = ["--record-size", str(size_bytes), "--num-records", str(count)]
    output = run("ProducerPerformance", "--topic", topic, *size, "--throughput", "-1", "--producer-props", *properties)
    return (float(re.findall(r"([0-9.]+) records/sec", output)[-1]),)


def consume(peer: Peer, topic: str, size_bytes: int, count: int) -> tuple[float]:
    """Return records per second by ConsumerPerformance, without the start of its group."""
    produce(peer, topic, size_bytes, count)
    output = run(
        "ConsumerPerformance",
        *("--bootstrap-server", peer.bootstrap, "--topic", topic, "--messages", str(count), "--timeout", "60000"),
    )
    head, *rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if "," in line]
    return (float(rows[-1][head.index("fetch.nMsg.sec")]),)
