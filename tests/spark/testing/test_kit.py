"""The conformance kit passes correct sinks and names the rule that a wrong sink breaks."""

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from onceflow.client.cluster import Cluster
from onceflow.spark.testing import NotExactlyOnce, Report, Rule, check_exactly_once, check_foreach_batch
from tests.campaigns import RecordProperty
from tests.spark.conftest import RunExample, Send
from tests.spark.testing import wrong_sinks as wrong

ROOT = Path(__file__).parents[3]
EXAMPLE = "examples/spark/parquet_sink.py"
parquet = runpy.run_path(str(ROOT / EXAMPLE), run_name="parquet_sink")
ParquetSink: Any = parquet["ParquetSink"]


def check_parquet(directory: Path, spark: SparkSession, *, lines: bool = False) -> Report:
    return check_exactly_once(lambda: ParquetSink(directory), lambda: values_in(directory), spark=spark, lines=lines)


def values_in(directory: Path) -> list[str]:
    return [value for table in parquet["read_table"](directory) for value in table["value"].to_pylist()]


def test_correct_sink_passes(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    report = check_exactly_once(lambda: wrong.TableSink(path), lambda: wrong.values_in(path), spark=spark)
    assert len(report.points) > 10
    assert report.overtaken > 10 and report.losses >= 3
    assert report.blocked > 0, "SQLite has one writer, so no driver overtakes another within its transaction"
    assert any("after line" in point for point in report.points) and str(report).startswith("exactly once: ")


BETWEEN_STEPS = [
    (wrong.RetryOutsideTheFence, Rule.NO_FENCE, "frozen after recover"),
    (wrong.WritesDirectlyToTheTable, Rule.VISIBLE, "died after write"),
    (wrong.KeepsStagedRows, Rule.REMAINS, "died after write"),
    (wrong.AbortsACommittedBatch, Rule.UNDONE, "CommitUnknown after commit"),
    (wrong.ForgetsTheProof, Rule.FORGOTTEN, "without any failure"),
    (wrong.MarksNoEmptyBatch, Rule.FORGOTTEN, "without any failure"),
    (wrong.KeepsALock, Rule.STOPPED, "after prepare"),
    (wrong.LosesARow, Rule.WRONG, "without any failure"),
]
BETWEEN_LINES = [
    (wrong.MarkerOutside, Rule.MARKER_OUTSIDE, '(self.run("COMMIT")) of commit'),
    (wrong.MarkerFirst, Rule.MARKER_FIRST, "(self.mark(proof)) of commit"),
    (wrong.CommitsRowByRow, Rule.VISIBLE, '(self.insert("data", [value])) of commit'),
]
LATER_BETWEEN_LINES = [
    (wrong.ResumesAtTheRow, Rule.ORDER, '(self.insert("staged", [row.value])) of write'),
    (wrong.OwnerTakenTooLate, Rule.NO_FENCE, '(((text,),) = self.run("SELECT proof FROM marker")) of recover'),
]
WRONG = [
    *(pytest.param(*case, False, id=case[0].__name__) for case in BETWEEN_STEPS),
    *(pytest.param(*case, True, id=case[0].__name__) for case in BETWEEN_LINES),
    *(pytest.param(*case, True, id=case[0].__name__, marks=pytest.mark.campaign) for case in LATER_BETWEEN_LINES),
]


@pytest.mark.parametrize(("kind", "rule", "event", "lines"), WRONG)
def test_wrong_sink_breaks_its_rule(
    kind: type[wrong.TableSink],
    rule: Rule,
    event: str,
    lines: bool,
    spark: SparkSession,
    tmp_path: Path,
    record_property: RecordProperty,
) -> None:
    """The conformance kit names the rule that each wrong sink breaks."""
    error = failing(kind, spark, tmp_path / "table", lines=lines)
    assert error.rule == rule
    assert event in error.event
    assert str(error).startswith(f"not exactly once, {rule}: ")
    record_property("wrong sinks, each reported with its rule", 1)


def failing(kind: type[wrong.TableSink], spark: SparkSession, path: Path, *, lines: bool = False) -> NotExactlyOnce:
    with pytest.raises(NotExactlyOnce) as raised:
        check_exactly_once(
            lambda: kind(path), lambda: wrong.values_in(path), spark=spark, lines=lines, visible_within_ms=0
        )
    return raised.value


@pytest.mark.parametrize(
    ("kind", "rule"), [(wrong.ChecksOnlyTheNumber, Rule.OTHER_BATCH), (wrong.ReadsNoSkippedRows, Rule.NOT_CONSUMED)]
)
def test_wrong_function_breaks_its_rule(
    kind: type[wrong.ChecksOnlyTheNumber], rule: Rule, spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    with pytest.raises(NotExactlyOnce) as raised:
        check_foreach_batch(lambda _: kind(path), lambda: wrong.values_in(path), spark=spark, visible_within_ms=0)
    assert raised.value.rule == rule


def test_unrelated_error_is_not_a_refusal(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    plans: dict[int, str] = {}
    with pytest.raises(NotExactlyOnce, match="and ended by KeyError instead of a refusal") as raised:
        check_foreach_batch(
            lambda checkpoint: wrong.FailsOnAnotherPlan(path, checkpoint, plans),
            lambda: wrong.values_in(path),
            spark=spark,
            lines=False,
            visible_within_ms=0,
        )
    assert raised.value.rule == Rule.OTHER_BATCH


@pytest.mark.campaign
def test_parquet_sink_passes(spark: SparkSession, tmp_path: Path) -> None:
    """The Parquet sink of the examples passes the conformance kit; a failed task fails its batch."""
    report = check_parquet(tmp_path, spark)
    assert report.tasks == 6 and report.blocked == 0, report


@pytest.fixture
def repeated_tasks(spark: SparkSession) -> Iterator[None]:
    """Let Spark repeat a failed task, as on a cluster; with local[2] the job fails at once."""
    scheduler = spark._jsc.sc().taskScheduler()
    field = scheduler.getClass().getDeclaredField("maxTaskFailures")
    field.setAccessible(True)
    before = field.getInt(scheduler)
    field.setInt(scheduler, 4)
    yield
    field.setInt(scheduler, before)


@pytest.mark.campaign
def test_parquet_sink_passes_with_repeated_tasks(repeated_tasks: None, spark: SparkSession, tmp_path: Path) -> None:
    """The Parquet sink of the examples passes the conformance kit at every line, with failed tasks repeated."""
    print(check_parquet(tmp_path, spark, lines=True))


def test_rows_of_failed_task_are_detected(repeated_tasks: None, spark: SparkSession, tmp_path: Path) -> None:
    assert failing(wrong.ListsTheFolder, spark, tmp_path / "table").rule == Rule.TASK_KEPT


def test_missing_rows_of_failed_task(spark: SparkSession, tmp_path: Path) -> None:
    assert failing(wrong.IgnoresFailedTasks, spark, tmp_path / "table").rule == Rule.TASK_LOST


def test_the_example_runs(
    run_example: RunExample,
    bootstrap: str,
    topic: str,
    cluster: Cluster,
    send: Send,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.create_topic(topic, 1)
    for begin, end in ((0, 3), (3, 5)):
        send([str(number) for number in range(begin, end)])
        run_example(EXAMPLE, bootstrap, topic, str(tmp_path))
        assert f"has {end} records of {topic}, each once" in capsys.readouterr().out
        assert values_in(tmp_path) == [str(number) for number in range(end)]
