"""Whatever of ours produces a key puts it where Java's client does.

The table is what `BuiltInPartitioner.partitionForKey` of kafka-clients 4.1.1 returns for the key's UTF-8 bytes and 7
partitions. Where Kafka's jars and a Java are found, its own console producer takes part.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import kafka
from onceflow.client import KeyedMessage, Producer, TransactionalProducer
from onceflow.client.cluster import LATEST, Cluster
from onceflow.client.producer import EventWriter
from onceflow.client.records import read_records

JAVA_PLACES = {
    "0": 3,
    "1": 2,
    "a": 5,
    "user-1": 3,
    "user-2": 0,
    "4A4D769EB9679C054DE81B973ED5D768": 6,
    "8dfeb5aaafc027d89349ac9a20b3930f": 3,
    "011BBF43B89BFBF266C865DF0397AA71": 4,
    "f2a8474bf7bd94f0aabbd4cdd2c06dcf": 5,
    "ключ": 4,
    "键": 5,
}

Run = Callable[..., subprocess.CompletedProcess[str]]


def by_produce(run: Run, bootstrap: str, topic: str, directory: Path) -> None:
    lines = "".join(f"{key}\tvalue\n" for key in JAVA_PLACES)
    assert run("produce", topic, "--key-separator", "\t", stdin=lines).returncode == 0


def by_replay(run: Run, bootstrap: str, topic: str, directory: Path) -> None:
    file = directory / "clicks.jsonl"
    file.write_text("".join(json.dumps({"uid": key, "event_time": "1"}) + "\n" for key in JAVA_PLACES))
    done = run("replay", str(file), "--topic", topic, "--const", "click_count=1", "--rejects", str(directory / "no"))
    assert done.returncode == 0, done.stderr


def by_producer(run: Run, bootstrap: str, topic: str, directory: Path) -> None:
    with Producer({"metadata.broker.list": bootstrap, "serializer.class": "StringEncoder"}) as producer:
        producer.send([KeyedMessage(topic, "value", key=key) for key in JAVA_PLACES])


def by_transaction(run: Run, bootstrap: str, topic: str, directory: Path) -> None:
    with TransactionalProducer(bootstrap, topic) as producer:
        producer.begin()
        for key in JAVA_PLACES:
            producer.send(topic, b"value", key.encode())
        producer.commit()


def by_event_writer(run: Run, bootstrap: str, topic: str, directory: Path) -> None:
    with EventWriter(bootstrap, topic) as writer:
        for key in JAVA_PLACES:
            writer.write(key.encode(), b"value")


def by_java(run: Run, bootstrap: str, topic: str, directory: Path) -> None:
    java = shutil.which("java")
    if java is None or not kafka.JARS.is_dir():
        pytest.skip("no Java, or none of Kafka's jars: 'make bench' fetches them")
    tool = "org.apache.kafka.tools.ConsoleProducer"
    properties = ["--property", "parse.key=true", "--property", "key.separator=\t"]
    subprocess.run(
        [java, "-cp", f"{kafka.JARS}/*", tool, "--bootstrap-server", bootstrap, "--topic", topic, *properties],
        input="".join(f"{key}\tvalue\n" for key in JAVA_PLACES).encode(),
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        check=True,
        timeout=60,
        capture_output=True,
    )


@pytest.mark.parametrize("produced", [by_produce, by_replay, by_producer, by_transaction, by_event_writer, by_java])
def test_keys_are_placed_like_java(
    produced: Callable[[Run, str, str, Path], None],
    run: Run,
    bootstrap: str,
    cluster: Cluster,
    topic: str,
    tmp_path: Path,
) -> None:
    cluster.create_topic(topic, 7)
    produced(run, bootstrap, topic, tmp_path)
    ends = cluster.list_offsets(topic, dict.fromkeys(range(7), LATEST), read_committed=False)
    places = {
        (record.key or b"").decode(): partition
        for partition, end in ends.items()
        for record in read_records(cluster, topic, partition, 0, end.offset)
    }
    assert places == JAVA_PLACES
