"""kafkajs, the client of Node: every codec, a group, transactions, admin calls; TLS with each SASL mechanism, ACLs."""

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

PROGRAM = Path(__file__).with_name("javascript") / "kafkajs.js"
PACKAGES = ("kafkajs@2.2.4", "kafkajs-snappy@1.1.0", "kafkajs-lz4@1.2.1", "zstd-codec@0.1.5")
FOLDER = kafka.JARS.with_name("kafkajs-2.2.4")
RECORDS = 200


@pytest.fixture(scope="module")
def run(bootstrap: str) -> Run:
    """Return `run(topic, case, …)`, which returns the program's lines; `security` is a client's settings."""
    node = tool("node", "apt install nodejs")
    if not all((FOLDER / "node_modules" / package.partition("@")[0]).is_dir() for package in PACKAGES):
        install = [tool("npm", "apt install npm"), "install", "--silent", "--no-audit", "--no-fund", "--prefix"]
        if subprocess.run([*install, str(FOLDER), *PACKAGES], check=False, timeout=120).returncode != 0:
            pytest.skip(f"no kafkajs: let npm reach its registry, or put {' '.join(PACKAGES)} into {FOLDER}")
    environment = {"NODE_PATH": str(FOLDER / "node_modules"), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    return runner([node, str(PROGRAM)], bootstrap, environment)


@pytest.mark.parametrize("codec", ["None", "GZIP", "Snappy", "LZ4", "ZSTD"])
def test_records(run: Run, bootstrap: str, topic: str, codec: str) -> None:
    """Idempotent, with keys, headers of two values and nulls; a group reads all of it back."""
    read = run(topic, "records", codec)
    stored = stored_batches(bootstrap, topic)
    assert {batch.codec for batch in stored} == {Codec[codec.upper()]}
    assert all(batch.producer_id >= 0 for batch in stored), "idempotent"
    assert sorted(read, key=lambda item: int(item["number"])) == [
        {
            "partition": number % 2,
            "offset": number // 2,
            "key": f"key {number}" if number % 5 else None,
            "value": f"value {number}" if number % 7 else None,
            "number": str(number),
            "twice": ["a", "b"],
        }
        for number in range(RECORDS)
    ]


def test_a_group(run: Run, topic: str) -> None:
    """Two members share four partitions, and one takes over where the other stopped."""
    assert_each_record_was_read_once(run(topic, "group"))


def test_transactions(run: Run, topic: str) -> None:
    """Records and offsets of the committed one; a reader of everything sees both."""
    committed = ["commit 1", "commit 2"]
    assert run(topic, "transactions") == [
        {"outcome": "abort", "offset": "-1"},
        {"outcome": "commit", "offset": "7"},
        {"readUncommitted": False, "values": committed},
        {"readUncommitted": True, "values": ["abort 1", "abort 2", *committed]},
    ]


def test_admin(run: Run, topic: str) -> None:
    """Topics, partitions, offsets, configs, deleted records, groups, the cluster."""
    assert run(topic, "admin") == [
        {"created": True, "again": False},
        {"listed": True},
        {"partitions": [[0, 1], [1, 1], [2, 1]]},
        {"ends": {"partition": 0, "offset": "3", "high": "3", "low": "0"}},
        {"byTime": "0"},
        {"config": [["retention.ms", "123456"]]},
        {"low": "2"},
        {"committed": "3"},
        {"group": [{"groupId": topic, "protocolType": "consumer"}], "state": "Empty"},
        {"deleted": [{"groupId": topic, "errorCode": 0}]},
        {"brokers": 1, "controller": 1},
        {"listed": False},
    ]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login_is_repeated(run: Run, secured: SecuredBroker, topic: str, mechanism: str) -> None:
    """TLS, and a session that ends while the client stays connected."""
    settings = secured.client(mechanism)
    lines = run(topic, "session", str(STAY_MS), address=secured.broker.bootstrap, security=settings)
    assert lines == [{"values": ["before", "after"]}]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_login_is_refused(run: Run, secured: SecuredBroker, topic: str, mechanism: str) -> None:
    """kafkajs does not read the error of OAUTHBEARER, and meets a closed connection."""
    settings = secured.client(mechanism, is_wrong=True)
    with pytest.raises(AssertionError, match=r"(?i)authentication|closed connection"):
        run(topic, "session", "0", address=secured.broker.bootstrap, security=settings)


def test_a_user_without_an_acl(run: Run, secured: SecuredBroker, topic: str) -> None:
    settings = secured.client("SCRAM-SHA-512", "eve")
    with pytest.raises(AssertionError, match=r"(?i)authoriz"):
        run(topic, "session", "0", address=secured.broker.bootstrap, security=settings)


def test_acls(run: Run, secured: SecuredBroker, topic: str) -> None:
    settings = secured.client("SCRAM-SHA-256")
    assert run(topic, "acls", address=secured.broker.bootstrap, security=settings) == [
        {"created": True},
        {"described": [[topic, ["User:eve"]]]},
        {"deleted": [1]},
    ]
