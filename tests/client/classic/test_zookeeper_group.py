"""Consumers that share partitions through the registry of a cluster in this process."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from onceflow.client.admin import Admin
from onceflow.client.classic import Blacklist, ConsumerConnector, Whitelist
from onceflow.client.classic.connector import ConsumerFailed
from onceflow.client.cluster import LATEST
from onceflow.client.cluster import Cluster as Client
from onceflow.client.settings import InvalidSetting
from onceflow.remedies import Remedy
from onceflow.testing import Cluster
from onceflow.testing.registry import MemoryRegistry
from onceflow.zookeeper.nodes import DamagedNode
from onceflow.zookeeper.session import Create, Delete
from tests import remedies
from tests.client.classic.zookeeper_members import PARTITIONS, TOPIC, WITHIN_S, Member, Tool, send, wait_until


@pytest.fixture(scope="module")
def brokers() -> Iterator[Cluster]:
    with Cluster(1, settings={"offsets.topic.replication.factor": 1}) as running:
        running.create_topic(TOPIC, PARTITIONS)
        yield running


@pytest.fixture
def registry(brokers: Cluster) -> MemoryRegistry:
    assert brokers._registry is not None
    return brokers._registry


@pytest.fixture
def tool(registry: MemoryRegistry) -> Iterator[Tool]:
    opened = Tool(registry)
    yield opened
    opened.session.close()


NewMember = Callable[..., Member]


@pytest.fixture
def group(topic: str) -> str:
    """A group that no other test uses."""
    return topic


@pytest.fixture
def new_member(registry: MemoryRegistry, group: str) -> Iterator[NewMember]:
    with ExitStack() as stack:

        def make(process: Callable[[], object] = lambda: None, **settings: Any) -> Member:
            member = Member(registry, group, process, **settings)
            stack.callback(member.stop)
            return member

        yield make


def ends(brokers: Cluster) -> dict[int, int]:
    with Client(brokers.bootstrap_servers) as client:
        latest = client.list_offsets(TOPIC, dict.fromkeys(range(PARTITIONS), LATEST))
        return {partition: at.offset for partition, at in latest.items()}


def test_nodes_are_those_of_kafka(brokers: Cluster, tool: Tool, group: str, new_member: NewMember) -> None:
    send(brokers, 2)
    member = new_member().start(streams=3)
    wait_until(lambda: member.owned == {0, 1, 2, 3})
    (consumer,) = tool.names(f"/consumers/{group}/ids")
    assert consumer.startswith(f"{group}_")
    registered = json.loads(tool.text(f"/consumers/{group}/ids/{consumer}") or "")
    assert registered == {**registered, "version": 1, "subscription": {TOPIC: 3}, "pattern": "static"}
    first, second, third = (f"{consumer}-{number}" for number in range(3))
    assert tool.owners(group) == {0: first, 1: first, 2: second, 3: third}
    at_end = ends(brokers)
    wait_until(lambda: len(member.read) == sum(at_end.values()))
    member.connector.commit_offsets()
    assert tool.offsets(group) == at_end
    member.stop()
    assert tool.names(f"/consumers/{group}/ids") == []
    assert tool.owners(group) == {}
    assert tool.offsets(group) == at_end


def test_members_share_the_partitions(brokers: Cluster, tool: Tool, group: str, new_member: NewMember) -> None:
    """Each message is read by one member, while members come and go in order."""
    members = [new_member().start()]
    send(brokers, 50)
    for shares in ([2, 2], [1, 1, 2]):
        members.append(new_member().start())
        wait_until(lambda: sorted(len(member.owned) for member in members) == shares)  # noqa: B023
        send(brokers, 50)
    members[0].stop()
    wait_until(lambda: [len(member.owned) for member in members[1:]] == [2, 2])
    send(brokers, 50)
    at_end = ends(brokers)
    wait_until(lambda: sum(len(member.read) for member in members) >= sum(at_end.values()))
    for member in members[1:]:
        member.stop()
    read = sorted(place for member in members for place in member.read)
    assert read == [(TOPIC, partition, offset) for partition in range(4) for offset in range(at_end[partition])]
    assert tool.offsets(group) == at_end


def test_release_waits_for_a_message_in_process(
    brokers: Cluster, tool: Tool, group: str, new_member: NewMember
) -> None:
    """A message that takes shorter than the backoff is not read by the next owner of its partition, the last."""
    send(brokers, 1)
    for partition, end in ends(brokers).items():
        tool.write(f"/consumers/{group}/offsets/{TOPIC}/{partition}", str(end - (partition == PARTITIONS - 1)))
    at_work, done = threading.Event(), threading.Event()

    def process() -> None:
        at_work.set()
        done.wait(WITHIN_S)

    first = new_member(process).start()
    assert at_work.wait(WITHIN_S)
    second = new_member().start()
    wait_until(lambda: first.streams[0]._is_held)
    # Some turns of the first, in which it could release its partitions.
    threading.Event().wait(0.2)
    assert (len({*tool.owners(group).values()}), second.owned) == (1, set())
    done.set()
    wait_until(lambda: (first.owned, second.owned) == ({0, 1}, {2, 3}))
    send(brokers, 1)
    wait_until(lambda: len(first.read) + len(second.read) >= 5)
    assert (len(first.read), len(second.read)) == (3, 2)


def test_a_long_message_does_not_block_others(brokers: Cluster, new_member: NewMember) -> None:
    """The next owner reads it again: the first may still fail."""
    send(brokers, 1)
    done = threading.Event()
    first = new_member(lambda: done.wait(WITHIN_S), rebalance_backoff_ms=50).start()
    wait_until(lambda: len(first.read) == 1)
    (in_process,) = first.read
    second = new_member().start()
    wait_until(lambda: len(second.owned) == 2)
    third = new_member().start()
    wait_until(lambda: sorted(len(member.owned) for member in (first, second, third)) == [1, 1, 2])
    owner = next(member for member in (first, second, third) if in_process[1] in member.owned)
    if owner is not first:
        wait_until(lambda: in_process in owner.read)
    done.set()


def test_session_end_starts_over(
    brokers: Cluster, tool: Tool, group: str, registry: MemoryRegistry, new_member: NewMember
) -> None:
    first, second = new_member().start(), new_member().start()
    wait_until(lambda: (len(first.owned), len(second.owned)) == (2, 2))
    send(brokers, 10)
    first.session.expire()
    wait_until(lambda: len(tool.owners(group)) == PARTITIONS and (len(first.owned), len(second.owned)) == (2, 2))
    assert len(tool.names(f"/consumers/{group}/ids")) == 2
    at_end = ends(brokers)
    total = {(TOPIC, partition, offset) for partition in range(4) for offset in range(at_end[partition])}
    wait_until(lambda: {*first.read, *second.read} == total)


def test_no_commit_after_the_session(brokers: Cluster, tool: Tool, group: str, new_member: NewMember) -> None:
    """A member that was frozen overwrites no offsets of the next owner."""
    send(brokers, 1)
    member = new_member(auto_commit_enable=False).start()
    wait_until(lambda: len(member.read) == sum(ends(brokers).values()))
    (consumer,) = tool.names(f"/consumers/{group}/ids")
    member.connector._membership._member.has_changed.clear()  # type: ignore[attr-defined]
    tool.session.commit([Delete(f"/consumers/{group}/ids/{consumer}")])
    with pytest.raises(ConsumerFailed, match="the session has ended"):
        member.connector._membership.commit({(TOPIC, 0): 1})
    assert tool.offsets(group) == {}


def test_rebalance_gives_up_after_its_retries(tool: Tool, group: str, new_member: NewMember) -> None:
    """A partition whose owner does not let go."""
    tool.session.ensure(f"/consumers/{group}/owners/{TOPIC}")
    tool.session.commit([Create(f"/consumers/{group}/owners/{TOPIC}/1", b"other-0", ephemeral=True)])
    member = new_member(rebalance_max_retries=2, rebalance_backoff_ms=20).start()
    wait_until(lambda: member.errors != [])
    assert "no rebalance within 2 attempts" in str(member.errors[0])
    assert "/1 the owner other-0" in str(member.errors[0])
    assert tool.owners(group) == {1: "other-0"}


def test_claims_wait_for_the_former_owner(tool: Tool, group: str, new_member: NewMember) -> None:
    """They continue at once, not after the backoff."""
    tool.session.ensure(f"/consumers/{group}/owners/{TOPIC}")
    held = f"/consumers/{group}/owners/{TOPIC}/1"
    tool.session.commit([Create(held, b"other-0", ephemeral=True)])
    member = new_member().start()
    wait_until(lambda: member.connector._membership._attempts == 1)  # type: ignore[attr-defined]
    assert tool.owners(group) == {1: "other-0"}
    tool.session.commit([Delete(held)])
    wait_until(lambda: member.owned == {0, 1, 2, 3})


@pytest.mark.parametrize("topic_filter", [Whitelist("made.*"), Blacklist(TOPIC)], ids=["white", "black"])
def test_a_filter_follows_topics_made_later(
    brokers: Cluster, topic_filter: Whitelist | Blacklist, new_member: NewMember
) -> None:
    name = f"made-{topic_filter.kind}"
    member = new_member().start(2, topic_filter)
    brokers.create_topic(name, 2)
    send(brokers, 1, name, 2)
    wait_until(lambda: {(name, 0, 0), (name, 1, 0)} <= {*member.read})
    assert all(len([place for place in stream.owned if place[0] == name]) == 1 for stream in member.streams)


def test_new_partitions_are_shared(brokers: Cluster, new_member: NewMember) -> None:
    brokers.create_topic("growing", 1)
    member = new_member().start(2, Whitelist("growing"))
    wait_until(lambda: member.owned == {0})
    with Client(brokers.bootstrap_servers) as client:
        Admin(client).create_partitions("growing", 3)
    wait_until(lambda: member.owned == {0, 1, 2})


def test_largest_is_kept_over_a_rebalance(brokers: Cluster, tool: Tool, group: str, new_member: NewMember) -> None:
    """The end that a member began at is committed, so that the next owner loses nothing sent since."""
    at_end = ends(brokers)
    member = new_member(auto_offset_reset="largest").start()
    wait_until(lambda: member.owned == {0, 1, 2, 3})
    member.stop()
    assert tool.offsets(group) == at_end
    send(brokers, 1)
    second = new_member(auto_offset_reset="largest").start()
    wait_until(lambda: len(second.read) == PARTITIONS)


def test_no_offset_fails_if_wanted(new_member: NewMember) -> None:
    member = new_member(auto_offset_reset="fail").start()
    wait_until(lambda: member.errors != [])
    assert "has no offset, and auto.offset.reset is fail" in str(member.errors[0])


@pytest.mark.remedy(Remedy.FIX_NODE)
def test_a_damaged_offset_ends_the_streams(tool: Tool, group: str, new_member: NewMember) -> None:
    path = f"/consumers/{group}/offsets/{TOPIC}/2"
    tool.write(path, "many")
    member = new_member().start()
    wait_until(lambda: member.errors != [])
    (error,) = member.errors
    assert isinstance(error, DamagedNode)
    remedies.find(Remedy.FIX_NODE, str(error))
    tool.write(path, "0")
    assert new_member().start().errors == []


KAFKA = {"offsets_storage": "kafka", "dual_commit_enabled": False}
BOTH = {"offsets_storage": "kafka"}


def in_kafka(brokers: Cluster, group: str) -> dict[int, int]:
    with Client(brokers.bootstrap_servers) as client:
        return client.committed_offsets(group, TOPIC, range(PARTITIONS))


@pytest.mark.parametrize(("settings", "expected"), [({}, 3), (KAFKA, 1), (BOTH, 3)], ids=["zookeeper", "kafka", "both"])
def test_stored_offsets_are_read(
    brokers: Cluster, tool: Tool, group: str, new_member: NewMember, settings: dict[str, Any], expected: int
) -> None:
    send(brokers, 5)
    with Client(brokers.bootstrap_servers) as client:
        client.commit_offsets(group, TOPIC, {0: 1, 1: 4})
    tool.write(f"/consumers/{group}/offsets/{TOPIC}/0", "3")
    at_end = ends(brokers)
    member = new_member(**settings).start()
    starts = {0: expected, 1: 0 if settings == {} else 4, 2: 0, 3: 0}
    wait_until(lambda: len(member.read) == sum(at_end[partition] - starts[partition] for partition in starts))
    assert {partition: min(read[2] for read in member.read if read[1] == partition) for partition in starts} == starts
    member.stop()
    stored = tool.offsets(group), in_kafka(brokers, group)
    assert stored == (at_end if settings != KAFKA else {0: 3}, at_end if settings != {} else {0: 1, 1: 4})


def test_offsets_move_to_kafka_and_back(brokers: Cluster, tool: Tool, group: str, new_member: NewMember) -> None:
    """Members are replaced one by one while messages arrive: each is read once, and no offset goes back."""
    members = [new_member(auto_commit_interval_ms=20).start()]
    known: list[dict[int, int]] = [{}, {}]
    for settings in (BOTH, KAFKA, BOTH, {}):
        members.append(new_member(auto_commit_interval_ms=20, **settings).start())
        former, latest = members[-2:]
        send(brokers, 20)
        wait_until(lambda: (len(former.owned), len(latest.owned)) == (2, 2))  # noqa: B023
        send(brokers, 20)
        former.stop()
        wait_until(lambda: len(latest.owned) == PARTITIONS)  # noqa: B023
        for before, now in zip(known, (tool.offsets(group), in_kafka(brokers, group)), strict=True):
            assert before.keys() <= now.keys()
            assert all(now[partition] >= offset for partition, offset in before.items())
            before.update(now)
    at_end = ends(brokers)
    wait_until(lambda: sum(len(member.read) for member in members) >= sum(at_end.values()))
    members[-1].stop()
    read = sorted(place for member in members for place in member.read)
    assert read == [(TOPIC, partition, offset) for partition in range(4) for offset in range(at_end[partition])]
    assert tool.offsets(group) == at_end


def test_settings_without_effect_are_refused(registry: MemoryRegistry) -> None:
    def connector(**settings: Any) -> ConsumerConnector:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        return ConsumerConnector({"zookeeper.connect": "here", **named}, session=registry.session())

    with pytest.raises(InvalidSetting, match=r"dual\.commit\.enabled=True has no effect with offsets\.storage=z"):
        connector(dual_commit_enabled=True)
    with pytest.raises(InvalidSetting, match=r"metadata\.broker\.list='a:1' is not a valid setting"):
        connector(metadata_broker_list="a:1")
    with pytest.raises(InvalidSetting, match=r"offsets\.storage='redis' cannot be used"):
        connector(offsets_storage="redis")
    without_tls = r"zookeeper\.ssl\.keystore\.password=… has no effect without zookeeper\.ssl\.client\.enable=true"
    with pytest.raises(InvalidSetting, match=without_tls):
        connector(zookeeper_ssl_keystore_password="hush")
    with pytest.raises(InvalidSetting, match=r"zookeeper\.digest=… cannot be used: expected USER:PASSWORD"):
        connector(zookeeper_digest="hush")


@pytest.mark.parametrize("missing", ["cluster", "broker"])
def test_a_wrong_address_is_reported(missing: str) -> None:
    registry = MemoryRegistry()
    tool = Tool(registry)
    tool.session.ensure("/brokers/ids")
    if missing == "broker":
        tool.session.ensure("/brokers/topics")
    with ConsumerConnector({"zookeeper.connect": "here/kafka"}, session=registry.session()) as connector:
        expected = "no /brokers/ids: no cluster" if missing == "cluster" else "no broker with a listener for PLAINTEXT"
        with pytest.raises(ConsumerFailed, match=f"ZooKeeper here/kafka has {expected}"):
            connector.create_message_streams({TOPIC: 1})
