"""A broker in this process: start, stop, errors, fork, exit; a hundred of them leave nothing behind."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from onceflow.broker.settings.kinds import SettingRefused
from onceflow.errors import OnceflowError
from onceflow.log.errors import DataDirectoryRefused
from onceflow.remedies import Remedy
from onceflow.testing import Broker, BrokerNotUsable, BrokerProcess
from onceflow.wire import apis
from onceflow.wire.batch import decode_batch
from tests import remedies
from tests.broker.raw_client import batch_of, connected
from tests.campaigns import RecordProperty


def produce(bootstrap: str, topic: str, value: bytes) -> None:
    with connected(bootstrap) as client:
        assert client.produce(topic, 0, batch_of(value)).error_code == 0


def stored(bootstrap: str, topic: str) -> bytes | None:
    with connected(bootstrap) as client:
        (fetched,) = client.fetch([(topic, 0, 0)])
        assert fetched.error_code == 0
        return decode_batch(fetched.records)[0].value


def run_script(text: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", text, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_temporary_broker_leaves_no_directory() -> None:
    with Broker() as broker:
        produce(broker.bootstrap_servers, broker.create_topic("visits"), b"ann")
        assert stored(broker.bootstrap_servers, "visits") == b"ann"
        path = broker.path
        assert path.is_dir()
    assert not path.exists()


def test_restarted_broker_keeps_port_and_data(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "new" / "data")
    with broker:
        address = broker.bootstrap_servers
        produce(address, broker.create_topic("visits", configs={"retention.ms": "-1"}), b"ann")
    with broker:
        assert broker.bootstrap_servers == address
        assert stored(address, "visits") == b"ann"
    assert (tmp_path / "new" / "data" / ".kafka_cleanshutdown").exists()


def test_second_broker_on_the_directory_is_refused(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as first:
        for _ in range(2):
            with pytest.raises(DataDirectoryRefused, match=f"in use by another broker \\(pid {os.getpid()}\\)"):
                Broker(tmp_path / "data").start()
        with pytest.raises(BrokerNotUsable, match="in use by another broker"):
            BrokerProcess(tmp_path / "data").start()
        assert first.create_topic("still_served") == "still_served"
    with Broker(tmp_path / "data") as second:
        assert second.create_topic("now_mine")


@pytest.mark.remedy(Remedy.START_TEST_BROKER, Remedy.WITH_STATEMENT, Remedy.STOP_TEST_BROKER)
def test_stopped_broker_raises_an_error(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    for use in (lambda: broker.bootstrap_servers, lambda: broker.path, lambda: broker.create_topic("a")):
        with pytest.raises(BrokerNotUsable) as raised:
            use()
        remedies.find(Remedy.START_TEST_BROKER, raised.value)
        remedies.find(Remedy.WITH_STATEMENT, raised.value)
    assert broker.start().create_topic("a") == "a"
    broker.stop()
    with broker:
        assert broker.create_topic("b") == "b"
        with pytest.raises(BrokerNotUsable, match="is already running") as running:
            broker.start()
        remedies.find(Remedy.STOP_TEST_BROKER, running.value)
        broker.stop()
        broker.start()
        with pytest.raises(BrokerNotUsable, match="was not created"):
            broker.create_topic("no spaces")
        broker.stop()
        broker.stop()


def test_a_start_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    threads = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OnceflowError, match="is taken"):
        Broker(port=taken.getsockname()[1]).start()
    (tmp_path / "file").touch()
    with pytest.raises(DataDirectoryRefused, match="is a file, not a directory"):
        Broker(tmp_path / "file" / "data").start()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert set(threading.enumerate()) <= threads


def test_unknown_settings_are_refused() -> None:
    with Broker(settings={"num.partitions": "3"}) as broker:
        broker.create_topic("three", partitions=-1)
        with connected(broker.bootstrap_servers) as client:
            assert [fetched.error_code for fetched in client.fetch([("three", 2, 0)])] == [0]
    with pytest.raises(SettingRefused, match=r"num\.partition is not a setting .*did you mean num\.partitions\?"):
        Broker(settings={"num.partition": "3"}).start()
    with pytest.raises(BrokerNotUsable, match=r"settings must not contain log\.dirs"):
        Broker(settings={"log.dirs": "/elsewhere"})


def test_settings_may_be_python_values(tmp_path: Path) -> None:
    values = {"num.partitions": 4, "log.cleaner.enable": False, "log.cleaner.min.cleanable.ratio": 0.25}
    with Broker(tmp_path, settings=values) as broker, connected(broker.bootstrap_servers) as client:
        asked = [{"resource_type": 4, "resource_name": "1", "configuration_keys": list(values)}]
        (result,) = client.ask(apis.DESCRIBE_CONFIGS, 4, resources=asked).results
    assert {config.name: config.value for config in result.configs} == {
        "num.partitions": "4",
        "log.cleaner.enable": "false",
        "log.cleaner.min.cleanable.ratio": "0.25",
    }
    with pytest.raises(BrokerNotUsable, match=r"num\.partitions=\[4\] .* list"):
        Broker(settings={"num.partitions": [4]})  # type: ignore[dict-item]


def test_broker_process_accepts_path_as_text(tmp_path: Path) -> None:
    assert BrokerProcess(str(tmp_path / "data")).log_path == tmp_path / "data.log"


@pytest.mark.remedy(Remedy.START_TEST_BROKER, Remedy.STOP_TEST_BROKER)
def test_broker_process_starts_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        pid = broker.pid
        with pytest.raises(BrokerNotUsable, match=f"is already running, with pid {pid}") as running:
            broker.start()
        assert broker.pid == pid
    remedies.find(Remedy.STOP_TEST_BROKER, running.value)
    assert broker.stop() == 0
    with pytest.raises(BrokerNotUsable, match="is not running") as stopped:
        assert broker.pid
    remedies.find(Remedy.START_TEST_BROKER, stopped.value)
    assert broker.start().pid != pid
    broker.stop()
    with pytest.raises(BrokerNotUsable, match=r"did not start: .*num\.partition is not a setting"):
        BrokerProcess(tmp_path / "data", 0, "--config-file", str(_wrong_file(tmp_path))).start()


def _wrong_file(directory: Path) -> Path:
    file = directory / "server.properties"
    file.write_text("num.partition=3\n")
    return file


def test_slow_topic_creation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from onceflow.testing import in_process

    monkeypatch.setattr(in_process, "CREATE_SECONDS_MAX", 0.05)
    held = threading.Event()
    with Broker() as broker:
        broker._running()._loop.call_soon_threadsafe(held.wait, 20)  # type: ignore[union-attr]
        try:
            with pytest.raises(BrokerNotUsable, match=r"topic slow was not created on .* within 0\.05 s"):
                broker.create_topic("slow")
        finally:
            held.set()


IN_A_LOOP = """
import asyncio, os, signal, sys
from onceflow.testing import Broker
sys.path.insert(0, os.getcwd())
from tests.testing.test_in_process import produce

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)

async def main():
    before = [signal.getsignal(number) for number in NUMBERS]
    with Broker(sys.argv[1]) as broker:
        assert [signal.getsignal(number) for number in NUMBERS] == before
        await asyncio.to_thread(produce, broker.bootstrap_servers, broker.create_topic("visits"), b"ann")

asyncio.run(main())
print(signal.set_wakeup_fd(-1))
"""


def test_process_keeps_signals_and_event_loop(tmp_path: Path) -> None:
    done = run_script(IN_A_LOOP, tmp_path / "data")
    assert (done.stdout, done.stderr) == ("-1\n", "")


def test_any_thread_may_start_and_stop() -> None:
    broker = Broker()
    for step in (broker.start, broker.stop):
        worker = threading.Thread(target=step)
        worker.start()
        worker.join()
    with pytest.raises(BrokerNotUsable):
        print(broker.path)


FORK = """
import os, sys
from onceflow.client.cluster import Cluster
from onceflow.testing import Broker
sys.path.insert(0, os.getcwd())
from tests.testing.test_in_process import produce, stored

broker = Broker(sys.argv[1]).start()
address = broker.bootstrap_servers
broker.create_topic("visits")
release, held = os.pipe()
acknowledged, tell = os.pipe()
child = os.fork()
if not child:
    os.close(held)
    produce(address, "visits", b"from the child")
    try:
        broker.create_topic("other")
    except Exception as error:
        print(error, flush=True)
    with Cluster(address) as cluster:
        cluster.create_topic("other", 1)
    os.write(tell, b"1")
    broker.stop()
    with Broker() as own:
        assert own.bootstrap_servers != address
    os.read(release, 1)
    sys.exit(0)
os.read(acknowledged, 1)
assert stored(address, "visits") == b"from the child"
broker.stop()
with broker:
    assert broker.bootstrap_servers == address, "the child holds neither lock nor port"
    assert stored(address, "visits") == b"from the child"
os.close(held)
assert os.waitpid(child, 0)[1] == 0
print("done")
"""


@pytest.mark.remedy(Remedy.CREATE_WITH_CLIENT)
def test_forked_child_is_only_a_client(tmp_path: Path) -> None:
    done = run_script(FORK, tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert remedies.find(Remedy.CREATE_WITH_CLIENT, done.stdout) == {"topic": "other"}
    assert done.stdout.endswith("done\n")


FORGOTTEN = """
import sys
from onceflow.testing import Broker
kept, temporary = Broker(sys.argv[1]).start(), Broker().start()
kept.create_topic("visits")
print(temporary.path)
if len(sys.argv) > 2:
    raise RuntimeError("the program failed")
"""


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_unstopped_broker_leaves_no_temporary_data(tmp_path: Path, fails: bool) -> None:
    done = run_script(FORGOTTEN, tmp_path / "data", *["fail"] * fails)
    assert done.returncode == int(fails)
    assert ("RuntimeError" in done.stderr) == fails
    assert fails or not done.stderr
    assert not Path(done.stdout.strip()).exists()
    with Broker(tmp_path / "data") as broker, pytest.raises(BrokerNotUsable, match="visits"):
        broker.create_topic("visits")


AFTER_MAIN = """
import os, sys, threading
from onceflow.testing import Broker
sys.path.insert(0, os.getcwd())
from tests.testing.test_in_process import produce, stored

broker = Broker().start()
broker.create_topic("before")

def work():
    threading.main_thread().join()
    produce(broker.bootstrap_servers, broker.create_topic("after"), b"ann")
    print(stored(broker.bootstrap_servers, "after"))

threading.Thread(target=work).start()
"""


def test_broker_outlives_the_main_thread() -> None:
    done = run_script(AFTER_MAIN)
    assert (done.stdout, done.stderr, done.returncode) == ("b'ann'\n", "", 0)


FIRST_RECORD = """
import sys
from confluent_kafka import Producer
from onceflow.testing import Broker
with Broker() as broker:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    producer.produce("visits", b"ann")
    assert not producer.flush(20)
print(*sorted(name for name in sys.modules if name.startswith("kio.") and name.endswith((".request", ".response"))))
"""


def test_the_first_record_generates_few_message_classes() -> None:
    """kio needs milliseconds for each class on its first use: a fast start uses few."""
    done = run_script(FIRST_RECORD)
    assert done.returncode == 0, done.stderr
    assert {name.split(".")[2] for name in done.stdout.split()} <= {"api_versions", "metadata"}
    assert len(done.stdout.split()) <= 4


LIGHT = """
import sys
from onceflow.testing import Broker, BrokerProcess, FaultyDisk, ManualClock, pytest_plugin
heavy = {"numpy", "kio", "redis", "pyarrow", "asyncio"} & sys.modules.keys()
print(sorted(heavy - set(sys.argv[1:])))
"""


def test_importing_all_of_it_loads_nothing_heavy() -> None:
    assert run_script(LIGHT, "asyncio").stdout == "[]\n"
    assert run_script("import sys, onceflow.testing.pytest_plugin\n" + LIGHT.splitlines()[3]).stderr == ""
    plugin = "import sys, pytest; before = set(sys.modules); import onceflow.testing.pytest_plugin; "
    added = run_script(plugin + "print(*sorted(set(sys.modules) - before))").stdout.split()
    assert added == ["onceflow", "onceflow.testing", "onceflow.testing.pytest_plugin"]


@dataclass(frozen=True)
class Held:
    """Return this process's operating system resources."""

    threads: int
    descriptors: int
    listening: int
    files: int


def held(directory: Path) -> Held:
    inodes = {os.readlink(path) for path in descriptor_paths()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = sum(1 for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes)
    files = sum(1 for _ in directory.rglob("*"))
    return Held(threading.active_count(), len(list(descriptor_paths())), listening, files)


def descriptor_paths() -> Iterator[str]:
    """Return the open descriptors except that of this call."""
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        if os.path.lexists(path):
            yield path


def run_brokers(count: int, directory: Path) -> None:
    tempfile.tempdir = str(directory)
    before = None
    for number in range(count):
        with Broker() as broker, connected(broker.bootstrap_servers) as client:
            topic = broker.create_topic("visits", partitions=2)
            assert client.produce(topic, number % 2, batch_of(b"ann")).error_code == 0
            assert held(directory).listening == 1
        before = before or held(directory)
    assert held(directory) == before
    assert before is not None
    assert (before.listening, before.files) == (0, 0)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert not children


def brokers_in_a_process_of_their_own(count: int, directory: Path) -> None:
    """Resources of other tests in this process are ignored."""
    script = "import os, sys; sys.path.insert(0, os.getcwd())\nfrom pathlib import Path\n"
    script += "from tests.testing.test_in_process import run_brokers\n"
    script += "run_brokers(int(sys.argv[1]), Path(sys.argv[2]))\nprint('nothing left')"
    done = run_script(script, count, directory)
    assert (done.stdout, done.stderr) == ("nothing left\n", "")


@pytest.mark.skipif(sys.platform != "linux", reason="counts in /proc")
def test_a_hundred_brokers_leave_nothing_behind() -> None:
    # In memory: a start and a stop sync fifty times, and the counts do not depend on the disk.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        brokers_in_a_process_of_their_own(100, Path(directory))


@pytest.mark.campaign
def test_five_hundred_brokers_leave_nothing_behind(tmp_path: Path, record_property: RecordProperty) -> None:
    brokers_in_a_process_of_their_own(500, tmp_path)
    record_property("brokers; 0 threads, descriptors or files left", 500)


def test_many_brokers_run_at_once(tmp_path: Path) -> None:
    brokers = [Broker(tmp_path / f"broker-{number}").start() for number in range(20)]
    assert len({broker.bootstrap_servers for broker in brokers}) == 20
    for number, broker in enumerate(brokers):
        produce(broker.bootstrap_servers, broker.create_topic("visits"), b"%d" % number)
    for number, broker in enumerate(brokers):
        assert stored(broker.bootstrap_servers, "visits") == b"%d" % number
        broker.stop()
