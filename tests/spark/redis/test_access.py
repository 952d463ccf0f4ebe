"""TLS and users of Redis: a user with sufficient rights counts, and a refusal names what is missing."""

import re
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from onceflow.clicks.results import Keys as ReadKeys
from onceflow.clicks.results import Results
from onceflow.clicks.verify import read_counts
from onceflow.client.addresses import Address
from onceflow.redis import errors as redis_errors
from onceflow.redis import pool as redis_pool
from onceflow.redis.errors import code_of
from onceflow.remedies import Remedy
from onceflow.spark.redis.scripts import Forbidden
from onceflow.spark.redis.sink_state import forget_redis_keys, marker_query, redis_keys
from tests import remedies
from tests.client.tls import Authority, TlsListener
from tests.conftest import RedisProcess
from tests.spark.redis_servers import RedisCluster
from tests.spark.redis_steps import Driver, assert_counts, batch_of, new_keys

ROOT = Path(__file__).parents[3]
USERS = re.findall(
    r"^user (\w+) on >PASSWORD resetkeys \S+ \S+ -@all (.*)$", (ROOT / "docs/redis.md").read_text(), re.M
)
WRITER, READER = (commands.split() for _, commands in USERS)
RESETTER = re.findall(r"sink reset` needs `(.*?)`", (ROOT / "docs/redis.md").read_text())[0].split()
WITH_BUCKETS = re.findall(r"or event ids also `(.*?)`", (ROOT / "docs/redis.md").read_text(), re.S)[0].split()
OPTIONAL = {"+info", "+waitaof", "+config|get"}
"""Commands that the sink can do without: it logs that it cannot check or wait for something."""

OUTSIDE_SCRIPTS = {"+ping", "+select", "+multi", "+exec", "+hgetall", "+eval", "+evalsha"}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def run(driver: Driver, *numbers: int) -> None:
    for number in numbers:
        list(driver.steps(batch_of(number)))


def listening(redis_server: RedisProcess, context: ssl.SSLContext) -> TlsListener:
    """Return a TLS listener in front of the real server, whose build from the package index has no TLS."""
    listener = TlsListener(context)
    listener.upstream = Address("127.0.0.1", redis_server.port)
    return listener


def encrypted(listener: TlsListener, **options: object) -> str:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"rediss://localhost:{listener.address.port}/1?{query}"


def test_tls_with_a_trusted_certificate(redis_server: RedisProcess, authority: Authority) -> None:
    keys = new_keys()
    with listening(redis_server, authority.server()) as listener:
        url = encrypted(listener, ssl_ca_certs=authority.trusted)
        driver = Driver(url, keys)
        run(driver, 0, 1)
        driver.settle(batch_of(1))
        with Results(url, keys.increments[0].key) as results:
            assert results.clicks_of("user 1") == 3
        assert listener.accepted == 2
        redis_pool.close(url)
    assert_counts(redis.Redis.from_url(redis_server.url), keys, 2)


def test_tls_to_the_nodes_of_a_cluster(new_redis: Callable[..., RedisProcess], authority: Authority) -> None:
    cluster = RedisCluster(new_redis, masters=1)
    keys = new_keys()
    with listening(cluster.nodes[0], authority.server("127.0.0.1")) as listener:
        cluster.admin(cluster.nodes[0]).config_set("cluster-announce-port", listener.address.port)
        url = f"rediss+cluster://127.0.0.1:{listener.address.port}?ssl_ca_certs={authority.trusted}"
        driver = Driver(url, keys)
        run(driver, 0, 1)
        redis_pool.close(url)
    assert listener.accepted == 2  # One connection asks for the slot's owner, one writes.
    assert_counts(cluster.admin(cluster.nodes[0]), keys, 2)


def test_tls_with_a_clients_certificate(redis_server: RedisProcess, authority: Authority) -> None:
    keys, own = new_keys(), authority.issue("pipeline")
    with listening(redis_server, authority.server(asks_for_certificates=True)) as listener:
        url = encrypted(listener, ssl_ca_certs=authority.trusted, ssl_certfile=own, ssl_keyfile=own)
        run(Driver(url, keys), 0)
        redis_pool.close(url)
        with pytest.raises(redis.ConnectionError) as raised:
            redis_pool.client(encrypted(listener, ssl_ca_certs=authority.trusted))
    assert code_of(raised.value) == "TLS"
    assert_counts(redis.Redis.from_url(redis_server.url), keys, 1)


@pytest.mark.remedy(Remedy.REDIS_CERTIFICATES)
@pytest.mark.parametrize("wrong", ["authority", "name"])
def test_wrong_server_name_is_refused(
    redis_server: RedisProcess, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    def fail(_: float) -> None:
        raise AssertionError("a wrong certificate must not be retried")

    (tmp_path / "other").mkdir()
    trusted = Authority(tmp_path / "other").trusted if wrong == "authority" else authority.trusted
    context = authority.server("elsewhere.example") if wrong == "name" else authority.server()
    monkeypatch.setattr("redis.retry.sleep", fail)
    with listening(redis_server, context) as listener:
        url = encrypted(listener, ssl_ca_certs=trusted)
        with pytest.raises(redis.ConnectionError, match="certificate verify failed") as raised:
            redis_pool.client(url)
    message = str(redis_errors.failed(url, "before the first batch", raised.value))
    remedies.find(Remedy.REDIS_CERTIFICATES, message)
    with listening(redis_server, authority.server()) as listener:
        url = encrypted(listener, ssl_ca_certs=authority.trusted)
        assert redis_pool.client(url).ping()
        redis_pool.close(url)


@pytest.fixture
def user(redis_server: RedisProcess) -> Iterator[Any]:
    """Return a function of hash key and commands: the URL of a user with rights to only these."""
    admin: Any = redis.Redis.from_url(redis_server.url)
    url = redis_server.url.replace("redis://", "redis://narrow:secret@")

    def make(count: str, commands: list[str]) -> str:
        redis_pool.close(url)
        admin.execute_command("ACL", "DELUSER", "narrow")
        admin.execute_command(
            "ACL", "SETUSER", "narrow", "on", ">secret", f"~{count}", f"~{{{count}}}:*", "-@all", *commands
        )
        return url

    yield make
    redis_pool.close(url)
    admin.execute_command("ACL", "DELUSER", "narrow")
    admin.close()


def test_documented_users_have_sufficient_rights(redis_server: RedisProcess, user: Any) -> None:
    keys = new_keys()
    count = keys.increments[0].key
    driver = Driver(user(count, WRITER), keys)
    run(driver, 0, 1, 2)
    driver.settle(batch_of(2))
    assert driver.client.info()["aof_enabled"] == 1
    assert driver.client.config_get("appendfsync") == {"appendfsync": "always"}
    assert_counts(redis.Redis.from_url(redis_server.url), keys, 3)
    with pytest.raises(redis.exceptions.NoPermissionError):
        driver.client.hset("another key", "field", 1)
    url = user(count, READER)
    with Results(url, count) as results:
        assert results.users()[1]["user 1"] == 6
        results._redis.zrevrange(keys.increments[0].ranking_key, 0, 1)  # type: ignore[arg-type]
        results._redis.hmget(keys.increments[1].key, ["Android"])
        results._redis.hlen(count)
    assert len(read_counts(url, ReadKeys(count)).dead) == 3
    with pytest.raises(redis.exceptions.NoPermissionError):
        redis_pool.client(url).hset(count, "field", 1)


def test_documented_commands_suffice_for_reset(redis_server: RedisProcess, user: Any) -> None:
    keys = new_keys()
    run(Driver(redis_server.url, keys), 0)
    count = keys.increments[0].key
    url = user(count, [*RESETTER, "+ping", "+select"])
    sink_keys = redis_keys(url, count, [])
    assert (set(sink_keys.own), marker_query(url, count)) == ({*keys.own}, "query-1")
    forget_redis_keys(url, sink_keys)
    assert not redis.Redis.from_url(redis_server.url).exists(*keys.all)


@pytest.mark.parametrize("missing", sorted({*WRITER} - OPTIONAL - OUTSIDE_SCRIPTS))
def test_forbidden_script_command_is_named_first(redis_server: RedisProcess, user: Any, missing: str) -> None:
    keys = new_keys()
    run(Driver(redis_server.url, keys), 0)
    driver = Driver(user(keys.increments[0].key, [command for command in WRITER if command != missing]), keys)
    with redis.Redis.from_url(redis_server.url) as admin:
        before = {name: admin.dump(name) for name in keys.all}
        command = missing.removeprefix("+").upper()
        with pytest.raises(Forbidden, match=f"may not call {command} on the keys of {keys.marker} .*docs/redis.md"):
            driver.acquire(batch_of(1))
        assert {name: admin.dump(name) for name in keys.all} == before
        assert admin.keys(f"{keys.marker}:probe*") == []


@pytest.mark.remedy(Remedy.ALLOW_COMMANDS)
@pytest.mark.parametrize("missing", ["+multi", "+exec", "+hgetall", "+eval", "+evalsha"])
def test_forbidden_command_of_the_sink_is_named(redis_server: RedisProcess, user: Any, missing: str) -> None:
    keys = new_keys()
    run(Driver(redis_server.url, keys), 0)
    driver = Driver(user(keys.increments[0].key, [command for command in WRITER if command != missing]), keys)
    with redis.Redis.from_url(redis_server.url) as admin:
        admin.script_flush()

    def begin() -> None:
        driver.client.pipeline(transaction=True).hgetall(keys.marker).execute()
        driver.acquire(batch_of(1))

    with pytest.raises(redis.ResponseError, match=rf"(?i)\b{missing.removeprefix('+')}\b") as raised:
        begin()
    remedies.find(Remedy.ALLOW_COMMANDS, redis_errors.failed("redis://h", "", raised.value))
    driver = Driver(user(keys.increments[0].key, WRITER), keys)
    run(driver, 1)
    assert_counts(redis.Redis.from_url(redis_server.url), keys, 2)


def test_keys_of_another_pipeline_are_refused(redis_server: RedisProcess, user: Any) -> None:
    keys = new_keys()
    with pytest.raises(redis.exceptions.NoPermissionError) as raised:
        Driver(user("another:hash:key", WRITER), keys).acquire(batch_of(0))
    assert "the commands that docs/redis.md lists" in str(redis_errors.failed("redis://h", "", raised.value))
    assert not redis.Redis.from_url(redis_server.url).exists(*keys.all)


@pytest.mark.remedy(Remedy.REDIS_PASSWORD)
def test_wrong_password_is_reported_at_once(
    redis_server: RedisProcess, user: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: float) -> None:
        raise AssertionError("a wrong password must not be retried")

    right = user("key", WRITER)
    url = right.replace("secret", "wrong")
    monkeypatch.setattr("redis.retry.sleep", fail)
    with pytest.raises(redis.exceptions.AuthenticationError) as raised:
        redis_pool.client(url)
    message = str(redis_errors.failed(url, "before the first batch", raised.value))
    remedies.find(Remedy.REDIS_PASSWORD, message)
    assert "wrong" not in message
    assert redis_pool.client(right).info()
