"""Fixtures of the tests of the source and the sinks."""

import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from onceflow.spark.redis import chunks as redis_chunks
from onceflow.spark.redis import rows as redis_rows
from tests.spark import simulated_spark
from tests.spark.simulated_query import Started

Send = Callable[..., None]
RunExample = Callable[..., None]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def send(bootstrap: str, topic: str) -> Send:
    """`send(values, partition=0)`: writes values to the test's topic and waits until they are acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    own = topic

    def write(
        values: Sequence[str | None], partition: int = 0, key: str | None = None, topic: str = own, **fields: Any
    ) -> None:
        for value in values:
            producer.produce(topic, value=value, key=key, partition=partition, **fields)
        assert producer.flush(20) == 0

    return write


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def run_example(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunExample:
    """`run_example(path, *arguments)`: runs an example as a script, in this process and with its Spark session.

    Temporary files are the test's, and the excepthook that the example installs ends with the test.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)

    def run(path: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [path, *arguments])
        runpy.run_path(str(ROOT / path), run_name="__main__")

    return run


@pytest.fixture
def directory(scratch: Path) -> Path:
    """The test's directory, in memory where possible: the tests record syncs themselves and need no disk."""
    return scratch


@pytest.fixture
def new_query(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """Return a factory of queries of both sinks without Spark; batches of more than 8 sums have chunks."""
    simulated_spark.stand_in(monkeypatch)
    monkeypatch.setattr(redis_rows, "WHOLE_ROWS_MAX", 8)
    monkeypatch.setattr(
        redis_rows, "is_worth_a_try", lambda offsets, before: 0 < offsets <= 40 and (before or 99) <= 20
    )
    monkeypatch.setattr(redis_chunks, "ROWS_PER_CHUNK", 3)
    started = Started(directory)
    yield started
    started.close()
