"""`Admin` on our broker and, with ONCEFLOW_TEST_BOOTSTRAP, on Apache Kafka."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from onceflow.client.admin import Admin
from onceflow.client.admin_responses import CommittedOffset
from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.errors import RequestRefused, UnknownTopic
from onceflow.wire.errors import ErrorCode

DYNAMIC, DEFAULT = "DYNAMIC_TOPIC_CONFIG", "DEFAULT_CONFIG"


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Admin]:
    with Cluster(bootstrap) as cluster:
        yield Admin(cluster)


@pytest.fixture
def filled(admin: Admin, bootstrap: str, topic: str) -> str:
    """A topic with ten records in each of two partitions."""
    admin.cluster.create_topic(topic, 2)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(20):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert producer.flush(10) == 0
    return topic


def test_configs_of_a_topic(admin: Admin, topic: str) -> None:
    admin.cluster.create_topic(topic, 1, configs={"retention.ms": "5"})
    entries = admin.describe_topic_configs(topic)
    assert (entries["retention.ms"].value, entries["retention.ms"].source) == ("5", DYNAMIC)
    entry = entries["max.message.bytes"]
    assert (entry.value, entry.source, entry.type, entry.read_only) == ("1048588", DEFAULT, "INT", False)
    assert [(synonym.name, synonym.source) for synonym in entry.synonyms] == [("message.max.bytes", DEFAULT)]
    assert entry.documentation
    admin.alter_topic_configs(topic, set={"segment.ms": "70"}, delete=["retention.ms"])
    admin.alter_topic_configs(topic, append={"cleanup.policy": "compact"})
    admin.alter_topic_configs(topic, set={"segment.ms": "90"}, validate_only=True)
    admin.alter_topic_configs(topic, subtract={"cleanup.policy": "delete"})
    entries = admin.describe_topic_configs(topic)
    assert {name: entries[name].value for name in ("segment.ms", "retention.ms", "cleanup.policy")} == {
        "segment.ms": "70",
        "retention.ms": "604800000",
        "cleanup.policy": "compact",
    }


def test_configs_that_are_refused(admin: Admin, topic: str) -> None:
    with pytest.raises(UnknownTopic):
        admin.describe_topic_configs(topic)
    with pytest.raises(UnknownTopic):
        admin.alter_topic_configs(topic, set={"segment.ms": "70"})
    admin.cluster.create_topic(topic, 1)
    with pytest.raises(RequestRefused, match="Not a number of type LONG") as refused:
        admin.alter_topic_configs(topic, set={"segment.ms": "soon"})
    assert refused.value.error_code == ErrorCode.invalid_config


def test_cluster_and_broker_settings(admin: Admin, bootstrap: str) -> None:
    description = admin.describe_cluster()
    (broker,) = description.brokers
    assert (description.controller_id, str(broker.address)) == (broker.broker_id, bootstrap)
    assert admin.describe_broker_configs(broker.broker_id)["log.segment.bytes"].value == "1073741824"


def test_partitions_are_added(admin: Admin, topic: str) -> None:
    admin.cluster.create_topic(topic, 1)
    admin.create_partitions(topic, 3, validate_only=True)
    admin.create_partitions(topic, 3)
    while len(admin.cluster.require_topic(topic).partitions) < 3:
        pass
    with pytest.raises(RequestRefused, match="already has 3") as refused:
        admin.create_partitions(topic, 3)
    assert refused.value.error_code == ErrorCode.invalid_partitions
    with pytest.raises(UnknownTopic):
        admin.create_partitions(topic + "-no", 3)


def test_records_are_deleted(admin: Admin, filled: str) -> None:
    assert admin.delete_records(filled, {0: 4, 1: -1}) == {0: 4, 1: 10}
    starts = admin.cluster.list_offsets(filled, {0: EARLIEST, 1: EARLIEST})
    assert [starts[index].offset for index in (0, 1)] == [4, 10]
    assert admin.cluster.list_offsets(filled, {0: LATEST})[0].offset == 10
    with pytest.raises(RequestRefused) as refused:
        admin.delete_records(filled, {0: 99})
    assert refused.value.error_code == ErrorCode.offset_out_of_range


def test_groups_are_listed_described_and_deleted(admin: Admin, filled: str, bootstrap: str) -> None:
    group = filled + "-group"
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "client.id": "reader", "enable.auto.commit": False})
    consumer.subscribe([filled])
    read = 0
    while read < 20:
        message = consumer.poll(10)
        assert message is not None
        assert message.error() is None
        read += 1
    consumer.commit(asynchronous=False)
    described = admin.describe_group(group)
    assert (described.state, described.protocol_type, described.protocol) == ("Stable", "consumer", "range")
    (member,) = described.members
    assert (member.client_id, set(member.assignment)) == ("reader", {(filled, 0), (filled, 1)})
    assert [listed.state for listed in admin.list_groups(["Stable"]) if listed.group_id == group] == ["Stable"]
    with pytest.raises(RequestRefused) as refused:
        admin.delete_group(group)
    assert refused.value.error_code == ErrorCode.non_empty_group
    consumer.close()
    assert admin.group_offsets(group) == {
        (filled, 0): CommittedOffset(10, ""),
        (filled, 1): CommittedOffset(10, ""),
    }
    admin.delete_group_offsets(group, filled, [1])
    assert [*admin.group_offsets(group)] == [(filled, 0)]
    assert admin.describe_group(group).state == "Empty"
    admin.delete_group(group)
    assert admin.group_offsets(group) == {}
    assert admin.describe_group(group).state == "Dead"


def fenced(admin: Admin, transactional_id: str) -> tuple[int, int]:
    while True:
        try:
            return admin.fence_producer(transactional_id)
        except RequestRefused as error:
            if error.error_code != ErrorCode.concurrent_transactions:
                raise


def test_transactions_are_listed_described_and_fenced(admin: Admin, filled: str, bootstrap: str) -> None:
    name = filled + "-transaction"
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(filled, b"open", partition=1)
    assert producer.flush(10) == 0
    described = admin.describe_transaction(name)
    assert (described.state, described.partitions, described.timeout_ms) == ("Ongoing", ((filled, 1),), 60_000)
    assert described.start_time_ms > 1_700_000_000_000
    listed = {transaction.transactional_id: transaction for transaction in admin.list_transactions(states=["Ongoing"])}
    assert (listed[name].producer_id, listed[name].state) == (described.producer_id, "Ongoing")
    active = {producer.producer_id: producer for producer in admin.active_producers(filled, 1)}[described.producer_id]
    assert (active.transaction_first_offset, active.producer_epoch) == (10, described.producer_epoch)
    producer_id, epoch = fenced(admin, name)
    assert (producer_id, epoch > described.producer_epoch) == (described.producer_id, True)
    assert admin.describe_transaction(name).partitions == ()
    with pytest.raises(RequestRefused) as refused:
        admin.describe_transaction(name + "-no")
    assert refused.value.error_code == ErrorCode.transactional_id_not_found
