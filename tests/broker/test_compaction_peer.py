"""Compaction of the same records by Apache Kafka and here: the same records survive, pass after pass.

Needs Kafka's jars (`benchmarks.kafka`) and Java; about a minute.
"""

import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from benchmarks import kafka
from onceflow import services
from onceflow.testing import BrokerProcess
from onceflow.wire.batch import batches, decode_batch
from onceflow.wire.errors import ErrorCode
from tests.broker.raw_client import RawClient
from tests.campaigns import RecordProperty
from tests.log.compactions import keyed

BACKOFF_MS = 500
NOT_YET = (ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower, ErrorCode.leader_not_available)
QUIET_LOOKS = 6
LOOKS_MAX = 90
Survivor = tuple[int, bytes | None, bytes | None, int]


def produce(client: RawClient, batch: bytearray) -> None:
    for _ in range(50):
        code = client.produce("table", 0, bytearray(batch)).error_code
        if code not in NOT_YET:
            assert not code, ErrorCode(code)
            return
        time.sleep(0.2)
    raise AssertionError("the topic has no leader")


def fill(client: RawClient, bootstrap: str, begin_ms: int) -> None:
    """Write puts, tombstones, two idempotent producers and four transactions, over many small segments.

    Timestamps of the records are later than those of the markers, which have the broker's time: so both brokers roll at
    the same offsets.
    """
    source = random.Random(5)
    sequences = {4001: 0, 4002: 0}
    for number in range(300):
        timestamp_ms = begin_ms + number * 100
        pairs = [
            (f"k{source.randrange(12)}", None if source.random() < 0.15 else f"v{number}.{n}")
            for n in range(source.randrange(1, 5))
        ]
        producer_id = source.choice([-1, -1, *sequences])
        sequence = sequences.get(producer_id, 0)
        produce(client, keyed(*pairs, timestamp_ms=timestamp_ms, producer_id=producer_id, sequence=sequence))
        if producer_id in sequences:
            sequences[producer_id] += len(pairs)
        if number in (40, 90, 150, 200):
            transact(bootstrap, f"t{number % 3}", timestamp_ms, commit=number in (90, 200))
    for later_ms in (100_000, 200_000):
        produce(client, keyed(("last", "x"), timestamp_ms=begin_ms + later_ms))


def transact(bootstrap: str, name: str, timestamp_ms: int, *, commit: bool) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 50})
    producer.init_transactions(30)
    producer.begin_transaction()
    for n in range(3):
        producer.produce("table", key=f"k{n}", value=name, timestamp=timestamp_ms)
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def let_compact(bootstrap: str) -> None:
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, "table", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([change]).values():
        future.result()


def survivors(client: RawClient) -> Iterator[Survivor]:
    """Return the records without control records: markers come at any time."""
    offset = 0
    while data := bytes(client.fetch([("table", 0, offset)])[0].records or b""):
        for position, header in batches(data):
            offset = header.last_offset + 1
            if not header.is_control:
                for record in decode_batch(data, position):
                    yield record.offset, record.key, record.value, record.timestamp_ms


def when_quiet(client: RawClient) -> list[Survivor]:
    """Return the survivors once they are fewer, and the same for several seconds."""
    first = last = list(survivors(client))
    looks = 0
    for _ in range(LOOKS_MAX):
        time.sleep(1)
        now = list(survivors(client))
        looks = looks + 1 if now == last != first else 0
        if looks == QUIET_LOOKS:
            return now
        last = now
    raise AssertionError(f"not compacted within {LOOKS_MAX} s")


def two_passes(bootstrap: str, begin_ms: int) -> tuple[list[Survivor], list[Survivor]]:
    client = RawClient(bootstrap)
    client.create_topic("table", segment_ms="1000", min_cleanable_dirty_ratio="0.01", delete_retention_ms="2000")
    fill(client, bootstrap, begin_ms)
    let_compact(bootstrap)
    first = when_quiet(client)
    time.sleep(2)
    for number in range(4):
        produce(client, keyed((f"m{number}", "x"), ("k1", None), timestamp_ms=begin_ms + 300_000 + number * 20_000))
    second = when_quiet(client)
    client.close()
    return first, second


@pytest.mark.campaign
def test_rule_10_same_survivors_as_apache_kafka(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: RecordProperty
) -> None:
    """Apache Kafka and Onceflow compact the same records, twice: the same survive."""
    jars = kafka.jars()
    if jars is None:
        pytest.skip("no jars of Apache Kafka")
    begin_ms = int(time.time() * 1000) + 120_000
    monkeypatch.setattr(kafka, "PROPERTIES", f"{kafka.PROPERTIES}log.cleaner.backoff.ms={BACKOFF_MS}\n" + _ONE_NODE)
    with BrokerProcess(tmp_path / "ours", 0, "--log-cleaner-backoff-ms", str(BACKOFF_MS)) as broker:
        ours = two_passes(broker.bootstrap, begin_ms)
    with kafka.KafkaProcess(tmp_path / "kafka", jars) as peer:
        theirs = two_passes(peer.bootstrap, begin_ms)
    assert len(ours[0]) > 10
    assert ours == theirs
    check_dump(tmp_path / "ours" / "table-0", jars)
    for number, survivors_of_pass in enumerate(ours, 1):
        record_property(f"survivors of pass {number}, the same in both", len(survivors_of_pass))


def check_dump(directory: Path, jars: Path) -> None:
    """Kafka's own reader finds every batch valid and the indexes right."""
    files = sorted(path for path in directory.iterdir() if path.suffix in (".log", ".index", ".timeindex"))
    java = services.find_java(directory.parent / "java") / "bin" / "java"
    names = ",".join(map(str, files))
    dumped = subprocess.run(
        [java, "-cp", f"{jars}/*", "kafka.tools.DumpLogSegments", "--deep-iteration", "--files", names],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert dumped.count("isvalid: true") == dumped.count("baseOffset:") > 0
    assert "deleteHorizonMs: OptionalLong[" in dumped
    assert "Mismatches in" not in dumped
    assert "out of order" not in dumped


_ONE_NODE = """\
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
