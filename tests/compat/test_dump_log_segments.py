"""Kafka's DumpLogSegments prints the same lines for Onceflow's files as for Apache Kafka's, after the same records."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import kafka
from onceflow.testing import BrokerProcess
from tests.broker.raw_client import connected
from tests.broker.transactions.transactional_client import TransactionalClient
from tests.compat.kafka_tools import KafkaTools, Peers
from tests.compat.known_differences import KNOWN_DIFFERENCES

WAIT_SECONDS = 30
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
SEGMENT_BYTES = 1 << 20

OF_EACH_BROKER = (
    (re.compile(r"Dumping \S+/"), "Dumping "),
    (re.compile(r"producerId: \d+"), "producerId: ID"),
    (re.compile(r"(isControl: true .*)CreateTime: \d+(.*)crc: \d+"), r"\1CreateTime: TIME\2crc: CRC"),
    (re.compile(r"(isTransactional: true .*)crc: \d+"), r"\1crc: CRC"),
    (re.compile(r"CreateTime: \d+(.*endTxnMarker)"), r"CreateTime: TIME\1"),
)
"""Producer ids and the time of markers, and so the CRC over them, are the broker's; all else is the client's."""


def fill(bootstrap: str, topic: str, begin_ms: int) -> None:
    """Write batches of each codec, three transactions, and enough after them to close a segment."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = NewTopic(topic, 1, 1, config={"segment.bytes": str(SEGMENT_BYTES)})
    admin.create_topics([wanted])[topic].result(WAIT_SECONDS)
    admin.list_topics(topic, WAIT_SECONDS)
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 5000, "topic.metadata.refresh.interval.ms": 100}
    fives = {**settings, "batch.num.messages": 5}
    times_ms = iter(range(begin_ms, begin_ms + 10_000))
    for codec in CODECS:
        producer = Producer({**settings, "batch.num.messages": 10, "compression.type": codec})
        for number in range(10):
            headers = [("header", b"x"), ("null", None)]
            producer.produce(topic, b"value" * number, b"key", headers=headers, timestamp=next(times_ms))  # type: ignore[arg-type]
        deliver(producer)
    producer = Producer({**fives, "transactional.id": topic})
    producer.init_transactions(WAIT_SECONDS)
    for commit in (True, False, True):
        producer.begin_transaction()
        for _ in range(5):
            producer.produce(topic, b"x" * 5000, timestamp=next(times_ms))
        deliver(producer)
        producer.commit_transaction() if commit else producer.abort_transaction()
    producer = Producer(fives)
    for _ in range(30):
        for _ in range(5):
            producer.produce(topic, b"y" * 9000, timestamp=next(times_ms))
        deliver(producer)


def deliver(producer: Producer) -> None:
    """Wait for full batches; flush() would send partial ones, in any number."""

    def is_delivered() -> bool:
        producer.poll(0.01)
        return not len(producer)

    wait_until(is_delivered)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def folders(peers: Peers, apache_kafka: kafka.KafkaProcess, tools_broker: BrokerProcess) -> tuple[Path, Path]:
    """Return Kafka's and Onceflow's files, with the same records."""
    topic, begin_ms = "dumped", int(time.time() * 1000)
    for bootstrap in (apache_kafka.bootstrap, tools_broker.bootstrap):
        fill(bootstrap, topic, begin_ms)
    return apache_kafka.directory / "data" / f"{topic}-0", tools_broker.data / f"{topic}-0"


def dumped(tools: KafkaTools, file: Path) -> list[str]:
    options = ("--print-data-log",) if file.suffix == ".log" else ()
    printed = tools.run("DumpLogSegments", "--files", str(file), *options)
    assert printed.code == 0, printed
    lines = []
    for line in printed.lines:
        for pattern, replacement in OF_EACH_BROKER:
            line = pattern.sub(replacement, line)
        lines.append(line)
    return lines


def names(folder: Path, suffix: str) -> list[str]:
    return sorted(path.name for path in folder.glob(f"*{suffix}"))


def test_records_and_markers(peers: Peers, folders: tuple[Path, Path]) -> None:
    """Every batch, record, header and marker of both segments, with sizes, positions and checksums."""
    theirs, ours = folders
    logs = names(ours, ".log")
    assert logs == names(theirs, ".log")
    assert len(logs) == 2
    for log in logs:
        assert dumped(peers.ours, ours / log) == dumped(peers.theirs, theirs / log)


@pytest.mark.parametrize("suffix", ["index", "timeindex", "txnindex"])
def test_indexes_of_a_closed_segment(peers: Peers, folders: tuple[Path, Path], suffix: str) -> None:
    """The same entries for the same batches; if a marker is the newest record, its time is the broker's own."""
    theirs, ours = folders
    assert "indexes of the open segment" in KNOWN_DIFFERENCES
    actual, expected = (
        dumped(tools, folder / f"{0:020}.{suffix}") for tools, folder in ((peers.ours, ours), (peers.theirs, theirs))
    )
    marker_time = re.compile(r"timestamp: \d+ offset: (55|61|67)$")
    assert [marker_time.sub(r"offset: \1", line) for line in actual] == [
        marker_time.sub(r"offset: \1", line) for line in expected
    ]
    assert len(actual) > 1


def test_snapshots(peers: Peers, folders: tuple[Path, Path]) -> None:
    """Onceflow keeps all five batches of a producer, Kafka the last: a line for each, the last one the same."""
    theirs, ours = folders
    assert "five batches in a snapshot" in KNOWN_DIFFERENCES
    (name,) = names(ours, ".snapshot")
    assert [name] == names(theirs, ".snapshot")
    actual, expected = (
        [re.sub(r"imestamp: \d+", "imestamp: TIME", line) for line in dumped(tools, folder / name)]
        for tools, folder in ((peers.ours, ours), (peers.theirs, theirs))
    )
    assert actual[0] == expected[0]
    assert actual[-1] == expected[-1]
    assert len(actual) == 4


OF_EACH_COORDINATOR = (
    (re.compile(r"offset: \d+ CreateTime: \d+ "), ""),
    (re.compile(r'"(\w+Timestamp(?:Ms)?)":\d+'), r'"\1":TIME'),
    (re.compile(r'"producerId":\d+'), '"producerId":ID'),
)
"""Fields of positions, times and generated ids."""


Coordinators = Callable[[Callable[[str, str], None], str, str], tuple[list[str], list[str]]]


@pytest.fixture
def kept_by_coordinators(
    peers: Peers, apache_kafka: kafka.KafkaProcess, tools_broker: BrokerProcess, topic: str
) -> Coordinators:
    """Do the same on both; return the records about the topic in all partitions of an internal topic, for both."""

    def kept(act: Callable[[str, str], None], internal: str, decoder: str) -> tuple[list[str], list[str]]:
        act(apache_kafka.bootstrap, topic)
        act(tools_broker.bootstrap, topic)
        theirs = records_about(topic, peers.theirs, apache_kafka.directory / "data", internal, decoder)
        return theirs, records_about(topic, peers.ours, tools_broker.data, internal, decoder)

    return kept


def records_about(name: str, tools: KafkaTools, data: Path, internal: str, decoder: str) -> list[str]:
    logs = [str(path) for path in sorted(data.glob(f"{internal}-*/*.log")) if path.stat().st_size]
    printed = tools.run("DumpLogSegments", "--files", ",".join(logs), decoder)
    assert printed.code == 0, printed
    lines = [line for line in printed.lines if name in line]
    for pattern, replacement in OF_EACH_COORDINATOR:
        lines = [pattern.sub(replacement, line) for line in lines]
    return lines


def create(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(WAIT_SECONDS)
    admin.list_topics(topic, WAIT_SECONDS)


def be_a_group(bootstrap: str, topic: str) -> None:
    """Alter offsets, let a member join, commit and leave, and delete the group."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    create(admin, topic)
    wanted = ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 0, 3, "three"), TopicPartition(topic, 1, 5)])

    def is_altered() -> bool:
        actual = admin.alter_consumer_group_offsets([wanted])[topic].result(WAIT_SECONDS)
        return not any(partition.error for partition in actual.topic_partitions)

    wait_until(is_altered)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False})
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.02) or consumer.assignment())
    consumer.commit(offsets=[TopicPartition(topic, 0, 4, "four")], asynchronous=False)
    consumer.close()
    admin.delete_consumer_groups([topic])[topic].result(WAIT_SECONDS)


def be_a_transactional_producer(bootstrap: str, topic: str) -> None:
    """Commit one transaction of two partitions, and abort one."""
    create(AdminClient({"bootstrap.servers": bootstrap}), topic)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "linger.ms": 500})
    producer.init_transactions(WAIT_SECONDS)
    for commit in (True, False):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(topic, b"value", partition=partition)
        assert producer.flush(WAIT_SECONDS) == 0
        producer.commit_transaction(WAIT_SECONDS) if commit else producer.abort_transaction(WAIT_SECONDS)
    with connected(bootstrap) as client:
        wait_until(lambda: TransactionalClient(client, topic).state() == "CompleteAbort")


def test_records_of_a_group(kept_by_coordinators: Coordinators) -> None:
    """Each commit and each generation with its members, and the tombstones of all."""
    theirs, ours = kept_by_coordinators(be_a_group, "__consumer_offsets", "--offsets-decoder")
    assert "records of groups" in KNOWN_DIFFERENCES
    assert [line.replace("sequence: -1", "sequence: N") for line in ours] == [
        re.sub(r"sequence: \d+", "sequence: N", line).replace('{"version":"4"', '{"version":"3"') for line in theirs
    ]
    types = [re.sub(r'.*"type":"(\d)".*?(<DELETE>)?$', r"\1\2", line) for line in ours]
    assert types == ["1", "1", "2", "1", "2", "1<DELETE>", "1<DELETE>", "2<DELETE>"]


def test_records_of_a_transactional_id(kept_by_coordinators: Coordinators) -> None:
    """Its states, one by one, with their partitions."""
    theirs, ours = kept_by_coordinators(be_a_transactional_producer, "__transaction_state", "--transaction-log-decoder")
    assert ours == theirs
    states = [re.sub(r'.*"transactionStatus":(\d).*', r"\1", line) for line in ours]
    assert states == ["0", "1", "2", "4", "1", "3", "5"], "empty, then ongoing, prepared and complete, twice"
