"""Real click logs, replayed and counted, against plain counts of this module and results of another tool."""

import csv
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from onceflow.clicks import results
from tests.clicks.counting_run import CountingRun
from tests.conftest import RedisProcess

DATA = Path(__file__).parents[2] / "../shared/data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not here")


@pytest.fixture
def run(bootstrap: str, topic: str, redis_server: RedisProcess, tmp_path: Path) -> CountingRun:
    return CountingRun(bootstrap, topic, redis_server, tmp_path)


def oracle(name: str) -> dict[str, Any]:
    oracles = json.loads((DATA / "oracle.json").read_text())
    expected = oracles[next(key for key in oracles if key.startswith(name))]
    assert isinstance(expected, dict)
    return expected


@pytest.mark.campaign
def test_a_news_portals_clicks(run: CountingRun, spark: SparkSession) -> None:
    """437,746 real clicks are counted exactly, and one wrong sum among them is found."""
    path = DATA / "globo_clicks_h000-047.csv.gz"
    mapping = ["--field", "uid=user_id", "--field", "event_time=click_timestamp", "--field", "os_type=click_os"]
    replayed = run.replay(path, *mapping, "--const", "click_count=1", "--time-format", "ms")
    assert (replayed["sent"], replayed["rejected"]) == (437_746, 0)
    run.count(spark)
    with gzip.open(path, "rt") as file:
        assert run.by_user() == Counter(row["user_id"] for row in csv.DictReader(file))
    expected = oracle("globo")
    snapshot = results.snapshot(run.url, run.hash_key)
    assert (snapshot.events, snapshot.users) == (expected["rows"], expected["users"])
    assert [list(entry) for entry in snapshot.top] == expected["top10_users"]
    assert snapshot.by_os == expected["per_os"]
    assert run.verify()["clicks"] == 437_746
    with run.redis() as client:
        client.hincrby(run.hash_key, "5890", -1)
    (difference,) = run.verify(code=1)["differences"]
    assert (difference["field"], difference["log"], difference["redis"]) == ("5890", 182, "181")


def test_a_shops_events(run: CountingRun, spark: SparkSession) -> None:
    mapping = ["--field", "uid=user_id", "--field", "event_time=ts", "--field", "os_type=behavior"]
    replayed = run.replay(
        DATA / "taobao_user_behavior_1000.jsonl.gz", *mapping, "--const", "click_count=1", "--time-format", "iso"
    )
    assert (replayed["sent"], replayed["rejected"]) == (1000, 0)
    run.count(spark)
    expected = oracle("taobao")
    snapshot = results.snapshot(run.url, run.hash_key, top=1000)
    assert (snapshot.events, snapshot.users) == (expected["rows"], expected["users"])
    assert [list(entry) for entry in snapshot.top[:10]] == expected["top10_users"]
    assert snapshot.by_os == expected[next(name for name in expected if name.startswith("per_"))]
    assert run.verify()["events"] == 1000


def test_a_web_servers_log_by_ip(run: CountingRun, spark: SparkSession) -> None:
    path = DATA / "apache_logs.log.gz"
    replayed = run.replay(path, "--order", "time")
    assert (replayed["sent"], replayed["rejected"]) == (9_999, 1)
    (rejected,) = [json.loads(line) for line in Path(replayed["rejects_file"]).read_text().splitlines()]
    assert (rejected["line"], rejected["reason"]) == (8899, "not a line of Apache's combined log, or truncated")
    run.count(spark)
    with gzip.open(path, "rt") as file:
        lines = [line for number, line in enumerate(file, start=1) if number != 8899]
    assert len(lines) - len(set(lines)) == 19  # Duplicate lines are two clicks.
    assert run.by_user() == Counter(line.split()[0] for line in lines)
    assert run.verify()["clicks"] == 9_999
