"""The examples that write to Redis, run unchanged in the tests' Spark session."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
import redis
from confluent_kafka import Producer

from onceflow.client.cluster import Cluster
from tests.conftest import RedisProcess
from tests.spark.conftest import ROOT, RunExample

CLICKS, LATEST = "examples/spark/clicks_to_redis.py", "examples/spark/kafka_to_redis.py"
LINES_OF_THE_ARTICLES_JOB = 30

Example = Callable[[str], None]


@pytest.fixture
def produce(bootstrap: str, cluster: Cluster, topic: str) -> Callable[..., None]:
    """Return a function that produces (key, value) pairs, partitioned by key."""
    cluster.create_topic(topic, 2)
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})

    def write(*pairs: tuple[str | None, str | None]) -> None:
        for key, value in pairs:
            producer.produce(topic, value, key)
        assert producer.flush(20) == 0

    return write


@pytest.fixture
def example(
    run_example: RunExample, bootstrap: str, topic: str, new_redis: Callable[[], RedisProcess]
) -> tuple[Example, redis.Redis]:
    """Return a function that runs an example in this process, and a client of the Redis that it writes to."""
    server = new_redis()

    def run(path: str) -> None:
        run_example(path, bootstrap, topic, server.url)

    return run, redis.Redis.from_url(server.url, decode_responses=True)


def click(uid: str, clicks: int) -> tuple[str, str]:
    return uid, json.dumps({"uid": uid, "click_count": clicks, "os_type": "iOS"})


def test_articles_job_counts_each_click_once(
    example: tuple[Example, redis.Redis], produce: Callable[..., None], topic: str
) -> None:
    run, client = example
    produce(click("ada", 3), click("bob", 1), ("bad", "nonsense"), click("ada", 2))
    run(CLICKS)
    assert client.hgetall(f"example::{topic}::click") == {"ada": "5", "bob": "1"}
    produce(click("bob", 6))
    run(CLICKS)
    assert client.hgetall(f"example::{topic}::click") == {"ada": "5", "bob": "7"}
    client.close()


def test_newest_value_of_each_key(
    example: tuple[Example, redis.Redis], produce: Callable[..., None], topic: str
) -> None:
    run, client = example
    produce(("a", "1"), ("b", "2"), ("a", "3"), ("b", None), (None, "no key"))
    run(LATEST)
    assert client.hgetall(topic) == {"a": "3", "b": "2"}
    client.close()


@pytest.mark.parametrize("path", [CLICKS, LATEST])
def test_example_prints_its_usage(path: str) -> None:
    done = subprocess.run([sys.executable, path], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, f"usage: python {path} HOST:PORT TOPIC REDIS_URL\n")


def test_articles_job_is_short() -> None:
    """Its lines are counted without comments, blank lines and the reading of arguments."""
    text = (ROOT / CLICKS).read_text()
    job = text[text.index("checkpoint = ") :].splitlines()
    assert len([line for line in job if line.strip() and not line.strip().startswith(("#", '"""'))]) <= (
        LINES_OF_THE_ARTICLES_JOB
    )
