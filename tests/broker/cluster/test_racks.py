"""Racks: replicas in different ones, and clients that read from a follower in theirs (KIP-392)."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from confluent_kafka import Consumer, TopicPartition

from onceflow.broker.cluster.replicas import Lag, LeaderState
from onceflow.broker.cluster.replication import Led
from onceflow.broker.topics.assignment import alternating, assign_to_racks
from onceflow.broker.topics.topics import NewTopic, TopicRefused, Topics
from onceflow.wire import fetch
from onceflow.wire.errors import ErrorCode
from onceflow.wire.fetch import FetchedPartition, FetchPartition, FetchRequest
from tests.broker.cluster.conftest import Brokers, NewBroker, Tree, create_on
from tests.broker.cluster.test_replication import send
from tests.broker.raw_client import RawClient, connected

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RACKS = {1: "a", 2: "b", 3: "b"}


def test_replicas_are_spread_over_racks() -> None:
    """Apache Kafka assigns the same (its AdminRackAwareTest)."""
    racks = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
    assert alternating(racks) == [0, 3, 1, 5, 4, 2]
    assert alternating({broker: rack for broker, rack in racks.items() if broker != 5}) == [0, 3, 1, 4, 2]
    assigned = assign_to_racks(racks, 7, 3, start=0, shift=0)
    assert assigned == [(0, 3, 1), (3, 1, 5), (1, 5, 4), (5, 4, 2), (4, 2, 0), (2, 0, 3), (0, 4, 2)]
    assert assign_to_racks(racks, 2, 3, start=0, shift=0, first=5) == [(2, 0, 3), (0, 4, 2)]


@pytest.mark.parametrize("racks", ["aabb", "aaaab", "abbccc", "abbbbc"])
def test_replicas_are_in_different_racks(racks: str) -> None:
    """Racks of different sizes; the second and third replica avoid the racks of those before."""
    of_broker = dict(enumerate(racks))
    for shift in range(len(racks)):
        for replicas in assign_to_racks(of_broker, 20, 3, start=shift, shift=shift):
            assert len(set(replicas)) == 3
            assert len({racks[broker] for broker in replicas}) == len(set(racks)), (shift, replicas)


def test_all_brokers_need_a_rack() -> None:
    topics = Topics(1, 1, 100)
    topics.brokers, topics.racks = (1, 2), {1: "a"}
    with pytest.raises(TopicRefused, match="Not all brokers have rack information"):
        topics.decide_create(NewTopic("clicks", 2, 2))
    topics.racks = {1: "a", 2: "b"}
    assert len(topics.decide_create(NewTopic("clicks", 2, 2))) == 3


@pytest.mark.parametrize(
    ("rack", "offset", "preferred"),
    [("b", 0, 3), ("b", 8, 3), ("b", 10, None), ("a", 0, None), ("c", 0, None), ("d", 0, None)],
)
def test_the_most_advanced_follower_is_preferred(rack: str, offset: int, preferred: int | None) -> None:
    """It is in sync, in the client's rack, and has the records before its offset. Broker 1 leads, 5 is not in sync."""
    racks = {1: "a", 2: "b", 3: "b", 4: "b", 5: "c"}
    state = LeaderState(1, Epoch(), Lag(), epoch_start_offset=0, now_ms=0)
    for broker_id, end_offset in ((2, 7), (3, 9), (4, 5), (5, 9)):
        assert state.fetched(broker_id, end_offset, 10, 1)
    stood_in: Any = SimpleNamespace(broker_id=1)
    led = Led(stood_in, stood_in, UUID(int=1), state)
    assert led.preferred_replica(rack, offset, racks) == preferred


class Epoch(NamedTuple):
    """State of a partition whose replica 5 is not in sync."""

    isr: tuple[int, ...] = (1, 2, 3, 4)
    partition_epoch: int = 0
    replicas: tuple[int, ...] = (1, 2, 3, 4, 5)
    leader: int = 1
    leader_epoch: int = 0


@pytest.fixture
def in_racks(new_broker: NewBroker, tmp_path: Path) -> Iterator[Brokers]:
    opened = Brokers(new_broker, tmp_path)
    with ExitStack() as stack:
        stack.callback(lambda: [broker.stop() for broker in opened.running.values()])
        for broker_id, rack in RACKS.items():
            opened.start(broker_id, broker_rack=rack, replica_selector_class=SELECTOR)
        yield opened


def read_in_rack(client: RawClient, rack: str, offset: int = 0, version: int = 12) -> FetchedPartition:
    """Fetch from partition 0 as a client in a rack."""
    topics = [("clicks", [FetchPartition(0, -1, offset, -1, 2**20)])]
    request = FetchRequest(-1, 0, 1, 2**20, fetch.READ_UNCOMMITTED, 0, -1, topics, rack)
    client.socket.sendall(fetch.encode_request(version, 1, "raw", request))
    (partition,) = fetch.parse_response(version, client.receive_frame()).partitions
    return partition


def test_clients_read_in_their_rack(in_racks: Brokers, tree: Tree) -> None:
    assert [tree.json(f"/brokers/ids/{broker_id}")["rack"] for broker_id in RACKS] == ["a", "b", "b"]
    create_on(in_racks, "clicks", [1, 2])
    values = [b"%03d" % number for number in range(20)]
    send(in_racks.bootstrap, "clicks", values)
    with ExitStack() as stack:
        leader, follower, other = (
            stack.enter_context(connected(in_racks.running[broker_id].bootstrap_servers)) for broker_id in RACKS
        )
        redirected = read_in_rack(leader, "b")
        assert (redirected.preferred_read_replica, redirected.high_watermark, bytes(redirected.records)) == (2, 20, b"")
        for rack in ("", "a", "elsewhere"):
            from_leader = read_in_rack(leader, rack)
            assert from_leader.preferred_read_replica == -1
            assert from_leader.records
        tree.await_that(lambda: read_in_rack(follower, "b").high_watermark == 20)
        assert bytes(read_in_rack(follower, "b").records) == bytes(read_in_rack(leader, "a").records)
        assert read_in_rack(follower, "b", 20).error_code == 0
        assert read_in_rack(follower, "b", 21).error_code == ErrorCode.offset_out_of_range
        assert read_in_rack(follower, "b", version=10).error_code == ErrorCode.not_leader_or_follower
        assert read_in_rack(other, "b").error_code == ErrorCode.not_leader_or_follower
    settings = {"bootstrap.servers": in_racks.bootstrap, "client.rack": "b", "group.id": "g"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition("clicks", 0, 0)])
    received: list[bytes | None] = []
    tree.await_that(partial(receives_all, consumer, received, values))
    send(in_racks.bootstrap, "clicks", [b"later"])
    tree.await_that(partial(receives_all, consumer, received, [*values, b"later"]))
    consumer.close()


def receives_all(consumer: Consumer, received: list[bytes | None], values: list[bytes]) -> bool:
    received += [message.value() for message in consumer.consume(100, 0.2)]
    return received == values
