"""A cluster and a master with its Sentinel, of real servers that the test starts."""

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
"""After so long a node or a master that is away is replaced, from `notice` on."""

PATIENCE_MS = 60_000
"""Before that. A disk that is slow to sync holds a server up for longer than a test should wait for its death."""

SERVICE = "counts"

AT_ONCE = ("--repl-diskless-sync-delay", "0", "--shutdown-timeout", "0")
"""A replica that comes is served, and a master that is told to end does not wait for one."""

NewRedis = Callable[..., RedisProcess]


def wait_until(happened: Callable[[], bool], what: str) -> None:
    """Asks every few milliseconds; a server that does not answer has not."""
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
    """The one that it writes to; a rewrite begins the next."""
    files = (server.directory / "appendonlydir").glob("*.incr.aof")
    return max(files, key=lambda path: int(path.name.split(".")[-3]))


@contextmanager
def taking_back(servers: "RedisCluster | Sentinel", master: RedisProcess, replica: RedisProcess) -> Iterator[None]:
    """What the master acknowledges meanwhile reaches nobody else; then it dies, and the replica can take over."""
    os.kill(replica.pid, signal.SIGSTOP)
    # Else it waits in the stopped one's socket.
    servers.admin(master).execute_command("CLIENT", "KILL", "TYPE", "REPLICA")
    try:
        yield
    finally:
        master.kill()
        os.kill(replica.pid, signal.SIGCONT)
        servers.notice()


class RedisCluster:
    """Masters that share the slots evenly, and replicas that each follow one of them."""

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
        self._take_for_dead_after(PATIENCE_MS)
        self.wait_until_all_agree()
        for number, node in enumerate(self.nodes[masters:]):
            self.replicate(node, self.masters[number % masters])

    def notice(self) -> None:
        """From now on a node that is away is soon taken for dead; a test calls it when it has killed one."""
        self._take_for_dead_after(NODE_TIMEOUT_MS)

    def _take_for_dead_after(self, silence_ms: int) -> None:
        for node in self.nodes:
            if node.is_running:
                self.admin(node).config_set("cluster-node-timeout", silence_ms)

    def replicate(self, node: RedisProcess, master: RedisProcess) -> None:
        self.admin(node).execute_command("CLUSTER", "REPLICATE", self.id_of(master))
        wait_until(lambda: self.admin(node).info("replication")["master_link_status"] == "up", "a replica in step")
        known = self.id_of(node)
        wait_until(
            lambda: all(known in str(self.admin(each).execute_command("CLUSTER", "SLOTS")) for each in self.masters),
            "a replica that all know",
        )

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def admin(self, node: RedisProcess) -> Any:
        return redis.Redis("127.0.0.1", node.port, socket_timeout=5)

    def id_of(self, node: RedisProcess) -> str:
        return str(self.admin(node).execute_command("CLUSTER", "MYID").decode())

    def owner_of(self, key: str) -> RedisProcess:
        """By what the nodes that live say of themselves."""
        for node in self.nodes:
            try:
                ranges = self.admin(node).execute_command("CLUSTER", "SLOTS")
            except redis.RedisError:
                continue
            port = next(owner[1] for begin, last, owner, *_ in ranges if begin <= key_slot(key.encode()) <= last)
            if port == node.port:
                return node
        raise AssertionError(f"nobody has {key}")

    def wait_until_all_agree(self) -> None:
        def agree() -> bool:
            infos = [self.admin(node).execute_command("CLUSTER", "INFO") for node in self.nodes]
            return all(
                info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == len(self.nodes)
                for info in map(_info, infos)
            )

        wait_until(agree, "a cluster that serves all slots")

    def begin_move(self, key: str, target: RedisProcess) -> RedisProcess:
        """Slot of `key`: the owner hands it on to `target`, no key has gone yet. Returns the owner."""
        source, slot = self.owner_of(key), key_slot(key.encode())
        self.admin(target).execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        self.admin(source).execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))
        return source

    def move_keys(self, source: RedisProcess, target: RedisProcess, *keys: str) -> None:
        self.admin(source).execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)

    def end_move(self, key: str, target: RedisProcess) -> None:
        for node in [target, *(each for each in self.masters if each is not target)]:
            self.admin(node).execute_command("CLUSTER", "SETSLOT", key_slot(key.encode()), "NODE", self.id_of(target))


def _cluster_arguments() -> list[str]:
    settings = {
        "cluster-enabled": "yes",
        "cluster-port": str(services.free_port()),
        "cluster-node-timeout": str(NODE_TIMEOUT_MS),
        "cluster-replica-validity-factor": "0",
    }
    return [*AT_ONCE, *(word for name, value in settings.items() for word in (f"--{name}", value))]


def _info(answer: Any) -> dict[str, str]:
    if isinstance(answer, dict):
        return answer
    return dict(line.split(":", 1) for line in answer.decode().split())


class Sentinel:
    """One Sentinel, whose word is enough to make the replica the master."""

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
            answer = asking.execute_command("SENTINEL", "REPLICAS", SERVICE)
            return len(answer) == 1 and all(f"b'{word}'" in str(answer) for word in ("slave", "ok"))

        wait_until(knows_the_replica, "a Sentinel that knows the replica well")
        return self

    def notice(self) -> None:
        """From now on a master that is away is soon replaced; a test calls it when it has killed one."""
        asking: Any = redis.Redis("127.0.0.1", self.port, socket_timeout=5)
        asking.execute_command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", DOWN_AFTER_MS)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=WITHIN_S)
            self._process = None


@contextmanager
def servers_in(new_directory: Callable[[], Path]) -> Iterator[NewRedis]:
    """A factory of started servers, all of which are ended, for longer than one test."""
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
    """A master, its replica, and a Sentinel that watches them."""
    arguments = [*AT_ONCE, *settings.pop("arguments", ())]
    master, replica = (new_redis(arguments=arguments, **settings) for _ in range(2))
    sentinel = Sentinel(directory, master, replica)
    try:
        yield sentinel.start()
    finally:
        sentinel.stop()
