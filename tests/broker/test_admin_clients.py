"""The admin clients of librdkafka, kafka-python and aiokafka against a real broker."""

import asyncio

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioResource
from aiokafka.admin.config_resource import ConfigResourceType as AioResourceType
from confluent_kafka import ElectionType, KafkaException, TopicCollection, TopicPartition
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
    found = described[topic].result(SECONDS)
    assert (len(found.partitions), len(found.authorized_operations), found.is_internal) == (3, 8, False)
    cluster = librdkafka.describe_cluster(include_authorized_operations=True).result(SECONDS)
    assert (len(cluster.nodes), len(cluster.authorized_operations)) == (1, 7)
    broker = ConfigResource(ResourceType.BROKER, "1")
    assert librdkafka.describe_configs([broker])[broker].result(SECONDS)["num.partitions"].is_read_only
    partition = TopicPartition(topic, 0)
    elected = librdkafka.elect_leaders(ElectionType.PREFERRED, [partition]).result(SECONDS)
    assert elected[partition].name() == "ELECTION_NOT_NEEDED"


@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
def test_kafka_python_administers(bootstrap: str, topic: str) -> None:
    from kafka.admin import ConfigResource as PythonResource
    from kafka.admin import ConfigResourceType as PythonResourceType
    from kafka.admin import NewPartitions as PythonNewPartitions
    from kafka.admin import NewTopic as PythonNewTopic

    from kafka import KafkaAdminClient

    kafka_python = KafkaAdminClient(bootstrap_servers=bootstrap)
    kafka_python.create_topics([PythonNewTopic(topic, 1, 1, topic_configs={"retention.ms": "5"})])
    kafka_python.create_partitions({topic: PythonNewPartitions(4)})
    assert len(kafka_python.describe_topics([topic])[0]["partitions"]) == 4
    resource = PythonResource(PythonResourceType.TOPIC, topic, configs={"segment.ms": "70"})
    kafka_python.alter_configs([resource])
    asked = PythonResource(PythonResourceType.TOPIC, topic)
    described = kafka_python.describe_configs([asked], config_filter="all")
    (entries,) = (found for kind in described.values() for found in kind.values())
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
            (answer,) = await admin.describe_configs([AioResource(AioResourceType.TOPIC, topic)])
            values = {entry[0]: entry[1] for entry in answer.resources[0][4]}
            assert (values["segment.ms"], values["retention.ms"]) == ("70", "604800000")
            await admin.describe_cluster()
            await admin.delete_topics([topic])
        finally:
            await admin.close()

    asyncio.run(administer())
