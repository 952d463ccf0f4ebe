"""Load a topic into Parquet files: in parallel tasks, all or nothing, from where the last load ended.

    OUTPUT/load=000000/part-….parquet     the records of one load
    OUTPUT/load=000000/_onceflow.json     its topic and offsets; the next load starts at its ends
    OUTPUT/_onceflow.lock                 held while a load runs

A load is written to OUTPUT/_loading, synced and renamed, so a crash leaves it whole or not at all. Readers ignore names
that begin with an underscore, and see `load` as a partition column. OUTPUT is on a local file system.
"""

import contextlib
import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as sql

from onceflow.client.cluster import Cluster
from onceflow.client.lag import log_ends
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.checkpoint import sync_path
from onceflow.spark.failure import describe
from onceflow.spark.reader.options import read_options
from onceflow.spark.reader.subscription import ASSIGN

LOADING = "_loading"
LOCK = "_onceflow.lock"
MANIFEST = "_onceflow.json"
_PREFIX = "load="


class LoadRefused(OnceflowError):
    """Records that the next load would start with are deleted, or the output belongs to another topic or process."""


class LoadFailed(OnceflowError):
    """Spark could not read or write the records; nothing was added to the output."""


@dataclass(frozen=True, slots=True)
class Load:
    """One load: its directory and what is in it. Offsets are by partition; ends are exclusive."""

    number: int
    topic: str
    topic_id: str | None
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    records: int

    @property
    def name(self) -> str:
        """Name of the directory in OUTPUT."""
        return f"{_PREFIX}{self.number:06d}"


def load(
    session: Callable[[], SparkSession],
    cluster: Cluster,
    topic: str,
    output: Path,
    *,
    tasks: int,
    options: Mapping[str, str],
    accept_data_loss: bool = False,
) -> Load | None:
    """Load the committed records of a topic that were added since the last load; None where there are none.

    `session` is called when there is something to load. `tasks` read and write at the same time. `options` are the
    source's, without the subscription and the offsets, such as kafka.bootstrap.servers and decode. With
    `accept_data_loss` a load starts after records that are deleted. Raises WrongOption, LoadRefused, LoadFailed and the
    client's errors.
    """
    read_options({**options, ASSIGN: json.dumps({topic: [0]})}, "batch")
    output.mkdir(parents=True, exist_ok=True)
    with _locked(output):
        shutil.rmtree(output / LOADING, ignore_errors=True)
        metadata = cluster.require_topic(topic)
        topic_id = None if metadata.topic_id is None else str(metadata.topic_id)
        last = last_load(output)
        if last is not None:
            _require_same_topic(last, topic, topic_id, output)
        ranges = log_ends(cluster, topic, metadata.partitions)
        starts = {
            partition: _start(topic, partition, start, last, accept_data_loss=accept_data_loss)
            for partition, (start, _) in ranges.items()
        }
        ends = {partition: max(end, starts[partition]) for partition, (_, end) in ranges.items()}
        if starts == ends:
            return None
        number = 0 if last is None else last.number + 1
        records = _write(session(), output / LOADING, topic, starts, ends, options, tasks)
        done = Load(number, topic, topic_id, starts, ends, records)
        _finish(output, done)
        return done


def last_load(output: Path) -> Load | None:
    """Return the newest load of an output directory. Raises LoadRefused for a manifest that cannot be read."""
    numbers = [int(path.name.removeprefix(_PREFIX)) for path in output.glob(f"{_PREFIX}[0-9]*") if path.is_dir()]
    if not numbers:
        return None
    path = output / f"{_PREFIX}{max(numbers):06d}" / MANIFEST
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
        for name in ("starts", "ends"):
            fields[name] = {int(partition): offset for partition, offset in fields[name].items()}
        return Load(**fields)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadRefused(f"{path} is not the manifest of a load: {error}; {Remedy.OTHER_OUTPUT}") from error


def _start(topic: str, partition: int, log_start: int, last: Load | None, *, accept_data_loss: bool) -> int:
    wanted = log_start if last is None else last.ends.get(partition, 0)
    if log_start > wanted and not accept_data_loss:
        raise LoadRefused(
            f"offsets {wanted} to {log_start - 1} of {topic}-{partition} were deleted before they were loaded; "
            f"{Remedy.LOAD_WITHOUT}"
        )
    return max(wanted, log_start)


def _require_same_topic(last: Load, topic: str, topic_id: str | None, output: Path) -> None:
    if last.topic != topic:
        raise LoadRefused(f"{output} has loads of topic '{last.topic}', not '{topic}'; {Remedy.OTHER_OUTPUT}")
    if None not in (last.topic_id, topic_id) and last.topic_id != topic_id:
        raise LoadRefused(f"topic '{topic}' was deleted and created again since the last load; {Remedy.OTHER_OUTPUT}")


def _write(
    spark: SparkSession,
    directory: Path,
    topic: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    options: Mapping[str, str],
    tasks: int,
) -> int:
    """Write the records of these offsets and return how many they are."""
    reader = (
        spark.read.format("onceflow")
        .options(**options)
        .option(ASSIGN, json.dumps({topic: sorted(starts)}))
        .option("startingOffsets", json.dumps({topic: starts}))
        .option("endingOffsets", json.dumps({topic: ends}))
        .option("minPartitions", str(tasks))
    )
    counted = Observation()
    try:
        rows = reader.load().observe(counted, sql.count(sql.lit(1)).alias("records"))
        rows.write.option("compression", "zstd").parquet(str(directory.absolute()))
    except (PySparkException, Py4JError) as error:
        raise LoadFailed(f"topic '{topic}' was not loaded: {describe(error)}") from error
    return int(counted.get["records"])


def _finish(output: Path, done: Load) -> None:
    """Sync the load with its manifest, and give it its name."""
    loading = output / LOADING
    (loading / MANIFEST).write_text(json.dumps(asdict(done)))
    for path in (*loading.rglob("*"), loading):
        sync_path(path)
    loading.rename(output / done.name)
    sync_path(output)


@contextlib.contextmanager
def _locked(output: Path) -> Iterator[None]:
    """Hold the output's lock, which the kernel drops with the process."""
    with (output / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LoadRefused(f"another load into {output} is running; {Remedy.WAIT_FOR_LOAD}") from None
        yield
