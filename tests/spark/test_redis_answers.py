"""Each answer of a real Valkey that does not serve: waited for where it passes, else told with its remedy."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from onceflow import services
from onceflow.clicks import results
from onceflow.clicks.results import RedisUnreachable
from onceflow.spark import redis_answers, redis_pool
from onceflow.spark.redis_answers import REMEDIES, RedisFailed, code_of, failed
from onceflow.spark.redis_scripts import Keys
from onceflow.spark.redis_target import RedisTarget
from tests.conftest import RedisProcess
from tests.spark.redis_steps import Driver, assert_counts, batch_of, new_keys, rows_of

NewRedis = Callable[..., RedisProcess]
ENDLESS = "while true do end"


@pytest.fixture
def server(new_redis: Callable[..., RedisProcess]) -> Iterator[RedisProcess]:
    made = new_redis()
    yield made
    redis_pool.close(made.url)


def run(driver: Driver, *numbers: int) -> None:
    for number in numbers:
        list(driver.steps(batch_of(number)))


def write(driver: Driver) -> None:
    """Batch 1 in two scripts; a full Redis lets the first pass, which gives as much back as it takes."""
    driver.acquire(batch_of(1))
    driver.whole(batch_of(1), rows_of(1))


@contextlib.contextmanager
def loading(server: RedisProcess) -> Iterator[None]:
    """Started again with data that it reads for four seconds."""
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
    """A replica of a master that nobody can reach."""
    serves = ("replica-serve-stale-data", "yes" if stale else "no")
    master = ("replicaof", f"127.0.0.1 {services.free_port()}")
    stack = contextlib.ExitStack()
    stack.enter_context(configured(server, lambda admin: admin.replicaof("NO", "ONE"), serves))
    with redis.Redis.from_url(server.url) as admin:
        admin.replicaof(*master[1].split())
    return stack  # type: ignore[return-value]


def without_replica(server: RedisProcess) -> contextlib.AbstractContextManager[None]:
    return configured(
        server, lambda admin: admin.config_set("min-replicas-to-write", 0), ("min-replicas-to-write", "1")
    )


def full(server: RedisProcess) -> contextlib.AbstractContextManager[None]:
    return configured(server, lambda admin: admin.config_set("maxmemory", 0), ("maxmemory", "100kb"))


@contextlib.contextmanager
def unwritable(server: RedisProcess) -> Iterator[None]:
    """A snapshot that fails: a directory stands in its place."""
    (server.directory / "in-the-way" / "x").mkdir(parents=True)
    server.stop()
    server.start(arguments=["--dbfilename", "in-the-way"])
    with configured(server, lambda admin: admin.config_set("save", ""), ("save", "3600 1")):
        with redis.Redis.from_url(server.url) as admin:
            admin.bgsave()
            while admin.info("persistence")["rdb_last_bgsave_status"] == "ok":  # type: ignore[index]
                pass
        yield


ANSWERS: dict[str, Callable[[RedisProcess], contextlib.AbstractContextManager[None]]] = {
    "LOADING": loading,
    "BUSY": busy,
    "MASTERDOWN": lambda server: without_master(server, stale=False),
    "READONLY": lambda server: without_master(server, stale=True),
    "NOREPLICAS": without_replica,
    "OOM": full,
    "MISCONF": unwritable,
}


@pytest.mark.parametrize("code", ANSWERS)
def test_the_answer_is_known_and_the_batch_is_written_once_it_is_over(
    server: RedisProcess, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_answers, "PASSING_WAIT_S", 0.0)
    monkeypatch.setattr(redis_pool, "RETRIES", 0)
    keys = new_keys()
    driver = Driver(server.url, keys)
    run(driver, 0)
    with ANSWERS[code](server):
        with pytest.raises(redis.RedisError) as raised:
            write(driver)
        assert code_of(raised.value) == code
        assert REMEDIES[code] in str(failed(server.url, "in batch 1", raised.value))
    redis_pool.close(server.url)
    monkeypatch.undo()
    driver = Driver(server.url, keys)
    run(driver, 1)
    assert_counts(driver.client, keys, 2)


@pytest.mark.parametrize("code", ["LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS", "READONLY"])
def test_what_passes_is_waited_for(server: RedisProcess, code: str) -> None:
    keys = new_keys()
    run(Driver(server.url, keys), 0)
    redis_pool.close(server.url)
    in_the_way = contextlib.ExitStack()
    in_the_way.enter_context(ANSWERS[code](server))
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
        redis_answers.patiently(call, sleep=sleep)


def test_a_wait_ends() -> None:
    clock = iter(range(0, 1000, 7))

    def call() -> None:
        raise redis.exceptions.ReadOnlyError("You can't write against a read only replica.")

    pauses: list[float] = []
    with pytest.raises(redis.exceptions.ReadOnlyError):
        redis_answers.patiently(call, monotonic=lambda: float(next(clock)), sleep=pauses.append)
    assert len(pauses) == 4


def opened(url: str, keys: Keys) -> None:
    RedisTarget(url, keys, name="counts").open(None, None)


def test_renamed_info_is_warned_about(new_redis: NewRedis, caplog: pytest.LogCaptureFixture) -> None:
    server = new_redis(arguments=["--rename-command", "INFO", "SECRET-INFO"])
    keys = new_keys()
    opened(server.url, keys)
    assert "has no INFO for us (unknown command 'INFO'" in caplog.text
    assert "its maxmemory-policy must be noeviction, unchecked" in caplog.text
    driver = Driver(server.url, keys)
    run(driver, 0, 1)
    assert_counts(driver.client, keys, 2)
    redis_pool.close(server.url)


def test_renamed_waitaof_is_not_an_old_redis(new_redis: NewRedis, caplog: pytest.LogCaptureFixture) -> None:
    server = new_redis(arguments=["--rename-command", "WAITAOF", ""])
    opened(server.url, new_keys())
    assert "cannot say when a write is on disk (its configuration renames or disables WAITAOF)" in caplog.text
    redis_pool.close(server.url)


def test_renamed_command_is_named(new_redis: NewRedis) -> None:
    """HGETALL is one that the sink cannot do without."""
    server = new_redis(arguments=["--rename-command", "HGETALL", ""])
    with pytest.raises(RedisFailed, match=r"unknown command 'HGETALL'.*take it out of rename-command") as raised:
        opened(server.url, new_keys())
    assert "start Redis" not in str(raised.value)
    with pytest.raises(RedisUnreachable, match=r"unknown command 'HGETALL'.*take it out of rename-command"):
        results.snapshot(server.url, "counts")
    redis_pool.close(server.url)


def test_unknown_error_reply_does_not_say_start_redis(server: RedisProcess) -> None:
    """A database that the server does not have."""
    url = server.url.removesuffix("/1") + "/99"
    with pytest.raises(RedisFailed, match=r"DB index is out of range.*Redis runs and refuses this") as raised:
        opened(url, new_keys())
    assert "start Redis" not in str(raised.value)
    with pytest.raises(RedisUnreachable, match=r"DB index is out of range.*Redis runs and refuses this"):
        results.snapshot(url, "counts")


def test_absent_redis_is_to_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_pool, "RETRIES", 0)
    with pytest.raises(RedisFailed, match="start Redis, or name the address of the one that runs"):
        RedisTarget(f"redis://127.0.0.1:{services.free_port()}/1", new_keys(), name="counts").open(None, None)
