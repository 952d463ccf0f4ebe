"""franz-go, a client of Go: every codec, a group, transactions, admin calls; TLS with each SASL mechanism, ACLs."""

import subprocess
from pathlib import Path

import pytest

from benchmarks import kafka
from onceflow.wire.codecs import Codec
from tests.broker.raw_client import stored_batches
from tests.compat.client_program import Run, runner
from tests.compat.conftest import tool
from tests.compat.group_steps import assert_each_record_was_read_once
from tests.compat.secured_broker import MECHANISMS, STAY_MS, SecuredBroker

SOURCE = Path(__file__).with_name("go")
VERSION = "1.22.2"
PROGRAM = kafka.JARS.with_name(f"franz-go-{VERSION}") / "compat"
RECORDS = 200


@pytest.fixture(scope="module")
def run(bootstrap: str) -> Run:
    """Return `run(topic, case, …)`, which returns the program's lines; `security` is a client's settings.

    go.mod and go.sum list its dependencies.
    """
    go = tool("go", "from https://go.dev/dl, 1.26 or newer, or an older one that may fetch it")
    assert f"franz-go v{VERSION}" in (SOURCE / "go.mod").read_text()
    if subprocess.run([go, "mod", "download"], cwd=SOURCE, check=False, timeout=170).returncode != 0:
        pytest.skip(f"no franz-go {VERSION}: let go reach its module proxy once")
    build = [go, "build", "-o", str(PROGRAM), "."]
    built = subprocess.run(build, cwd=SOURCE, capture_output=True, text=True, check=False, timeout=170)
    assert built.returncode == 0, built.stderr
    return runner([str(PROGRAM)], bootstrap)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records(run: Run, bootstrap: str, topic: str, codec: str) -> None:
    """Idempotent, with keys, headers and nulls; a group reads all of it back and commits."""
    *read, committed = run(topic, "records", codec)
    stored = stored_batches(bootstrap, topic)
    assert {batch.codec for batch in stored} == {Codec[codec.upper()]}
    assert all(batch.producer_id >= 0 for batch in stored), "idempotent"
    assert committed == {"committed": RECORDS}
    assert sorted(read, key=lambda item: int(item["number"])) == [
        {
            "partition": number % 2,
            "offset": number // 2,
            "key": f"key {number}" if number % 5 else None,
            "value": f"value {number}" if number % 7 else None,
            "number": str(number),
            "nothing": None,
        }
        for number in range(RECORDS)
    ]


def test_a_group(run: Run, topic: str) -> None:
    """Cooperative-sticky members share four partitions, and one takes over where the other stopped."""
    assert_each_record_was_read_once(run(topic, "group"))


def test_transactions(run: Run, topic: str) -> None:
    """Consume, transform, produce in a session: the aborted attempt leaves neither offsets nor committed records."""
    committed = [f"true {number}" for number in range(10)]
    assert run(topic, "transactions") == [
        {"committed": False, "found": False, "offset": 0},
        {"committed": True, "found": True, "offset": 10},
        {"values": committed},
        {"values": [f"false {number}" for number in range(10)] + committed},
    ]


def test_admin(run: Run, topic: str) -> None:
    """Topics, partitions, offsets, configs, deleted records, lag, groups, the cluster."""
    assert run(topic, "admin") == [
        {"listed": True, "partitions": 2},
        {"topicPartitions": 3, "end": 3, "after": 0, "newest": 2},
        {"retention": "123456", "source": "DYNAMIC_TOPIC_CONFIG"},
        {"low": 2},
        {"lag": 1, "state": "Empty"},
        {"brokers": 1, "controller": 1, "dirs": 1},
        {"listed": False},
    ]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login_is_repeated(run: Run, secured: SecuredBroker, topic: str, mechanism: str) -> None:
    """TLS, and a session that ends while the client stays connected."""
    settings = secured.client(mechanism)
    lines = run(topic, "session", str(STAY_MS), address=secured.broker.bootstrap, security=settings)
    assert lines == [{"values": ["after", "before"]}], "sorted"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_login_is_refused(run: Run, secured: SecuredBroker, topic: str, mechanism: str) -> None:
    settings = secured.client(mechanism, is_wrong=True)
    with pytest.raises(AssertionError, match=r"(?i)sasl|oauth"):
        run(topic, "session", "0", address=secured.broker.bootstrap, security=settings)


def test_a_user_without_an_acl(run: Run, secured: SecuredBroker, topic: str) -> None:
    settings = secured.client("SCRAM-SHA-512", "eve")
    with pytest.raises(AssertionError, match=r"(?i)authoriz"):
        run(topic, "session", "0", address=secured.broker.bootstrap, security=settings)


def test_acls(run: Run, secured: SecuredBroker, topic: str) -> None:
    settings = secured.client("SCRAM-SHA-256")
    lines = run(topic, "acls", address=secured.broker.bootstrap, security=settings)
    assert lines == [{"created": 1}, {"described": "User:eve"}, {"deleted": 1}]
