"""Redis's own server, if installed: its TLS ports, and its handling of a torn append-only file."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from onceflow import services
from onceflow.redis import pool as redis_pool
from onceflow.redis.errors import code_of
from tests.client.tls import Authority
from tests.compat.conftest import tool
from tests.conftest import RedisProcess
from tests.spark.redis_servers import SERVICE, RedisCluster, append_only_file, wait_until
from tests.spark.redis_steps import Driver, assert_counts, batch_of, expected_counts, new_keys

NewRedis = Callable[..., RedisProcess]
LOCAL = "127.0.0.1"


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the program for `new_redis`."""
    program = tool("redis-server", "apt install redis-server")
    if "Redis" not in subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout:
        pytest.skip(f"{program} is not Redis: install Redis itself")
    monkeypatch.setattr(services, "find_redis_server", lambda: program)
    yield program
    redis_pool.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls(authority: Authority, *more: str) -> tuple[int, list[str]]:
    """Return the options of a TLS port beside the plain one of the test."""
    port, own = services.free_port(), str(authority.issue(LOCAL))
    given = {"--tls-cert-file": own, "--tls-key-file": own, "--tls-ca-cert-file": str(authority.trusted)}
    words = [word for pair in given.items() for word in pair]
    return port, ["--tls-port", str(port), *words, "--tls-auth-clients", "optional", *more]


def run(driver: Driver, *numbers: int) -> None:
    for number in numbers:
        list(driver.steps(batch_of(number)))


def of_sums(server: RedisProcess) -> Any:
    return redis.Redis(LOCAL, server.port, db=1)


def test_a_tls_port_of_its_own(new_redis: NewRedis, authority: Authority) -> None:
    port, arguments = tls(authority)
    server, keys = new_redis(arguments=arguments), new_keys()
    run(Driver(f"rediss://{LOCAL}:{port}/1?ssl_ca_certs={authority.trusted}", keys), 0, 1)
    assert_counts(of_sums(server), keys, 2)


def test_a_tls_port_that_asks_for_certificates(new_redis: NewRedis, authority: Authority) -> None:
    port, arguments = tls(authority, "--tls-auth-clients", "yes")
    server, keys, own = new_redis(arguments=arguments), new_keys(), authority.issue("pipeline")
    url = f"rediss://{LOCAL}:{port}/1?ssl_ca_certs={authority.trusted}"
    with pytest.raises(redis.ConnectionError) as raised:
        redis_pool.client(url)
    assert code_of(raised.value) == "TLS"
    run(Driver(f"{url}&ssl_certfile={own}&ssl_keyfile={own}", keys), 0)
    assert_counts(of_sums(server), keys, 1)


def test_a_cluster_with_tls_between_nodes(new_redis: NewRedis, authority: Authority) -> None:
    ports = []

    def with_tls(*, arguments: list[str]) -> RedisProcess:
        port, more = tls(authority, "--tls-cluster", "yes", "--tls-replication", "yes")
        ports.append(port)
        return new_redis(arguments=[*arguments, *more])

    cluster, keys = RedisCluster(with_tls, masters=1), new_keys()
    run(Driver(f"rediss+cluster://{LOCAL}:{ports[0]}?ssl_ca_certs={authority.trusted}", keys), 0, 1)
    assert_counts(cluster.admin(cluster.nodes[0]), keys, 2)


def test_sentinels_behind_tls_and_a_failover(
    new_redis: NewRedis, authority: Authority, tmp_path: Path, program: str
) -> None:
    (port, of_master), (other_port, of_replica) = (tls(authority, "--tls-replication", "yes") for _ in range(2))
    master, replica = new_redis(arguments=of_master), new_redis(arguments=of_replica)
    follow: Any = redis.Redis(LOCAL, replica.port)
    follow.replicaof(LOCAL, str(port))
    wait_until(lambda: follow.info("replication")["master_link_status"] == "up", "a replica in step")
    own_port, arguments = tls(authority, "--tls-replication", "yes")
    lines = [" ".join(pair).removeprefix("--") for pair in zip(arguments[::2], arguments[1::2], strict=True)]
    lines += ["port 0", f"bind {LOCAL}", f"dir {tmp_path}", f"sentinel monitor {SERVICE} {LOCAL} {port} 1"]
    lines += [f"sentinel down-after-milliseconds {SERVICE} 300", f"sentinel failover-timeout {SERVICE} 2000"]
    (tmp_path / "sentinel.conf").write_text("\n".join(lines) + "\n")
    with (tmp_path / "sentinel.log").open("ab") as log:
        sentinel = subprocess.Popen([program, str(tmp_path / "sentinel.conf"), "--sentinel"], stdout=log, stderr=log)
    try:
        asking: Any = redis.Redis(LOCAL, own_port, ssl=True, ssl_ca_certs=str(authority.trusted))
        known = f"{LOCAL}:{other_port}"
        wait_until(lambda: known in str(asking.execute_command("SENTINEL", "REPLICAS", SERVICE)), "a known replica")
        keys = new_keys()
        driver = Driver(f"rediss+sentinel://{LOCAL}:{own_port}/{SERVICE}/1?ssl_ca_certs={authority.trusted}", keys)
        run(driver, 0, 1)
        there = of_sums(master).hgetall(keys.marker)
        wait_until(lambda: of_sums(replica).hgetall(keys.marker) == there, "a replica that has batch 1")
        master.kill()
        run(driver, 2)
        assert_counts(of_sums(replica), keys, 3)
    finally:
        sentinel.terminate()
        sentinel.wait(timeout=20)


def within_a_script(written: bytes, begin: int) -> int:
    """Return a position within the second HINCRBY of the first script that has some."""
    first = written.index(b"HINCRBY", begin)
    cut = written.index(b"HINCRBY", first + 1) + 3
    assert written.rfind(b"MULTI", begin, first) > written.rfind(b"EXEC", 0, cut)
    return cut


class Torn:
    """Start a server that lost everything from the middle of a script of batch 1 on; batches 1 and 2 are repeated."""

    def __init__(self, server: RedisProcess) -> None:
        self.server, self.keys = server, new_keys()
        driver = Driver(server.url, self.keys)
        run(driver, 0)
        self.file = append_only_file(server)
        before = self._at_rest()
        run(driver, 1, 2)
        written = self._at_rest()
        server.kill()
        os.truncate(self.file, within_a_script(written, len(before)))

    def _at_rest(self) -> bytes:
        client = of_sums(self.server)
        wait_until(lambda: client.info("persistence")["aof_pending_bio_fsync"] == 0, "a file that is written")
        return self.file.read_bytes()

    def start_twice(self) -> None:
        """Repeat batches 1 and 2 after the first start."""
        self.server.start()
        run(Driver(self.server.url, self.keys), 1, 2)
        self.server.kill()
        self.server.start()


def test_a_torn_script_is_partly_counted(new_redis: NewRedis) -> None:
    """See docs/redis-sink.md on `aof-load-truncated yes`. If a Redis does better, fix page and sink."""
    torn = Torn(new_redis())
    torn.start_twice()
    counted = of_sums(torn.server).hgetall(torn.keys.increments[0].key).values()
    assert sum(map(int, counted)) > sum(expected_counts(3)["count"].values())
    run(Driver(torn.server.url, torn.keys), 2, 3)  # No marker shows it.


def test_a_torn_script_is_truncated(new_redis: NewRedis) -> None:
    torn = Torn(new_redis(arguments=["--aof-load-truncated", "no"]))
    torn.server.start(wait=False)
    log = torn.server.directory / "server.log"
    wait_until(lambda: "Unexpected end of file" in log.read_text(), "a refusal of the torn file")
    assert "redis-check-aof --fix" in log.read_text()
    torn.server.stop()
    mend = [tool("redis-check-aof", "apt install redis-tools"), "--fix", str(torn.file)]
    subprocess.run(mend, input=b"y\n", capture_output=True, check=True)
    torn.start_twice()
    assert_counts(of_sums(torn.server), torn.keys, 3)


def test_a_rewrite_removes_a_torn_script(new_redis: NewRedis) -> None:
    torn = Torn(new_redis())
    torn.server.start()
    client = of_sums(torn.server)
    client.bgrewriteaof()
    wait_until(lambda: append_only_file(torn.server) != torn.file, "a file that is rewritten")
    wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], "the rewriting is over")
    torn.server.kill()
    torn.start_twice()
    assert_counts(of_sums(torn.server), torn.keys, 3)
