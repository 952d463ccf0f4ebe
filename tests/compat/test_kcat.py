"""kcat: metadata, produce with keys, headers and codecs, consume from any offset, groups, queries, transactions."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from onceflow.wire.codecs import Codec
from tests.broker.raw_client import stored_batches
from tests.compat.conftest import tool

RECORDS = 200
WAIT_SECONDS = 30


def kcat(bootstrap: str, *arguments: str, stdin: str = "") -> str:
    """Return the output of `kcat -b BROKER arguments…`; its failure fails the test."""
    program = tool("kcat", "apt install kcat")
    command = [program, "-b", bootstrap, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def create(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(10)
    admin.list_topics(topic, 10)


def as_json(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


def test_metadata(bootstrap: str, topic: str) -> None:
    """-L lists one broker, the controller, and a topic's partitions with their leader."""
    create(bootstrap, topic, 3)
    metadata = json.loads(kcat(bootstrap, "-L", "-J", "-t", topic))
    assert metadata["brokers"] == [{"id": 1, "name": bootstrap}]
    assert metadata["controllerid"] == 1
    (described,) = metadata["topics"]
    assert described["topic"] == topic
    assert [value["partition"] for value in described["partitions"]] == [0, 1, 2]
    for partition in described["partitions"]:
        assert (partition["leader"], partition["replicas"], partition["isrs"]) == (1, [{"id": 1}], [{"id": 1}])
    assert topic in kcat(bootstrap, "-L")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_keys_headers_and_codecs(bootstrap: str, topic: str, codec: str) -> None:
    """Each record is read back with key, value, headers and offset; an empty value is null with -Z."""
    create(bootstrap, topic, 1)
    lines = "".join(f"key {number}:value {number}\n" for number in range(RECORDS))
    send = ("-P", "-t", topic, "-K:", "-H", "name=text", "-H", "empty=", "-z", codec, "-X", "enable.idempotence=true")
    kcat(bootstrap, *send, stdin=lines)
    stored = stored_batches(bootstrap, topic)
    assert {batch.codec for batch in stored} == {Codec[codec.upper()]}
    assert all(batch.producer_id >= 0 for batch in stored), "idempotent"
    kcat(bootstrap, "-P", "-t", topic, "-K:", "-Z", stdin="deleted:\n")
    *records, deleted = as_json(kcat(bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-J"))
    assert [(record["offset"], record["key"], record["payload"]) for record in records] == [
        (number, f"key {number}", f"value {number}") for number in range(RECORDS)
    ]
    assert all(record["headers"] == ["name", "text", "empty", ""] for record in records)
    assert (deleted["key"], deleted["payload"]) == ("deleted", None)


def test_every_kind_of_offset(bootstrap: str, topic: str) -> None:
    """Start, a number, a number from the end, times as start and end, the end."""
    create(bootstrap, topic, 1)
    kcat(bootstrap, "-P", "-t", topic, stdin="one\ntwo\n")
    time.sleep(0.05)
    between_ms = int(time.time() * 1000)
    kcat(bootstrap, "-P", "-t", topic, stdin="three\nfour\n")

    def read(*offset: str) -> list[str]:
        places = [word for value in offset for word in ("-o", value)]
        return kcat(bootstrap, "-C", "-t", topic, *places, "-e", "-q").splitlines()

    assert read("beginning") == ["one", "two", "three", "four"]
    assert read("1") == ["two", "three", "four"]
    assert read("-3") == ["two", "three", "four"]
    assert read(f"s@{between_ms}") == ["three", "four"]
    assert read("s@0", f"e@{between_ms}") == ["one", "two"]
    assert read("end") == []
    assert kcat(bootstrap, "-C", "-t", topic, "-o", "beginning", "-c", "1", "-q") == "one\n"


def test_offsets_by_time(bootstrap: str, topic: str) -> None:
    """-Q returns the first offset at or after a time, and the log's start and end."""
    create(bootstrap, topic, 1)
    kcat(bootstrap, "-P", "-t", topic, stdin="one\ntwo\n")
    for asked, offset in (("0", 0), ("-2", 0), ("-1", 2)):
        assert kcat(bootstrap, "-Q", "-t", f"{topic}:0:{asked}") == f"{topic} [0] offset {offset}\n"


def test_a_group_continues_at_its_offsets(bootstrap: str, topic: str) -> None:
    """-G reads all partitions; the second run of the group gets only newer records."""
    create(bootstrap, topic, 2)
    group = ("-G", topic, "-X", "auto.offset.reset=earliest", "-e", "-q", topic)
    kcat(bootstrap, "-P", "-t", topic, "-p", "0", stdin="one\n")
    kcat(bootstrap, "-P", "-t", topic, "-p", "1", stdin="two\n")
    assert sorted(kcat(bootstrap, *group).splitlines()) == ["one", "two"]
    kcat(bootstrap, "-P", "-t", topic, "-p", "1", stdin="three\n")
    assert kcat(bootstrap, *group).splitlines() == ["three"]


class Member:
    """`kcat -G` that runs until it is stopped."""

    def __init__(self, bootstrap: str, group: str, directory: Path, number: int) -> None:
        self._records = directory / f"records-{number}"
        self._messages = directory / f"messages-{number}"
        command = [tool("kcat", "apt install kcat"), "-b", bootstrap, "-X", "heartbeat.interval.ms=200", "-u"]
        command += ["-X", "auto.offset.reset=earliest", "-G", group, group]
        with self._records.open("wb") as records, self._messages.open("wb") as messages:
            self._process = subprocess.Popen(command, stdout=records, stderr=messages)

    @property
    def values(self) -> list[str]:
        return self._records.read_text().splitlines()

    @property
    def partitions(self) -> list[str]:
        """Partitions of its last assignment."""
        words = self._messages.read_text().rpartition("rebalanced ")[2].partition("\n")[0]
        return re.findall(r"\[(\d+)\]", words.partition(": assigned: ")[2])

    def leave(self) -> None:
        self._process.terminate()
        assert self._process.wait(timeout=30) == 0, self._messages.read_text()


def test_members_share_a_group(bootstrap: str, topic: str, tmp_path: Path) -> None:
    """Each record is read by one member; one that leaves has committed what it read."""
    create(bootstrap, topic, 2)
    sent: list[str] = []

    def send_to_both() -> None:
        for partition in ("0", "1"):
            sent.append(f"record {len(sent)}")
            kcat(bootstrap, "-P", "-t", topic, "-p", partition, stdin=sent[-1] + "\n")

    first = Member(bootstrap, topic, tmp_path, 1)
    second = None
    try:
        wait_until(lambda: first.partitions == ["0", "1"])
        second = Member(bootstrap, topic, tmp_path, 2)
        wait_until(lambda: sorted(first.partitions + second.partitions) == ["0", "1"] and second.partitions)
        send_to_both()
        wait_until(lambda: len(first.values) == len(second.values) == 1)
        first.leave()
        wait_until(lambda: second.partitions == ["0", "1"])
        send_to_both()
        wait_until(lambda: len(second.values) >= 3)
    finally:
        for member in filter(None, (first, second)):
            member.leave()
    assert sorted(first.values + second.values) == sent


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_transaction(bootstrap: str, topic: str) -> None:
    """kcat commits its whole input with a transactional id; of others it reads committed records, or everything."""
    create(bootstrap, topic, 1)
    aborted = begun(bootstrap, f"{topic} aborted", topic, "aborted")
    aborted.abort_transaction(WAIT_SECONDS)
    kcat(bootstrap, "-P", "-t", topic, "-X", f"transactional.id={topic}", stdin="one\ntwo\n")
    opened = begun(bootstrap, f"{topic} open", topic, "open")

    def read(isolation: str) -> list[str]:
        level = ("-X", f"isolation.level={isolation}")
        return kcat(bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q", *level).splitlines()

    assert read("read_committed") == ["one", "two"]
    assert read("read_uncommitted") == ["aborted", "one", "two", "open"]
    opened.commit_transaction(WAIT_SECONDS)
    assert read("read_committed") == ["one", "two", "open"]


def begun(bootstrap: str, transactional_id: str, topic: str, value: str) -> Producer:
    """Start a producer of librdkafka with one record in its open transaction."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(WAIT_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, value)
    assert producer.flush(WAIT_SECONDS) == 0
    return producer
