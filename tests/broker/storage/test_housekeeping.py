"""Retention, compaction and deleted records of a broker under a manual clock."""

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition as Place
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from onceflow.broker.node import Node
from onceflow.broker.storage import record_checks
from onceflow.broker.storage.partitions import Partition
from onceflow.broker.topics.topics import GROUP_OFFSETS_TOPIC
from onceflow.log.config import LogConfig
from onceflow.log.disk import RealDisk, RealFile
from onceflow.log.retention import Decision, RetentionPolicyUnusable, SegmentFacts, load_policy
from onceflow.testing import FaultyDisk, ManualClock
from onceflow.wire import apis
from onceflow.wire.batch import Record, encode_batch
from onceflow.wire.codecs import Codec
from onceflow.wire.errors import ErrorCode
from tests.broker.driven_broker import DrivenBroker, eventually
from tests.broker.raw_client import RawClient, connected
from tests.log.compactions import keyed, offsets, stored, table
from tests.log.partition_logs import records

CHECK_MS = 300_000
TIMEOUT = timedelta(seconds=5)
HOUR_MS = 3600 * 1000
DAY_MS = 24 * HOUR_MS
NOW_MS = ManualClock().now_ms()
SMALL = LogConfig(segment_bytes=400)


def newest_two(segments: Sequence[SegmentFacts], _config: LogConfig, _now_ms: int) -> int:
    """A retention policy of a test."""
    return max(0, len(segments) - 2)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[DrivenBroker]:
    with DrivenBroker(tmp_path / "data", log=SMALL) as broker:
        yield broker


@pytest.fixture
def client(broker: DrivenBroker) -> Iterator[RawClient]:
    client = RawClient(broker.bootstrap)
    yield client
    client.close()


def produce(client: RawClient, topic: str, count: int, *, timestamp_ms: int = NOW_MS) -> None:
    for n in range(count):
        assert not client.produce(topic, 0, keyed((f"k{n % 3}", f"value {n:04}"), timestamp_ms=timestamp_ms)).error_code


def after(broker: DrivenBroker, duration_ms: int) -> bool:
    """Return True, once the clock is that much later."""
    broker.clock.advance_ms(duration_ms)
    return True


def delete_records(client: RawClient, topic: str, offset: int, *, version: int = 2) -> tuple[ErrorCode, int]:
    partitions = [{"partition_index": 0, "offset": offset}]
    topics = [{"name": topic, "partitions": partitions}]
    response = client.ask(apis.DELETE_RECORDS, version, topics=topics, timeout=TIMEOUT)
    (partition,) = response.topics[0].partitions
    return ErrorCode(partition.error_code), partition.low_watermark


def names(broker: DrivenBroker, topic: str, suffix: str) -> list[str]:
    return sorted(name for name in os.listdir(broker.data / f"{topic}-0") if name.endswith(suffix))


def test_segments_older_than_retention_ms_are_deleted(broker: DrivenBroker, client: RawClient) -> None:
    client.create_topic("clicks", retention_ms=str(DAY_MS), file_delete_delay_ms="60000")
    produce(client, "clicks", 10)
    broker.clock.advance_ms(DAY_MS // 2)
    produce(client, "clicks", 10, timestamp_ms=NOW_MS + DAY_MS // 2)
    log = broker.log("clicks")
    first_young = next(s.base_offset for s, end in log.segments.with_ends() if end > 10)
    broker.clock.advance_ms(DAY_MS // 2 + CHECK_MS)
    eventually(lambda: log.log_start_offset, "the old segments are deleted")
    assert log.log_start_offset == first_young > 0
    eventually(lambda: names(broker, "clicks", ".log")[0] == f"{first_young:020d}.log", "the files are renamed")
    assert f"clicks 0 {first_young}" in (broker.data / "log-start-offset-checkpoint").read_text().splitlines()
    assert client.fetch([("clicks", 0, first_young - 1)])[0].error_code == ErrorCode.offset_out_of_range
    assert not client.fetch([("clicks", 0, first_young)])[0].error_code
    eventually(lambda: after(broker, 60_000) and not names(broker, "clicks", ".deleted"), "the files are removed")


def test_an_expired_active_segment_is_deleted(broker: DrivenBroker, client: RawClient) -> None:
    client.create_topic("clicks", retention_ms="1000")
    produce(client, "clicks", 3)
    broker.clock.advance_ms(DAY_MS)
    log = broker.log("clicks")
    eventually(lambda: after(broker, CHECK_MS) and log.segments.size_bytes == 0, "everything is deleted")
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    eventually(lambda: names(broker, "clicks", ".log") == [f"{3:020d}.log"], "one empty segment is left")
    assert client.produce("clicks", 0, keyed(("k", "v"), timestamp_ms=NOW_MS + DAY_MS)).base_offset == 3


def test_the_oldest_segments_exceeding_retention_bytes(broker: DrivenBroker, client: RawClient) -> None:
    client.create_topic("clicks", retention_bytes="900")
    produce(client, "clicks", 30)
    log = broker.log("clicks")
    eventually(lambda: after(broker, CHECK_MS) and log.log_start_offset, "the oldest are deleted")
    assert 900 <= log.segments.size_bytes < 900 + 400
    assert [record.offset for record in records(log)] == list(range(log.log_start_offset, 30))


def test_a_custom_policy_decides(tmp_path: Path) -> None:
    policy = f"{__name__}:newest_two"
    with DrivenBroker(tmp_path / "data", log=SMALL, retention_policy=policy) as broker:
        client = RawClient(broker.bootstrap)
        client.create_topic("clicks")
        produce(client, "clicks", 30)
        log = broker.log("clicks")
        eventually(lambda: after(broker, CHECK_MS) and len(log.segments.bases) == 2, "two segments are left")
        client.close()


@pytest.mark.parametrize("name", ["no.such.module:x", f"{__name__}:nothing", f"{__name__}:NOW_MS", "json"])
def test_an_unusable_policy_is_named(name: str) -> None:
    with pytest.raises(RetentionPolicyUnusable, match=f"log.retention.policy={name}"):
        load_policy(name)


def test_file_age_policy(tmp_path: Path) -> None:
    policy = "onceflow.log.retention:by_modification_time"
    with DrivenBroker(tmp_path / "data", log=SMALL, retention_policy=policy) as broker:
        client = RawClient(broker.bootstrap)
        client.create_topic("clicks", retention_ms=str(DAY_MS))
        produce(client, "clicks", 20, timestamp_ms=1)
        oldest = broker.data / "clicks-0" / f"{0:020d}.log"
        now_s = NOW_MS / 1000
        for path in oldest.parent.glob("*.log"):
            os.utime(path, (now_s, now_s))
        os.utime(oldest, (now_s - 2 * DAY_MS / 1000,) * 2)
        log = broker.log("clicks")
        second = log.segments.bases[1]
        after(broker, CHECK_MS)
        eventually(lambda: log.log_start_offset, "the oldest file is deleted")
        assert log.log_start_offset == second
        client.close()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_rule_11_log_start_within_a_segment(version: int, broker: DrivenBroker, client: RawClient) -> None:
    client.create_topic("clicks")
    produce(client, "clicks", 3)
    assert delete_records(client, "clicks", 2, version=version) == (ErrorCode.none, 2)
    assert delete_records(client, "clicks", 1, version=version) == (ErrorCode.none, 2)
    assert delete_records(client, "clicks", 4, version=version) == (ErrorCode.offset_out_of_range, -1)
    assert delete_records(client, "clicks", -2, version=version)[0] == ErrorCode.offset_out_of_range
    assert delete_records(client, "nothing", 0, version=version)[0] == ErrorCode.unknown_topic_or_partition
    assert delete_records(client, GROUP_OFFSETS_TOPIC, 0, version=version)[0] == ErrorCode.invalid_topic_exception
    assert client.fetch([("clicks", 0, 1)])[0].error_code == ErrorCode.offset_out_of_range
    assert client.fetch([("clicks", 0, 2)])[0].log_start_offset == 2
    broker.stop()
    broker.start()
    assert broker.log("clicks").log_start_offset == 2
    again = RawClient(broker.bootstrap)
    assert delete_records(again, "clicks", -1) == (ErrorCode.none, 3)
    assert again.produce("clicks", 0, keyed(("k", "v"))).base_offset == 3
    again.close()


@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
def test_other_clients_delete_records(broker: DrivenBroker, client: RawClient) -> None:
    from kafka import KafkaAdminClient
    from kafka import TopicPartition as KafkaPlace

    client.create_topic("clicks")
    produce(client, "clicks", 9)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (future,) = admin.delete_records([TopicPartition("clicks", 0, 4)]).values()
    assert future.result().low_watermark == 4

    async def delete() -> None:
        other = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await other.start()
        try:
            await other.delete_records({Place("clicks", 0): RecordsToDelete(before_offset=6)})
        finally:
            await other.close()

    asyncio.run(delete())
    third = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    third.delete_records({KafkaPlace("clicks", 0): 8})
    third.close()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    assert consumer.get_watermark_offsets(TopicPartition("clicks", 0)) == (8, 9)
    consumer.close()


def test_rule_11_deletion_is_durable_when_acknowledged(tmp_path: Path) -> None:
    data = tmp_path / "disk"
    data.mkdir()
    with DrivenBroker(data, disk=FaultyDisk(data), log=SMALL) as broker:
        client = RawClient(broker.bootstrap)
        client.create_topic("clicks")
        produce(client, "clicks", 20)
        for seed, offset in enumerate((3, 9, 15)):
            assert delete_records(client, "clicks", offset) == (ErrorCode.none, offset)
            client.close()
            broker.power_cycle(seed, drop_all=seed == 0)
            assert broker.log("clicks").log_start_offset == offset
            client = RawClient(broker.bootstrap)
        client.close()


def test_a_recreated_topic_starts_at_zero(broker: DrivenBroker, client: RawClient) -> None:
    client.create_topic("clicks")
    produce(client, "clicks", 3)
    delete_records(client, "clicks", -1)
    client.ask(apis.DELETE_TOPICS, 5, topic_names=["clicks"], timeout=TIMEOUT)
    client.create_topic("clicks")
    assert client.produce("clicks", 0, keyed(("k", "v"))).base_offset == 0
    broker.stop()
    broker.start()
    assert broker.log("clicks").log_start_offset == 0


def test_a_log_start_waits_for_a_truncation(broker: DrivenBroker, client: RawClient) -> None:
    """The log may end before the new start."""
    client.create_topic("clicks")
    produce(client, "clicks", 20)

    async def delete_meanwhile(node: Node) -> None:
        partition = node.partitions.hosted("clicks", 0)
        assert partition is not None
        log = partition.log
        truncation = log.begin_truncation(5)
        assert truncation is not None
        await node.housekeeping.delete_records({partition: 10})
        await node.housekeeping.store_high_watermarks()
        log.end_truncation(truncation.run())
        assert (log.log_start_offset, log.log_end_offset) == (0, 5)
        assert node.directory.log_start_offsets.get("clicks", 0) == 0
        await node.housekeeping.delete_records({partition: 4})

    broker.run(delete_meanwhile)
    broker.stop()
    broker.start()
    assert (broker.log("clicks").log_start_offset, broker.log("clicks").log_end_offset) == (4, 5)


@pytest.mark.parametrize("is_expired", [True, False])
def test_retiring_waits_for_a_truncation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_expired: bool) -> None:
    """It begins in the turn after a roll, or while segments wait for their deletion: the new log keeps its files."""
    data = tmp_path / "disk"
    data.mkdir()
    with DrivenBroker(data, disk=FaultyDisk(data), log=SMALL) as broker, connected(broker.bootstrap) as client:
        client.create_topic("clicks")
        produce(client, "clicks", 20)

        async def start_over_meanwhile(node: Node) -> None:
            keeping, loop = node.housekeeping, asyncio.get_running_loop()
            partition = node.partitions.hosted("clicks", 0)
            assert partition is not None
            log, roll, truncations = partition.log, keeping._roll, []

            def begin() -> None:
                truncation = log.begin_truncation(0, starts_over=True)
                assert truncation is not None
                loop.run_in_executor(node.housekeeping_thread, node.directory.lower_offsets, "clicks", 0, 0)
                truncations.append(loop.run_in_executor(node.housekeeping_thread, truncation.run))

            def roll_and_begin(expired: Partition) -> None:
                loop.call_soon(begin)
                roll(expired)

            monkeypatch.setattr(keeping, "_roll", roll_and_begin)
            if is_expired:
                await keeping._carry_out([(partition, Decision(20, needs_roll=True))])
            else:
                await keeping.delete_records({partition: 10})
                keeping._leftovers.add(partition)
                begin()
                await keeping.tick()
            (truncation,) = truncations
            log.end_truncation(await truncation)

        broker.run(start_over_meanwhile)
        produce(client, "clicks", 3)
        broker.power_cycle(1)
        assert (broker.log("clicks").log_start_offset, broker.log("clicks").log_end_offset) == (0, 3)


def test_clients_have_their_turn_between_rolls(broker: DrivenBroker, client: RawClient) -> None:
    client.create_topic("clicks", partitions=20)
    for index in range(20):
        assert not client.produce("clicks", index, keyed(("k", "v"), timestamp_ms=NOW_MS)).error_code

    async def expire(node: Node) -> list[int]:
        partitions = node.partitions.of_topic("clicks")
        rolled = [0]

        async def count() -> None:
            while rolled[-1] < len(partitions):
                await asyncio.sleep(0)
                rolled.append(sum(partition.log.segments.active.base_offset for partition in partitions))

        counting = asyncio.get_running_loop().create_task(count())
        await node.housekeeping._carry_out([(partition, Decision(1, needs_roll=True)) for partition in partitions])
        await asyncio.wait_for(counting, 20)
        return rolled

    rolled = broker.run(expire)
    assert max(later - earlier for earlier, later in itertools.pairwise(rolled)) == 1


def test_segments_left_before_starting_over(tmp_path: Path) -> None:
    """Their names are those of its new files."""
    data = tmp_path / "disk"
    data.mkdir()
    disk = FaultyDisk(data)
    with DrivenBroker(data, disk=disk, log=SMALL) as broker, connected(broker.bootstrap) as client:
        client.create_topic("clicks")
        produce(client, "clicks", 20)

        async def start_over(node: Node) -> None:
            partition = node.partitions.hosted("clicks", 0)
            assert partition is not None
            await node.housekeeping.delete_records({partition: 10})
            disk.fail_next_directory_syncs()
            await node.housekeeping._delete_segments_below_start(partition)
            assert node.housekeeping._unretired
            truncation = partition.log.begin_truncation(0, starts_over=True)
            assert truncation is not None
            await node.housekeeping._retire_due()
            node.directory.lower_offsets("clicks", 0, 0)
            partition.log.end_truncation(truncation.run())

        broker.run(start_over)
        produce(client, "clicks", 3)
        eventually(
            lambda: after(broker, 60_000) and not broker.call(lambda node: node.housekeeping._unretired),
            "what is left is forgotten",
        )
        broker.power_cycle(1)
        assert (broker.log("clicks").log_start_offset, broker.log("clicks").log_end_offset) == (0, 3)


def test_a_compacted_topic_stays_in_service(broker: DrivenBroker, client: RawClient) -> None:
    client.create_topic("table", cleanup_policy="compact")
    produce(client, "table", 40)
    log = broker.log("table")
    known = table(log)
    eventually(lambda: after(broker, 15_000) and len(offsets(log)) < 10, "the log is compacted")
    assert table(log) == known
    checkpoint = broker.data / "cleaner-offset-checkpoint"
    eventually(checkpoint.exists, "the pass is over")
    assert f"table 0 {log.segments.bases[-1]}" in checkpoint.read_text().splitlines()
    assert client.produce("table", 0, keyed(("k0", "new"))).base_offset == 40
    assert delete_records(client, "table", 3)[0] == ErrorCode.policy_violation
    broker.stop()
    broker.start()
    assert table(broker.log("table")) == {**known, "k0": "new"}


def test_rule_10_compacted_topics_require_keys(broker: DrivenBroker, client: RawClient) -> None:
    client.create_topic("table", cleanup_policy="compact")
    keyless = encode_batch([Record(0, NOW_MS, b"k", b"v"), Record(1, NOW_MS, None, b"v")])
    refused = client.produce("table", 0, keyless)
    assert refused.error_code == ErrorCode.invalid_record
    assert broker.log("table").log_end_offset == 0
    client.create_topic("clicks")
    assert not client.produce("clicks", 0, keyless).error_code


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_batches_checked_in_a_thread_keep_order(codec: Codec, broker: DrivenBroker, client: RawClient) -> None:
    client.create_topic("table", cleanup_policy="compact", segment_bytes="10000000")
    many = [Record(n, NOW_MS, b"k%d" % n, b"v") for n in range(1000)]
    for n in range(5):
        client.send_batch("table", 0, encode_batch(many, codec=codec))
        client.send_batch("table", 0, keyed((f"small{n}", "v")))
    client.send_batch("table", 0, encode_batch([*many, Record(1000, NOW_MS, None, b"v")], codec=codec))
    client.send_batch("table", 0, keyed(("last", "v")), acks=1)
    responses = [client.receive_produced() for _ in range(12)]
    assert [response.base_offset for response in responses] == [
        0,
        1000,
        1001,
        2001,
        2002,
        3002,
        3003,
        4003,
        4004,
        5004,
        -1,
        5005,
    ]
    assert responses[10].error_code == ErrorCode.invalid_record
    eventually(lambda: broker.log("table").high_watermark == 5006, "the last batch, not synced at its response")
    assert [len(records) for header, records in stored(broker.log("table"))] == [1000, 1] * 5 + [1]
    other = RawClient(broker.bootstrap)
    other.send_batch("table", 0, encode_batch([*many, Record(1000, NOW_MS, None, b"v")]), acks=0)
    assert other.receive_frame() == b"", "with acks=0 an error closes the connection"
    other.close()


def test_topic_deletion_during_a_batch_check(
    broker: DrivenBroker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_looked_at, is_deleted = threading.Event(), threading.Event()
    run_slice = record_checks._BatchCheck.run_slice

    def run_slice_slowly(look: record_checks._BatchCheck) -> bool:
        is_looked_at.set()
        assert is_deleted.wait(10)
        return run_slice(look)

    monkeypatch.setattr(record_checks._BatchCheck, "run_slice", run_slice_slowly)
    client.create_topic("table", cleanup_policy="compact")
    client.send_batch("table", 0, encode_batch([Record(n, NOW_MS, b"k%d" % n, b"v") for n in range(1000)]))
    assert is_looked_at.wait(10)
    with connected(broker.bootstrap) as other:
        deleted = other.ask(apis.DELETE_TOPICS, 5, topic_names=["table"], timeout=TIMEOUT)
        assert deleted.responses[0].error_code == ErrorCode.none
    is_deleted.set()
    assert client.receive_produced().error_code == ErrorCode.unknown_topic_or_partition


def test_the_groups_offsets_are_compacted(tmp_path: Path) -> None:
    with DrivenBroker(tmp_path / "data", offsets_topic_segment_bytes=2000) as broker:
        client = RawClient(broker.bootstrap)
        client.create_topic("clicks")
        produce(client, "clicks", 1)
        log = broker.log(GROUP_OFFSETS_TOPIC)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        for offset in range(100):
            consumer.commit(offsets=[TopicPartition("clicks", 0, offset)], asynchronous=False)
        assert log.segments.size_bytes > 10_000
        eventually(lambda: after(broker, 15_000) and log.segments.size_bytes < 5000, "the offsets are compacted")
        broker.stop()
        broker.start()
        other = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        assert other.committed([TopicPartition("clicks", 0)])[0].offset == 99
        consumer.close()
        other.close()
        client.close()


def test_log_append_time_is_in_the_response(broker: DrivenBroker, client: RawClient) -> None:
    client.create_topic("clicks", message_timestamp_type="LogAppendTime")
    batch = keyed(("k", "v"), ("k", "w"), timestamp_ms=5, producer_id=7)
    broker.clock.advance_ms(1234)
    first = client.produce("clicks", 0, bytearray(batch))
    assert first.log_append_time_ms == NOW_MS + 1234
    broker.clock.advance_ms(1000)
    again = client.produce("clicks", 0, bytearray(batch))
    assert (again.base_offset, again.log_append_time_ms) == (first.base_offset, NOW_MS + 1234)
    assert {record.timestamp_ms for record in records(broker.log("clicks"))} == {NOW_MS + 1234}


def test_records_with_too_early_timestamps_are_refused(broker: DrivenBroker, client: RawClient) -> None:
    client.create_topic("clicks", message_timestamp_before_max_ms=str(HOUR_MS))
    early = encode_batch([Record(0, NOW_MS, b"k", b"v"), Record(1, NOW_MS - HOUR_MS - 1, b"k", b"v")])
    assert client.produce("clicks", 0, early).error_code == ErrorCode.invalid_timestamp
    assert not client.produce("clicks", 0, keyed(("k", "v"), timestamp_ms=NOW_MS - HOUR_MS)).error_code


class HeldFile(RealFile):
    """Partition with a sync that waits."""

    held: threading.Event

    def sync_data(self) -> None:
        assert self.held.wait(20)
        super().sync_data()


class HeldDisk(RealDisk):
    """Holds syncs of compacted segments until `free` is set, as those of gigabytes would take."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.is_reached = threading.Event()

    def open(self, path: Path, *, create: bool = False) -> RealFile:
        file = super().open(path, create=create)
        if path.name.endswith(".log.cleaned"):
            self.is_reached.set()
            held = HeldFile(os.dup(file.fileno()))
            held.held = self.free
            return held
        return file


def test_a_long_compaction_blocks_nothing_else(tmp_path: Path) -> None:
    disk = HeldDisk()
    with DrivenBroker(tmp_path / "data", disk=disk, log=SMALL) as broker, connected(broker.bootstrap) as client:
        client.create_topic("old", retention_ms=str(DAY_MS))
        client.create_topic("table", cleanup_policy="compact")
        produce(client, "old", 20, timestamp_ms=NOW_MS)
        produce(client, "table", 30)
        try:
            assert eventually(lambda: after(broker, 15_000) and disk.is_reached.is_set(), "a compaction")
            client.create_topic("new")
            produce(client, "new", 1)
            old = broker.log("old")
            eventually(lambda: after(broker, 2 * DAY_MS) and old.log_start_offset > 0, "old segments go")
        finally:
            disk.free.set()
        log = broker.log("table")
        eventually(lambda: len(offsets(log)) < 30, "compacted")
        assert set(table(log)) == {"k0", "k1", "k2"}


def test_deletion_waits_for_the_compaction(tmp_path: Path) -> None:
    disk = HeldDisk()
    with DrivenBroker(tmp_path / "data", disk=disk, log=SMALL) as broker, connected(broker.bootstrap) as client:
        client.create_topic("table", cleanup_policy="compact,delete")
        for n in range(30):
            assert not client.produce("table", 0, keyed((f"k{n:02}", "value"), timestamp_ms=NOW_MS)).error_code
        log = broker.log("table")
        try:
            assert eventually(lambda: after(broker, 15_000) and disk.is_reached.is_set(), "a compaction")
            assert delete_records(client, "table", 20) == (ErrorCode.none, 20)
            after(broker, CHECK_MS)
            eventually(lambda: broker.call(lambda node: bool(node.housekeeping._leftovers)), "they are put off")
            assert log.segments.bases[0] == 0
        finally:
            disk.free.set()
        eventually(lambda: log.segments.bases[0] > 0, "the segments below the new start go")
        assert sorted(table(log)) == [f"k{n}" for n in range(20, 30)]


def test_a_topic_recreated_during_compaction(tmp_path: Path) -> None:
    disk = HeldDisk()
    with DrivenBroker(tmp_path / "data", disk=disk, log=SMALL) as broker, connected(broker.bootstrap) as client:
        client.create_topic("table", cleanup_policy="compact")
        produce(client, "table", 30)
        try:
            assert eventually(lambda: after(broker, 15_000) and disk.is_reached.is_set(), "a compaction")
            assert not client.ask(apis.DELETE_TOPICS, 5, topic_names=["table"], timeout=TIMEOUT).responses[0].error_code
            client.create_topic("table")
            produce(client, "table", 30)
        finally:
            disk.free.set()
        eventually(lambda: broker.call(lambda node: node.housekeeping.cleaner.compacting is None), "it is given up")
        broker.stop()
        broker.start()
        assert offsets(broker.log("table")) == list(range(30))


def test_truncated_log_is_measured_again(
    broker: DrivenBroker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower may truncate its log between the choice of the cleaner and its work."""
    client.create_topic("table", cleanup_policy="compact")
    produce(client, "table", 40)
    log = broker.log("table")
    truncated = threading.Event()

    def truncate_once(node: Node) -> None:
        cleaner = node.housekeeping.cleaner
        choose = cleaner._dirtiest

        async def choose_and_truncate() -> Any:
            chosen = await choose()
            if chosen is not None and not truncated.is_set():
                truncation = log.begin_truncation(5)
                assert truncation is not None
                log.end_truncation(truncation.run())
                truncated.set()
            return chosen

        monkeypatch.setattr(cleaner, "_dirtiest", choose_and_truncate)

    broker.call(truncate_once)
    eventually(lambda: after(broker, 15_000) and truncated.is_set(), "the log is truncated")
    for number in range(5, 40):
        client.produce("table", 0, keyed((f"k{number % 3}", f"again {number}")))
    known = table(log)
    eventually(lambda: after(broker, 15_000) and len(offsets(log)) < 10, "the log is compacted")
    broker.stop()
    broker.start()
    assert table(broker.log("table")) == known


def test_compaction_without_space_is_retried(tmp_path: Path) -> None:
    data = tmp_path / "disk"
    data.mkdir()
    disk = FaultyDisk(data)
    with DrivenBroker(data, disk=disk, log=SMALL) as broker, connected(broker.bootstrap) as client:
        client.create_topic("table", cleanup_policy="compact")
        produce(client, "table", 30)
        log = broker.log("table")
        disk.space_bytes = 100
        eventually(lambda: after(broker, 15_000) and disk.space_bytes == 0, "the disk is full")
        eventually(lambda: broker.call(lambda node: node.housekeeping.cleaner.compacting is None), "it is given up")
        disk.space_bytes = None
        eventually(lambda: after(broker, 15_000) and len(offsets(log)) < 10, "all of it is compacted")
        assert set(table(log)) == {"k0", "k1", "k2"}
        assert not names(broker, "table", ".cleaned")
