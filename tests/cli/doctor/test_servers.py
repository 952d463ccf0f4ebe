"""Checks of a broker and a Redis: real ones, ports without any, and ones that never respond."""

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from onceflow.cli.doctor import servers
from onceflow.cli.doctor.findings import Finding, State
from onceflow.client.cluster import Cluster
from onceflow.client.security import PLAINTEXT
from onceflow.remedies import Remedy
from onceflow.spark.redis import settings
from onceflow.wire import apis
from tests import remedies
from tests.client.test_connection import peer, versions
from tests.conftest import RedisProcess


def kafka(bootstrap: str, **options: Any) -> dict[str, Finding]:
    return {finding.check: finding for finding in servers.kafka(bootstrap, PLAINTEXT, **options)}


def redis_of(url: str, **options: Any) -> dict[str, Finding]:
    return {finding.check: finding for finding in servers.redis(url, "doctor", **options)}


def states(findings: dict[str, Finding]) -> dict[str, State]:
    return {check: finding.state for check, finding in findings.items()}


@pytest.fixture
def closed() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.remedy(Remedy.SYNC_CLOCKS)
def test_a_broker_and_its_clock(bootstrap: str, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.create_topic(topic, 1)
    cluster.commit_offsets(topic, topic, {0: 0})
    findings = kafka(bootstrap, is_default=True)
    assert set(states(findings).values()) == {State.OK}
    assert findings["kafka"].message == f"Onceflow (1 broker) at {bootstrap}"
    assert "Fetch " in findings["kafka versions"].message
    late = kafka(bootstrap, now_s=lambda: time.time() - 3600)["kafka clock"]
    assert late.state == State.WARNING
    assert late.message.startswith("the broker is 3,")
    remedies.find(Remedy.SYNC_CLOCKS, late.remedy)
    monkeypatch.setattr(servers, "OWN_SETTING", "of.another.broker")
    assert kafka(bootstrap)["kafka"].message.startswith("a Kafka broker other than Onceflow's (1 broker")


def test_an_old_broker() -> None:
    with peer(versions(1, (apis.METADATA, 0, 3))) as port:
        finding = kafka(f"127.0.0.1:{port}")["kafka"]
    assert finding.state == State.FAILED
    assert "supports Metadata versions 0 to 3" in finding.message
    assert finding.remedy == Remedy.NEWER_BROKER


def test_a_missing_version(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceflow.client.requests.REQUIRED_VERSIONS", {apis.FETCH: 0, apis.LIST_OFFSETS: 99})
    finding = kafka(bootstrap)["kafka versions"]
    assert (finding.state, finding.remedy) == (State.FAILED, Remedy.NEWER_BROKER)
    assert "ListOffsets" in finding.message


def test_nothing_at_the_address(closed: str) -> None:
    """The servers at the default addresses may be missing; a given address must respond."""
    for findings in (kafka(closed), redis_of(f"redis://{closed}/0")):
        (finding,) = findings.values()
        assert finding.state == State.FAILED
    assert str(kafka(closed)["kafka"].remedy).startswith(f"{Remedy.START_BROKER}, or {Remedy.NAME_BROKER}")
    for findings in (kafka(closed, is_default=True), redis_of(f"redis://{closed}/0", is_default=True)):
        (finding,) = findings.values()
        assert finding.state == State.NOT_CHECKED
        assert finding.message.endswith(", the default")


def test_servers_that_never_respond(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "TIMEOUT_S", 0.2)
    for findings in (kafka(silent, is_default=True), redis_of(f"redis://{silent}/0", is_default=True)):
        (finding,) = findings.values()
        assert finding.state == State.FAILED
    assert "does not respond like a Kafka broker" in kafka(silent)["kafka"].message


def test_a_redis_at_the_broker(bootstrap: str) -> None:
    assert redis_of(f"redis://{bootstrap}/0")["redis"].state == State.FAILED


def test_a_redis_and_its_settings(redis_server: RedisProcess) -> None:
    findings = redis_of(redis_server.url, is_default=True)
    assert findings["redis"].message.startswith(("Valkey ", "Redis "))
    assert "appendfsync " in findings["redis settings"].message
    assert "maxmemory-policy noeviction" in findings["redis settings"].message
    assert set(states(findings).values()) == {State.OK}
    for offset_s, order in ((3600, "behind"), (-3600, "ahead of")):
        clock = redis_of(redis_server.url, now_s=lambda offset_s=offset_s: time.time() + offset_s)["redis clock"]
        assert (clock.state, clock.message) == (State.WARNING, f"Redis is 3,600 s {order} this machine")
        remedies.find(Remedy.SYNC_CLOCKS, clock.remedy)


@pytest.mark.parametrize(
    ("setting", "wrong", "expected"),
    [
        ("maxmemory-policy", "allkeys-lru", State.FAILED),
        ("appendonly", "no", State.WARNING),
        ("appendfsync", "no", State.WARNING),
    ],
)
def test_wrong_settings_of_redis(
    new_redis: Callable[..., RedisProcess], setting: str, wrong: str, expected: State
) -> None:
    server = new_redis(appendfsync="everysec")
    with redis.Redis.from_url(server.url) as client:
        client.config_set(setting, wrong)
        finding = redis_of(server.url)["redis settings"]
        assert finding.state == expected
        assert finding.message.startswith(f"{setting} is '{wrong}', which ")
        words = remedies.find(Remedy.CONFIG_SET, finding.remedy)
        client.config_set(words["name"], words["value"].rstrip("'"))
        assert redis_of(server.url)["redis settings"].state == State.OK
        # Valkey does not stop while it writes a first append-only file.
        while any(client.info("persistence")[f"aof_rewrite_{word}"] for word in ("in_progress", "scheduled")):
            time.sleep(0.02)


@pytest.mark.remedy(Remedy.NEWER_REDIS, Remedy.KEEP_COMMAND)
def test_redis_without_waitaof(new_redis: Callable[..., RedisProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis before 7.2 has no such command."""
    server = new_redis(arguments=["--rename-command", "WAITAOF", ""])
    finding = redis_of(server.url)["redis settings"]
    assert (finding.state, "renames or disables WAITAOF" in finding.message) == (State.WARNING, True)
    remedies.find(Remedy.KEEP_COMMAND, finding.remedy)
    with monkeypatch.context() as old:
        old.setattr(settings, "WAITAOF_SINCE", (99,))
        finding = redis_of(server.url)["redis settings"]
        assert (finding.state, "WAITAOF came with Redis 7.2" in finding.message) == (State.WARNING, True)
        remedies.find(Remedy.NEWER_REDIS, finding.remedy)
    assert redis_of(new_redis().url)["redis settings"].state == State.OK


def test_a_user_without_rights(new_redis: Callable[..., RedisProcess]) -> None:
    server = new_redis()
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "ann", "on", ">pw", "+ping", "+time", "+hello", "+select", "+client")
        url = server.url.replace("//", "//ann:pw@")
        findings = redis_of(url)
        assert states(findings) == {
            "redis": State.OK,
            "redis settings": State.NOT_CHECKED,
            "redis clock": State.OK,
        }
        assert findings["redis settings"].remedy == Remedy.ALLOW_COMMANDS
        assert "pw" not in "".join(finding.message for finding in findings.values())
        client.execute_command("ACL", "SETUSER", "ann", "+info", "+config")
        findings = redis_of(url)
        assert (findings["redis settings"].state, findings["redis settings"].remedy) == (
            State.WARNING,
            Remedy.ALLOW_COMMANDS,
        )


def test_redis_that_keeps_torn_scripts(redis_server: RedisProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "WHOLE_TAILS_SINCE", (99, 0, 0))
    finding = redis_of(redis_server.url)["redis append-only file"]
    assert finding.state == State.WARNING
    assert str(finding.remedy).startswith(f"{Remedy.REWRITE_AOF}, or ")
