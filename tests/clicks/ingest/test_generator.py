"""The article's events and the crowd's: users, counts, times and limits."""

import itertools
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from onceflow.cli import onceflow
from onceflow.clicks.ingest import generator
from onceflow.client.cluster import Cluster
from onceflow.client.records import read_records
from onceflow.wire.batch import Record
from onceflow.wire.murmur2 import partition_for_key

ARTICLE_USERS = [
    "4A4D769EB9679C054DE81B973ED5D768",
    "8dfeb5aaafc027d89349ac9a20b3930f",
    "011BBF43B89BFBF266C865DF0397AA71",
    "f2a8474bf7bd94f0aabbd4cdd2c06dcf",
    "068b746ed4620d25e26055a9f804385f",
    "97edfc08311c70143401745a03a50706",
    "d7f141563005d1b5d0d3dd30138f3f62",
    "c8ee90aade1671a21336c721512b817a",
    "6b67c8c700427dee7552f81f3228c927",
    "a95f22eabc4fd4b580c011a3161a9d9d",
]


def first(events: Iterator[generator.Event], count: int) -> list[dict[str, Any]]:
    return [json.loads(event.value) for event in itertools.islice(events, count)]


def records(bootstrap: str, topic: str) -> list[tuple[int, Record]]:
    with Cluster(bootstrap) as cluster:
        records = []
        for partition, end in cluster.list_offsets(
            topic, dict.fromkeys(cluster.topics(topic)[topic].partitions, -1)
        ).items():
            records += [(partition, record) for record in read_records(cluster, topic, partition, 0, end.offset)]
    return records


def test_the_articles_events() -> None:
    events = list(itertools.islice(generator.article_events(1, lambda: 1430204612405), 2000))
    parsed = [json.loads(event.value) for event in events]
    assert [event["uid"] for event in parsed[:20]] == ARTICLE_USERS * 2
    assert {event.key for event in events} == {None}
    assert list(parsed[0]) == ["uid", "event_time", "os_type", "click_count"]
    assert {(event["event_time"], event["os_type"]) for event in parsed} == {("1430204612405", "Android")}
    counts = Counter(event["click_count"] for event in parsed)
    assert sorted(counts) == list(range(10))
    assert min(counts.values()) > 140


def test_the_value_is_the_articles_text() -> None:
    event = next(generator.article_events(1, lambda: 1430204612405))
    count = json.loads(event.value)["click_count"]
    assert event.value.decode() == (
        f'{{"uid":"{ARTICLE_USERS[0]}","event_time":"1430204612405","os_type":"Android","click_count":{count}}}'
    )


@pytest.mark.parametrize(
    "make",
    [generator.article_events, lambda seed, clock: generator.crowd_events(seed, 500, clock)],
    ids=["article", "crowd"],
)
def test_one_seed_is_one_sequence(make: Any) -> None:
    once, again, other = (first(make(seed, lambda: 7), 300) for seed in (3, 3, 4))
    assert once == again
    assert once != other


def test_crowd_is_skewed_with_systems_and_keys() -> None:
    events = list(itertools.islice(generator.crowd_events(5, 1000), 5000))
    parsed = [json.loads(event.value) for event in events]
    assert all(event.key == row["uid"].encode() for event, row in zip(events, parsed, strict=True))
    by_user = Counter(row["uid"] for row in parsed)
    assert len(by_user) > 500
    assert by_user.most_common(1)[0][1] > 20 * 5000 / 1000
    assert len({row["os_type"] for row in parsed}) >= 4
    assert {row["click_count"] for row in parsed} == set(range(10))


def test_due_times_are_even_or_swell() -> None:
    even = list(itertools.islice(generator.due_times_s(200, waves=False), 4))
    assert even == pytest.approx([0, 0.2, 0.4, 0.6])
    due = list(itertools.takewhile(lambda at: at < 60, generator.due_times_s(100, waves=True)))
    assert len(due) == pytest.approx(600, rel=0.02)
    assert sum(at < 30 for at in due) > 2 * sum(at >= 30 for at in due)


class Sink:
    """A writer that keeps its events, and a clock that only waits advance."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.now_s = 0.0
        self.pauses: list[float] = []

    def write(self, key: bytes | None, value: bytes | None) -> None:
        assert value is not None
        self.values.append(value)

    def wait(self, pause_s: float) -> bool:
        self.pauses.append(pause_s)
        self.now_s += pause_s
        return False

    def send(self, limits: generator.Limits, interval_ms: float = 200) -> int:
        events = (generator.Event(None, b"x" * 100) for _ in itertools.count())
        due_s = generator.due_times_s(interval_ms, waves=False)
        printed: list[bytes] = []
        written = generator.send(
            events, self, due_s, limits, wait=self.wait, sent=printed.append, monotonic=lambda: self.now_s
        )
        assert printed == self.values
        return written


def test_generator_keeps_count_and_interval() -> None:
    sink = Sink()
    assert sink.send(generator.Limits(count=5)) == 5
    assert sink.pauses[1:5] == pytest.approx([0.2] * 4)


@pytest.mark.parametrize(("before", "written"), [(0, 10), (4, 6), (10, 0), (1000, 0)])
def test_stops_at_the_size_of_the_topic(before: int, written: int) -> None:
    assert Sink().send(generator.Limits(size_bytes_max=1000, records_before=before)) == written


def test_a_long_pause_is_not_caught_up() -> None:
    sink = Sink()
    sink.now_s = 0.0
    real_write = sink.write

    def stall(key: bytes | None, value: bytes | None) -> None:
        real_write(key, value)
        if len(sink.values) == 2:
            sink.now_s += 100

    sink.write = stall  # type: ignore[method-assign]
    assert sink.send(generator.Limits(count=6)) == 6
    assert sink.pauses[3:6] == pytest.approx([0.2] * 3)


def test_command_creates_topic_and_prints_events(bootstrap: str, topic: str) -> None:
    arguments = ["generate", "--bootstrap", bootstrap, "--topic", topic, "--interval-ms", "1", "--count", "25"]
    done = CliRunner().invoke(onceflow, arguments)
    assert done.exit_code == 0, done.output
    written = records(bootstrap, topic)
    assert sorted(record.value.decode() for _, record in written if record.value) == sorted(done.stdout.splitlines())
    assert {record.key for _, record in written} == {None}
    with Cluster(bootstrap) as cluster:
        assert len(cluster.require_topic(topic).partitions) == 2
    assert "25 events acknowledged" in done.stderr


def test_keys_are_partitioned_like_javas_client(bootstrap: str, topic: str) -> None:
    arguments = ["--topic", topic, "--partitions", "3", "--users", "50", "--interval-ms", "0", "--count", "200"]
    done = CliRunner().invoke(onceflow, ["generate", "--bootstrap", bootstrap, *arguments])
    assert (done.exit_code, done.stdout) == (0, "")
    written = records(bootstrap, topic)
    assert len(written) == 200
    assert all(record.key and partition == partition_for_key(record.key, 3) for partition, record in written)


def test_the_result_as_json(bootstrap: str, topic: str) -> None:
    arguments = ["--topic", topic, "--interval-ms", "0", "--count", "7", "--json"]
    done = CliRunner().invoke(onceflow, ["generate", "--bootstrap", bootstrap, *arguments])
    assert json.loads(done.output) == {"topic": topic, "sent": 7, "complete": True}


def test_closed_output_ends_the_command(bootstrap: str, topic: str) -> None:
    command = (
        f"{sys.executable} -m onceflow generate --bootstrap {bootstrap} --topic {topic} --interval-ms 1 | head -n 2"
    )
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=30, check=False)
    assert len(done.stdout.splitlines()) == 2
    acknowledged = int(done.stderr.split(" events acknowledged")[0])
    assert acknowledged == len(records(bootstrap, topic)) >= 2


def test_max_bytes_holds_over_several_runs(bootstrap: str, topic: str) -> None:
    arguments = ["generate", "--bootstrap", bootstrap, "--topic", topic, "--interval-ms", "0", "--max-bytes", "10000"]
    for _ in range(2):
        assert CliRunner().invoke(onceflow, [*arguments, "--quiet"]).exit_code == 0
    size_bytes = sum(len(record.value or b"") for _, record in records(bootstrap, topic))
    assert 9_800 < size_bytes <= 10_200


@pytest.mark.parametrize(
    ("number", "options", "code"), [(signal.SIGTERM, [], 0), (signal.SIGINT, ["--count", "9999"], 130)]
)
def test_a_signal_ends_it_with_everything_acknowledged(
    bootstrap: str, topic: str, tmp_path: Path, number: signal.Signals, options: list[str], code: int
) -> None:
    command = [sys.executable, "-m", "onceflow", "generate", "--bootstrap", bootstrap, "--topic", topic]
    printed, errors_file = tmp_path / "printed", tmp_path / "errors"
    with printed.open("wb") as output, errors_file.open("wb") as errors:
        process = subprocess.Popen([*command, "--interval-ms", "5", *options], stdout=output, stderr=errors)
    deadline = time.monotonic() + 30
    while printed.read_bytes().count(b"\n") < 3:
        assert process.poll() is None, errors_file.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(timeout=30) == code, errors_file.read_text()
    assert len(records(bootstrap, topic)) == len(printed.read_text().splitlines())
