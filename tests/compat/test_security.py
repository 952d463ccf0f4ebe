"""The source, the Kafka sink and the client with TLS and SASL, on an Apache Kafka that requires them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from benchmarks import kafka
from onceflow import services
from onceflow.client.authentication import AuthenticationFailed
from onceflow.client.cluster import Cluster
from onceflow.client.security import read_security
from onceflow.spark.kafka_sink import kafka_sink
from onceflow.spark.reader.options import read_options
from onceflow.spark.source import BatchReader
from tests.client.tls import Authority, java_key
from tests.compat.conftest import kafka_jars, tool
from tests.conftest import RedisProcess
from tests.spark.test_kafka_sink import planned

LOGIN = "org.apache.kafka.common.security.{}LoginModule required"
MECHANISMS = {"PLAIN": "plain.Plain", "SCRAM-SHA-256": "scram.Scram", "SCRAM-SHA-512": "scram.Scram"}
PASSWORD = "a=b;c d"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka.KafkaProcess]:
    """Start a Kafka with listeners: plain, TLS with client certificates, SASL with and without TLS."""
    tool("java", "apt install default-jdk-headless")
    store = java_key(authority.issue("127.0.0.1"))
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.trusted),
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        settings[f"listener.name.{listener}.plain.sasl.jaas.config"] = (
            f'{LOGIN.format("plain.Plain")} user_ada="{quoted()}";'
        )
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            settings[f"listener.name.{listener}.{mechanism}.sasl.jaas.config"] = f"{LOGIN.format('scram.Scram')};"
    with kafka.KafkaProcess(
        tmp_path_factory.mktemp("guarded") / "kafka",
        kafka_jars(kafka.VERSION),
        {name: value.replace("\\", "\\\\") for name, value in settings.items()},
        listeners={protocol: services.free_port() for protocol in ("SSL", "SASL_PLAINTEXT", "SASL_SSL")},
        scram=[f'{mechanism}=[name="ada",password="{PASSWORD}"]' for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")],
    ) as running:
        producer = Producer({"bootstrap.servers": running.bootstrap})
        producer.produce("guarded", b"once")
        assert producer.flush(30) == 0
        yield running


def quoted(password: str = PASSWORD) -> str:
    return password.replace("\\", "\\\\").replace('"', '\\"')


def read_through(running: kafka.KafkaProcess, protocol: str, topic: str = "guarded", **settings: str) -> list[bytes]:
    """Return the records that the source's planner and its tasks read with these Kafka settings."""
    options = {
        "kafka.bootstrap.servers": f"127.0.0.1:{running.listeners[protocol]}",
        "subscribe": topic,
        "kafka.security.protocol": protocol,
        **{f"kafka.{name}": value for name, value in settings.items()},
    }
    reader = BatchReader(read_options(options, "batch"))
    return [value for task in reader.partitions() for rows in reader.read(task) for value in rows["value"].to_pylist()]


def test_tls_with_a_certificate_of_ours(guarded: kafka.KafkaProcess, authority: Authority) -> None:
    files = {
        "ssl.truststore.location": str(authority.trusted),
        "ssl.keystore.location": str(authority.issue("ada@example.test")),
    }
    assert read_through(guarded, "SSL", **files) == [b"once"]


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_name_and_a_password(
    guarded: kafka.KafkaProcess, authority: Authority, mechanism: str, protocol: str
) -> None:
    login = LOGIN.format(MECHANISMS[mechanism])
    settings = {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{login} username="ada" password="{quoted()}";',
    }
    if protocol == "SASL_SSL":
        settings["ssl.truststore.location"] = str(authority.trusted)
    assert read_through(guarded, protocol, **settings) == [b"once"]
    settings["sasl.jaas.config"] = f'{login} username="ada" password="wrong";'
    security = read_security({"security.protocol": protocol, **settings})
    with pytest.raises(AuthenticationFailed, match=f"refuses user 'ada' with {mechanism}: .*; check sasl.jaas.config"):
        Cluster(f"127.0.0.1:{guarded.listeners[protocol]}", security=security).topics()


def test_an_unknown_user(guarded: kafka.KafkaProcess) -> None:
    other = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f'{LOGIN.format("plain.Plain")} username="a" password="b";'}
    security = read_security({"security.protocol": "SASL_PLAINTEXT", **other})
    with pytest.raises(AuthenticationFailed, match="refuses user 'a' with PLAIN: Authentication failed: Invalid user"):
        Cluster(f"127.0.0.1:{guarded.listeners['SASL_PLAINTEXT']}", security=security).topics()


def test_the_sink_writes_a_batch_once(
    guarded: kafka.KafkaProcess, authority: Authority, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """The executors, which look up the column's topic, and the driver, which sends, both use the `kafka` options."""
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{LOGIN.format("scram.Scram")} username="ada" password="{quoted()}";',
        "ssl.truststore.location": str(authority.trusted),
    }
    address = f"127.0.0.1:{guarded.listeners['SASL_SSL']}"
    with Cluster(address, security=read_security(settings)) as cluster:
        cluster.create_topic(topic, 2)
    rows = spark.range(0, 100, 1, 2).selectExpr("string(id) AS key", "string(id) AS value", f"'{topic}' AS topic")
    for batch in (0, 1, 1):
        sink = kafka_sink(address, checkpoint=planned(tmp_path / "checkpoint", batch), kafka=settings)
        sink(rows.where(f"{batch} > 0"), batch)
        sink.close()
    committed = read_through(guarded, "SASL_SSL", topic, **settings, **{"isolation.level": "read_committed"})
    assert sorted(map(int, committed)) == [*range(100)]
    wrong = settings | {"sasl.jaas.config": settings["sasl.jaas.config"].replace(quoted(), "wrong")}
    refused = kafka_sink(address, checkpoint=planned(tmp_path / "other", 0), topic=topic, kafka=wrong)
    with pytest.raises(AuthenticationFailed, match="refuses user 'ada' with SCRAM-SHA-512"):
        refused.open(spark)


def test_commands_with_credentials_in_a_file(
    guarded: kafka.KafkaProcess, authority: Authority, redis_server: RedisProcess, tmp_path: Path
) -> None:
    """Onceflow's clients, librdkafka's producer and consumer, and Spark with executors all use the file."""
    file = tmp_path / "client.properties"
    login = f'{LOGIN.format("scram.Scram")} username="ada" password="{quoted()}";'
    settings = {
        "bootstrap": f"127.0.0.1:{guarded.listeners['SASL_SSL']}",
        "redis": redis_server.url,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": login.replace("\\", "\\\\"),
        "ssl.truststore.location": str(authority.trusted),
    }
    file.touch(0o600)
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def done(*words: str, given: str = "") -> str:
        command = [sys.executable, "-m", "onceflow", "--config-file", str(file), *words]
        ended = subprocess.run(command, input=given, capture_output=True, text=True, cwd=tmp_path, timeout=150)
        assert ended.returncode == 0, ended
        return ended.stdout

    done("topic", "create", "clicks", "--partitions", "1")
    done("produce", "clicks", "--key-separator", ":", given='a:{"uid": "a", "os_type": "x", "click_count": 1}\n')
    made = json.loads(done("generate", "--topic", "clicks", "--count", "5", "--interval-ms", "0", "--json"))
    assert made["sent"] == 5
    assert len(done("consume", "clicks", "--exit-at-end").splitlines()) == 6
    done("group", "reset", "secured", "--topic", "clicks", "--to-latest", "--execute")
    assert json.loads(done("group", "describe", "secured", "--json"))["lag"] == 0
    assert "clicks" in done("topic", "list")
    assert done("config", "topic", "clicks", "--all")
    assert "STATE" in done("transaction", "list")
    counted = ("--topic", "clicks", "--hash-key", f"secured::{tmp_path.name}")
    done("run", *counted, "--trigger", "available-now")
    verdict = json.loads(done("verify", *counted, "--json"))
    assert (verdict["equal"], verdict["events"]) == (True, 6)
