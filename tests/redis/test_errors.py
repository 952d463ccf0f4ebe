"""Errors of a real Valkey: waited for if temporary, otherwise reported with their remedy."""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from onceflow.clicks import results
from onceflow.clicks.results import RedisUnreachable
from onceflow.redis import errors as redis_errors
from onceflow.redis import pool as redis_pool
from onceflow.redis.errors import RedisFailed, code_of, failed
from onceflow.remedies import Remedy
from onceflow.spark.redis.scripts import Keys
from onceflow.spark.redis.target import RedisTarget
from tests import remedies
from tests.conftest import RedisProcess
from tests.spark.redis_servers import AT_ONCE, wait_until
from tests.spark.redis_steps import Driver, assert_counts, batch_of, new_keys, rows_of

NewRedis = Callable[..., RedisProcess]
ENDLESS = "while true do end"


@pytest.fixture
def server(new_redis: Callable[..., RedisProcess]) -> Iterator[RedisProcess]:
    process = new_redis()
    yield process
    redis_pool.close(process.url)


def run(driver: Driver, *numbers: int) -> None:
    for number in numbers:
        list(driver.steps(batch_of(number)))


def write(driver: Driver) -> None:
    """Write batch 1 in two scripts; a full Redis accepts the first, which frees as much as it takes."""
    driver.acquire(batch_of(1))
    driver.whole(batch_of(1), rows_of(1))


@contextlib.contextmanager
def loading(server: RedisProcess) -> Iterator[None]:
    """Restart the server with data that it loads for four seconds."""
    with redis.Redis.from_url(server.url) as admin:
        pipeline = admin.pipeline(transaction=False)
        for number in range(8_000):
            pipeline.set("some", number)
        pipeline.execute()
    server.kill()
    server.start(wait=False, arguments=["--key-load-delay", "500"])
    with redis.Redis.from_url(server.url, retry=Retry(NoBackoff(), 0)) as admin:
        while True:
            try:
                assert not admin.ping(), "it has loaded before it could be asked"
            except redis.exceptions.BusyLoadingError:
                break
            except redis.exceptions.ConnectionError:
                continue
    yield


@contextlib.contextmanager
def busy(server: RedisProcess) -> Iterator[None]:
    admin = redis.Redis.from_url(server.url)
    admin.config_set("busy-reply-threshold", 1)
    other = redis.Redis.from_url(server.url)

    def hold_up() -> None:
        with contextlib.suppress(redis.RedisError):
            other.eval(ENDLESS, 0)

    thread = threading.Thread(target=hold_up)
    thread.start()
    try:
        while True:
            try:
                admin.ping()
            except redis.ResponseError:
                break
        yield
    finally:
        with contextlib.suppress(redis.RedisError):
            admin.script_kill()
        thread.join()
        admin.close()
        other.close()


@contextlib.contextmanager
def configured(server: RedisProcess, ends: Callable[[Any], Any], *settings: tuple[str, str]) -> Iterator[None]:
    admin = redis.Redis.from_url(server.url)
    for name, value in settings:
        admin.config_set(name, value)
    try:
        yield
    finally:
        ends(admin)
        admin.close()


def without_master(server: RedisProcess, *, stale: bool) -> contextlib.AbstractContextManager[None]:
    """Make the server a replica of an unreachable master, until it becomes a master itself."""
    serves = ("replica-serve-stale-data", "yes" if stale else "no")
    stack = contextlib.ExitStack()
    stack.enter_context(configured(server, lambda admin: admin.replicaof("NO", "ONE"), serves))
    with redis.Redis.from_url(server.url) as admin:
        admin.replicaof("127.0.0.1", "1")
    return stack  # type: ignore[return-value]


def without_replica(server: RedisProcess) -> contextlib.AbstractContextManager[None]:
    return configured(
        server, lambda admin: admin.config_set("min-replicas-to-write", 0), ("min-replicas-to-write", "1")
    )


def full(server: RedisProcess) -> contextlib.AbstractContextManager[None]:
    return configured(server, lambda admin: admin.config_set("maxmemory", "1gb"), ("maxmemory", "100kb"))


@contextlib.contextmanager
def unwritable(server: RedisProcess) -> Iterator[None]:
    """Make snapshots fail: a directory has the snapshot's name, as Redis's log says."""
    in_the_way = server.directory / "in-the-way"
    (in_the_way / "x").mkdir(parents=True)
    server.stop()
    server.start(arguments=["--dbfilename", in_the_way.name, "--save", "3600 1"])
    with redis.Redis.from_url(server.url) as admin:
        save(admin, "err")
        yield
        assert in_the_way.name in (server.directory / "server.log").read_text()
        shutil.rmtree(in_the_way)
        save(admin, "ok")


def save(admin: Any, status: str) -> None:
    """Save snapshots until the last one has this status."""
    while admin.info("persistence")["rdb_last_bgsave_status"] != status:
        with contextlib.suppress(redis.ResponseError):  # One is under way.
            admin.bgsave()
        time.sleep(0.02)


CONDITIONS: dict[str, Callable[[RedisProcess], contextlib.AbstractContextManager[None]]] = {
    "LOADING": loading,
    "BUSY": busy,
    "MASTERDOWN": lambda server: without_master(server, stale=False),
    "READONLY": lambda server: without_master(server, stale=True),
    "NOREPLICAS": without_replica,
    "OOM": full,
    "MISCONF": unwritable,
}


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        pytest.param("LOADING", Remedy.WAIT_UNTIL_UP, marks=pytest.mark.remedy(Remedy.WAIT_UNTIL_UP)),
        pytest.param("BUSY", Remedy.KILL_SCRIPT, marks=pytest.mark.remedy(Remedy.KILL_SCRIPT)),
        ("MASTERDOWN", Remedy.START_MASTER),
        ("READONLY", Remedy.NAME_MASTER),
        ("NOREPLICAS", Remedy.START_REPLICAS),
        pytest.param("OOM", Remedy.MORE_MAXMEMORY, marks=pytest.mark.remedy(Remedy.MORE_MAXMEMORY)),
        pytest.param("MISCONF", Remedy.REDIS_DISK, marks=pytest.mark.remedy(Remedy.REDIS_DISK)),
    ],
)
def test_error_is_known_and_batch_follows(
    server: RedisProcess, code: str, remedy: Remedy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_errors, "TEMPORARY_WAIT_S", 0.0)
    monkeypatch.setattr(redis_pool, "RETRIES", 0)
    keys = new_keys()
    driver = Driver(server.url, keys)
    run(driver, 0)
    with CONDITIONS[code](server):
        with pytest.raises(redis.RedisError) as raised:
            write(driver)
        assert code_of(raised.value) == code
        message = failed(server.url, "in batch 1", raised.value)
        remedies.find(remedy, message)
        remedies.find(Remedy.START_AGAIN, message)
    redis_pool.close(server.url)
    monkeypatch.undo()
    driver = Driver(server.url, keys)
    run(driver, 1)
    assert_counts(driver.client, keys, 2)


def raised_by(server: RedisProcess, url: str, keys: Keys) -> str:
    """Return the message of the failure of batch 1 at an address."""
    with pytest.raises(redis.RedisError) as raised:
        write(Driver(url, keys))
    redis_pool.close(url)
    return str(failed(server.url, "in batch 1", raised.value))


@pytest.mark.remedy(Remedy.START_MASTER, Remedy.NAME_MASTER)
def test_a_replica_is_left_for_its_master(new_redis: NewRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The master is down at first; starting it is not enough for the replica's address."""
    monkeypatch.setattr(redis_errors, "TEMPORARY_WAIT_S", 0.0)
    monkeypatch.setattr(redis_pool, "RETRIES", 0)
    master, keys = new_redis(arguments=AT_ONCE), new_keys()
    run(Driver(master.url, keys), 0)
    redis_pool.close(master.url)
    follows = ["--replicaof", "127.0.0.1", str(master.port), "--replica-serve-stale-data", "no"]
    replica = new_redis(arguments=follows)

    def is_linked() -> bool:
        with redis.Redis.from_url(replica.url) as admin:
            return bool(admin.info("replication")["master_link_status"] == "up")

    wait_until(is_linked, "a replica in step")
    master.stop()
    wait_until(lambda: not is_linked(), "a replica that has lost its master")
    remedies.find(Remedy.START_MASTER, raised_by(replica, replica.url, keys))
    master.start()
    wait_until(is_linked, "a replica in step")
    remedies.find(Remedy.NAME_MASTER, raised_by(replica, replica.url, keys))
    driver = Driver(master.url, keys)
    run(driver, 1)
    assert_counts(driver.client, keys, 2)
    redis_pool.close(master.url)


@pytest.mark.remedy(Remedy.START_REPLICAS)
def test_missing_replicas_are_started(
    server: RedisProcess, new_redis: NewRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_errors, "TEMPORARY_WAIT_S", 0.0)
    keys = new_keys()
    run(Driver(server.url, keys), 0)
    with redis.Redis.from_url(server.url) as admin:
        admin.config_set("min-replicas-to-write", 1)
        admin.config_set("repl-diskless-sync-delay", 0)
        admin.config_set("shutdown-timeout", 0)
        remedies.find(Remedy.START_REPLICAS, raised_by(server, server.url, keys))
        new_redis(arguments=["--replicaof", "127.0.0.1", str(server.port)])
        wait_until(lambda: admin.info("replication").get("min_slaves_good_slaves") == 1, "a replica")
        driver = Driver(server.url, keys)
        run(driver, 1)
        assert_counts(driver.client, keys, 2)
        admin.config_set("min-replicas-to-write", 0)


@pytest.mark.parametrize("code", ["LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS", "READONLY"])
def test_temporary_errors_are_waited_for(server: RedisProcess, code: str) -> None:
    keys = new_keys()
    run(Driver(server.url, keys), 0)
    redis_pool.close(server.url)
    in_the_way = contextlib.ExitStack()
    in_the_way.enter_context(CONDITIONS[code](server))
    ending = threading.Timer(0.3, in_the_way.close)
    ending.start()
    driver = Driver(server.url, keys)
    run(driver, 1)
    ending.join()
    assert_counts(driver.client, keys, 2)


def test_any_other_error_is_raised_at_once() -> None:
    def call() -> None:
        raise redis.ResponseError("WRONGTYPE of a key named BUSY ")

    def sleep(_: float) -> None:
        raise AssertionError

    with pytest.raises(redis.ResponseError):
        redis_errors.patiently(call, sleep=sleep)


def test_a_wait_ends() -> None:
    clock = iter(range(0, 1000, 7))

    def call() -> None:
        raise redis.exceptions.ReadOnlyError("You can't write against a read only replica.")

    pauses: list[float] = []
    with pytest.raises(redis.exceptions.ReadOnlyError):
        redis_errors.patiently(call, monotonic=lambda: float(next(clock)), sleep=pauses.append)
    assert len(pauses) == 4


def opened(url: str, keys: Keys) -> None:
    RedisTarget(url, keys, name="counts").open(None, None)


@pytest.mark.remedy(Remedy.KEEP_ALL_KEYS)
def test_renamed_info_is_warned_about(new_redis: NewRedis, caplog: pytest.LogCaptureFixture) -> None:
    server = new_redis(arguments=["--rename-command", "INFO", "SECRET-INFO"])
    keys = new_keys()
    opened(server.url, keys)
    assert "refuses INFO (unknown command 'INFO'" in caplog.text
    assert "make sure that its maxmemory-policy is noeviction" in caplog.text
    remedies.find(Remedy.KEEP_ALL_KEYS, caplog.text)
    driver = Driver(server.url, keys)
    assert driver.client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    run(driver, 0, 1)
    assert_counts(driver.client, keys, 2)
    redis_pool.close(server.url)


def test_renamed_waitaof_is_not_an_old_redis(new_redis: NewRedis, caplog: pytest.LogCaptureFixture) -> None:
    server = new_redis(arguments=["--rename-command", "WAITAOF", ""])
    opened(server.url, new_keys())
    assert "cannot report when a write is on disk (its configuration renames or disables WAITAOF)" in caplog.text
    redis_pool.close(server.url)


@pytest.mark.remedy(Remedy.KEEP_COMMAND)
def test_renamed_command_is_named(new_redis: NewRedis) -> None:
    """The sink cannot work without HGETALL."""
    server = new_redis(arguments=["--rename-command", "HGETALL", ""])
    with pytest.raises(RedisFailed, match=r"unknown command 'HGETALL'.*remove it from rename-command") as raised:
        opened(server.url, new_keys())
    assert "start Redis" not in str(raised.value)
    with pytest.raises(RedisUnreachable, match=r"unknown command 'HGETALL'.*remove it from rename-command"):
        results.snapshot(server.url, "counts")
    redis_pool.close(server.url)
    remedies.find(Remedy.KEEP_COMMAND, raised.value)
    keys = new_keys()
    server = new_redis()  # The same command line without that argument.
    driver = Driver(server.url, keys)
    run(driver, 0, 1)
    assert_counts(driver.client, keys, 2)
    redis_pool.close(server.url)


@pytest.mark.remedy(Remedy.FOLLOW_REPLY)
def test_unknown_error_has_no_start_remedy(server: RedisProcess) -> None:
    """The address names a database that the server does not have."""
    url = server.url.removesuffix("/1") + "/99"
    with pytest.raises(RedisFailed, match=r"DB index is out of range.*Redis runs and refuses this") as raised:
        opened(url, new_keys())
    assert "start Redis" not in str(raised.value)
    with pytest.raises(RedisUnreachable, match=r"DB index is out of range.*Redis runs and refuses this"):
        results.snapshot(url, "counts")
    remedies.find(Remedy.FOLLOW_REPLY, raised.value)
    opened(server.url.removesuffix("/1") + "/15", new_keys())


@pytest.mark.remedy(Remedy.START_REDIS, Remedy.NAME_REDIS)
def test_absent_redis_is_to_be_started(
    server: RedisProcess, new_redis: NewRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_pool, "RETRIES", 0)
    server.stop()
    with pytest.raises(RedisFailed) as raised:
        opened(server.url, new_keys())
    remedies.find(Remedy.START_REDIS, raised.value)
    remedies.find(Remedy.NAME_REDIS, raised.value)
    opened(new_redis().url, new_keys())
    server.start()
    opened(server.url, new_keys())
    redis_pool.close()
