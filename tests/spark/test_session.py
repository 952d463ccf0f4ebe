"""The session: its settings, where it listens, and the sentence that is taken out of Spark's errors."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from onceflow.spark import session
from onceflow.spark.failure import sentence


def test_the_running_session_has_the_settings(spark: SparkSession) -> None:
    expected = session.session_conf("local[2]")
    assert {name: spark.conf.get(name) for name in expected} == expected
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.parametrize(
    ("master", "partitions"), [("local", "1"), ("local[1]", "1"), ("local[2]", "2"), ("local[8,3]", "2")]
)
def test_one_machine_is_tuned_by_its_threads(master: str, partitions: str) -> None:
    conf = session.session_conf(master)
    assert conf["spark.sql.shuffle.partitions"] == partitions
    assert conf["spark.driver.bindAddress"] == "127.0.0.1"


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local-cluster[2,1,1024]"])
def test_a_cluster_keeps_its_own_file_system_and_addresses(master: str) -> None:
    assert not session.session_conf(master).keys() & session.ON_ONE_MACHINE.keys()


def test_sparks_own_pages_are_off_unless_asked_for() -> None:
    assert session.session_conf("local")["spark.ui.enabled"] == "false"
    assert session.session_conf("local", ui_port=0)["spark.ui.port"] == "0"


def test_the_log_settings_are_there() -> None:
    option = session.EVERYWHERE["spark.driver.extraJavaOptions"]
    assert Path(option.strip('"').partition("file://")[2]).is_file()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[PYTHON] Failed: Traceback\n  File x\nonceflow.spark.options.WrongOption: no such; look\n SQLSTATE: 38000",
            "no such; look",
        ),
        (
            "onceflow.wire.errors.CorruptBatch: 1st\nonceflow.spark.data_loss.DataLost: it is gone SQLSTATE: 1\n\tat x",
            "it is gone",
        ),
        ("[SOMETHING] of Spark's own.\n\tat org.apache", "[SOMETHING] of Spark's own."),
        ("", "ValueError"),
    ],
)
def test_the_sentence_of_a_failed_query(text: str, expected: str) -> None:
    assert sentence(ValueError(text)) == expected
