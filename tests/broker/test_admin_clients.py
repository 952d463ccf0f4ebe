"""The admin clients of librdkafka, kafka-python and aiokafka against a real broker."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPlace
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioResource
from aiokafka.admin.config_resource import ConfigResourceType as AioResourceType
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ElectionType,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

SECONDS = 10


@pytest.fixture
def librdkafka(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def change(name: str, value: str | None, operation: AlterConfigOpType) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=operation)


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated:DeprecationWarning")
def test_librdkafka_configures_a_topic(librdkafka: AdminClient, topic: str) -> None:
    new = NewTopic(topic, 2, 1, config={"retention.ms": "5", "cleanup.policy": "compact"})
    librdkafka.create_topics([new])[topic].result(SECONDS)
    changes = [
        change("retention.ms", "600", AlterConfigOpType.SET),
        change("cleanup.policy", "delete", AlterConfigOpType.APPEND),
    ]
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    librdkafka.incremental_alter_configs([wanted])[wanted].result(SECONDS)
    asked = ConfigResource(ResourceType.TOPIC, topic)
    entries = librdkafka.describe_configs([asked])[asked].result(SECONDS)
    assert {name: entries[name].value for name in ("retention.ms", "cleanup.policy", "segment.ms")} == {
        "retention.ms": "600",
        "cleanup.policy": "compact,delete",
        "segment.ms": "604800000",
    }
    assert entries["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert entries["segment.ms"].source == ConfigSource.DEFAULT_CONFIG.value
    assert [*entries["max.message.bytes"].synonyms] == ["message.max.bytes"]
    replaced = ConfigResource(ResourceType.TOPIC, topic, set_config={"segment.ms": "70"})
    librdkafka.alter_configs([replaced])[replaced].result(SECONDS)
    entries = librdkafka.describe_configs([asked])[asked].result(SECONDS)
    assert (entries["segment.ms"].value, entries["retention.ms"].value) == ("70", "604800000")


def test_librdkafka_adds_partitions_and_describes(librdkafka: AdminClient, topic: str) -> None:
    librdkafka.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS)
    librdkafka.create_partitions([NewPartitions(topic, 3)])[topic].result(SECONDS)
    assert len(librdkafka.list_topics(topic).topics[topic].partitions) == 3
    with pytest.raises(KafkaException, match="INVALID_PARTITIONS"):
        librdkafka.create_partitions([NewPartitions(topic, 3)])[topic].result(SECONDS)
    described = librdkafka.describe_topics(TopicCollection([topic]), include_authorized_operations=True)
    entries = described[topic].result(SECONDS)
    assert (len(entries.partitions), len(entries.authorized_operations), entries.is_internal) == (3, 8, False)
    cluster = librdkafka.describe_cluster(include_authorized_operations=True).result(SECONDS)
    assert (len(cluster.nodes), len(cluster.authorized_operations)) == (1, 7)
    broker = ConfigResource(ResourceType.BROKER, "1")
    assert librdkafka.describe_configs([broker])[broker].result(SECONDS)["num.partitions"].is_read_only
    partition = TopicPartition(topic, 0)
    elected = librdkafka.elect_leaders(ElectionType.PREFERRED, [partition]).result(SECONDS)
    assert elected[partition].name() == "ELECTION_NOT_NEEDED"


@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
def test_kafka_python_administers(bootstrap: str, topic: str) -> None:
    from kafka import KafkaAdminClient
    from kafka.admin import ConfigResource as PythonResource
    from kafka.admin import ConfigResourceType as PythonResourceType
    from kafka.admin import NewPartitions as PythonNewPartitions
    from kafka.admin import NewTopic as PythonNewTopic

    kafka_python = KafkaAdminClient(bootstrap_servers=bootstrap)
    kafka_python.create_topics([PythonNewTopic(topic, 1, 1, topic_configs={"retention.ms": "5"})])
    kafka_python.create_partitions({topic: PythonNewPartitions(4)})
    assert len(kafka_python.describe_topics([topic])[0]["partitions"]) == 4
    resource = PythonResource(PythonResourceType.TOPIC, topic, configs={"segment.ms": "70"})
    kafka_python.alter_configs([resource])
    asked = PythonResource(PythonResourceType.TOPIC, topic)
    described = kafka_python.describe_configs([asked], config_filter="all")
    (entries,) = (listed for kind in described.values() for listed in kind.values())
    values = {name: entry["value"] for name, entry in entries.items()}
    assert (values["segment.ms"], values["cleanup.policy"]) == ("70", "delete")
    cluster = kafka_python.describe_cluster()
    assert len(cluster["brokers"]) == 1
    directories = kafka_python.describe_log_dirs()
    assert topic in str(directories)
    kafka_python.delete_topics([topic])
    assert topic not in kafka_python.list_topics()
    kafka_python.close()


def test_aiokafka_administers(bootstrap: str, topic: str) -> None:
    async def administer() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            await admin.create_topics([AioNewTopic(topic, 1, 1, topic_configs={"retention.ms": "5"})])
            await admin.create_partitions({topic: AioNewPartitions(2)})
            (described,) = await admin.describe_topics([topic])
            assert len(described["partitions"]) == 2
            await admin.alter_configs([AioResource(AioResourceType.TOPIC, topic, configs={"segment.ms": "70"})])
            (response,) = await admin.describe_configs([AioResource(AioResourceType.TOPIC, topic)])
            values = {entry[0]: entry[1] for entry in response.resources[0][4]}
            assert (values["segment.ms"], values["retention.ms"]) == ("70", "604800000")
            await admin.describe_cluster()
            await admin.delete_topics([topic])
        finally:
            await admin.close()

    asyncio.run(administer())


@contextmanager
def joined(bootstrap: str, group: str) -> Iterator[None]:
    """A member of `group` holds the two partitions of a topic of the same name."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(group, 2, 1)])[group].result(SECONDS)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "client.id": "member"})
    consumer.subscribe([group])
    deadline = time.monotonic() + SECONDS
    while len(consumer.assignment()) < 2:
        assert time.monotonic() < deadline
        consumer.poll(0.02)
    try:
        yield
    finally:
        consumer.close()


def test_librdkafka_administers_a_group(librdkafka: AdminClient, bootstrap: str, topic: str) -> None:
    """Nothing can be changed while the group has a member; then its offsets are altered and the group is deleted."""
    wanted = [TopicPartition(topic, 0, 3, "three"), TopicPartition(topic, 1, 5)]

    def altered() -> list[int | None]:
        asked = ConsumerGroupTopicPartitions(topic, wanted)
        altered = librdkafka.alter_consumer_group_offsets([asked])[topic].result(SECONDS)
        return [partition.error and partition.error.code() for partition in altered.topic_partitions]

    def offsets() -> list[tuple[int, int, str | None]]:
        listed = librdkafka.list_consumer_group_offsets([ConsumerGroupTopicPartitions(topic)])[topic].result(SECONDS)
        return sorted(
            (partition.partition, partition.offset, partition.metadata) for partition in listed.topic_partitions
        )

    def state() -> ConsumerGroupState:
        return librdkafka.describe_consumer_groups([topic])[topic].result(SECONDS).state

    def listed(*states: ConsumerGroupState) -> bool:
        return topic in {group.group_id for group in librdkafka.list_consumer_groups(states={*states}).result().valid}

    with joined(bootstrap, topic):
        described = librdkafka.describe_consumer_groups([topic])[topic].result(SECONDS)
        (member,) = described.members
        assert (described.state, described.partition_assignor) == (ConsumerGroupState.STABLE, "range")
        assert (member.client_id, len(member.assignment.topic_partitions)) == ("member", 2)
        assert altered() == [KafkaError.UNKNOWN_MEMBER_ID] * 2
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            librdkafka.delete_consumer_groups([topic])[topic].result(SECONDS)
        assert listed(ConsumerGroupState.STABLE) and not listed(ConsumerGroupState.EMPTY)
    assert altered() == [None, None]
    assert offsets() == [(0, 3, "three"), (1, 5, None)]
    assert listed(ConsumerGroupState.EMPTY) and not listed(ConsumerGroupState.STABLE)
    assert state() == ConsumerGroupState.EMPTY
    librdkafka.delete_consumer_groups([topic])[topic].result(SECONDS)
    assert not listed()
    assert (offsets(), state()) == ([], ConsumerGroupState.DEAD)


@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
def test_kafka_python_administers_a_group(bootstrap: str, topic: str) -> None:
    """A member is removed; offsets are altered, reset and deleted, and then the group is."""
    from kafka import KafkaAdminClient
    from kafka.admin import MemberToRemove, OffsetSpec
    from kafka.errors import NoError, NonEmptyGroupError, UnknownMemberIdError
    from kafka.structs import OffsetAndMetadata
    from kafka.structs import TopicPartition as Place

    first, second = Place(topic, 0), Place(topic, 1)
    wanted = {first: OffsetAndMetadata(3, "three", -1), second: OffsetAndMetadata(5, "", -1)}
    kafka_python = KafkaAdminClient(bootstrap_servers=bootstrap)

    def listed(state: str) -> bool:
        return topic in {group["group_id"] for group in kafka_python.list_groups(states_filter=[state])}

    with joined(bootstrap, topic):
        described = kafka_python.describe_groups([topic])[topic]
        (member,) = described["members"]
        assert (described["group_state"], described["protocol_data"], member["client_id"]) == (
            "Stable",
            "range",
            "member",
        )
        assert listed("Stable") and not listed("Empty")
        assert {*kafka_python.alter_group_offsets(topic, wanted).values()} == {UnknownMemberIdError}
        assert kafka_python.delete_groups([topic]) == {topic: NonEmptyGroupError.__name__}
        removed = kafka_python.remove_group_members(topic, [MemberToRemove(member["member_id"], reason="to see it")])
        assert removed == {member["member_id"]: NoError}
        assert kafka_python.describe_groups([topic])[topic]["group_state"] == "Empty"
    assert kafka_python.alter_group_offsets(topic, wanted) == {first: NoError, second: NoError}
    assert kafka_python.list_group_offsets(topic) == {topic: wanted}
    kafka_python.reset_group_offsets(topic, {first: OffsetSpec.EARLIEST})
    assert kafka_python.list_group_offsets({topic: [first]})[topic][first].offset == 0
    assert kafka_python.delete_group_offsets(topic, [first]) == {first: NoError}
    assert kafka_python.list_group_offsets(topic) == {topic: {second: wanted[second]}}
    assert listed("Empty") and not listed("Stable")
    assert kafka_python.delete_groups([topic]) == {topic: "OK"}
    assert not listed("Empty")
    assert kafka_python.list_group_offsets(topic) == {topic: {}}
    kafka_python.close()


def test_aiokafka_sees_a_group_and_deletes_records(bootstrap: str, topic: str) -> None:
    """It describes and lists groups and their offsets; it has no call to alter or delete them."""
    place = AioPlace(topic, 0)

    async def commit() -> None:
        # Its own commits, also at its stop, would restore the offset here, without the metadata.
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=topic, enable_auto_commit=False)
        await consumer.start()
        consumer.assign([place])
        await consumer.commit({place: (3, "three")})
        await consumer.stop()

    async def administer() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            with joined(bootstrap, topic):
                (response,) = await admin.describe_consumer_groups([topic])
                (_error, group, state, kind, _protocol, members, *_rest) = response.groups[0]
                assert (group, state, kind, len(members)) == (topic, "Stable", "consumer", 1)
                assert (topic, "consumer") in await admin.list_consumer_groups()
                assert await admin.find_coordinator(topic) == 1
            await commit()
            assert await admin.list_consumer_group_offsets(topic) == {place: (3, "three")}
            (response,) = await admin.describe_consumer_groups([topic])
            assert (response.groups[0][2], response.groups[0][5]) == ("Empty", [])
            producer = Producer({"bootstrap.servers": bootstrap})
            for _ in range(3):
                producer.produce(topic, b"value", partition=0)
            assert producer.flush(SECONDS) == 0
            assert await admin.delete_records({place: RecordsToDelete(before_offset=2)}) == {place: 2}
        finally:
            await admin.close()

    asyncio.run(administer())
