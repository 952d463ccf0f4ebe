"""The Kafka sink through many deaths: of real drivers at every named point, of tasks, and of epochs."""

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.spark.kafka_steps import STEPS
from tests.spark.kafka_driver import Driver, expect, make_topics
from tests.spark.test_kafka_sink import Copy, die, expected

pytestmark = pytest.mark.campaign

POINTS = [f"{side} {step.name}" for step in STEPS for side in ("before", "after")]
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
    seed: int,
) -> None:
    chance = random.Random(seed)
    copy = Copy(spark, bootstrap, topic, checkpoint)
    cluster.create_topic(topic, 2)
    cluster.create_topic(copy.target, 3)
    count = 0
    for point in chance.choices(POINTS, k=20):
        copy.produce(count, count + 300)
        count += 300
        # FindCoordinator is asked twice at a start, everything else once in each of about three batches at least.
        die(copy, java_home, tmp_path, point, chance.randint(1, 2))
    copy.run()
    assert copy.by_key() == expected(count)
    print(f"seed {seed}: 20 drivers killed, {count} records, each there once and in order")


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
