"""`onceflow produce` and `onceflow consume` on a real broker."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onceflow.client.cluster import LATEST, Cluster
from onceflow.client.producer import producer
from onceflow.testing import BrokerProcess
from tests.broker.driven_broker import eventually

Run = Callable[..., subprocess.CompletedProcess[str]]
Fill = Callable[..., str]


def test_produced_lines_are_consumed(run: Run, topic: str) -> None:
    run("topic", "create", topic)
    produced = run("produce", topic, stdin="one\n\nthree ö\r\nlast without end")
    assert (produced.returncode, produced.stdout) == (0, "")
    assert produced.stderr.startswith("4 records acknowledged by ")
    consumed = run("consume", topic, "--exit-at-end")
    assert (consumed.returncode, consumed.stderr) == (0, "")
    assert consumed.stdout == "one\n\nthree ö\nlast without end\n"


def test_empty_input_produces_no_records(run: Run, topic: str) -> None:
    run("topic", "create", topic)
    assert run("produce", topic).stderr.startswith("0 records acknowledged")
    assert run("consume", topic, "--exit-at-end").stdout == ""


def test_lines_of_maximum_length_are_produced(run: Run, topic: str) -> None:
    run("topic", "create", topic)
    line = "x" * 1_000_000
    produced = run("produce", topic, "--key-separator", ":", stdin=f"key:{line[4:]}\n")
    assert produced.returncode == 0, produced.stderr
    assert run("produce", topic, stdin=line).stderr.startswith("1 record acknowledged")
    assert len(run("consume", topic, "--exit-at-end").stdout) == 2 * 1_000_000 - 4 + 2


def test_keys_from_a_json_field(run: Run, topic: str) -> None:
    run("topic", "create", topic, "--partitions", "3")
    run("produce", topic, "--key-field", "uid", stdin='{"uid": "ada"}\n{"uid": 7}\n{"uid": "ada", "n": 2}\n')
    records = [
        json.loads(line) for line in run("consume", topic, "--exit-at-end", "--format", "json").stdout.splitlines()
    ]
    assert sorted(record["key"] for record in records) == ["7", "ada", "ada"]
    assert len({record["partition"] for record in records if record["key"] == "ada"}) == 1


@pytest.mark.parametrize(
    ("words", "line", "says"),
    [
        (["--key-field", "uid"], b"not json", "line 2 is not valid JSON"),
        (["--key-field", "uid"], b"[1]", "line 2 has no key: field 'uid' must be text or an integer"),
        (["--key-field", "uid"], b'{"uid": null}', "line 2 has no key: field 'uid' must be text or an integer"),
        (["--key-field", "uid"], b'{"uid": true}', "line 2 has no key"),
        (["--key-field", "uid"], b'{"uid": 1.5}', "line 2 has no key"),
        (["--key-field", "uid"], b"\xff", "line 2 is not valid JSON"),
        (["--key-field", "uid"], b"[" * 100_000, "line 2 is not valid JSON"),
        (["--key-field", "uid"], b'{"uid": "\\ud800"}', "line 2 has no key"),
        (["--key-separator", "->"], b"a:b", "line 2 has no separator '->': a:b"),
        ([], b"x" * 1_000_001, "line 2 is longer than 1000000 bytes"),
    ],
)
def test_invalid_lines_stop_the_command(run: Run, topic: str, words: list[str], line: bytes, says: str) -> None:
    run("topic", "create", topic)
    produced = run("produce", topic, *words, stdin=b'{"uid": "a->b"}\n' + line + b'\n{"uid": "c->d"}\n')
    assert produced.returncode == 1
    printed = produced.stderr.splitlines()
    assert printed[0].startswith("1 record acknowledged")
    assert printed[1].startswith(f"onceflow: {says}")


def test_json_records_show_every_field(run: Run, bootstrap: str, topic: str) -> None:
    run("topic", "create", topic)
    writing = producer(bootstrap)
    headers: list[tuple[str, str | bytes | None]] = [("trace", b"abc"), ("raw", b"\xff"), ("none", None)]
    writing.produce(topic, b"\xfe\xff", "kéy".encode(), 0, timestamp=1234, headers=headers)
    writing.produce(topic, None, None, 0, timestamp=1235)
    assert writing.flush(10) == 0
    first, second = map(json.loads, run("consume", topic, "--format", "json", "--exit-at-end").stdout.splitlines())
    assert first == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp_ms": 1234,
        "key": "kéy",
        "value": "/v8=",
        "value_encoding": "base64",
        "headers": [
            {"key": "trace", "value": "abc"},
            {"key": "raw", "value": "/w==", "value_encoding": "base64"},
            {"key": "none", "value": None},
        ],
    }
    assert (second["key"], second["value"], second["headers"]) == (None, None, [])


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("start", "abcde"),
        ("end", ""),
        ("2", "cde"),
        ("5", ""),
        ("+2", "cde"),
        ("+99", ""),
        ("-2", "de"),
        ("-99", "abcde"),
        ("@1003", "de"),
        ("@0", "abcde"),
        ("@9999999999999", ""),
    ],
)
def test_consume_starts_at_the_offset(run: Run, filled: Fill, offset: str, expected: str) -> None:
    topic = filled([b"a", b"b", b"c", b"d", b"e"])
    consumed = run("consume", topic, "--offset", offset, "--exit-at-end")
    assert (consumed.returncode, consumed.stdout.replace("\n", "")) == (0, expected)


def test_one_partition_and_a_count(run: Run, filled: Fill) -> None:
    topic = filled([b"a", b"b", b"c"], partitions=3, partition=1)
    assert run("consume", topic, "--count", "2").stdout == "a\nb\n"
    assert run("consume", topic, "--partition", "1", "--count", "1").stdout == "a\n"
    assert run("consume", topic, "-o", "+1", "-p", "1", "-n", "1", "-f", "%o %v;").stdout == "1 b;"
    assert run("consume", topic, "--partition", "0", "--partition", "2", "--exit-at-end").stdout == ""


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--offset", "47"], 1, "onceflow: offset 47 of {}-0 is out of range: the log starts at 0 and ends at 1"),
        (["--offset", "soon"], 2, "'soon' is not a valid offset; expected start, end, 47, +47, -47"),
        (["--offset", "@"], 2, "'@' is not a valid offset"),
        (["--offset", "9" * 19], 2, "is not a valid offset"),
        (["--partition", "4"], 2, "{} has 1 partition (0 to 0); there is no partition 4"),
        (["--format", "xml"], 2, "'xml' is not a valid format"),
    ],
)
def test_invalid_consume_options_are_explained(run: Run, filled: Fill, words: list[str], code: int, says: str) -> None:
    topic = filled([b"a"])
    consumed = run("consume", topic, "--exit-at-end", *words)
    assert consumed.returncode == code
    assert says.format(topic) in consumed.stderr


def test_unknown_topics_are_not_created(run: Run, topic: str) -> None:
    for words in (["consume", topic], ["produce", topic]):
        result = run(*words, stdin="a\n")
        assert result.returncode == 1
        assert result.stderr.startswith(f"onceflow: topic '{topic}' does not exist at ")
    assert topic not in run("topic", "list").stdout


@contextmanager
def process(bootstrap: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(
        [sys.executable, "-m", "onceflow", *words, "--bootstrap", bootstrap],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with started:
        try:
            yield started
        finally:
            started.kill()


def test_following_prints_new_records_until_interrupted(bootstrap: str, filled: Fill, run: Run) -> None:
    topic = filled([b"before"])
    with process(bootstrap, "consume", topic) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        assert following.stdout.readline() == b"before\n"
        run("produce", topic, stdin="after\n")
        assert following.stdout.readline() == b"after\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(10) == 130
        assert following.stderr.read().split(b"\n") == [b"", b"onceflow: interrupted", b""]


def test_closed_pipes_are_not_failures(bootstrap: str, filled: Fill) -> None:
    topic = filled([b"x" * 100] * 5000)
    with process(bootstrap, "consume", topic, "--exit-at-end") as consuming:
        assert consuming.stdout is not None
        assert consuming.stderr is not None
        assert consuming.stdout.readline() == b"x" * 100 + b"\n"
        consuming.stdout.close()
        assert consuming.wait(10) == 0
        assert consuming.stderr.read() == b""


def test_interrupted_produce_prints_its_count(bootstrap: str, cluster: Cluster, topic: str, run: Run) -> None:
    cluster.create_topic(topic, 1)
    with process(bootstrap, "produce", topic) as producing:
        assert producing.stdin is not None
        assert producing.stderr is not None
        producing.stdin.write(b"one\ntwo\n")
        producing.stdin.flush()
        assert run("consume", topic, "--count", "2").stdout == "one\ntwo\n"
        producing.send_signal(signal.SIGINT)
        assert producing.wait(10) == 130
        printed = producing.stderr.read().decode().split()
        assert printed == f"2 records acknowledged by {bootstrap} onceflow: interrupted".split()


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "--quiet", "--interval-ms", "20"],
        ["replay", "clicks.csv", "--speed", "1"],
        ["produce", "user_events"],
    ],
    ids=lambda words: words[0],
)
def test_an_unreachable_broker_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """The command continues, and its events wait."""
    monkeypatch.chdir(tmp_path)
    rows = [f"ada,{1_700_000_000_000 + 20 * number},ios,1" for number in range(6_000)]
    Path("clicks.csv").write_text("\n".join(["uid,event_time,os_type,click_count", *rows]))
    with BrokerProcess(tmp_path / "data") as broker, Cluster(broker.bootstrap) as cluster:
        cluster.create_topic("user_events", 1)
        with process(broker.bootstrap, *words) as writing:
            assert writing.stdin is not None
            assert writing.stderr is not None
            writing.stdin.write(b"one\n")
            writing.stdin.flush()
            eventually(lambda: cluster.list_offsets("user_events", {0: LATEST})[0].offset > 0, "an event is stored")
            broker.kill()
            writing.stdin.write(b"two\nthree\n")
            writing.stdin.close()
            noted = writing.stderr.readline().decode()
            assert noted == f"no broker responds at {broker.bootstrap}; each event waits for one, up to 120 s\n"
            assert writing.poll() is None


def test_consume_needs_no_librdkafka(run: Run, filled: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = filled([b"a"])
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.delitem(sys.modules, "onceflow.client.producer")
    assert run("consume", topic, "--exit-at-end").stdout == "a\n"
    produced = run("produce", topic)
    assert produced.returncode == 1
    assert produced.stderr.startswith("onceflow: 'onceflow produce' needs the package confluent_kafka")


def consumed_records(run: Run, topic: str) -> list[dict[str, object]]:
    lines = run("consume", topic, "--exit-at-end", "--format", "json").stdout.splitlines()
    return sorted((json.loads(line) for line in lines), key=lambda record: (record["partition"], record["offset"]))


def test_produce_takes_headers_and_partition(run: Run, topic: str) -> None:
    run("topic", "create", topic, "--partitions", "3")
    words = ["--partition", "2", "--header", "trace=a=b", "--header", "empty=", "--key-separator", ":"]
    assert run("produce", topic, *words, stdin="k:one\nl:two\n").returncode == 0
    headers = [{"key": "trace", "value": "a=b"}, {"key": "empty", "value": ""}]
    assert [(record["partition"], record["value"], record["headers"]) for record in consumed_records(run, topic)] == [
        (2, "one", headers),
        (2, "two", headers),
    ]


def test_null_marker_writes_tombstones(run: Run, topic: str) -> None:
    """Kafka's null.marker: a key or value that equals it is null, one that contains it is not."""
    run("topic", "create", topic)
    words = ["--key-separator", ":", "--null-marker", "NULL"]
    assert run("produce", topic, *words, stdin="ada:NULL\nNULL:1\nbob:NULLS\nNULL:NULL\n").returncode == 0
    assert [(record["key"], record["value"]) for record in consumed_records(run, topic)] == [
        ("ada", None),
        (None, "1"),
        ("bob", "NULLS"),
        (None, None),
    ]


def test_skip_resumes_after_an_error(run: Run, topic: str) -> None:
    """The lines before the one that the error names are written; --skip leaves them out of the next run."""
    run("topic", "create", topic)
    lines = '{"uid":1}\n{"uid":2}\n{"id":3}\n{"uid":4}\n'
    failed = run("produce", topic, "--key-field", "uid", stdin=lines)
    assert failed.stderr.startswith("2 records acknowledged")
    assert "line 3 has no key" in failed.stderr
    assert "line 3 has no key" in run("produce", topic, "--key-field", "uid", "--skip", "2", stdin=lines).stderr
    assert run("produce", topic, "--key-field", "uid", "--skip", "3", stdin=lines).returncode == 0
    assert [record["key"] for record in consumed_records(run, topic)] == ["1", "2", "4"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--header", "trace"], 2, "'trace' is not a valid header; write NAME=VALUE"),
        (["--header", "=1"], 2, "'' is not a valid header"),
        (["--partition", "1"], 2, "has 1 partition (0 to 0); there is no partition 1"),
    ],
)
def test_invalid_produce_options(run: Run, topic: str, words: list[str], code: int, says: str) -> None:
    run("topic", "create", topic)
    ended = run("produce", topic, *words, stdin="a\n")
    assert (ended.returncode, says in ended.stderr) == (code, True), ended.stderr
