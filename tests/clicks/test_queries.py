"""Questions over the archive and the log behind it, compared with plain Python over the same events."""

import contextlib
import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from onceflow.cli import onceflow
from onceflow.clicks import queries
from onceflow.clicks.archive_errors import QueryCancelled, QueryRefused
from onceflow.clicks.events import os_of
from onceflow.clicks.queries import WIDTHS_MS, ArchiveReader, Selection, open_events
from onceflow.clicks.windows import Window
from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.client.records import read_partitions
from onceflow.remedies import Remedy
from tests import remedies
from tests.clicks.archived import START_MS, add_batch, event, filled
from tests.clicks.counted import write

MINUTE_MS = 60_000


def crowd(count: int) -> list[dict[str, Any]]:
    """Return seeded events of two hours."""
    chance = random.Random(18)
    return [
        {
            "uid": f"user-{chance.randrange(40)}",
            "event_time": chance.choice([START_MS, START_MS + 50 * MINUTE_MS]) + chance.randrange(30 * MINUTE_MS),
            "os_type": chance.choice(["iOS", "Android", "Linux"]),
            "click_count": chance.randrange(10),
            "country": chance.choice(["DE", "FR", 49]),
        }
        for _ in range(count)
    ]


def expected_counts(events: Sequence[dict[str, Any]], width: int, by: str | None) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in events:
        start = one["event_time"] // width * width
        groups.setdefault((start, *([] if by is None else [str(one[by])])), []).append(one)
    return [
        {
            "start_ms": key[0],
            "end_ms": key[0] + width,
            **({} if by is None else {"value": key[1]}),
            "events": len(group),
            "clicks": sum(one["click_count"] for one in group),
            "users": len({one["uid"] for one in group}),
        }
        for key, group in sorted(groups.items())
    ]


@pytest.fixture(scope="module")
def events() -> list[dict[str, Any]]:
    return crowd(400)


@pytest.fixture(scope="module")
def directory(events: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an archive of the events in 20 batches."""
    path = tmp_path_factory.mktemp("archive")
    values = [json.dumps(one).encode() for one in events]
    filled(path, [values[at : at + 20] for at in range(0, len(values), 20)])
    return path


@pytest.mark.parametrize("per", WIDTHS_MS)
@pytest.mark.parametrize("by", [None, "country"])
def test_counts(events: list[dict[str, Any]], directory: Path, per: str, by: str | None) -> None:
    with open_events(directory) as opened:
        assert opened.counts(per, by=by, users=True) == expected_counts(events, WIDTHS_MS[per], by)


def test_bucket_before_1970(tmp_path: Path) -> None:
    """A record's timestamp may be -1."""
    filled(tmp_path, [[b'{"uid":"ann","click_count":2}']], timestamp_ms=-1)
    with open_events(tmp_path) as opened:
        [row] = opened.counts("hour")
    assert row == {"start_ms": -3_600_000, "end_ms": 0, "events": 1, "clicks": 2}


def test_conditions_combine(events: list[dict[str, Any]], directory: Path) -> None:
    begin, end = START_MS + 10 * MINUTE_MS, START_MS + 60 * MINUTE_MS
    chosen = [
        one
        for one in events
        if begin <= one["event_time"] < end and one["os_type"] in ("iOS", "Linux") and one["country"] in ("DE", 49)
    ]
    assert chosen
    selection = Selection(begin, end, [("os", "iOS"), ("country", "49"), ("os", "Linux"), ("country", "DE")])
    with open_events(directory) as opened:
        assert opened.counts("minute", selection, users=True) == expected_counts(chosen, MINUTE_MS, None)
        assert opened.totals(selection) == {
            "events": len(chosen),
            "clicks": sum(one["click_count"] for one in chosen),
            "users": len({one["uid"] for one in chosen}),
            "no_time": 0,
            "future": 0,
        }
        assert opened.totals(Selection(1, 2))["events"] == 0


def test_top_values(events: list[dict[str, Any]], directory: Path) -> None:
    by_user: Counter[str] = Counter()
    for one in events:
        by_user[one["uid"]] += one["click_count"]
    with open_events(directory) as opened:
        rows = opened.top("uid", count=40)
    assert {row["value"]: row["clicks"] for row in rows} == by_user
    assert [row["clicks"] for row in rows] == sorted(by_user.values(), reverse=True)
    assert len(rows) == len(by_user) == 40


def test_timeline_of_a_user(events: list[dict[str, Any]], directory: Path) -> None:
    own = [(one["event_time"], number) for number, one in enumerate(events) if one["uid"] == "user-7"]
    with open_events(directory) as opened:
        rows = opened.timeline("user-7", count=5)
        later = opened.timeline("user-7", Selection(begin_ms=START_MS + 50 * MINUTE_MS))
    assert [(row["time_ms"], row["offset"]) for row in rows] == sorted(own, reverse=True)[:5]
    assert len(later) == sum(time_ms >= START_MS + 50 * MINUTE_MS for time_ms, _ in own)


VALUES = st.one_of(
    st.text(max_size=3), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none(),
    st.lists(st.integers(), max_size=2), st.just("x" * 1024), st.just("ä" * 513), st.just("1" * 1025),
    st.just("\x01" * 1024),
    st.sampled_from(["true", "false", "null", "-", "-1", "1.5", "1e5", "[]", "{}", "NaN", {}, {"a": 1}]),
)  # fmt: skip


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=4), VALUES, min_size=1, max_size=3), st.data())
def test_dimension_follows_the_rules(fields: dict[str, Any], data: st.DataObject) -> None:
    """Any field's value is that of the rules for `os_type`: text, an integer's text, or unknown."""
    name = data.draw(st.sampled_from([*fields, "absent"]))
    extra = msgspec.json.encode(fields)
    raw = msgspec.json.decode(extra, type=dict[str, msgspec.Raw]).get(name, b"")
    assume(name not in ("uid", "os"))
    query, value = queries._Query(), os_of(bytes(raw))
    texts = [value, "unknown", bytes(raw).decode().strip('"')]
    conditions = ", ".join([query.condition(name, [text]) for text in texts])
    source = "(SELECT $extra AS extra)"
    text = f"SELECT {query.dimension(name)}, {conditions} FROM {source}"
    column, grouped = query.grouped(name)
    text += f" UNION ALL SELECT {grouped}{', NULL' * len(texts)} FROM (SELECT {column} FROM {source} GROUP BY ALL)"
    with duckdb.connect() as database:
        row, after = database.execute(text, {**query.parameters, "extra": extra.decode()}).fetchall()
    # SQL has null for false where the field is absent.
    assert [row[0], *map(bool, row[1:])] == [value, *(text == value for text in texts)]
    assert after[0] == value


def test_log_behind_the_archive(bootstrap: str, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    """The first events are in both, the next ones, of a new partition too, only in the log."""
    archived = [event("ann", START_MS), event("bob", START_MS)]
    filled(tmp_path, [archived], topic=topic)
    write(bootstrap, topic, {0: archived})
    with open_events(tmp_path, cluster) as opened:
        assert opened.totals()["events"] == 2
        assert opened.ends == {0: 2, 1: 0}
        write(bootstrap, topic, {0: [event("ann", START_MS), b"nonsense"], 1: [event("eve", START_MS + MINUTE_MS)]})
        assert opened.totals()["events"] == 2, "as of the moment when it was opened"
    with open_events(tmp_path, cluster) as opened:
        assert opened.totals()["events"] == 4
        assert opened.ends == {0: 4, 1: 1}
        assert [row["events"] for row in opened.counts("minute")] == [3, 1]
        assert [row["offset"] for row in opened.timeline("ann")] == [2, 0]
    with open_events(tmp_path) as opened:
        assert opened.totals()["events"] == 2


def offsets(reader: ArchiveReader, cluster: Cluster) -> list[tuple[int, int]]:
    """Return partition and offset of every event of the reader."""
    with reader.events(cluster) as opened:
        rows = [row for uid in ("ann", "bob") for row in opened.timeline(uid)]
        assert opened.totals()["events"] == len(rows)
    return sorted((row["partition"], row["offset"]) for row in rows)


def test_reader_keeps_the_tail(
    bootstrap: str, cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record of the log is read once, while the archive and the log grow."""
    monkeypatch.setattr(queries, "CHUNKS_MAX", 2)
    chance, read = random.Random(4), Counter[int]()
    values = [event(chance.choice(["ann", "bob"]), START_MS + number) for number in range(60)]
    original = read_partitions

    def counting(connected: Cluster, name: str, begins: Any, ends: Any) -> Any:
        for partition, record in original(connected, name, begins, ends):
            read[record.offset] += partition == 0
            yield partition, record

    monkeypatch.setattr(queries, "read_partitions", counting)
    archive = filled(tmp_path, [values[:5]], topic=topic)
    write(bootstrap, topic, {0: values[:10], 1: []})
    written, archived = 10, 5
    with contextlib.closing(ArchiveReader(tmp_path)) as reader:
        while written < len(values):
            assert offsets(reader, cluster) == [(0, offset) for offset in range(written)]
            if chance.random() < 0.4 and archived < written:
                until = chance.randrange(archived + 1, written + 1)
                add_batch(archive, values[archived:until], topic=topic)
                archived = until
            if chance.random() < 0.7:
                until = min(len(values), written + chance.randrange(1, 8))
                write(bootstrap, topic, {0: values[written:until]})
                written = until
        assert offsets(reader, cluster) == [(0, offset) for offset in range(written)]
    assert archived > 20 and set(read.values()) == {1}


def test_reader_follows_a_recreated_topic(bootstrap: str, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    filled(tmp_path, [[event("ann", START_MS)]], topic=topic)
    write(bootstrap, topic, {0: [event("ann", START_MS), event("ann", START_MS)], 1: []})
    with contextlib.closing(ArchiveReader(tmp_path)) as reader:
        assert offsets(reader, cluster) == [(0, 0), (0, 1)]
        cluster.delete_topic(topic)
        write(bootstrap, topic, {0: [event("ann", START_MS), event("bob", START_MS), event("bob", START_MS)], 1: []})
        with reader.events(cluster) as opened:
            assert [row["offset"] for row in opened.timeline("bob")] == [2, 1]
            assert [row["offset"] for row in opened.timeline("ann")] == [0]


def test_windows_of_any_length(events: list[dict[str, Any]], directory: Path) -> None:
    """Runs of one length are one query; others follow in the order of the windows."""
    minutes = [0, 7, 14, 21, 30, 80, 80, 95]
    windows = [
        Window(START_MS + one * MINUTE_MS, START_MS + two * MINUTE_MS) for one, two in itertools.pairwise(minutes)
    ]
    with open_events(directory) as opened:
        counts = opened.windows(windows, by="country", users=True)
    shown = {(one.start_ms, one.value): (one.events, one.clicks, one.users) for one in counts}
    groups: dict[Any, list[dict[str, Any]]] = {}
    for one in events:
        for window in windows:
            if window.start_ms <= one["event_time"] < window.end_ms:
                groups.setdefault((window.start_ms, str(one["country"])), []).append(one)
    assert shown == {
        key: (len(group), sum(one["click_count"] for one in group), len({one["uid"] for one in group}))
        for key, group in groups.items()
    }


def test_cancelled_reader_keeps_nothing(bootstrap: str, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    filled(tmp_path, [[event("ann", START_MS)]], topic=topic)
    write(bootstrap, topic, {0: [event("ann", START_MS), event("bob", START_MS)], 1: []})
    with contextlib.closing(ArchiveReader(tmp_path)) as reader:
        with pytest.raises(QueryCancelled), reader.events(cluster, lambda: True):
            pass
        assert offsets(reader, cluster) == [(0, 0), (0, 1)]
        with reader.events(cluster) as opened:
            opened.interrupt()
            assert opened.totals()["events"] == 2, "nothing was running"
        opened.interrupt()


@pytest.mark.remedy(Remedy.ARCHIVE_ONLY, Remedy.WAIT_FOR_ARCHIVE)
def test_log_that_cannot_be_read(
    bootstrap: str, cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [event(f"user-{number}", START_MS) for number in range(4)]
    write(bootstrap, topic, {0: values})
    filled(tmp_path / "one", [values[:1]], topic=topic)
    monkeypatch.setattr(queries, "TAIL_RECORDS_MAX", 2)
    with pytest.raises(QueryRefused, match="3 records behind") as raised, open_events(tmp_path / "one", cluster):
        pass
    remedies.find(Remedy.WAIT_FOR_ARCHIVE, raised.value)
    remedies.find(Remedy.ARCHIVE_ONLY, raised.value)
    where = ["--bootstrap", bootstrap, "--json"]
    only = ["query", "totals", "--archive-only", "--archive", str(tmp_path / "one"), *where]
    assert json.loads(CliRunner().invoke(onceflow, only).stdout)[0]["events"] == 1
    filled(tmp_path / "caught-up", [values[:3]], topic=topic)
    with open_events(tmp_path / "caught-up", cluster) as opened:
        assert opened.totals()["events"] == 4
    Admin(cluster).delete_records(topic, {0: 4})
    with pytest.raises(QueryRefused, match="offsets 4 to 4"), open_events(tmp_path / "caught-up", cluster):
        pass


def ask(*words: str) -> str:
    done = CliRunner().invoke(onceflow, ["query", *words, "--archive-only"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_command_prints_three_layouts(tmp_path: Path) -> None:
    filled(tmp_path, [[event("ann", START_MS, clicks=2), event("bob", START_MS + 1500, os_type="x")]])
    archive = ["--archive", str(tmp_path)]
    assert ask("top", "os", "--count", "1", *archive) == "VALUE  EVENTS  CLICKS\niOS    1       2\n"
    assert ask("top", "os", *archive, "--csv") == "value,events,clicks\niOS,1,2\nx,1,1\n"
    rows = json.loads(ask("counts", "--per", "minute", "--users", *archive, "--json", "--from", "2015-04-28T07:00"))
    assert rows == [{"start_ms": START_MS, "end_ms": START_MS + MINUTE_MS, "events": 2, "clicks": 3, "users": 2}]
    assert ask("counts", "--where", "os=none", *archive) == ""
    assert ask("totals", "--where", "os=x", *archive).splitlines()[1].split()[:3] == ["1", "1", "1"]
    assert "2015-04-28T07:00:01.500Z" in ask("timeline", "bob", *archive)
    assert ask("counts", "--to", "2015-04-28", *archive, "--json") == "[]\n"
    none = CliRunner().invoke(onceflow, ["query", "top", "os", "--where", "os=none", "--archive-only", *archive])
    assert (none.stdout, none.stderr, none.exit_code) == ("", "no event matches\n", 0)


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["top", "pge"], ["pge"]),
        (["counts", "--by", "page", "--where", "contry=DE", "--where", "os=iOS"], ["contry"]),
        (["totals", "--where", "contry=DE", "--where", "contry=FR", "--where", "a/~b=1"], ["contry"]),
        (["timeline", "ann", "--where", "uid=ann"], []),
        (["top", ""], [""]),
    ],
)
def test_fields_that_no_event_has_are_noted(tmp_path: Path, words: list[str], missing: list[str]) -> None:
    odd: dict[str, Any] = {"a/~b": 1}
    filled(tmp_path, [[event("ann", START_MS, page="/"), event("bob", START_MS, **odd)]])
    done = CliRunner().invoke(onceflow, ["query", *words, "--archive-only", "--archive", str(tmp_path), "--json"])
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [f"no event has the field '{name}'" for name in missing]


def test_fields_with_own_columns_are_noted(tmp_path: Path) -> None:
    filled(tmp_path, [[event("ann", START_MS)]])
    notes = {
        "os_type": "the field 'os_type' is the dimension os\n",
        "click_count": "the field 'click_count' is not a dimension\n",
        "event_time": "the field 'event_time' is not a dimension\n",
        "uid": "",
    }
    for name, expected in notes.items():
        done = CliRunner().invoke(
            onceflow, ["query", "top", name, "--archive-only", "--archive", str(tmp_path), "--csv"]
        )
        assert (done.exit_code, done.stderr) == (0, expected)


def test_wrong_condition_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(onceflow, ["query", "totals", "--where", "os"], standalone_mode=False)
    assert "'os' is not DIM=VALUE" in str(done.exception)
