"""`Cluster` on a real broker, also through a faulty network."""

import threading
import time
from collections.abc import Callable

import pytest

from onceflow.client import routing
from onceflow.client.addresses import parse_address
from onceflow.client.admin import Admin
from onceflow.client.cluster import EARLIEST, LATEST, MAX_TIMESTAMP, Cluster, OffsetAt
from onceflow.client.errors import (
    BrokerUnreachable,
    ConnectionLost,
    LeaderUnavailable,
    OffsetOutOfRange,
    RequestRefused,
    RequestTimedOut,
    ResponseTooLarge,
    TopicExists,
    UnknownTopic,
)
from onceflow.client.producer import EventWriter
from onceflow.remedies import Remedy
from onceflow.testing import BrokerProcess
from onceflow.wire import apis
from onceflow.wire.batch import batches, decode_batch
from tests import remedies
from tests.client.proxy import FaultyProxy

Fill = Callable[..., str]


def values(records: memoryview) -> list[bytes | None]:
    return [record.value for position, _ in batches(records) for record in decode_batch(records, position)]


# Topics


@pytest.mark.remedy(Remedy.DELETE_TOPIC, Remedy.OTHER_TOPIC_NAME)
def test_a_topic_from_creation_to_deletion(cluster: Cluster, topic: str) -> None:
    created = cluster.create_topic(topic, 3)
    assert (created.name, list(created.partitions), created.internal) == (topic, [0, 1, 2], False)
    assert created.topic_id is not None
    assert all(created.in_sync_replicas[partition] == (leader,) for partition, leader in created.partitions.items())
    with pytest.raises(TopicExists, match=f"topic {topic} already exists") as raised:
        cluster.create_topic(topic, 3)
    assert topic in cluster.topics()
    remedies.find(Remedy.OTHER_TOPIC_NAME, raised.value)
    cluster.create_topic(f"{topic}-2", 3)
    remedies.find(Remedy.DELETE_TOPIC, raised.value)
    cluster.delete_topic(topic)
    assert cluster.topics(topic) == {}
    with pytest.raises(UnknownTopic, match="onceflow topic create"):
        cluster.delete_topic(topic)
    assert cluster.create_topic(topic, 1).topic_id != created.topic_id


def test_a_partition_that_was_added_is_read(cluster: Cluster, bootstrap: str, topic: str) -> None:
    """The topic's metadata from before lacks it."""
    cluster.create_topic(topic, 1)
    cluster.fetch(topic, 0, 0, wait_ms=0)
    with Cluster(bootstrap) as other:
        Admin(other).create_partitions(topic, 2)
    with EventWriter(bootstrap, topic) as writer:
        writer.write(None, b"a", partition=1)
    assert values(cluster.fetch(topic, 1, 0, wait_ms=0).records) == [b"a"]


def test_metadata_request_does_not_create_topics(cluster: Cluster, topic: str) -> None:
    with pytest.raises(UnknownTopic, match=f"topic '{topic}' does not exist at"):
        cluster.require_topic(topic)
    with pytest.raises(UnknownTopic):
        cluster.fetch(topic, 0, 0)
    with pytest.raises(UnknownTopic):
        cluster.list_offsets(topic, {0: LATEST})
    assert topic not in cluster.topics()


@pytest.mark.parametrize(("name", "partitions"), [("no/slash", 1), ("fine", 0), ("x" * 250, 1)])
def test_a_topic_that_the_broker_refuses(cluster: Cluster, name: str, partitions: int) -> None:
    with pytest.raises(RequestRefused, match=f"topic '{name}' was not created: the broker returned INVALID_"):
        cluster.create_topic(name, partitions)


# Offsets


def test_offsets_by_time_and_by_name(cluster: Cluster, filled: Fill) -> None:
    topic = filled([b"a", b"b", b"c"], partitions=2)
    assert cluster.list_offsets(topic, {0: EARLIEST, 1: EARLIEST}) == {0: OffsetAt(0, -1), 1: OffsetAt(0, -1)}
    assert cluster.list_offsets(topic, {1: LATEST, 0: LATEST}) == {1: OffsetAt(0, -1), 0: OffsetAt(3, -1)}
    assert cluster.list_offsets(topic, {0: 1001, 1: 1001}) == {0: OffsetAt(1, 1001), 1: OffsetAt(-1, -1)}
    assert cluster.list_offsets(topic, {0: MAX_TIMESTAMP}) == {0: OffsetAt(2, 1002)}
    assert cluster.list_offsets(topic, {0: 1003}) == {0: OffsetAt(-1, -1)}


def test_group_offsets_survive_another_cluster_object(cluster: Cluster, bootstrap: str, topic: str) -> None:
    cluster.create_topic(topic, 3)
    assert cluster.committed_offsets(topic, topic) == {}
    cluster.commit_offsets(topic, topic, {0: 7, 2: 0})
    with Cluster(bootstrap) as other:
        assert other.committed_offsets(topic, topic) == {0: 7, 2: 0}


def test_a_coordinator_that_moved_is_found_again(proxy: FaultyProxy, topic: str) -> None:
    """Mission C10."""
    with Cluster(str(proxy.address)) as cluster:
        cluster.create_topic(topic, 1)
        cluster.commit_offsets(topic, topic, {0: 1})
        assert cluster.committed_offsets(topic, topic) == {0: 1}
        assert proxy.coordinators_asked == 1
        proxy.faults = [(apis.OFFSET_COMMIT, "not_coordinator")] * 2
        cluster.commit_offsets(topic, topic, {0: 2})
        assert proxy.coordinators_asked == 3
        assert cluster.committed_offsets(topic, topic) == {0: 2}


# Fetches


def test_fetch_starts_at_containing_batch(cluster: Cluster, filled: Fill) -> None:
    topic = filled([b"a", b"b", b"c"])
    fetched = cluster.fetch(topic, 0, 2)
    assert isinstance(fetched.records, memoryview)
    assert values(fetched.records)[-1] == b"c"
    assert (fetched.high_watermark, fetched.last_stable_offset, fetched.log_start_offset) == (3, 3, 0)
    assert fetched.aborted == ()


def test_fetch_at_the_end_waits(cluster: Cluster, filled: Fill) -> None:
    topic = filled([b"a"])
    fetched = cluster.fetch(topic, 0, 1, wait_ms=20)
    assert not fetched.records
    assert fetched.high_watermark == 1


def test_waiting_fetch_gets_new_records(cluster: Cluster, bootstrap: str, filled: Fill) -> None:
    topic = filled([])
    got: list[bytes | None] = []

    def wait() -> None:
        with Cluster(bootstrap) as other:
            got.extend(values(other.fetch(topic, 0, 0, wait_ms=20_000).records))

    waiting = threading.Thread(target=wait)
    waiting.start()
    with EventWriter(bootstrap, topic) as writer:
        writer.write(None, b"late")
    waiting.join(10)
    assert got == [b"late"]


@pytest.mark.remedy(Remedy.READ_WITHIN)
@pytest.mark.parametrize("offset", [4, -1, 2**62])
def test_out_of_range_error_has_range(cluster: Cluster, filled: Fill, offset: int) -> None:
    topic = filled([b"a", b"b", b"c"])
    with pytest.raises(OffsetOutOfRange, match=f"offset {offset} of {topic}-0 .* starts at 0 and ends at 3") as error:
        cluster.fetch(topic, 0, offset)
    assert (error.value.partition, error.value.log_start_offset, error.value.offset_end) == (0, 0, 3)
    remedies.find(Remedy.READ_WITHIN, error.value)
    assert values(cluster.fetch(topic, 0, error.value.log_start_offset).records) == [b"a", b"b", b"c"]


def test_a_partition_that_is_not_there(cluster: Cluster, filled: Fill) -> None:
    with pytest.raises(UnknownTopic, match="there is no partition 5"):
        cluster.fetch(filled([]), 5, 0)


def test_a_batch_larger_than_asked_comes_whole(cluster: Cluster, filled: Fill) -> None:
    topic = filled([b"x" * 300_000, b"y"])
    assert values(cluster.fetch(topic, 0, 0, size_bytes_max=1000).records)[0] == b"x" * 300_000


def test_cut_batch_doubles_the_size(proxy: FaultyProxy, filled: Fill) -> None:
    topic = filled([b"x" * 300_000])
    proxy.cut_batches = True
    with Cluster(str(proxy.address)) as cluster:
        assert values(cluster.fetch(topic, 0, 0, size_bytes_max=100_000).records) == [b"x" * 300_000]
    assert proxy.asked_bytes == [100_000, 200_000, 400_000]


@pytest.mark.remedy(Remedy.LARGER_BATCHES)
def test_batch_above_the_maximum_is_refused(proxy: FaultyProxy, filled: Fill) -> None:
    topic = filled([b"x" * 300_000])
    proxy.cut_batches = True
    with (
        Cluster(str(proxy.address), batch_bytes_max=150_000) as cluster,
        pytest.raises(ResponseTooLarge, match=f"offset 0 of {topic}-0 is larger than 150000 bytes; ") as raised,
    ):
        cluster.fetch(topic, 0, 0, size_bytes_max=100_000)
    assert proxy.asked_bytes == [100_000, 150_000]
    remedies.find(Remedy.LARGER_BATCHES, raised.value)
    with Cluster(str(proxy.address), batch_bytes_max=400_000) as cluster:
        assert values(cluster.fetch(topic, 0, 0, size_bytes_max=100_000).records) == [b"x" * 300_000]


@pytest.mark.remedy(Remedy.LARGER_BATCHES)
def test_oversized_response_is_not_read(bootstrap: str, filled: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = filled([b"x" * 300_000])
    monkeypatch.setattr(routing, "RESPONSE_HEADROOM_BYTES", 10_000)
    with (
        Cluster(bootstrap, batch_bytes_max=100_000) as cluster,
        pytest.raises(ResponseTooLarge, match="more than the limit of 110000; ") as raised,
    ):
        cluster.fetch(topic, 0, 0)
    remedies.find(Remedy.LARGER_BATCHES, raised.value)
    with Cluster(bootstrap, batch_bytes_max=400_000) as cluster:
        assert values(cluster.fetch(topic, 0, 0).records) == [b"x" * 300_000]


@pytest.mark.parametrize("read_committed", [True, False])
def test_the_isolation_level_is_asked_for(proxy: FaultyProxy, filled: Fill, read_committed: bool) -> None:
    topic = filled([b"a"])
    with Cluster(str(proxy.address)) as cluster:
        cluster.fetch(topic, 0, 0, read_committed=read_committed)
        cluster.list_offsets(topic, {0: LATEST}, read_committed=read_committed)
    assert proxy.isolation_levels == [int(read_committed)] * 2


# A network that fails


@pytest.mark.parametrize(
    "faults",
    [
        [(apis.METADATA, "close")],
        [(apis.FETCH, "close"), (apis.FETCH, "close")],
        [(apis.FETCH, "not_leader"), (apis.METADATA, "close")],
    ],
)
def test_what_only_reads_is_tried_again(proxy: FaultyProxy, filled: Fill, faults: list[tuple[int, str]]) -> None:
    topic = filled([b"a"])
    proxy.faults = faults
    with Cluster(str(proxy.address)) as cluster:
        assert values(cluster.fetch(topic, 0, 0).records) == [b"a"]
    assert proxy.faults == []


class PausesAlone:
    """A clock on which only pauses take time."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


def hurry(cluster: Cluster, timeout_ms: int) -> None:
    """Set the timeout of existing connections; new ones keep theirs."""
    for connection in cluster.router._connections.values():
        connection.timeout_ms = timeout_ms


def test_trying_again_ends_with_the_time_allowed(
    proxy: FaultyProxy, filled: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled([b"a"])
    with Cluster(str(proxy.address)) as cluster:
        assert values(cluster.fetch(topic, 0, 0).records) == [b"a"]
        proxy.faults = [(apis.FETCH, "not_leader")] * 100
        cluster.router.timeout_ms = 500
        monkeypatch.setattr(routing, "time", PausesAlone())
        with pytest.raises(LeaderUnavailable, match=f"{topic}-0 cannot be read now: NOT_LEADER_OR_FOLLOWER"):
            cluster.fetch(topic, 0, 0)
    assert 100 - len(proxy.faults) == 4, "after pauses of 50, 100 and 200 ms; 400 more would be too much"


@pytest.mark.remedy(Remedy.MORE_TIME)
def test_silent_broker_times_out_once(proxy: FaultyProxy, filled: Fill) -> None:
    topic = filled([b"a"])
    with Cluster(str(proxy.address)) as cluster:
        assert values(cluster.fetch(topic, 0, 0).records) == [b"a"]
        proxy.faults = [(apis.FETCH, "silent")]
        hurry(cluster, 300)
        with pytest.raises(RequestTimedOut, match="did not respond within 310 ms") as raised:
            cluster.fetch(topic, 0, 0, wait_ms=10)
        remedies.find(Remedy.MORE_TIME, raised.value)
        hurry(cluster, 30_000)
        assert values(cluster.fetch(topic, 0, 0).records) == [b"a"]


@pytest.mark.parametrize("fault", ["close", "silent"])
def test_creation_is_not_retried(proxy: FaultyProxy, topic: str, fault: str) -> None:
    proxy.faults = [(apis.CREATE_TOPICS, fault)]
    with Cluster(str(proxy.address)) as cluster:
        assert topic not in cluster.topics()
        if fault == "silent":
            hurry(cluster, 300)
        with pytest.raises(ConnectionLost if fault == "close" else RequestTimedOut):
            cluster.create_topic(topic, 1)


def test_idle_connections_are_reopened(proxy: FaultyProxy, topic: str) -> None:
    with Cluster(str(proxy.address)) as cluster:
        cluster.topics()
        proxy.hang_up()
        # Creation is sent once: it works because the closed connection is noticed before.
        cluster.create_topic(topic, 1)


def test_first_contact_is_not_retried_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: pytest.fail("it waits for another attempt"))
    with pytest.raises(BrokerUnreachable, match=r"no Kafka broker responds at 127\.0\.0\.1:1: "):
        Cluster("127.0.0.1:1").topics()


def test_any_of_the_bootstrap_brokers_is_enough(bootstrap: str) -> None:
    with Cluster(f"127.0.0.1:1,{bootstrap}") as cluster:
        assert cluster.topics() is not None


def test_a_broker_that_restarts_is_waited_for(tmp_path_factory: pytest.TempPathFactory, topic: str) -> None:
    data = tmp_path_factory.mktemp("restarted")
    with BrokerProcess(data) as first, Cluster(first.bootstrap) as cluster:
        cluster.create_topic(topic, 2)
        with EventWriter(first.bootstrap, topic) as writer:
            writer.write(None, b"kept", partition=1)
        first.kill()
        with pytest.raises(BrokerUnreachable):
            Cluster(first.bootstrap).topics()
        second = BrokerProcess(data, int(first.bootstrap.rpartition(":")[2]))
        starting = threading.Timer(0.2, second.start)
        starting.start()
        try:
            assert values(cluster.fetch(topic, 1, 0).records) == [b"kept"]
        finally:
            starting.join()
            second.stop()


def test_first_contact_is_retried_on_request(bootstrap: str) -> None:
    with FaultyProxy(parse_address(bootstrap)) as proxy:
        address = proxy.address
    late = FaultyProxy(parse_address(bootstrap), address.port)
    opening = threading.Timer(0.2, late.__enter__)
    opening.start()
    try:
        with Cluster(str(address), first_contact_ms=20_000) as cluster:
            assert cluster.topics() is not None
    finally:
        opening.join()
        late.__exit__(None, None, None)


def test_unreached_leader_is_waited_for(bootstrap: str) -> None:
    """The bootstrap broker responds; the leader that it names starts later."""
    with FaultyProxy(parse_address(bootstrap)) as proxy:
        address = proxy.address
    late = FaultyProxy(parse_address(bootstrap), address.port)
    opening = threading.Timer(0.2, late.__enter__)
    with Cluster(bootstrap) as cluster:
        assert cluster.topics() is not None
        opening.start()
        try:
            assert cluster.router.retry(lambda: cluster.router.connection_to(address)) is not None
        finally:
            opening.join()
            late.__exit__(None, None, None)
    with Cluster(bootstrap) as cluster:
        assert cluster.topics() is not None
        cluster.router.timeout_ms = 200
        with pytest.raises(BrokerUnreachable):
            cluster.router.retry(lambda: cluster.router.connection_to(parse_address("127.0.0.1:1")))
