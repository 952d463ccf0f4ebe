"""kcat: metadata, produce with keys, headers and codecs, consume from any place, groups, queries, transactions."""

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
    """What `kcat -b BROKER arguments…` prints; its failure is the test's."""
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
    """-L names one broker, the controller, and a topic's partitions with their leader."""
    create(bootstrap, topic, 3)
    told = json.loads(kcat(bootstrap, "-L", "-J", "-t", topic))
    assert told["brokers"] == [{"id": 1, "name": bootstrap}]
    assert told["controllerid"] == 1
    (described,) = told["topics"]
    assert described["topic"] == topic
    assert [value["partition"] for value in described["partitions"]] == [0, 1, 2]
    for partition in described["partitions"]:
        assert (partition["leader"], partition["replicas"], partition["isrs"]) == (1, [{"id": 1}], [{"id": 1}])
    assert topic in kcat(bootstrap, "-L")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_keys_headers_and_codecs(bootstrap: str, topic: str, codec: str) -> None:
    """Each record comes back with key, value, headers and offset; an empty value is null with -Z."""
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
    """Beginning, a number, a number from the end, a stored time from and to, the end."""
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
    """-Q answers with the first offset at or after a time, and with the log's two ends."""
    create(bootstrap, topic, 1)
    kcat(bootstrap, "-P", "-t", topic, stdin="one\ntwo\n")
    for asked, offset in (("0", 0), ("-2", 0), ("-1", 2)):
        assert kcat(bootstrap, "-Q", "-t", f"{topic}:0:{asked}") == f"{topic} [0] offset {offset}\n"


def test_a_group_goes_on_where_it_was(bootstrap: str, topic: str) -> None:
    """-G reads all partitions; the second run of the group has only what came since."""
    create(bootstrap, topic, 2)
    group = ("-G", topic, "-X", "auto.offset.reset=earliest", "-e", "-q", topic)
    kcat(bootstrap, "-P", "-t", topic, "-p", "0", stdin="one\n")
    kcat(bootstrap, "-P", "-t", topic, "-p", "1", stdin="two\n")
    assert sorted(kcat(bootstrap, *group).splitlines()) == ["one", "two"]
    kcat(bootstrap, "-P", "-t", topic, "-p", "1", stdin="three\n")
    assert kcat(bootstrap, *group).splitlines() == ["three"]


class Member:
    """`kcat -G` that stays until it is told to leave."""

    def __init__(self, bootstrap: str, group: str, directory: Path, number: int) -> None:
        self._records = directory / f"records-{number}"
        self._told = directory / f"told-{number}"
        command = [tool("kcat", "apt install kcat"), "-b", bootstrap, "-X", "heartbeat.interval.ms=200", "-u"]
        command += ["-X", "auto.offset.reset=earliest", "-G", group, group]
        with self._records.open("wb") as records, self._told.open("wb") as told:
            self._process = subprocess.Popen(command, stdout=records, stderr=told)

    @property
    def values(self) -> list[str]:
        return self._records.read_text().splitlines()

    @property
    def partitions(self) -> list[str]:
        """Of its last assignment."""
        words = self._told.read_text().rpartition("rebalanced ")[2].partition("\n")[0]
        return re.findall(r"\[(\d+)\]", words.partition(": assigned: ")[2])

    def leave(self) -> None:
        self._process.terminate()
        assert self._process.wait(timeout=30) == 0, self._told.read_text()


def test_members_share_a_group_and_one_takes_over(bootstrap: str, topic: str, tmp_path: Path) -> None:
    """Each record goes to one member; who leaves has committed what it has read."""
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
    """With a transactional id kcat commits its whole input; of others it reads what is committed, or everything."""
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
    """A producer of librdkafka with one record in its open transaction."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(WAIT_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, value)
    assert producer.flush(WAIT_SECONDS) == 0
    return producer
