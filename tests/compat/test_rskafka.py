"""rskafka, a client of Rust: every codec, offsets, deleted records, streams; TLS with each SASL mechanism."""

import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer

from benchmarks import kafka
from onceflow.wire.codecs import Codec
from tests.broker.raw_client import stored_batches
from tests.compat.client_program import Run, runner
from tests.compat.conftest import tool
from tests.compat.secured_broker import MECHANISMS, STAY_MS, SecuredBroker
from tests.compat.test_kcat import begun, create

SOURCE = Path(__file__).with_name("rust")
VERSION = "0.6.0"
TARGET = kafka.JARS.with_name(f"rskafka-{VERSION}")
PROGRAM = TARGET / "debug" / "compat"
RECORDS = 200
WAIT_SECONDS = 30


@pytest.fixture(scope="module")
def run(bootstrap: str) -> Run:
    """Return `run(topic, case, …)`, which returns the program's lines; `security` is a client's settings.

    Cargo.toml and Cargo.lock list its dependencies.
    """
    cargo = tool("cargo", "from https://rustup.rs, 1.85 or newer")
    tool("cc", "apt install gcc")
    assert f'rskafka = {{ version = "={VERSION}"' in (SOURCE / "Cargo.toml").read_text()
    if subprocess.run([cargo, "fetch", "--locked"], cwd=SOURCE, check=False, timeout=90).returncode != 0:
        pytest.skip(f"no rskafka {VERSION}: let cargo reach its registry once")
    build = [cargo, "build", "--locked", "--offline", "--target-dir", str(TARGET)]
    built = subprocess.run(build, cwd=SOURCE, capture_output=True, text=True, check=False, timeout=500)
    assert built.returncode == 0, built.stderr
    return runner([str(PROGRAM)], bootstrap)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records(run: Run, bootstrap: str, topic: str, codec: str) -> None:
    """Keys, headers and nulls, read back from each partition by offset in small responses."""
    read = run(topic, "records", codec)
    for partition in (0, 1):
        assert {batch.codec for batch in stored_batches(bootstrap, topic, partition)} == {Codec[codec.upper()]}
    assert sorted(read, key=lambda item: int(item["number"])) == [
        {
            "partition": number % 2,
            "offset": number // 2,
            "key": f"key {number}" if number % 5 else None,
            "value": f"value {number}" if number % 7 else None,
            "number": str(number),
            "empty": "",
        }
        for number in range(RECORDS)
    ]


def test_a_stream(run: Run, topic: str) -> None:
    """A producer that collects batches, and a consumer that waits for their records."""
    offsets = list(range(30))
    assert run(topic, "stream") == [{"sent": offsets, "read": offsets}]


def test_offsets(run: Run, topic: str) -> None:
    """Topics created, listed and deleted; offsets of each kind, before and after records are deleted."""
    assert run(topic, "offsets") == [
        {"again": "TopicAlreadyExists"},
        {"partitions": [0, 1]},
        {"sent": [0, 1, 2, 3]},
        {"byTime": [0, 1, 2, -1]},
        {"ends": [2, 4], "highWatermark": 4, "read": ["value 2", "value 3"]},
        {"deleted": "OffsetOutOfRange"},
        {"partitions": None},
    ]


def test_transactions_of_others(run: Run, bootstrap: str, topic: str) -> None:
    """It reads up to the first open transaction; markers it cannot decode, and fails with Apache Kafka too."""
    create(bootstrap, topic, 1)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, "plain")
    assert producer.flush(WAIT_SECONDS) == 0
    opened = begun(bootstrap, topic, topic, "open")
    assert run(topic, "values") == [{"values": ["plain"]}]
    opened.commit_transaction(WAIT_SECONDS)
    with pytest.raises(AssertionError, match="Unknown control batch record version: 8192"):
        run(topic, "values")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login_is_repeated(run: Run, secured: SecuredBroker, topic: str, mechanism: str) -> None:
    """TLS; it has no reauthentication: its session ends, the broker closes the connection, and it logs in again."""
    settings = secured.client(mechanism)
    lines = run(topic, "session", str(STAY_MS), address=secured.broker.bootstrap, security=settings)
    assert lines == [{"values": ["before", "after"]}]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_login_is_refused(run: Run, secured: SecuredBroker, topic: str, mechanism: str) -> None:
    settings = secured.client(mechanism, is_wrong=True)
    with pytest.raises(AssertionError, match=r"(?i)sasl"):
        run(topic, "session", "0", address=secured.broker.bootstrap, security=settings)


def test_a_user_without_an_acl(run: Run, secured: SecuredBroker, topic: str) -> None:
    settings = secured.client("SCRAM-SHA-512", "eve")
    with pytest.raises(AssertionError, match=r"(?i)authoriz"):
        run(topic, "session", "0", address=secured.broker.bootstrap, security=settings)
