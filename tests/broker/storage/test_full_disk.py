"""A full disk: nothing acknowledged is lost, and clients alone free it, over restarts too.

On a `FaultyDisk` with a capacity, and on a real tmpfs where this process may mount one.
"""

import errno
import logging
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from onceflow.log.clock import SystemClock
from onceflow.log.config import LogConfig
from onceflow.log.disk import Disk, RealDisk
from onceflow.log.partition import PartitionLog
from onceflow.log.reserve import RESERVE_FILE, ReservedDisk
from onceflow.remedies import Remedy
from onceflow.testing import FaultyDisk
from onceflow.wire.errors import ErrorCode
from tests import remedies
from tests.broker.driven_broker import DrivenBroker, InnerBroker, eventually
from tests.broker.handlers.test_admin_apis import SET, TOPIC, alter
from tests.broker.raw_client import RawClient, batch_of, connected
from tests.log.compactions import keyed

RESERVE_BYTES = 256 * 1024
DISK_BYTES = 4 * 1024 * 1024
VALUE = b"v" * 8000
"""More than a page, so that no file has space for it left."""
SEGMENTS = LogConfig(segment_bytes=20_000, file_delete_delay_ms=1000)
CHECK_MS = 300_000


class SmallDisk:
    """A file system of `DISK_BYTES` for a broker's data."""

    def __init__(self, root: Path, *, is_real: bool) -> None:
        self.data = root / "data"
        self.data.mkdir()
        self._ballast = root / "ballast"
        self.faulty = None if is_real else FaultyDisk(self.data)
        if self.faulty is not None:
            self.faulty.capacity_bytes = DISK_BYTES

    @property
    def disk(self) -> Disk | None:
        return self.faulty

    def fill(self) -> None:
        """Leave not one byte free."""
        if self.faulty is not None:
            self.faulty.capacity_bytes = self.faulty._tree.size_bytes
            return
        with self._ballast.open("ab", buffering=0) as file:
            for piece in (65536, 4096, 1):
                try:
                    while True:
                        file.write(bytes(piece))
                except OSError:
                    continue

    def forget_clean_stop(self) -> None:
        """Release the disk as after a kill."""
        (self.disk or RealDisk()).remove(self.data / ".kafka_cleanshutdown")

    @property
    def free_bytes(self) -> int:
        return (self.faulty or RealDisk()).free_bytes(self.data)


@pytest.fixture(scope="session")
def may_mount() -> bool:
    """Return whether this process may mount a tmpfs (root may)."""
    with tempfile.TemporaryDirectory() as name:
        if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", name], capture_output=True, check=False).returncode:
            return False
        subprocess.run(["umount", name], check=True)
    return True


@pytest.fixture(params=["faulty", "tmpfs"])
def small(request: pytest.FixtureRequest, tmp_path: Path, may_mount: bool) -> Iterator[SmallDisk]:
    """Return both kinds; a process that may not mount runs the first one twice."""
    is_real = request.param == "tmpfs" and may_mount
    if not is_real:
        yield SmallDisk(tmp_path, is_real=False)
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(tmp_path)], check=True)
    try:
        yield SmallDisk(tmp_path, is_real=True)
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def driven(small: SmallDisk) -> DrivenBroker:
    return DrivenBroker(small.data, disk=small.disk, log=SEGMENTS, reserve_bytes=RESERVE_BYTES)


def produce(client: RawClient, topic: str, partition: int = 0) -> int:
    return client.produce(topic, partition, batch_of(VALUE)).error_code


def fill_with_records(small: SmallDisk, client: RawClient) -> None:
    """Append 40 records in segments of two, and leave no space on the disk for one more."""
    client.create_topic("big")
    for _ in range(40):
        assert not produce(client, "big")
    small.fill()
    assert produce(client, "big") == ErrorCode.kafka_storage_error


def admin(broker: InnerBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def result(futures: Mapping[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result(20)


def lower_retention(broker: InnerBroker) -> None:
    entry = ConfigEntry("retention.bytes", "50000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "big", incremental_configs=[entry])
    client = admin(broker)
    result(client.incremental_alter_configs([resource]))


def delete_records(broker: InnerBroker) -> None:
    client = admin(broker)
    result(client.delete_records([TopicPartition("big", 0, 30)]))


def delete_topic(broker: InnerBroker) -> None:
    client = admin(broker)
    result(client.delete_topics(["big"]))


def accepts_again(broker: DrivenBroker, topic: str) -> bool:
    broker.clock.advance_ms(CHECK_MS)
    with connected(broker.bootstrap) as client:
        return not produce(client, topic)


def reserve_bytes(small: SmallDisk) -> int:
    """Return the allocated bytes, not only the length."""
    path = small.data / RESERVE_FILE
    return path.stat().st_blocks * 512 if small.faulty is None else path.stat().st_size


@pytest.mark.parametrize("restart", ["running", "restarted", "killed"])
@pytest.mark.parametrize("free", [lower_retention, delete_records, delete_topic], ids=lambda free: free.__name__)
def test_clients_free_a_full_disk(small: SmallDisk, free: object, restart: str) -> None:
    """Lowered retention, DeleteRecords and DeleteTopics free space when 0 bytes are left."""
    assert callable(free)
    with driven(small) as broker:
        with connected(broker.bootstrap) as client:
            assert reserve_bytes(small) >= RESERVE_BYTES
            client.create_topic("other")
            fill_with_records(small, client)
        if restart != "running":
            broker.stop()
            if restart == "killed":
                small.forget_clean_stop()
            broker.start()
        free(broker)
        eventually(lambda: accepts_again(broker, "other"), "records are accepted")
        assert reserve_bytes(small) >= RESERVE_BYTES
        assert not broker.call(lambda node: node.disk.is_full)
        if free is not delete_topic:
            assert offsets_of(broker, "big") >= set(range(35, 40))


@pytest.mark.remedy(Remedy.FREE_DISK, Remedy.RESTART_BROKER)
def test_missing_partitions_do_not_stop_others(small: SmallDisk, caplog: pytest.LogCaptureFixture) -> None:
    """A crash came between the record of further partitions and their logs, and the disk is full at the start."""
    with driven(small) as broker:
        with connected(broker.bootstrap) as client:
            client.create_topic("big", 4)
            for _ in range(40):
                assert not produce(client, "big")
        broker.stop()
        small.forget_clean_stop()
        disk = small.disk or RealDisk()
        for index in (1, 2, 3):
            directory = small.data / f"big-{index}"
            for name in disk.names(directory):
                disk.remove(directory / name)
            disk.remove_directory(directory)
        small.fill()
        broker.start()
        assert broker.call(lambda node: 1 <= node.partitions.count("big") < 4)
        assert offsets_of(broker, "big") == set(range(40))
        (line,) = (record.getMessage() for record in caplog.records if "are not served" in record.getMessage())
        remedies.find(Remedy.FREE_DISK, line)
        delete_records(broker)
        eventually(lambda: accepts_again(broker, "big"), "records are accepted")
        remedies.find(Remedy.RESTART_BROKER, line)
        broker.stop()
        broker.start()
        with connected(broker.bootstrap) as client:
            assert not produce(client, "big", 3)
        assert offsets_of(broker, "big") >= set(range(35, 41))


def offsets_of(broker: InnerBroker, topic: str) -> set[int]:
    """Return the offsets of all records that a client reads."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader"})
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
    consumer.assign([TopicPartition(topic, 0, low)])
    seen: set[int] = set()
    while len(seen) < high - low:
        message = consumer.poll(20)
        assert message is not None
        offset = message.offset()
        assert offset is not None
        seen.add(offset)
    consumer.close()
    return seen


def test_a_full_disk_is_reported_once(small: SmallDisk, caplog: pytest.LogCaptureFixture) -> None:
    """A refused partition has one line in the log until it accepts a record again."""
    with driven(small) as broker, connected(broker.bootstrap) as client, caplog.at_level(logging.INFO):
        client.create_topic("other")
        fill_with_records(small, client)
        for _ in range(5):
            assert produce(client, "big") == ErrorCode.kafka_storage_error
        assert sum("big-0: " in record.getMessage() for record in caplog.records) == 1
        delete_records(broker)
        eventually(lambda: accepts_again(broker, "big"), "records are accepted")
        small.fill()
        assert produce(client, "big") == ErrorCode.kafka_storage_error
        refused = [
            record for record in caplog.records if "refused until a write succeeds: big-0" in record.getMessage()
        ]
        assert len(refused) == 2


@pytest.mark.remedy(Remedy.DELETE_SOME)
def test_records_do_not_use_the_released_reserve(
    small: SmallDisk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record, topic or offset is accepted while the reserve is released: deletions may need it."""
    with driven(small) as broker, connected(broker.bootstrap) as client:
        fill_with_records(small, client)
        with monkeypatch.context() as patch:
            # Otherwise the next round of housekeeping may allocate the reserve again before the test looks.
            patch.setattr(ReservedDisk, "refill", lambda _disk: None)
            check_released_reserve(broker, small, client)
        remedies.find(Remedy.DELETE_SOME, caplog.text)
        delete_records(broker)
        eventually(lambda: accepts_again(broker, "big"), "records are accepted")


def check_released_reserve(broker: DrivenBroker, small: SmallDisk, client: RawClient) -> None:
    """Release the reserve, and check that clients cannot write into its space."""
    broker.call(lambda node: node.disk.release_reserve(OSError(errno.ENOSPC, "")))
    assert small.free_bytes >= RESERVE_BYTES // 2
    for _ in range(50):
        assert produce(client, "big") == ErrorCode.kafka_storage_error
    creator = admin(broker)
    with pytest.raises(KafkaException) as refused:
        result(creator.create_topics([NewTopic("more", 1, 1)], request_timeout=5))
    assert refused.value.args[0].code() == KafkaError.KAFKA_STORAGE_ERROR
    assert small.free_bytes >= RESERVE_BYTES // 2


@pytest.mark.remedy(Remedy.DELETE_SOME)
def test_changed_configs_leave_reserve_for_deletions(small: SmallDisk, caplog: pytest.LogCaptureFixture) -> None:
    """Configuration changes of clients may use half of the reserve."""
    names = ("retention.bytes", "retention.ms", "segment.ms", "file.delete.delay.ms", "max.message.bytes", "flush.ms")
    with driven(small) as broker, connected(broker.bootstrap) as client:
        client.create_topic("other")
        fill_with_records(small, client)
        for number in range(1000):
            value = str(10**6 + number)
            (code,) = alter(client, (TOPIC, "big", [(name, SET, value) for name in names]))
            if code:
                break
        assert code == ErrorCode.kafka_storage_error
        assert number > 5
        assert small.free_bytes > RESERVE_BYTES // 2 - 10_000
        remedies.find(Remedy.DELETE_SOME, caplog.text)
        delete_topic(broker)
        eventually(lambda: accepts_again(broker, "other"), "records are accepted")
        assert alter(client, (TOPIC, "other", [("retention.ms", SET, "5")])) == [0]


def test_a_transaction_ends_on_a_full_disk(small: SmallDisk) -> None:
    """EndTxn needs space for its records and markers only: committed is committed, after a restart too."""
    broker = InnerBroker(small.data, disk=small.disk, log=SEGMENTS, reserve_bytes=RESERVE_BYTES)
    with broker:
        with connected(broker.bootstrap) as client:
            client.create_topic("big")
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t", "batch.size": 9000})
        producer.init_transactions(20)
        producer.begin_transaction()
        for _ in range(10):
            producer.produce("big", VALUE)
        producer.flush(20)
        reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        producer.send_offsets_to_transaction([TopicPartition("big", 0, 7)], reader.consumer_group_metadata(), 20)
        small.fill()
        producer.commit_transaction(20)
        assert len(committed(broker, "big")) == 10
        broker.stop()
        broker.start()
        assert len(committed(broker, "big")) == 10
        reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        assert reader.committed([TopicPartition("big", 0)], 20)[0].offset == 7
        reader.close()


def committed(broker: InnerBroker, topic: str) -> list[bytes | None]:
    """Return the values that a reader of committed records sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "r",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    while True:
        message = consumer.poll(20)
        assert message is not None
        if message.error():
            consumer.close()
            return values
        values.append(message.value())


def test_committed_offsets_survive_a_full_disk(small: SmallDisk) -> None:
    """A commit is acknowledged and kept, or refused; once there is space it is accepted."""
    with driven(small) as broker:
        reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False})
        with connected(broker.bootstrap) as client:
            client.create_topic("other")
            reader.commit(offsets=[TopicPartition("other", 0, 0)], asynchronous=False)
            fill_with_records(small, client)
        acknowledged = 0
        for offset in range(1, 200):
            try:
                reader.commit(offsets=[TopicPartition("other", 0, offset)], asynchronous=False)
            except KafkaException:
                break
            acknowledged = offset
        reader.close()
        broker.stop()
        broker.start()
        reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False})
        kept = reader.committed([TopicPartition("other", 0)], 20)[0].offset
        assert kept >= acknowledged
        delete_records(broker)
        eventually(lambda: accepts_again(broker, "big"), "records are accepted")
        reader.commit(offsets=[TopicPartition("other", 0, 1)], asynchronous=False)
        reader.close()


class TroubledDisk(RealDisk):
    """Fails to rename files in one directory while it is troubled."""

    directory = ""

    def rename(self, source: Path, target: Path) -> None:
        if source.parent.name == self.directory:
            raise OSError(errno.EIO, "troubled", str(source))
        super().rename(source, target)


def test_a_failing_partition_does_not_end_retention(tmp_path: Path) -> None:
    """The others are cleaned in the same round, and its own files are removed once its disk works."""
    disk = TroubledDisk()
    with DrivenBroker(tmp_path / "data", disk=disk, log=LogConfig(segment_bytes=400)) as broker:
        with connected(broker.bootstrap) as client:
            for topic in ("a", "b", "c"):
                client.create_topic(topic, retention_bytes="900", file_delete_delay_ms="1000")
                for number in range(30):
                    batch = keyed((f"k{number}", f"value {number:04}"), timestamp_ms=broker.clock.now_ms())
                    assert not client.produce(topic, 0, batch).error_code
        disk.directory = "b-0"
        left = {topic: len(list((broker.data / f"{topic}-0").glob("*.log"))) for topic in ("a", "b", "c")}
        broker.clock.advance_ms(CHECK_MS)

        def files(topic: str) -> int:
            broker.clock.advance_ms(1000)
            return len(list((broker.data / f"{topic}-0").glob("*.log*")))

        eventually(lambda: files("a") < left["a"] and files("c") < left["c"], "the others are cleaned")
        assert files("b") == left["b"]
        disk.directory = ""
        eventually(lambda: files("b") < left["b"], "its files are removed later")


def test_a_failing_checkpoint_does_not_end_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log starts of one slice cannot be written: the logs of the next one are cleaned."""
    monkeypatch.setattr("onceflow.broker.storage.housekeeping.LOGS_PER_SLICE", 1)
    disk = RealDisk()
    with DrivenBroker(tmp_path / "data", disk=disk, log=LogConfig(segment_bytes=400)) as broker:
        with connected(broker.bootstrap) as client:
            for topic in ("a", "b"):
                client.create_topic(topic, retention_bytes="900")
                for number in range(30):
                    batch = keyed((f"k{number}", f"value {number:04}"), timestamp_ms=broker.clock.now_ms())
                    assert not client.produce(topic, 0, batch).error_code
        advance = broker.call(lambda node: node.directory.log_start_offsets.advance)

        def failing(offsets: dict[tuple[str, int], int]) -> None:
            if ("a", 0) in offsets:
                raise OSError(errno.EIO, "troubled")
            advance(offsets)

        broker.call(lambda node: monkeypatch.setattr(node.directory.log_start_offsets, "advance", failing))
        broker.clock.advance_ms(CHECK_MS)
        eventually(lambda: broker.log("b").log_start_offset, "the other log is cleaned")
        assert broker.log("a").log_start_offset == 0


def test_the_reserve_follows_its_setting(tmp_path: Path) -> None:
    """A smaller setting frees space, a larger one takes more, 0 keeps none."""
    disk = RealDisk()
    for size_bytes in (65536, 16384, 131072):
        ReservedDisk(disk, tmp_path, size_bytes).fill()
        status = (tmp_path / RESERVE_FILE).stat()
        assert status.st_size == size_bytes <= status.st_blocks * 512
    ReservedDisk(disk, tmp_path, 0).fill()
    assert not (tmp_path / RESERVE_FILE).exists()


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.EIO])
def test_a_file_system_that_cannot_allocate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Zeros are written there; another error is raised, and leaves no file."""

    def fail(*_arguments: int) -> None:
        raise OSError(number, "cannot")

    monkeypatch.setattr("os.posix_fallocate", fail)
    path = tmp_path / RESERVE_FILE
    if number == errno.EIO:
        with pytest.raises(OSError, match="cannot"):
            ReservedDisk(RealDisk(), tmp_path, 65536).fill()
        assert not path.exists()
    else:
        ReservedDisk(RealDisk(), tmp_path, 65536).fill()
        assert path.stat().st_size == 65536 <= path.stat().st_blocks * 512


def test_no_space_for_the_reserve_refuses_records(tmp_path: Path) -> None:
    """A partial reserve is removed, and it is allocated once there is space."""
    disk = FaultyDisk(tmp_path)
    disk.capacity_bytes = 100_000
    reserved = ReservedDisk(disk, tmp_path, 200_000)
    reserved.fill()
    assert reserved.is_full
    assert disk.free_bytes(tmp_path) == 100_000
    reserved.refill()
    assert reserved.is_full
    disk.capacity_bytes = 300_000
    reserved.refill()
    assert not reserved.is_full
    assert disk.free_bytes(tmp_path) == 100_000


def test_no_space_for_a_larger_reserve(tmp_path: Path) -> None:
    """A file of an earlier setting or of an interrupted refill must not use space that deletions need."""
    disk = FaultyDisk(tmp_path)
    disk.capacity_bytes = 100_000
    ReservedDisk(disk, tmp_path, 50_000).fill()
    reserved = ReservedDisk(disk, tmp_path, 200_000)
    reserved.fill()
    assert reserved.is_full
    assert disk.free_bytes(tmp_path) == 100_000


def test_only_a_full_disk_releases_the_reserve(tmp_path: Path) -> None:
    reserved = ReservedDisk(RealDisk(), tmp_path, 65536)
    reserved.fill()
    assert not reserved.release_reserve(OSError(errno.EIO, "EIO"))
    assert (tmp_path / RESERVE_FILE).exists()
    assert reserved.release_reserve(OSError(errno.EDQUOT, "quota"))
    assert not (tmp_path / RESERVE_FILE).exists()


def test_a_full_disk_has_no_new_log(tmp_path: Path) -> None:
    reserved = ReservedDisk(RealDisk(), tmp_path, 65536)
    reserved.fill()
    reserved.release_reserve(OSError(errno.ENOSPC, "full"))
    with pytest.raises(Exception, match="the disk is full"):
        PartitionLog.open(tmp_path / "t-0", LogConfig(), disk=reserved, clock=SystemClock(), clean=False)
    assert not (tmp_path / "t-0").exists()
