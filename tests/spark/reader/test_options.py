"""Options of the source: Spark's names, and errors for unknown or invalid options."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest
from pyspark.sql.types import StringType, StructField, StructType

import onceflow
import pyspark_onceflow
from onceflow.client.registry.settings import SessionSettings
from onceflow.remedies import Remedy
from onceflow.spark.errors import WrongOption
from onceflow.spark.offsets import Offsets
from onceflow.spark.pushdown.options import SCHEMA
from onceflow.spark.reader.options import NAMES, WITHOUT_EFFECT, Mode, SourceOptions, read_options
from onceflow.spark.reader.position_options import AtCommitted, AtTimestamp, Position
from onceflow.spark.reader.subscription import subscribed
from onceflow.spark.source import BatchReader, OldSpark, OnceflowDataSource, RefusedReader, WrongSchema
from tests import remedies

LEAST = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "clicks"}


def test_defaults_match_spark_except_isolation_level() -> None:
    assert read_options(LEAST, "stream") == SourceOptions("127.0.0.1:9092", subscribed("clicks"), "latest")
    assert read_options(LEAST, "batch").starting == "earliest"
    assert read_options(LEAST).read_committed


def test_page_lists_every_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    assert tuple(re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)) == NAMES


def test_page_lists_every_refused_spark_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "from-spark-kafka.md").read_text()
    refused = page[page.index("## Refused options") : page.index("## Other differences")]
    named = re.findall(r"^\| `([^`]+)` \|", refused, re.MULTILINE)
    assert [name.lower() for name in named] == list(WITHOUT_EFFECT)
    for name in named:
        with pytest.raises(WrongOption, match=rf"^option {name} has no effect on source onceflow, remove it: "):
            read_options(LEAST | {name: "5"}, "stream")


TLS = "zookeeper.ssl.client.enable=true\n"
ZOOKEEPER_CONFIGS = [
    (TLS + "zookeeper.ssl.key.password=hush", 0o600, "zookeeper.ssl.key.password is not a valid setting; did you mean"),
    ("ssl.truststore.location=/trusted.pem", 0o600, "ssl.truststore.location is not a valid setting"),
    ("zookeeper.connect=zk:2181", 0o600, "zookeeper.connect is not a valid setting"),
    ("zookeeper.ssl.keystore.location=/key.pem", 0o600, "has no effect without zookeeper.ssl.client.enable=true"),
    ("zookeeper.digest=hush", 0o600, "zookeeper.digest=… cannot be used: expected USER:PASSWORD"),
    ("zookeeper.digest=ada:hush", 0o644, "has a password, and every user of this machine can read it; its mode must"),
    ("zookeeper.session.timeout.ms=soon", 0o644, "zookeeper.session.timeout.ms='soon' cannot be used"),
    (TLS + "zookeeper.ssl.truststore.location=\udcff", 0o644, "cannot be read: 'utf-8' codec can't decode byte 0xff"),
]


@pytest.mark.parametrize(("text", "mode", "message"), ZOOKEEPER_CONFIGS)
def test_wrong_zookeeper_settings_are_refused(text: str, mode: int, message: str, tmp_path: Path) -> None:
    file = tmp_path / "zookeeper.properties"
    file.write_bytes(text.encode(errors="surrogateescape"))
    file.chmod(mode)
    options = LEAST | {"groupId": "g", "zookeeperConnect": "zk:2181", "zookeeperConfig": str(file)}
    with pytest.raises(WrongOption, match=f"^option zookeeperConfig='{file}': .*{re.escape(message)}") as refused:
        read_options(options, "stream")
    assert "hush" not in str(refused.value)


def test_zookeeper_settings_are_read(tmp_path: Path) -> None:
    file = tmp_path / "zookeeper.properties"
    file.touch(0o600)
    more = ["zookeeper.ssl.truststore.location=/trusted.pem", "zookeeper.digest=ada:hush", "zk.sessiontimeout.ms=9000"]
    file.write_text(TLS + "\n".join(more))
    where = {"groupId": "g", "zookeeperConnect": "zk:2181/kafka", "zookeeperConfig": str(file)}
    read = read_options(LEAST | where, "stream").zookeeper
    assert read == SessionSettings(
        "zk:2181/kafka", session_timeout_ms=9000, tls=True, trust_store_file="/trusted.pem", digest="ada:hush"
    )
    assert "hush" not in repr(read)


def test_option_names_are_case_insensitive() -> None:
    given = {
        "KAFKA.BOOTSTRAP.SERVERS": "a:1, [::1]:2",
        "Subscribe": "clicks, orders",
        "STARTINGOFFSETS": '{"clicks": {"0": 23, "1": -2}, "orders": {"0": -1}}',
        "groupid": "g",
        "maxoffsetspertrigger": "1000",
        "MINOFFSETSPERTRIGGER": "10",
        "maxTriggerDelay": "2min",
        "minPartitions": "3",
        "maxRecordsPerPartition": "500",
        "failondataloss": "FALSE",
        "includeheaders": "true",
        "Kafka.Isolation.Level": "read_uncommitted",
    }
    assert read_options(given, "stream") == SourceOptions(
        bootstrap="a:1,[::1]:2",
        subscription=subscribed("clicks", "orders"),
        starting=Offsets({"clicks": {0: 23, 1: -2}, "orders": {0: -1}}),
        start_given=True,
        commits_to="g",
        offsets_per_trigger_max=1000,
        offsets_per_trigger_min=10,
        trigger_delay_max_ms=120_000,
        tasks_min=3,
        offsets_per_task_max=500,
        fail_on_data_loss=False,
        include_headers=True,
        read_committed=False,
    )


def test_maximum_of_read_tasks() -> None:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "clicks", "maxPartitions": "8"}
    assert read_options(given, "stream").tasks_max == 8


ASSIGNED = {"assign": '{"a": [2, 0], "b": [1]}', "subscribe": ""}
PATTERN = {"subscribePattern": "a.*", "subscribe": ""}
GROUP = {"groupId": "g"}
TIMES = '{"clicks": {"0": 17, "1": 18}}'

STARTS: list[tuple[dict[str, str], Position]] = [
    ({"startingOffsets": "earliest"}, "earliest"),
    (GROUP, AtCommitted("g", "latest")),
    (GROUP | {"startingOffsets": "Committed"}, AtCommitted("g", "latest")),
    (GROUP | {"startingOffsets": "earliest"}, "earliest"),
    (GROUP | {"startingOffsetsIfNoneCommitted": "earliest"}, AtCommitted("g", "earliest")),
    (GROUP | {"startingOffsetsIfNoneCommitted": "fail"}, AtCommitted("g", "fail")),
    ({"startingTimestamp": "17"}, AtTimestamp("startingTimestamp", 17, {}, True)),
    (
        {"startingTimestamp": "17", "startingOffsetsByTimestampStrategy": "latest"},
        AtTimestamp("startingTimestamp", 17, {}, False),
    ),
    (
        {"startingOffsetsByTimestamp": TIMES},
        AtTimestamp("startingOffsetsByTimestamp", None, {"clicks": {0: 17, 1: 18}}, True),
    ),
    (PATTERN | {"startingOffsets": '{"any": {"0": 1}}'}, Offsets({"any": {0: 1}})),
]


@pytest.mark.parametrize(("given", "starting"), STARTS)
def test_start_of_fresh_query(given: dict[str, str], starting: Position) -> None:
    assert read_options(LEAST | given, "stream").starting == starting


@pytest.mark.parametrize(
    ("given", "is_given"),
    [
        ({}, False),
        ({"failOnDataLoss": "true"}, False),
        ({"startingOffsets": "latest"}, True),
        *((given, True) for given, _ in STARTS),
    ],
)
def test_start_given(given: dict[str, str], is_given: bool) -> None:
    assert read_options(LEAST | given, "stream").start_given is is_given


@pytest.mark.parametrize(
    ("given", "ending"),
    [
        ({}, "latest"),
        ({"endingTimestamp": "17"}, AtTimestamp("endingTimestamp", 17, {}, False)),
        (
            {"endingOffsetsByTimestamp": TIMES},
            AtTimestamp("endingOffsetsByTimestamp", None, {"clicks": {0: 17, 1: 18}}, False),
        ),
    ],
)
def test_end_of_batch_read(given: dict[str, str], ending: Position) -> None:
    assert read_options(LEAST | given, "batch").ending == ending


def test_topics_by_name_list_or_pattern() -> None:
    pattern = read_options(LEAST | PATTERN).subscription
    assert [pattern.covers(topic, 5) for topic in ("a", "abc", "ba")] == [True, True, False]
    assigned = read_options(LEAST | ASSIGNED).subscription
    assert [assigned.covers(*partition) for partition in (("a", 0), ("a", 1), ("b", 1), ("c", 0))] == [
        True,
        False,
        True,
        False,
    ]


def test_commits_can_be_disabled() -> None:
    assert read_options(LEAST | GROUP, "batch").commits_to is None
    assert read_options(LEAST | GROUP | {"commitOffsets": "false"}, "stream").commits_to is None


def test_unused_group_is_refused() -> None:
    elsewhere = LEAST | GROUP | {"startingOffsets": "earliest"}
    assert read_options(elsewhere, "stream").commits_to == "g"
    read_options(elsewhere)  # The mode is not known yet.
    with pytest.raises(WrongOption, match=r"groupId has no effect here: .* a batch read commits nothing; remove it"):
        read_options(elsewhere, "batch")
    with pytest.raises(WrongOption, match=r"groupId has no effect here: .* commitOffsets is false; remove it"):
        read_options(elsewhere | {"commitOffsets": "false"}, "stream")


WRONG: list[tuple[Mode, dict[str, str], str]] = [
    ("stream", {"subscribe": ""}, "option subscribe .* is missing"),
    ("stream", {"kafka.bootstrap.servers": ""}, "option kafka.bootstrap.servers .* is missing"),
    ("stream", {"kafka.bootstrap.servers": "localhost"}, "kafka.bootstrap.servers='localhost': .*HOST:PORT"),
    ("stream", {"subscribe": "a,,b"}, "subscribe='a,,b': '' is not a valid topic name"),
    ("stream", {"subscribe": "a b"}, "'a b' is not a valid topic name"),
    ("stream", {"subscribe": "a,a"}, "names a topic twice"),
    ("stream", {"startingOffset": "latest"}, "unknown option startingOffset .*did you mean startingOffsets"),
    ("stream", {"maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger"),
    ("stream", {"kafka.isolation.levl": "read_committed"}, "did you mean isolation.level"),
    ("stream", {"kafka.groupId": "g"}, "did you mean groupId"),
    ("stream", {"kafka.subscribe": "t"}, "did you mean subscribe"),
    (
        "stream",
        {"kafka.isolation.level": "read_committed", "isolation.level": "read_uncommitted"},
        "isolation.level='read_uncommitted' is also given as 'read_committed' under its other name",
    ),
    (
        "stream",
        {"kafka.group.id": "g"},
        "kafka.group.id has no effect on source onceflow, remove it: .*groupId names the group",
    ),
    ("stream", {"fetchOffset.numRetries": "3"}, "fetchOffset.numRetries has no effect"),
    (
        "stream",
        {"kafka.max.poll.records": "5"},
        "has no effect .*, remove it: maxOffsetsPerTrigger limits a micro-batch",
    ),
    (
        "stream",
        {"kafka.fetch.min.bytes": "5"},
        "has no effect .*, remove it: .* it supports kafka.bootstrap.servers, kafka.is",
    ),
    ("stream", {"kafka.session.timeout.ms": "5"}, "session.timeout.ms has no effect on source onceflow, remove it"),
    ("stream", {"kafka.ssl.keystore.password": "x"}, "did you mean kafka.ssl.key.password"),
    ("stream", {"subscribePattern": "a.*"}, "options subscribe and subscribePattern both select what to read"),
    ("stream", PATTERN | {"subscribePattern": "a("}, "subscribePattern='a\\(' is not a valid regular expression"),
    ("stream", ASSIGNED | {"assign": "a"}, "assign='a' is not partitions by topic"),
    ("stream", ASSIGNED | {"assign": "{}"}, "is not partitions by topic, like"),
    ("stream", ASSIGNED | {"assign": '{"a": [-1]}'}, "is not partitions by topic"),
    ("stream", ASSIGNED | {"assign": '{"a": [1, 1]}'}, "names a partition of a twice"),
    ("stream", ASSIGNED | {"assign": '{"a b": [1]}'}, "'a b' is not a valid topic name"),
    ("stream", {"startingOffsets": "committed"}, "startingOffsets=committed requires option groupId"),
    ("stream", {"startingOffsetsIfNoneCommitted": "fail"}, "requires a read that starts at committed"),
    ("stream", GROUP | {"startingOffsetsIfNoneCommitted": "x"}, "='x' is neither earliest nor latest nor fail"),
    ("stream", {"groupId": ""}, "option groupId is empty"),
    ("stream", {"commitOffsets": "true"}, "commitOffsets requires option groupId"),
    ("stream", {"zookeeperConnect": "zk:2181"}, "zookeeperConnect requires option groupId"),
    ("stream", GROUP | {"zookeeperConnect": ""}, "option zookeeperConnect .* is missing"),
    ("stream", GROUP | {"zookeeperConfig": "zk"}, "option zookeeperConfig requires option zookeeperConnect"),
    (
        "stream",
        GROUP | {"zookeeperConnect": "zk:2181", "zookeeperConfig": "/missing.properties"},
        "zookeeperConfig='/missing.properties': /missing.properties cannot be read: No such file or directory",
    ),
    (
        "stream",
        {"startingOffsets": "earliest", "startingTimestamp": "5"},
        "options startingOffsets and startingTimestamp both set where the read starts",
    ),
    ("stream", {"startingTimestamp": "yesterday"}, "'yesterday' is not a time in milliseconds"),
    ("stream", {"startingOffsetsByTimestamp": "5"}, "startingOffsetsByTimestamp='5' is not times by partition"),
    ("stream", {"startingOffsetsByTimestamp": '{"clicks": {"0": -5}}'}, "time -5 of clicks-0 is before 1970"),
    ("stream", {"startingOffsetsByTimestampStrategy": "error"}, "requires startingTimestamp or"),
    (
        "stream",
        {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "x"},
        "='x' is neither error nor latest",
    ),
    (
        "stream",
        {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
        "minOffsetsPerTrigger=9 is more than maxOffsetsPerTrigger=8",
    ),
    ("stream", {"minPartitions": "9", "maxPartitions": "9"}, "minPartitions and maxPartitions are both set"),
    ("stream", {"maxTriggerDelay": "5m"}, "maxTriggerDelay requires option minOffsetsPerTrigger"),
    ("stream", {"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "'soon' is not a time like 500ms"),
    ("batch", {"endingTimestamp": "5", "endingOffsets": "latest"}, "both set where the read ends"),
    ("stream", {"kafka.security.protocol": "TLS"}, "option kafka.security.protocol='TLS' is not one of PLAINTEXT, SSL"),
    ("stream", {"kafka.ssl.key.pasword": "x"}, "did you mean kafka.ssl.key.password"),
    ("stream", {"xyz": "1"}, "unknown option xyz .*the options are kafka.bootstrap.servers, subscribe"),
    ("stream", {"path": "/tmp"}, "unknown option path"),
    ("stream", {"startingOffsets": "lates"}, "'lates' is neither earliest nor latest nor committed nor offsets"),
    ("stream", {"startingOffsets": '{"orders": {"0": 1}}'}, "topic (orders|clicks) is in option"),
    ("stream", {"startingOffsets": '{"clicks": {"0": -3}}'}, "offset -3 of clicks-0; -2 is earliest, -1 is latest"),
    ("stream", {"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger='0' is not a whole number above 0"),
    ("stream", {"maxOffsetsPerTrigger": "1e3"}, "maxOffsetsPerTrigger='1e3'"),
    ("stream", {"failOnDataLoss": "yes"}, "failOnDataLoss='yes' is neither true nor false"),
    ("stream", {"isolation.level": "serializable"}, "neither read_committed nor read_uncommitted"),
    ("stream", {"endingOffsets": "latest"}, "endingOffsets has no effect in a stream read"),
    ("batch", {"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger has no effect in a batch read"),
    ("batch", {"startingOffsets": "latest"}, "startingOffsets is latest in a batch read"),
    ("batch", {"startingOffsets": '{"clicks": {"0": -1}}'}, "startingOffsets is latest in a batch read"),
    ("batch", {"endingOffsets": "earliest"}, "endingOffsets is earliest in a batch read"),
]


@pytest.mark.parametrize(("mode", "given", "message"), WRONG)
def test_wrong_options_are_refused(mode: Mode, given: dict[str, str], message: str) -> None:
    with pytest.raises(WrongOption, match=message):
        read_options(LEAST | given, mode)


def test_without_mode_all_options_are_accepted() -> None:
    read_options(LEAST | {"endingOffsets": "latest", "maxOffsetsPerTrigger": "5"})


def test_include_headers_adds_a_column() -> None:
    with_headers = OnceflowDataSource(LEAST | {"includeHeaders": "true"}).schema()
    assert with_headers.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )


def test_user_schema_is_refused() -> None:
    source = OnceflowDataSource(LEAST)
    assert source.schema() == SCHEMA
    own = StructType([StructField("uid", StringType())])
    with pytest.raises(WrongSchema, match=r"has the columns struct<key:binary.* not struct<uid:string>"):
        source.reader(own)
    # Spark gets a reader that it can stop; every method of it raises the error.
    refused = source.streamReader(own)
    assert isinstance(refused, RefusedReader)
    for asked in (refused.initialOffset, refused.latestOffset, lambda: refused.partitions({}, {})):
        with pytest.raises(WrongSchema, match="not struct<uid:string>"):
            asked()
    refused.stop()


@pytest.mark.remedy(Remedy.NEWER_SPARK)
def test_stream_needs_pyspark_with_read_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark 4.0 and 4.1 lack a module; `make compat` runs both sides with the real ones."""
    source = OnceflowDataSource(LEAST)
    with monkeypatch.context() as old:
        old.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
        refused = source.streamReader(source.schema())
        with pytest.raises(OldSpark, match=r"a stream of 'onceflow' needs PySpark 4\.2: this is") as raised:
            refused.initialOffset()
        remedies.find(Remedy.NEWER_SPARK, raised.value)
        assert isinstance(source.reader(source.schema()), BatchReader)
    assert not isinstance(source.streamReader(source.schema()), RefusedReader)


def test_source_of_wheel_takes_its_path_along(tmp_path: Path) -> None:
    """Spark plans a stream's offsets in a process without `--py-files`; `make compat` runs it on a cluster."""
    archive = shutil.make_archive(str(tmp_path / "wheel"), "zip", Path(onceflow.__file__).parents[1])
    libraries = str(Path(pyspark.__file__).parents[1])
    pickled = run_alone(
        f"from onceflow.spark.source import OnceflowDataSource; print(dumps(OnceflowDataSource({LEAST})).hex())",
        (libraries, archive),
    )
    with pytest.raises(subprocess.CalledProcessError):
        run_alone("import onceflow", (libraries,))
    source = f"loads(bytes.fromhex({pickled!r}))"
    assert run_alone(f"print({source}.options['subscribe'], {source}.__class__.__module__)", (libraries,)) == (
        "clicks onceflow.spark.source"
    )


def run_alone(code: str, path: Sequence[str]) -> str:
    """Return the output of Python code in a process with no more than this path, which ignores `.pth` files."""
    command = [sys.executable, "-S", "-c", f"from pyspark.cloudpickle import dumps, loads; {code}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_spark_loads_source_by_package_name() -> None:
    assert pyspark_onceflow.DefaultSource is OnceflowDataSource
    assert OnceflowDataSource.name() == "onceflow"
