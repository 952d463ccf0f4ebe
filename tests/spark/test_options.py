"""Options: Spark's names, read at once; what is not understood is refused with the way out."""

import re
from pathlib import Path

import pytest
from pyspark.sql.types import StringType, StructField, StructType

import pyspark_onceflow
from onceflow.spark.offsets import Offsets
from onceflow.spark.options import NAMES, Mode, SourceOptions, WrongOption, read_options
from onceflow.spark.source import SCHEMA, OnceflowDataSource, WrongSchema

LEAST = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "clicks"}


def test_the_defaults_are_sparks_but_for_the_isolation_level() -> None:
    stream = read_options(LEAST, "stream")
    assert stream == SourceOptions("127.0.0.1:9092", ("clicks",), "latest", "latest", None, True, True)
    assert read_options(LEAST, "batch").starting == "earliest"


def test_the_page_has_every_option_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    assert tuple(re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)) == NAMES


def test_every_option_is_read_in_any_case() -> None:
    given = {
        "KAFKA.BOOTSTRAP.SERVERS": "a:1, [::1]:2",
        "Subscribe": "clicks, orders",
        "STARTINGOFFSETS": '{"clicks": {"0": 23, "1": -2}, "orders": {"0": -1}}',
        "maxoffsetspertrigger": "1000",
        "failondataloss": "FALSE",
        "Isolation.Level": "read_uncommitted",
    }
    assert read_options(given, "stream") == SourceOptions(
        bootstrap="a:1,[::1]:2",
        topics=("clicks", "orders"),
        starting=Offsets({"clicks": {0: 23, 1: -2}, "orders": {0: -1}}),
        offsets_per_trigger_max=1000,
        fail_on_data_loss=False,
        read_committed=False,
    )


WRONG: list[tuple[Mode, dict[str, str], str]] = [
    ("stream", {"subscribe": ""}, "option subscribe .* is missing"),
    ("stream", {"kafka.bootstrap.servers": ""}, "option kafka.bootstrap.servers .* is missing"),
    ("stream", {"kafka.bootstrap.servers": "localhost"}, "kafka.bootstrap.servers='localhost': .*HOST:PORT"),
    ("stream", {"subscribe": "a,,b"}, "subscribe='a,,b': '' is not a topic's name"),
    ("stream", {"subscribe": "a b"}, "'a b' is not a topic's name"),
    ("stream", {"subscribe": "a,a"}, "names a topic twice"),
    ("stream", {"startingOffset": "latest"}, "unknown option startingOffset .*did you mean startingOffsets"),
    ("stream", {"maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger"),
    ("stream", {"kafka.isolation.level": "read_committed"}, "did you mean isolation.level"),
    ("stream", {"xyz": "1"}, "unknown option xyz .*the options are kafka.bootstrap.servers, subscribe"),
    ("stream", {"path": "/tmp"}, "unknown option path"),
    ("stream", {"startingOffsets": "lates"}, "'lates' is neither earliest nor latest nor offsets"),
    ("stream", {"startingOffsets": '{"orders": {"0": 1}}'}, "topic (orders|clicks) is in option"),
    ("stream", {"startingOffsets": '{"clicks": {"0": -3}}'}, "offset -3 of clicks-0; -2 is earliest, -1 is latest"),
    ("stream", {"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger='0' is not a whole number above 0"),
    ("stream", {"maxOffsetsPerTrigger": "1e3"}, "maxOffsetsPerTrigger='1e3'"),
    ("stream", {"failOnDataLoss": "yes"}, "failOnDataLoss='yes' is neither true nor false"),
    ("stream", {"isolation.level": "serializable"}, "neither read_committed nor read_uncommitted"),
    ("stream", {"endingOffsets": "latest"}, "endingOffsets means nothing in a stream read"),
    ("batch", {"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger means nothing in a batch read"),
    ("batch", {"startingOffsets": "latest"}, "startingOffsets is latest in a batch read"),
    ("batch", {"startingOffsets": '{"clicks": {"0": -1}}'}, "startingOffsets is latest in a batch read"),
    ("batch", {"endingOffsets": "earliest"}, "endingOffsets is earliest in a batch read"),
]


@pytest.mark.parametrize(("mode", "given", "sentence"), WRONG)
def test_wrong_options_are_refused(mode: Mode, given: dict[str, str], sentence: str) -> None:
    with pytest.raises(WrongOption, match=sentence):
        read_options(LEAST | given, mode)


def test_before_the_mode_is_known_options_of_both_are_let_through() -> None:
    read_options(LEAST | {"endingOffsets": "latest", "maxOffsetsPerTrigger": "5"})


def test_there_is_no_option_that_is_accepted_and_ignored() -> None:
    assert len(NAMES) == len(SourceOptions.__dataclass_fields__)


def test_a_schema_of_the_users_own_is_refused() -> None:
    source = OnceflowDataSource(LEAST)
    assert source.schema() == SCHEMA
    with pytest.raises(WrongSchema, match=r"has the columns struct<key:binary.* not struct<uid:string>"):
        source.streamReader(StructType([StructField("uid", StringType())]))


def test_spark_finds_the_source_by_the_name_of_a_package() -> None:
    assert pyspark_onceflow.DefaultSource is OnceflowDataSource
    assert OnceflowDataSource.name() == "onceflow"
