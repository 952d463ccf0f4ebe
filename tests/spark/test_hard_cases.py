"""Failures of a query other than crashes: it continues correctly, or stops with a reason and a remedy.

These tests run without Spark (`simulated_query`). Tested elsewhere: a stateful query in test_kafka_sink.py and
test_redis_sink_stream.py; two drivers in kafka/test_transaction.py, test_redis_sink.py,
exactly_once/test_checkpoint_lock.py and at each point in test_crash_points.py; deleted input records in
reader/test_stream.py; 32,766 epochs in kafka/test_campaign.py.
"""

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark.kafka_sink import kafka_sink
from onceflow.testing import ManualClock
from tests import remedies
from tests.spark.kafka_driver import eventually
from tests.spark.simulated_query import Query, Services, Started, services

DAY_MS = 24 * 60 * 60 * 1000

one_sink = pytest.mark.parametrize("sink", ["kafka", "redis"])


@pytest.fixture
def chance() -> random.Random:
    return random.Random(1)


@pytest.fixture
def running(directory: Path, chance: random.Random) -> Iterator[Services]:
    with services(directory, chance) as started:
        yield started


def only(sink: str) -> dict[str, bool]:
    return {"with_kafka": sink == "kafka", "with_redis": sink == "redis"}


def refused(query: Query) -> str:
    """Return why one start of the query stops; the outputs must not change."""
    before = query.written(), query.counted()
    with pytest.raises(OnceflowError) as raised:
        query.start_once(query.committed + 1)
    assert (query.written(), query.counted()) == before
    return str(raised.value)


@pytest.mark.remedy(Remedy.PUT_CHECKPOINT_BACK)
@one_sink
@pytest.mark.parametrize("batches", [1, 3])
def test_checkpoint_restored_from_old_copy(
    running: Services, chance: random.Random, new_query: Started, tmp_path: Path, sink: str, batches: int
) -> None:
    query = new_query(running, chance, batches=4, **only(sink))
    shutil.copytree(query.checkpoint, tmp_path / "old")
    query.run(batches)
    shutil.copytree(query.checkpoint, tmp_path / "newer")
    replace_with(query.checkpoint, tmp_path / "old")
    query.arrivals = (7,)  # The new plan differs from the old one.
    message = refused(query)
    assert "checkpoint is older than" in message or "the checkpoint plans it as" in message
    assert "onceflow sink reset " in message
    remedies.find(Remedy.PUT_CHECKPOINT_BACK, message)
    replace_with(query.checkpoint, tmp_path / "newer")
    query.run(2)
    query.check()


def replace_with(directory: Path, copy: Path) -> None:
    shutil.rmtree(directory)
    shutil.copytree(copy, directory)


@one_sink
def test_deleted_checkpoint(
    running: Services, chance: random.Random, new_query: Started, tmp_path: Path, sink: str
) -> None:
    query = new_query(running, chance, batches=4, **only(sink))
    shutil.copytree(query.checkpoint, tmp_path / "gone")
    shutil.rmtree(query.checkpoint)
    query.checkpoint.mkdir()
    query.query_id = "00000000-0000-4000-8000-00000000000b"
    message = refused(query)
    assert "00000000-0000-4000-8000-000000000000" in message and "onceflow sink reset" in message
    replace_with(query.checkpoint, tmp_path / "gone")
    query.run(2)
    query.check()


@one_sink
def test_second_query_on_the_same_sink(
    running: Services, chance: random.Random, new_query: Started, tmp_path: Path, sink: str
) -> None:
    query = new_query(running, chance, batches=4, **only(sink))
    first = query.checkpoint
    query.checkpoint, query.query_id = tmp_path / "second", "00000000-0000-4000-8000-00000000000b"
    query.checkpoint.mkdir()
    assert {"kafka": "give this sink another name=", "redis": "another hash key"}[sink] in refused(query)
    query.checkpoint, query.query_id = first, "00000000-0000-4000-8000-000000000000"
    query.run(2)
    query.check()


def test_expired_group_offsets(directory: Path, chance: random.Random, new_query: Started) -> None:
    """One copy of Kafka's marker is then deleted; the other one, a record, is sufficient proof."""
    clock = ManualClock(time.time_ns() // 1_000_000)
    settings = {"offsets.retention.check.interval.ms": 1000, "log.retention.ms": -1}
    with services(directory, chance, clock=clock, settings=settings) as running:
        query = new_query(running, chance, batches=3)
        name = f"onceflow-{query.query_id}-kafka"
        with Cluster(running.broker.bootstrap) as cluster:
            admin = Admin(cluster)
            assert admin.group_offsets(name)
            clock.advance_ms(8 * DAY_MS)

            def expired() -> bool:
                clock.advance_ms(1000)
                return not admin.group_offsets(name)

            eventually(expired)
            assert expired()
        query.run(3)
        query.check()
        assert not query.stops


def test_deleted_markers(running: Services, chance: random.Random, new_query: Started) -> None:
    query = new_query(running, chance, batches=3, with_redis=False)
    name = f"onceflow-{query.query_id}-kafka"
    with Cluster(running.broker.bootstrap) as cluster:
        Admin(cluster).delete_group(name)
        cluster.delete_topic("onceflow-markers")
    message = refused(query)
    assert "there is no marker" in message and "write again" in message


def test_transaction_timeout_within_a_batch(
    directory: Path, chance: random.Random, new_query: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 20}
    with services(directory, chance, settings=settings) as running:
        query = new_query(running, chance, batches=1)
        admin = Admin(Cluster(running.broker.bootstrap))
        name = f"onceflow-{query.query_id}-kafka"
        waited: list[str] = []

        def too_slow(point: str) -> None:
            if point == "after Produce" and not waited:
                waited.append(point)
                eventually(lambda: admin.describe_transaction(name).state != "Ongoing", 30)
            query.at(point)

        def impatient(*arguments: Any, **options: Any) -> Any:
            return kafka_sink(*arguments, transaction_timeout_ms=250, **options)

        monkeypatch.setattr("tests.spark.simulated_query.kafka_sink", impatient)
        query.watch_requests = too_slow
        query.run(4)
        query.check()
        assert waited and not query.stops
        admin.cluster.close()
