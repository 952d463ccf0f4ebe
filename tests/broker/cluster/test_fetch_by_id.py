"""Fetch with ids of topics, as Apache Kafka's followers send it with their default inter.broker.protocol.version."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from onceflow.testing import Cluster
from onceflow.wire import apis
from onceflow.wire.batch import batches
from onceflow.wire.errors import ErrorCode
from tests.broker.raw_client import RawClient, batch_of, connected, milliseconds

VERSIONS = pytest.mark.parametrize("version", [13, 15, 17])


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Cluster(brokers=1) as cluster:
        with connected(cluster.bootstrap_servers) as client:
            client.create_topic("clicks")
            client.produce("clicks", 0, batch_of(b"one", b"two"))
        yield cluster.bootstrap_servers


@pytest.fixture
def client(bootstrap: str) -> Iterator[RawClient]:
    with connected(bootstrap) as opened:
        yield opened


def id_of(client: RawClient, topic: str) -> UUID:
    wanted = [{"topic_id": None, "name": topic}]
    response = client.ask(apis.METADATA, 12, topics=wanted, include_topic_authorized_operations=False)
    (described,) = response.topics
    topic_id: UUID = described.topic_id
    return topic_id


def fetch_by_id(client: RawClient, version: int, *topic_ids: UUID | None, **fields: Any) -> Any:
    partition = {"partition": 0, "current_leader_epoch": 0, "fetch_offset": 0, "partition_max_bytes": 2**20}
    return client.ask(
        apis.FETCH,
        version,
        max_wait=milliseconds(0),
        min_bytes=1,
        topics=[{"topic_id": topic_id, "partitions": [partition]} for topic_id in topic_ids],
        forgotten_topics_data=(),
        **{"replica_id": -1, **fields},
    )


@VERSIONS
def test_topics_are_found_by_id(client: RawClient, version: int) -> None:
    topic_id = id_of(client, "clicks")
    response = fetch_by_id(client, version, topic_id)
    (topic,) = response.responses
    (partition,) = topic.partitions
    assert (topic.topic_id, partition.error_code, partition.high_watermark) == (topic_id, 0, 2)
    assert [header.record_count for _position, header in batches(partition.records)] == [2]


@VERSIONS
def test_unknown_ids_have_an_error(client: RawClient, version: int) -> None:
    """Also the id of no topic; the others are responded to."""
    topic_id, unknown = id_of(client, "clicks"), uuid4()
    response = fetch_by_id(client, version, unknown, topic_id, None)
    errors = {topic.topic_id: topic.partitions[0].error_code for topic in response.responses}
    assert response.error_code == 0
    assert errors == {
        topic_id: ErrorCode.none,
        unknown: ErrorCode.unknown_topic_id,
        None: ErrorCode.unknown_topic_id,
    }


def test_refused_requests_have_ids(client: RawClient) -> None:
    topic_id = id_of(client, "clicks")
    refused = fetch_by_id(client, 17, topic_id, isolation_level=9)
    assert refused.error_code == ErrorCode.unknown_server_error
    assert [topic.topic_id for topic in refused.responses] == [topic_id]
    of_a_session = fetch_by_id(client, 17, topic_id, uuid4(), session_id=5, session_epoch=6)
    assert (of_a_session.error_code, of_a_session.responses) == (ErrorCode.fetch_session_id_not_found, ())


def test_strangers_are_no_followers(client: RawClient) -> None:
    """Broker 9 is not a replica."""
    response = fetch_by_id(client, 13, id_of(client, "clicks"), replica_id=9)
    assert response.responses[0].partitions[0].error_code == ErrorCode.unknown_leader_epoch


def test_clients_are_not_offered_ids(client: RawClient) -> None:
    offered = {api.api_key: api.max_version for api in client.ask(apis.API_VERSIONS, 0).api_keys}
    assert offered[apis.FETCH] == 12
