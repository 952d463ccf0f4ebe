"""Faults of a broker on demand, each seen by a client of the bare protocol."""

import itertools
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_args, get_origin

import pytest

from onceflow.testing import Broker, FaultNotMet, ImpossibleFault
from onceflow.testing.error_responses import Concerned, error_response, neutral, selected
from onceflow.testing.releases import RELEASES, versions_max
from onceflow.wire import apis
from onceflow.wire.entities import without_none
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import encode_response, request_class, response_class
from onceflow.wire.messages import entity_class_in
from tests.broker.raw_client import RawClient, batch_of, connected, milliseconds, stored_batches

SECONDS = 0.2
"""Time in which nothing must arrive."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker() as running:
        for topic in ("visits", "clicks"):
            running.create_topic(topic, 2)
        yield running


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    yield shared
    shared.faults.clear()


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with connected(broker.bootstrap_servers) as opened:
        yield opened


def end_offset(broker: Broker, topic: str, partition: int = 0) -> int:
    batches = stored_batches(broker.bootstrap_servers, topic, partition)
    return batches[-1].last_offset + 1 if batches else 0


def is_silent(client: RawClient) -> bool:
    client.socket.settimeout(SECONDS)
    try:
        client.socket.recv(1)
    except TimeoutError:
        return True
    else:
        return False
    finally:
        client.socket.settimeout(30)


# fail


def test_a_failed_request_is_not_handled(broker: Broker, client: RawClient) -> None:
    before = end_offset(broker, "visits")
    fault = broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=2, skip=1)
    codes = [client.produce("visits", 0, batch_of(b"ann")).error_code for _ in range(4)]
    assert codes == [0, ErrorCode.not_leader_or_follower, ErrorCode.not_leader_or_follower, 0]
    assert end_offset(broker, "visits") == before + 2
    assert fault.count == 2


def test_other_partitions_are_handled(broker: Broker, client: RawClient) -> None:
    """A request for three partitions, of which one fails; the response has all of them."""
    before = [end_offset(broker, *place) for place in (("visits", 0), ("visits", 1), ("clicks", 1))]
    fault = broker.faults.fail("Produce", "NOT_ENOUGH_REPLICAS", topic="visits", partition=1)
    batch = bytes(batch_of(b"ann"))
    data = [
        {"name": "visits", "partition_data": [{"index": index, "records": batch} for index in (0, 1)]},
        {"name": "clicks", "partition_data": [{"index": 1, "records": batch}]},
    ]
    response = client.ask(
        apis.PRODUCE, 9, transactional_id=None, acks=-1, timeout=milliseconds(10_000), topic_data=data
    )
    codes = {
        (topic.name, partition.index): partition.error_code
        for topic in response.responses
        for partition in topic.partition_responses
    }
    assert codes == {("visits", 0): 0, ("visits", 1): ErrorCode.not_enough_replicas, ("clicks", 1): 0}
    after = [end_offset(broker, *place) for place in (("visits", 0), ("visits", 1), ("clicks", 1))]
    assert after == [before[0] + 1, before[1], before[2] + 1]
    assert fault.count == 1


def test_a_fetch_fails_for_one_partition(broker: Broker, client: RawClient) -> None:
    client.produce("visits", 0, batch_of(b"ann"))
    broker.faults.fail("Fetch", "OFFSET_OUT_OF_RANGE", topic="visits", partition=1)
    fetched = {part.partition: part for part in client.fetch([("visits", 0, 0), ("visits", 1, 0)])}
    assert fetched[0].records
    assert fetched[1].error_code == ErrorCode.offset_out_of_range
    assert fetched[1].records is None or not bytes(fetched[1].records)


def test_metadata_keeps_the_other_topics(broker: Broker, client: RawClient) -> None:
    broker.faults.fail("Metadata", "LEADER_NOT_AVAILABLE", topic="visits")
    fields: dict[str, Any] = {"allow_auto_topic_creation": False}
    response = client.ask(apis.METADATA, 4, topics=[{"name": "visits"}, {"name": "clicks"}], **fields)
    topics = {topic.name: topic for topic in response.topics}
    assert topics["visits"].error_code == ErrorCode.leader_not_available
    assert not topics["visits"].partitions
    assert len(topics["clicks"].partitions) == 2
    assert len(response.brokers) == 1


def test_acks_0_fails_by_a_closed_connection(broker: Broker, client: RawClient) -> None:
    """KafkaApis.handleProduceRequest does so."""
    broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER")
    client.send_batch("visits", 0, batch_of(b"ann"), acks=0)
    assert client.receive_frame() == b""


def test_only_one_client_meets_a_fault(broker: Broker, client: RawClient) -> None:
    fault = broker.faults.fail("ListGroups", "COORDINATOR_NOT_AVAILABLE", client_id="somebody else")
    assert client.ask(apis.LIST_GROUPS, 0).error_code == 0
    assert fault.count == 0


@pytest.mark.parametrize("api", apis.APIS.values(), ids=lambda api: api.name)
def test_each_api_can_fail(api: apis.Api) -> None:
    """Every version has a response that can be written, with one error for each item of the request."""
    for version in range(api.version_min, api.version_max + 1):
        request = minimal(request_class(api.key, version))
        for concerned in (Concerned(), Concerned("visits", 1)):
            some = selected(request, concerned)
            if some is not None:
                error = ErrorCode.not_controller
                response = error_response(api.key, response_class(api.key, version), some, error, concerned)
                # Users are named in two arrays.
                assert str(response).count(repr(error)) == 1 + (api.key == apis.ALTER_USER_SCRAM_CREDENTIALS)
                assert encode_response(api.key, version, 1, response)


def minimal(message_class: Any) -> Any:
    """A message with one element in each array; topics are visits, partitions 1."""
    values = {}
    for field in fields(message_class):
        nested, (inner, _) = entity_class_in(field.type), without_none(field.type)
        element = get_args(inner)[0] if get_origin(inner) is tuple else inner
        if "tag" in field.metadata:
            continue
        if nested is not None:
            value = minimal(nested)
        elif issubclass(element, str):
            value = "visits"
        elif issubclass(element, int):
            value = element(1)
        else:
            value = neutral(field)
        values[field.name] = (value,) if get_origin(inner) is tuple else value
    return message_class(**values)


# close, lose, drop, delay, pause


def test_a_closed_request_is_not_handled(broker: Broker, client: RawClient) -> None:
    before = end_offset(broker, "visits")
    broker.faults.close("Produce")
    client.send_batch("visits", 0, batch_of(b"ann"))
    assert client.receive_frame() == b""
    assert end_offset(broker, "visits") == before


def test_a_lost_response_was_handled(broker: Broker, client: RawClient) -> None:
    before = end_offset(broker, "visits")
    broker.faults.lose("Produce")
    client.send_batch("visits", 0, batch_of(b"ann"))
    assert client.receive_frame() == b""
    assert end_offset(broker, "visits") == before + 1


def test_a_dropped_response_never_arrives(broker: Broker, client: RawClient) -> None:
    fault = broker.faults.drop("Produce")
    client.send_batch("visits", 0, batch_of(b"ann"))
    client.send_batch("visits", 0, batch_of(b"ann"))
    assert is_silent(client)
    assert fault.count == 1


def test_a_delayed_response_arrives(broker: Broker, client: RawClient) -> None:
    with broker.faults.delay(3600, "ListGroups"):
        client.send(apis.LIST_GROUPS, 0)
        assert is_silent(client)
    with broker.faults.delay(0.01, "ListGroups"), connected(broker.bootstrap_servers) as other:
        assert other.ask(apis.LIST_GROUPS, 0).error_code == 0


def test_a_paused_network_loses_nothing(broker: Broker, client: RawClient) -> None:
    """A request of before the pause, one during it, and new connections get their responses after it."""
    start = end_offset(broker, "clicks")
    client.send_fetch([("clicks", 0, start)], wait_ms=60_000)
    with connected(broker.bootstrap_servers) as other:
        assert other.ask(apis.LIST_GROUPS, 0).error_code == 0
        pause = broker.faults.pause()
        other.send_batch("clicks", 0, batch_of(b"ann"))
        assert is_silent(other)
        with connected(broker.bootstrap_servers) as late:
            late.send(apis.LIST_GROUPS, 0)
            assert is_silent(late)
            pause.remove()
            assert late.receive(apis.LIST_GROUPS, 0).error_code == 0
        assert other.receive_produced().error_code == 0
    (fetched,) = client.receive_fetched()
    assert fetched.records


@pytest.mark.parametrize("fault", ["pause", "delay", "fail"])
def test_large_requests_meet_faults(broker: Broker, client: RawClient, fault: str) -> None:
    """Those that the broker handles over several turns of its loop."""
    names = [f"absent-{number}" for number in range(1000)]
    faults = broker.faults
    with {
        "pause": faults.pause,
        "delay": lambda: faults.delay(0.01, "DeleteGroups"),
        "fail": lambda: faults.fail("DeleteGroups", "NOT_COORDINATOR"),
    }[fault]() as begun:
        client.send(apis.DELETE_GROUPS, 2, groups_names=names)
        if fault == "pause":
            assert is_silent(client)
            begun.remove()
        results = client.receive(apis.DELETE_GROUPS, 2).results
    expected = ErrorCode.not_coordinator if fault == "fail" else ErrorCode.group_id_not_found
    assert [(result.group_id, result.error_code) for result in results] == [(name, expected) for name in names]
    assert client.ask(apis.LIST_GROUPS, 0).error_code == 0


def test_a_paused_client_gets_no_records(broker: Broker, client: RawClient) -> None:
    """Neither in the response to a fetch that waited before the pause."""
    start = end_offset(broker, "clicks")
    client.send_fetch([("clicks", 0, start)], wait_ms=60_000)
    pause = broker.faults.pause(client_id="raw")
    with connected(broker.bootstrap_servers) as other:
        other.client_id = "other"
        assert other.produce("clicks", 0, batch_of(b"ann")).error_code == 0
    assert is_silent(client)
    pause.remove()
    (fetched,) = client.receive_fetched()
    assert fetched.records


def test_a_broker_stops_despite_its_faults() -> None:
    with Broker() as broker, connected(broker.bootstrap_servers) as client:
        broker.create_topic("visits")
        delay = broker.faults.delay(3600, "ListGroups")
        client.send(apis.LIST_GROUPS, 0)
        delay.wait()
        with connected(broker.bootstrap_servers) as other:
            drop = broker.faults.drop("Produce")
            other.send_batch("visits", 0, batch_of(b"ann"))
            drop.wait()
            with connected(broker.bootstrap_servers) as third:
                broker.faults.pause()
                third.send(apis.LIST_GROUPS, 0)
                broker.stop()
        assert client.receive(apis.LIST_GROUPS, 0).error_code == 0


def test_faults_stay_when_the_broker_restarts() -> None:
    broker = Broker()
    broker.faults.fail("ListGroups", "COORDINATOR_NOT_AVAILABLE", times=None)
    for _ in range(2):
        with broker, connected(broker.bootstrap_servers) as client:
            assert client.ask(apis.LIST_GROUPS, 0).error_code == ErrorCode.coordinator_not_available


# limit, play


def served(client: RawClient) -> dict[int, tuple[int, int]]:
    response = client.ask(apis.API_VERSIONS, 0)
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


def test_an_older_kafka_is_played(broker: Broker, client: RawClient) -> None:
    """The versions are those of Kafka 2.1.1."""
    now = served(client)
    with broker.faults.play("2.1"):
        old = served(client)
        assert (old[apis.PRODUCE][1], old[apis.FETCH][1], old[apis.METADATA][1]) == (7, 10, 7)
        assert apis.DESCRIBE_CLUSTER not in old
        client.send(apis.LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=[])
        assert client.receive_frame() == b""
    with connected(broker.bootstrap_servers) as again:
        assert served(again) == now


def test_limits_of_versions_add_up(broker: Broker, client: RawClient) -> None:
    broker.faults.limit("Fetch", 11)
    broker.faults.play("2.0")
    broker.faults.limit("Metadata", 4)
    limited = served(client)
    assert (limited[apis.FETCH][1], limited[apis.METADATA][1]) == (8, 4)


def test_versions_of_a_release_never_fall() -> None:
    for older, newer in itertools.pairwise(RELEASES):
        before, after = versions_max(older), versions_max(newer)
        assert all(before[key] <= after[key] for key in before)


def test_a_newer_client_negotiates_down(broker: Broker, client: RawClient) -> None:
    """KIP-511: ApiVersions above the maximum gets version 0 with error 35."""
    broker.faults.play("2.0")
    client.send(apis.API_VERSIONS, 3, client_software_name="test", client_software_version="1")
    response = client.receive(apis.API_VERSIONS, 0)
    assert response.error_code == ErrorCode.unsupported_version
    assert [(api.api_key, api.max_version) for api in response.api_keys] == [(apis.API_VERSIONS, 2)]


# Mistakes


@pytest.mark.parametrize(
    ("request_fault", "message"),
    [
        (lambda faults: faults.fail("Produze", "NOT_CONTROLLER"), "did you mean Produce?"),
        (lambda faults: faults.fail("Produce", "NOT_A_LEADER"), "is not an error of Kafka"),
        (lambda faults: faults.fail("Produce", "NONE"), "is not an error of Kafka"),
        (lambda faults: faults.fail("Heartbeat", "NOT_COORDINATOR", topic="visits"), "has no errors of topics"),
        (lambda faults: faults.fail("ListPartitionReassignments", "NOT_CONTROLLER", topic="a"), "no errors of topics"),
        (lambda faults: faults.close("Heartbeat", topic="visits"), "name no topics"),
        (lambda faults: faults.drop("CreateTopics", topic="visits", partition=1), "name no partitions"),
        (lambda faults: faults.lose("Produce", partition=1), "without a topic"),
        (lambda faults: faults.lose(topic="visits"), "without an API"),
        (lambda faults: faults.close("Produce", times=0), "times=0 is not a number from 1"),
        (lambda faults: faults.close("Produce", skip=-1), "skip=-1 is not a number from 0"),
        (lambda faults: faults.delay(-1), "delay of -1 seconds"),
        (lambda faults: faults.play("0.8"), "the releases are 0.11, 1.0"),
        (lambda faults: faults.limit("Fetch", 99), "versions 4 to 12 are served"),
    ],
)
def test_impossible_faults_are_refused(broker: Broker, request_fault: Any, message: str) -> None:
    with pytest.raises(ImpossibleFault, match=message.replace("?", r"\?")):
        request_fault(broker.faults)


def test_unknown_arguments_are_refused(broker: Broker) -> None:
    with pytest.raises(TypeError, match="unknown argument 'tims'"):
        broker.faults.close("Produce", tims=1)  # type: ignore[call-arg]


def test_a_fault_without_requests(broker: Broker) -> None:
    fault = broker.faults.close("Produce")
    with pytest.raises(FaultNotMet, match="close at Produce: 0 requests in 0 s, expected 1"):
        fault.wait(seconds=0)
