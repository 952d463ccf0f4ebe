"""Messages of failed queries: the connector's own message, alone."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import onceflow.spark
from onceflow.client.cluster import Cluster
from onceflow.errors import OnceflowError
from onceflow.spark.failure import describe, describe_stop
from tests.spark.conftest import ROOT, RunExample


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[PYTHON] Failed: Traceback\n  File x\nonceflow.spark.options.WrongOption: no such; look\n SQLSTATE: 38000",
            "no such; look",
        ),
        (
            "onceflow.wire.errors.CorruptBatch: 1st\nonceflow.spark.data_loss.DataLost: it is lost SQLSTATE: 1\n\tat x",
            "it is lost",
        ),
        ("[SOMETHING] of Spark's own.\n\tat org.apache", "[SOMETHING] of Spark's own."),
        ("", "ValueError"),
    ],
)
def test_message_of_a_failed_query(text: str, expected: str) -> None:
    assert describe(ValueError(text)) == expected


def test_reason_why_spark_stopped() -> None:
    """Our own message, else the innermost cause in Spark's text."""
    ours = "[STREAM_FAILED] Query terminated\n  File y\nonceflow.spark.data_loss.DataLost: t-0 is lost; do\n\tat z"
    assert describe_stop(ValueError(ours)) == "t-0 is lost; do"
    assert describe_stop(ValueError("java.lang.X\n at y")) == "Spark stopped the query (ValueError): java.lang.X"
    inner = "[STREAM_FAILED] Query\nTraceback\n  File y\nKeyError: 'x'\n=== Streaming Query ==="
    assert describe_stop(ValueError(inner)) == "Spark stopped the query (ValueError): KeyError: 'x'"
    assert "gave no reason" in describe_stop(ValueError(""))


def load(reader: object, **options: str) -> DataFrame:
    """Load a topic that does not exist."""
    return reader.format("onceflow").options(**{"Subscribe": "t", **options}).load()  # type: ignore[attr-defined]


@pytest.mark.parametrize("reader", ["read", "readStream"])
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("maxOffsetPerTrigger", "1", "unknown option maxOffsetPerTrigger of source onceflow; did you mean maxOffsetsP"),
        ("kafka.Group.id", "1", "option kafka.Group.id has no effect on source onceflow, remove it: a query is not"),
        ("minpartitions", "x", "option minPartitions='x' is not a whole number above 0"),
    ],
)
def test_wrong_option_is_named_as_written(
    spark: SparkSession, reader: str, option: str, value: str, message: str
) -> None:
    with pytest.raises(OnceflowError) as raised, onceflow.spark.messages():
        load(getattr(spark, reader), **{"kafka.bootstrap.servers": "127.0.0.1:1", option: value})
    assert str(raised.value).startswith(message)
    assert raised.value.__suppress_context__


def test_message_of_a_query_stands_alone(spark: SparkSession, bootstrap: str, topic: str) -> None:
    stream = load(spark.readStream, **{"kafka.bootstrap.servers": bootstrap, "subscribe": topic})
    with pytest.raises(OnceflowError) as raised, onceflow.spark.messages():
        stream.writeStream.format("noop").start().awaitTermination()
    assert str(raised.value).startswith(f"topic '{topic}' does not exist") and "\n" not in str(raised.value)


def test_failures_of_the_program_are_unchanged(
    spark: SparkSession, bootstrap: str, topic: str, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.create_topic(topic, 1)

    def fail(rows: DataFrame, number: int) -> None:
        raise ZeroDivisionError(number)

    with pytest.raises(AnalysisException, match="no_such_column"), onceflow.spark.messages():
        spark.range(1).select("no_such_column")
    stream = load(spark.readStream, **{"kafka.bootstrap.servers": bootstrap, "subscribe": topic})
    query = stream.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException, match="ZeroDivisionError: 0"), onceflow.spark.messages():
        query.awaitTermination()
    own = OnceflowError("no such thing; look")
    with pytest.raises(OnceflowError) as raised, onceflow.spark.messages():
        raise own from ValueError()
    assert raised.value is own and own.__cause__ is None


@pytest.mark.parametrize(
    ("failure", "last"),
    [
        ("OnceflowError('x failed; do y')", "onceflow: x failed; do y"),
        ("ValueError('Traceback\\nonceflow.a.B: x failed; do y\\n at org.apache')", "onceflow: x failed; do y"),
        ("ValueError('x')", "ValueError: x"),
    ],
)
def test_script_ends_with_the_message(failure: str, last: str) -> None:
    program = f"""
import onceflow.spark
from onceflow.errors import OnceflowError
onceflow.spark.install_excepthook()
raise {failure}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[-1] == last
    assert len(lines) == 1 or "ValueError: x" in last


NOWHERE = "127.0.0.1:1"
MORE_ARGUMENTS = {
    "clicks_to_redis.py": ["visits", f"redis://{NOWHERE}"],
    "kafka_to_kafka.py": ["visits"],
    "kafka_to_redis.py": ["visits", f"redis://{NOWHERE}"],
    "parquet_sink.py": ["visits", "{directory}"],
    "poc_copy.py": [],
    "two_phase_sink.py": ["visits"],
}


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "spark").glob("*.py")), ids=lambda path: path.name)
def test_examples_end_with_the_message(
    path: Path, run_example: RunExample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An example with a wrong address: the excepthook that it installs prints one line."""
    more = [argument.format(directory=tmp_path) for argument in MORE_ARGUMENTS[path.name]]
    try:
        run_example(str(path.relative_to(ROOT)), NOWHERE, *more)
    except Exception:  # noqa: BLE001 - Spark's or ours
        capsys.readouterr()
        sys.excepthook(*sys.exc_info())
    printed = capsys.readouterr().err
    assert printed.startswith("onceflow: ") and NOWHERE in printed and printed.count("\n") == 1
