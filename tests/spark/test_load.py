"""Loads into Parquet: whole or not at all, each record once, from where the last load ended."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.client.producer import EventWriter
from onceflow.remedies import Remedy
from onceflow.spark import load as loads
from onceflow.spark.errors import WrongOption
from onceflow.spark.load import Load, LoadFailed, LoadRefused, last_load, load
from tests import remedies
from tests.spark.conftest import Send

Loading = Callable[..., Load | None]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "events"


@pytest.fixture
def loading(spark: SparkSession, cluster: Cluster, bootstrap: str, topic: str, output: Path) -> Loading:
    def run(to: Path = output, *, of: str = topic, tasks: int = 2, **options: Any) -> Load | None:
        source = {"kafka.bootstrap.servers": bootstrap, **options.pop("source", {})}
        return load(lambda: spark, cluster, of, to, tasks=tasks, options=source, **options)

    return run


def rows(output: Path) -> list[tuple[int, int, bytes]]:
    """Return (partition, offset, value) of all loads, as pyarrow reads the directory."""
    table = pyarrow.dataset.dataset(output, partitioning="hive").to_table(["partition", "offset", "value"])
    return sorted((row["partition"], row["offset"], row["value"]) for row in table.to_pylist())


def test_each_record_is_loaded_once(
    loading: Loading, send: Send, cluster: Cluster, bootstrap: str, topic: str, output: Path
) -> None:
    """Three loads: all, what was added, and a partition that was added."""
    cluster.create_topic(topic, 2)
    send(["a", "b"], partition=0)
    send(["c"], partition=1)
    first = loading()
    assert first is not None
    assert (first.name, first.records, first.starts, first.ends) == ("load=000000", 3, {0: 0, 1: 0}, {0: 2, 1: 1})
    assert loading() is None
    send(["d"], partition=1)
    Admin(cluster).create_partitions(topic, 3)
    with EventWriter(bootstrap, topic) as writer:  # The producer of `send` does not know the partition yet.
        writer.write(None, b"e", partition=2)
    second = loading()
    assert second is not None
    assert (second.name, second.records, second.starts) == ("load=000001", 2, {0: 2, 1: 1, 2: 0})
    assert rows(output) == [(0, 0, b"a"), (0, 1, b"b"), (1, 0, b"c"), (1, 1, b"d"), (2, 0, b"e")]
    assert last_load(output) == second


def test_tasks_share_one_partition(loading: Loading, send: Send, output: Path) -> None:
    send([str(number) for number in range(1000)])
    done = loading(tasks=4, source={"decode": "n BIGINT"})
    assert done is not None
    assert len(list((output / done.name).glob("*.parquet"))) == 4
    assert done.records == 1000


@pytest.mark.parametrize("point", ["write", "sync", "rename"])
def test_a_load_that_dies_leaves_nothing(
    point: str, loading: Loading, send: Send, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers see the load before; the next one loads every record."""

    class Killed(Exception):
        pass

    def die(*_arguments: Any, **_options: Any) -> None:
        raise Killed

    send(["a"])
    loading()
    send(["b"])
    with monkeypatch.context() as patch:
        target = {"write": (loads, "_finish"), "sync": (loads, "sync_path"), "rename": (Path, "rename")}[point]
        patch.setattr(*target, die)
        with pytest.raises(Killed):
            loading()
    assert (output / "_loading").is_dir()
    assert [value for _, _, value in rows(output)] == [b"a"]
    done = loading()
    assert done is not None
    assert (done.number, done.records) == (1, 1)
    assert [value for _, _, value in rows(output)] == [b"a", b"b"]


def test_files_are_synced_before_the_rename(
    loading: Loading, send: Send, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, rename = os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda file: (steps.append(os.readlink(f"/proc/self/fd/{file}")), sync(file)))
    monkeypatch.setattr(Path, "rename", lambda path, to: (steps.append("rename"), rename(path, to))[1])
    send(["a"])
    loading()
    before, after = steps[: steps.index("rename")], steps[steps.index("rename") + 1 :]
    files = {path.name for path in (output / "load=000000").iterdir()}
    assert files | {"_loading"} <= {Path(step).name for step in before}
    assert after == [str(output)]


@pytest.mark.remedy(Remedy.LOAD_WITHOUT)
def test_deleted_records(loading: Loading, send: Send, cluster: Cluster, topic: str, output: Path) -> None:
    send(["a"])
    loading()
    send(["b", "c", "d"])
    Admin(cluster).delete_records(topic, {0: 3})
    with pytest.raises(LoadRefused, match=rf"offsets 1 to 2 of {topic}-0 were deleted") as refused:
        loading()
    remedies.find(Remedy.LOAD_WITHOUT, str(refused.value))
    done = loading(accept_data_loss=True)
    assert done is not None
    assert (done.starts, done.records) == ({0: 3}, 1)
    assert rows(output) == [(0, 0, b"a"), (0, 3, b"d")]


@pytest.mark.remedy(Remedy.OTHER_OUTPUT)
@pytest.mark.parametrize("case", ["other", "recreated", "damaged"])
def test_an_output_of_something_else(
    case: str, loading: Loading, send: Send, cluster: Cluster, topic: str, output: Path
) -> None:
    send(["a"])
    loading()
    of = topic
    if case == "other":
        of = f"{topic}-other"
        send(["b"], topic=of)
    elif case == "recreated":
        cluster.delete_topic(topic)
        cluster.create_topic(topic, 1)
        send(["b"])
    else:
        (output / "load=000000" / "_onceflow.json").write_text("{}")
    with pytest.raises(LoadRefused) as refused:
        loading(of=of)
    remedies.find(Remedy.OTHER_OUTPUT, str(refused.value))
    done = loading(output.with_name("new"), of=of)
    assert done is not None
    assert done.records == 1


@pytest.mark.remedy(Remedy.WAIT_FOR_LOAD)
def test_two_loads_at_a_time(loading: Loading, send: Send, output: Path) -> None:
    send(["a"])
    output.mkdir()
    with loads._locked(output), pytest.raises(LoadRefused, match="another load") as refused:
        loading()
    remedies.find(Remedy.WAIT_FOR_LOAD, str(refused.value))
    assert loading() is not None


def test_manifest_is_plain_json(loading: Loading, send: Send, output: Path, topic: str) -> None:
    send(["a"])
    done = loading()
    assert done is not None
    fields = json.loads((output / done.name / "_onceflow.json").read_text())
    assert (fields["topic"], fields["ends"], fields["records"]) == (topic, {"0": 1}, 1)
    shutil.rmtree(output / done.name)
    assert last_load(output) is None


def test_invalid_options_are_refused_first(loading: Loading, output: Path) -> None:
    with pytest.raises(WrongOption, match="field 'uid' has the type TEXT"):
        loading(source={"decode": "uid TEXT"})
    assert not output.exists()


def test_failure_in_spark_is_one_message(loading: Loading, send: Send, output: Path, topic: str) -> None:
    """The directory cannot be written to."""
    send(["a"])
    output.mkdir()
    (output / "_loading").write_text("")
    with pytest.raises(LoadFailed, match=f"topic '{topic}' was not loaded: ") as failed:
        loading()
    assert "\n" not in str(failed.value)
