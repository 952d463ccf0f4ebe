"""Exit of `onceflow demo --seconds`: 0 only if several micro-batches were counted and all counts are equal."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from onceflow import services
from onceflow.cli.demo import processes as laptop_module
from onceflow.cli.demo.processes import HASH_KEY, TOPIC, Laptop
from onceflow.clicks import results
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.testing import Broker
from tests import remedies
from tests.broker.driven_broker import eventually
from tests.clicks.counted import GOOD_AND_BAD, Values, count, write
from tests.conftest import RedisProcess

ONLY_ZEROS: Values = {0: [b'{"uid":"ada","click_count":0}'], 1: []}
EndOf = Callable[..., int]


def demo_of(directory: Path, broker: Broker, server: RedisProcess, values: Values) -> Laptop:
    """Return a demo without children; `values` are in its log, and counted."""
    laptop = Laptop(directory, lively=False, max_bytes=1 << 20, page_port=0, quiet=True)
    laptop.ports |= {"broker": int(broker.bootstrap_servers.split(":")[1]), "redis": server.port}
    write(laptop.bootstrap, TOPIC, values)
    count(laptop.redis_url, HASH_KEY, TOPIC, values)
    return laptop


@pytest.fixture
def end_of(tmp_path: Path, new_redis: Callable[..., RedisProcess]) -> Iterator[EndOf]:
    """A function that ends a demo of `values` and their counts, with stand-ins for its children."""
    server = new_redis()
    with Broker(tmp_path / "broker") as broker:

        def conclude(values: Values, *, batch_before: int = -1, by_hand: int = 0) -> int:
            laptop = demo_of(tmp_path, broker, server, values)
            laptop.batch_before = batch_before
            if by_hand:
                with redis.Redis.from_url(server.url) as client:
                    client.hincrby(HASH_KEY, "ada", by_hand)
            with services.Supervisor() as laptop.supervisor:
                for name in ("generator", "spark"):
                    laptop.supervisor.start(name, ["sleep", "600"], tmp_path / f"{name}.log", None)
                return laptop.conclude(as_json=True)

        yield conclude


def test_equal_counts_exit_with_0(end_of: EndOf, capfd: pytest.CaptureFixture[str]) -> None:
    assert end_of(GOOD_AND_BAD) == 0
    printed = capfd.readouterr()
    assert '"differences": []' in printed.out
    assert "9 events · 11 clicks in Redis · 2 micro-batches in this run" in printed.err
    assert "equal: every event in the log is counted exactly once" in printed.err


def test_the_logs_size_is_its_records(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    laptop = Laptop(tmp_path, lively=False, max_bytes=1 << 30, page_port=0, quiet=False)
    with Broker(tmp_path / "broker") as broker:
        write(broker.bootstrap_servers, TOPIC, GOOD_AND_BAD)
    assert (tmp_path / "broker" / ".reserve").stat().st_size
    laptop._print_directory()
    assert "(resumed) · log 0.0 of at most 1024 MiB" in capfd.readouterr().out


def test_differences_exit_with_1(end_of: EndOf) -> None:
    assert end_of(GOOD_AND_BAD, by_hand=1) == 1


@pytest.mark.parametrize(
    ("values", "batch_before"),
    [(ONLY_ZEROS, -1), (GOOD_AND_BAD, 0)],
    ids=["no clicks", "one micro-batch"],
)
def test_too_few_events_prove_nothing(end_of: EndOf, values: Values, batch_before: int) -> None:
    with pytest.raises(OnceflowError, match="too little was counted to verify"):
        end_of(values, batch_before=batch_before)


@pytest.fixture
def watched(
    tmp_path: Path, new_redis: Callable[..., RedisProcess], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Values], Laptop]]:
    """A function that resumes a demo of counted values: its generator ends at once, its Spark counts nothing."""
    server = new_redis()
    monkeypatch.setattr(laptop_module, "SLOW_START_S", 0.0)
    monkeypatch.setattr(laptop_module, "FIRST_COUNT_WAIT_S", 1.0)
    with Broker(tmp_path / "broker") as broker, services.Supervisor() as supervisor:

        def start(values: Values) -> Laptop:
            laptop = demo_of(tmp_path, broker, server, values)
            laptop.batch_before = 1
            laptop.supervisor = supervisor
            supervisor.start("generator", ["true"], tmp_path / "generator.log", None)
            supervisor.start("spark", ["sleep", "600"], tmp_path / "spark.log", None)
            eventually(lambda: supervisor.children["generator"].code is not None, "the generator has ended")
            return laptop

        yield start


def test_full_counted_logs_end_the_wait(watched: Callable[[Values], Laptop], capfd: pytest.CaptureFixture[str]) -> None:
    watched(GOOD_AND_BAD).watch(0)
    assert "the log has reached its 1 MiB (--max-bytes) and is counted; no more events" in capfd.readouterr().err


@pytest.mark.remedy(Remedy.DEMO_AGAIN)
def test_slow_starts_are_reported_and_resumable(
    watched: Callable[[Values], Laptop], capfd: pytest.CaptureFixture[str]
) -> None:
    laptop = watched(GOOD_AND_BAD)
    write(laptop.bootstrap, TOPIC, GOOD_AND_BAD)
    with pytest.raises(OnceflowError, match=r"nothing was counted within 1 s, .*spark\.log and jvm\.log") as raised:
        laptop.watch(0)
    remedies.find(Remedy.DEMO_AGAIN, raised.value)
    printed = capfd.readouterr().err
    assert printed.count("this machine is slow or busy") == 1
    assert "no more events" not in printed
    # The repeated command finds what Spark has counted since.
    twice = {partition: [*part, *part] for partition, part in GOOD_AND_BAD.items()}
    count(laptop.redis_url, HASH_KEY, TOPIC, twice, batch="2")
    laptop.watch(0)
    assert "first micro-batch committed" in capfd.readouterr().err


def test_slow_redis_is_reported(
    watched: Callable[[Values], Laptop], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message does not ask for a Redis to be started: the demo's own is running, or its end is reported."""
    monkeypatch.setattr(results, "SOCKET_TIMEOUT_S", 0.01)
    laptop = watched(GOOD_AND_BAD)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        laptop.ports["redis"] = silent.getsockname()[1]
        with pytest.raises(OnceflowError, match=r"the demo's Redis is running but did not respond: .*imeout") as raised:
            laptop.watch(0)
        remedies.find(Remedy.DEMO_AGAIN, raised.value)
        laptop.supervisor.start("redis", ["false"], tmp_path / "redis.log", None)
        eventually(lambda: laptop.supervisor.children["redis"].code is not None, "redis has ended")
        with pytest.raises(services.ChildFailed, match="redis exited with code 1"):
            laptop.watch(0)
