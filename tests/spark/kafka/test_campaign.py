"""The Kafka sink in long runs: killed drivers and tasks, a large backlog, exhausted epochs."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.spark.kafka.rows import DRIVER_BYTES
from tests.spark.kafka_driver import Driver, expect, make_topics
from tests.spark.test_kafka_sink import KEYS, Copy, die, expected, recorded_pulls, written
from tests.spark.test_source import offsets_of

pytestmark = pytest.mark.campaign

PHASES = {
    "start": [["before opening"], ["after opening"], ["before FindCoordinator"], ["after InitProducerId"]],
    "encode": [["before the syncs"], ["after the syncs"], ["before AddPartitionsToTxn"]],
    "send": [["before Produce"], ["after Produce"], ["after AddPartitionsToTxn"], ["after AddOffsetsToTxn"]],
    "commit": [["before TxnOffsetCommit"], ["after TxnOffsetCommit"], ["before EndTxn"]],
    "after EndTxn": [["after EndTxn"], ["after EndTxn"]],
    "skip path": [
        ["after EndTxn", "before reading the rows alone"],
        ["after EndTxn", "after reading the rows alone"],
    ],
}
"""Twenty deaths by phase; of two in one list, the second needs the first."""
ONCE = ("opening", "alone")
EPOCHS = 32_766
"""The last epoch of a producer id; after it the coordinator assigns a new id."""
VALUE_BYTES = 1000
IN_FLIGHT_MAX = 50_000


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(5))
def test_twenty_drivers_killed_at_named_points(
    spark: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    topic: str,
    checkpoint: Path,
    java_home: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    seed: int,
) -> None:
    """Drivers are killed -9 with their JVM in each phase of the Kafka sink, and each task's worker once."""
    chance = random.Random(seed)
    copy = Copy(spark, bootstrap, topic, checkpoint)
    cluster.create_topic(topic, 2)
    cluster.create_topic(copy.target, 3)
    count = 0
    sequences = [points for phase in PHASES.values() for points in phase]
    for points in chance.sample(sequences, len(sequences)):
        for point in points:
            copy.produce(count, count + 300)
            count += 300
            # FindCoordinator is sent twice at a start; most other points come once in each of some three batches.
            die(copy, java_home, tmp_path, point, 1 if point.endswith(ONCE) else chance.randint(1, 2))
    copy.run()
    assert copy.by_key() == expected(count)
    for phase, deaths in PHASES.items():
        record_property(f"drivers killed in phase {phase}", sum(map(len, deaths)))
    record_property("seeds", str(seed))
    record_property("records, each written once and in order", count)


def produce_noise(bootstrap: str, topic: str, count: int) -> None:
    """Produce `count` records: keys in turn, values of a number in ten digits and VALUE_BYTES incompressible bytes."""
    chance = random.Random(11)
    noise = chance.randbytes(8 * 1024 * 1024)
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": 50})
    for number in range(count):
        begin = chance.randrange(len(noise) - VALUE_BYTES)
        value = b"%010d" % number + noise[begin : begin + VALUE_BYTES]
        while len(producer) >= IN_FLIGHT_MAX:
            producer.poll(0.1)
        producer.produce(topic, key=b"key-%d" % (number % KEYS), value=value)
    assert producer.flush(60) == 0


@pytest.mark.timeout(900)
def test_backlog_of_ten_budgets_drains(
    spark: SparkSession,
    bootstrap: str,
    cluster: Cluster,
    topic: str,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """A backlog of ten times the driver's memory budget is written in one transaction, pulled in pieces."""
    copy = Copy(spark, bootstrap, topic, checkpoint)
    cluster.create_topic(topic, 2)
    cluster.create_topic(copy.target, 3)
    count = 10 * DRIVER_BYTES // VALUE_BYTES + KEYS
    produce_noise(bootstrap, topic, count)
    pulls = recorded_pulls(monkeypatch)
    copy.run(seconds=600)
    assert sum(pulls) > 10 * DRIVER_BYTES >= 10 * max(pulls)
    numbers: dict[bytes, list[int]] = {}
    for records in written(bootstrap, copy.target).values():
        for record in records:
            assert record.key is not None and record.value is not None
            numbers.setdefault(record.key, []).append(int(record.value[:10]))
    assert numbers == expected(count)
    # Batch 0, the first of every query, is empty; Spark planned the rest as one batch.
    assert sum(offsets_of(checkpoint, 1)[topic].values()) == count
    record_property("records", count)
    record_property("MiB in one transaction", sum(pulls) // 1024**2)
    record_property("MiB in the largest pull", max(pulls) // 1024**2)


@pytest.mark.timeout(3000)
def test_query_continues_after_epochs_run_out(bootstrap: str, topic: str) -> None:
    """The query continues with a new producer id when the epochs of the old one are exhausted."""
    make_topics(bootstrap, topic)
    driver = Driver(bootstrap, topic)
    driver.write(0)
    admin = Admin(driver.cluster)
    producer_id, epoch = admin.fence_producer(driver.location.name)
    while epoch < EPOCHS - 6:
        _, epoch = admin.fence_producer(driver.location.name)
    for number in range(1, 11):
        driver.write(number)
    expect(bootstrap, topic, 11)
    following, _ = admin.fence_producer(driver.location.name)
    assert following != producer_id
    print(f"producer {producer_id} ended at epoch {EPOCHS}, the next id was {following}; 11 batches, each written once")
    driver.close()
