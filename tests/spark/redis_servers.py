"""A Redis cluster, and a master with its Sentinel, of real servers that the test starts."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot

from onceflow import services
from tests.conftest import WITHIN_S, RedisProcess

SLOTS = 16_384
NODE_TIMEOUT_MS, DOWN_AFTER_MS = 500, 300
"""Time until a dead node or master is replaced, after a call of `detect_failures`."""

PATIENCE_MS = 60_000
"""The same time before that call: longer than a slow sync of the disk delays a live server."""

SERVICE = "counts"

AT_ONCE = ("--repl-diskless-sync-delay", "0", "--shutdown-timeout", "0")
"""Serve a new replica at once, and do not wait for replicas at a shutdown."""

NewRedis = Callable[..., RedisProcess]


def wait_until(happened: Callable[[], bool], what: str) -> None:
    """Poll `happened` every 20 ms, and fail after a while; an error of Redis counts as false."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        try:
            if happened():
                return
        except redis.RedisError:
            pass
        time.sleep(0.02)
    raise AssertionError(f"not within {WITHIN_S} s: {what}")


def append_only_file(server: RedisProcess) -> Path:
    """Return the file that the server appends to; a rewrite starts the next one."""
    files = (server.directory / "appendonlydir").glob("*.incr.aof")
    return max(files, key=lambda path: int(path.name.split(".")[-3]))


@contextmanager
def losing_writes(servers: "RedisCluster | Sentinel", master: RedisProcess, replica: RedisProcess) -> Iterator[None]:
    """Keep the master's writes in this block from its replica, then kill the master."""
    os.kill(replica.pid, signal.SIGSTOP)
    # Otherwise the writes would wait in the socket of the stopped replica.
    servers.admin(master).execute_command("CLIENT", "KILL", "TYPE", "REPLICA")
    try:
        yield
    finally:
        master.kill()
        os.kill(replica.pid, signal.SIGCONT)
        servers.detect_failures()


class RedisCluster:
    """A cluster of masters with equal shares of the slots, and replicas that each follow one of them."""

    def __init__(self, new_redis: NewRedis, *, masters: int = 3, replicas: int = 0) -> None:
        self.nodes = [new_redis(arguments=_cluster_arguments()) for _ in range(masters + replicas)]
        self.masters = self.nodes[:masters]
        for number, node in enumerate(self.masters):
            begin, end = (SLOTS * number // masters, SLOTS * (number + 1) // masters)
            self.admin(node).execute_command("CLUSTER", "ADDSLOTSRANGE", begin, end - 1)
        for node in self.nodes:
            bus_port = self.admin(self.nodes[0]).config_get("cluster-port")["cluster-port"]
            self.admin(node).execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port, bus_port)
        self.wait_until_all_agree()
        self._set_node_timeout(PATIENCE_MS)
        self.wait_until_all_agree()
        for number, node in enumerate(self.nodes[masters:]):
            self.replicate(node, self.masters[number % masters])

    def detect_failures(self) -> None:
        """Detect dead nodes soon from now on; a test calls this after it has killed one."""
        self._set_node_timeout(NODE_TIMEOUT_MS)

    def _set_node_timeout(self, silence_ms: int) -> None:
        for node in self.nodes:
            if node.is_running:
                self.admin(node).config_set("cluster-node-timeout", silence_ms)

    def replicate(self, node: RedisProcess, master: RedisProcess) -> None:
        self.admin(node).execute_command("CLUSTER", "REPLICATE", self.id_of(master))
        wait_until(lambda: self.admin(node).info("replication")["master_link_status"] == "up", "a replica in step")
        known = self.id_of(node)
        wait_until(
            lambda: all(
                known in str(self.admin(master).execute_command("CLUSTER", "SLOTS")) for master in self.masters
            ),
            "a replica known to all masters",
        )

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def admin(self, node: RedisProcess) -> Any:
        return redis.Redis("127.0.0.1", node.port, socket_timeout=5)

    def id_of(self, node: RedisProcess) -> str:
        return str(self.admin(node).execute_command("CLUSTER", "MYID").decode())

    def owner_of(self, key: str) -> RedisProcess:
        """Return the live node that owns the key's slot."""
        for node in self.nodes:
            try:
                ranges = self.admin(node).execute_command("CLUSTER", "SLOTS")
            except redis.RedisError:
                continue
            port = next(owner[1] for begin, last, owner, *_ in ranges if begin <= key_slot(key.encode()) <= last)
            if port == node.port:
                return node
        raise AssertionError(f"no node owns the slot of {key}")

    def wait_until_all_agree(self) -> None:
        def agree() -> bool:
            infos = [self.admin(node).execute_command("CLUSTER", "INFO") for node in self.nodes]
            return all(
                info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == len(self.nodes)
                for info in map(_info, infos)
            )

        wait_until(agree, "a cluster that serves all slots")

    def begin_move(self, key: str, target: RedisProcess) -> RedisProcess:
        """Start to move the slot of `key` to `target`, without any key, and return its owner."""
        source, slot = self.owner_of(key), key_slot(key.encode())
        self.admin(target).execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        self.admin(source).execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))
        return source

    def move_keys(self, source: RedisProcess, target: RedisProcess, *keys: str) -> None:
        self.admin(source).execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)

    def end_move(self, key: str, target: RedisProcess) -> None:
        for node in [target, *(master for master in self.masters if master is not target)]:
            self.admin(node).execute_command("CLUSTER", "SETSLOT", key_slot(key.encode()), "NODE", self.id_of(target))


def _cluster_arguments() -> list[str]:
    settings = {
        "cluster-enabled": "yes",
        "cluster-port": str(services.free_port()),
        "cluster-node-timeout": str(NODE_TIMEOUT_MS),
        "cluster-replica-validity-factor": "0",
    }
    return [*AT_ONCE, *(word for name, value in settings.items() for word in (f"--{name}", value))]


def _info(reply: Any) -> dict[str, str]:
    if isinstance(reply, dict):
        return reply
    return dict(line.split(":", 1) for line in reply.decode().split())


class Sentinel:
    """One Sentinel; its quorum of 1 suffices to promote the replica."""

    def __init__(self, directory: Path, master: RedisProcess, replica: RedisProcess) -> None:
        self.port = services.free_port()
        self.master, self.replica = master, replica
        self.directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/{SERVICE}/1"

    def admin(self, server: RedisProcess) -> Any:
        return redis.Redis("127.0.0.1", server.port, db=1, socket_timeout=5)

    def start(self) -> "Sentinel":
        follow = redis.Redis("127.0.0.1", self.replica.port)
        follow.replicaof("127.0.0.1", str(self.master.port))
        wait_until(lambda: follow.info("replication")["master_link_status"] == "up", "a replica in step")
        self.directory.mkdir(parents=True, exist_ok=True)
        lines = (
            "bind 127.0.0.1",
            f"port {self.port}",
            f"dir {self.directory}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.master.port} 1",
            f"sentinel down-after-milliseconds {SERVICE} {PATIENCE_MS}",
            f"sentinel failover-timeout {SERVICE} 2000",
        )
        (self.directory / "sentinel.conf").write_text("\n".join(lines) + "\n")
        command = [services.find_redis_server(), str(self.directory / "sentinel.conf"), "--sentinel"]
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        asking: Any = redis.Redis("127.0.0.1", self.port, socket_timeout=5)

        def knows_the_replica() -> bool:
            replicas = asking.execute_command("SENTINEL", "REPLICAS", SERVICE)
            return len(replicas) == 1 and all(f"b'{word}'" in str(replicas) for word in ("slave", "ok"))

        wait_until(knows_the_replica, "a Sentinel that knows the replica")
        return self

    def detect_failures(self) -> None:
        """Replace a dead master soon from now on; a test calls this after it has killed one."""
        asking: Any = redis.Redis("127.0.0.1", self.port, socket_timeout=5)
        asking.execute_command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", DOWN_AFTER_MS)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=WITHIN_S)
            self._process = None


@contextmanager
def servers_in(new_directory: Callable[[], Path]) -> Iterator[NewRedis]:
    """Yield a factory of started servers, which are stopped at the end; they may outlive a test."""
    made: list[RedisProcess] = []

    def make(**settings: Any) -> RedisProcess:
        made.append(RedisProcess(new_directory(), **settings).start())
        return made[-1]

    try:
        yield make
    finally:
        for server in made:
            server.stop()


@contextmanager
def watched(directory: Path, new_redis: NewRedis, **settings: Any) -> Iterator[Sentinel]:
    """Start a master, its replica, and a Sentinel that monitors them."""
    arguments = [*AT_ONCE, *settings.pop("arguments", ())]
    master, replica = (new_redis(arguments=arguments, **settings) for _ in range(2))
    sentinel = Sentinel(directory, master, replica)
    try:
        yield sentinel.start()
    finally:
        sentinel.stop()
