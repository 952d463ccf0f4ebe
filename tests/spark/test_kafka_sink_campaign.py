"""The Kafka sink through many deaths: of real drivers at every named point, of tasks, and of epochs."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from tests.spark.kafka_driver import Driver, expect, make_topics
from tests.spark.test_kafka_sink import Copy, die, expected

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
"""Twenty deaths: one after the other where the second one needs the first."""
ONCE = ("opening", "alone")
EPOCHS = 32_766
"""The last epoch of a producer id; the coordinator gives a new id after it."""


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
    """Real drivers are killed -9 with their JVM in each phase of the Kafka sink, each task's worker once, too."""
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
            # FindCoordinator is asked twice at a start, what else may come again once in each of some three batches.
            die(copy, java_home, tmp_path, point, 1 if point.endswith(ONCE) else chance.randint(1, 2))
    copy.run()
    assert copy.by_key() == expected(count)
    for phase, made in PHASES.items():
        record_property(f"drivers killed in phase {phase}", sum(map(len, made)))
    record_property("seeds", str(seed))
    record_property("records, each once and in order", count)


@pytest.mark.timeout(3000)
def test_epochs_run_out_and_the_query_goes_on(bootstrap: str, topic: str) -> None:
    make_topics(bootstrap, topic)
    driver = Driver(bootstrap, topic)
    driver.write(0)
    admin = Admin(driver.cluster)
    producer_id, epoch = admin.fence_producer(driver.place.name)
    while epoch < EPOCHS - 6:
        _, epoch = admin.fence_producer(driver.place.name)
    for number in range(1, 11):
        driver.write(number)
    expect(bootstrap, topic, 11)
    following, _ = admin.fence_producer(driver.place.name)
    assert following != producer_id
    print(f"producer {producer_id} ended at epoch {EPOCHS}, {following} came next; 11 batches, each there once")
    driver.close()
