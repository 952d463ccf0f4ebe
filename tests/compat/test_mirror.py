"""The mirror from and to Apache Kafka."""

import re

import pytest
from confluent_kafka import Producer

from benchmarks import kafka
from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.client.transactional import TransactionalProducer
from onceflow.mirror.run import Mirror
from onceflow.mirror.session import Settings
from onceflow.testing import BrokerProcess
from onceflow.wire.codecs import Codec
from tests.mirror.conftest import contents


@pytest.mark.parametrize("from_kafka", [True, False], ids=["from-kafka", "to-kafka"])
def test_records_are_mirrored_once(
    apache_kafka: kafka.KafkaProcess, tools_broker: BrokerProcess, from_kafka: bool
) -> None:
    """Transactions, all codecs, tombstones, headers, log-append time and new partitions."""
    ours, theirs = tools_broker.bootstrap, apache_kafka.bootstrap
    first, second = (theirs, ours) if from_kafka else (ours, theirs)
    prefix = "from-kafka" if from_kafka else "to-kafka"
    topic, stamped = f"{prefix}-visits", f"{prefix}-stamped"
    with Cluster(first) as source, Cluster(second) as target:
        source.create_topic(topic, 2, configs={"cleanup.policy": "compact", "segment.ms": "600000"})
        source.create_topic(stamped, 1, configs={"message.timestamp.type": "LogAppendTime"})
        for codec in Codec:
            producer = Producer({"bootstrap.servers": first, "compression.type": codec.name.lower()})
            for number in range(300):
                name, partition = (topic, number % 2) if number % 3 else (stamped, 0)
                value = None if number % 50 == 0 else b"%d" % number * 20
                producer.produce(name, value, f"{number}", partition, headers=[("codec", codec.name), ("none", None)])
            assert producer.flush(60) == 0
        write_transactions(first, topic)
        mirror = Mirror(source, target, Settings(prefix, re.compile(rf"{prefix}-.*")))
        mirror.run(lambda: False, once=True)
        Admin(source).create_partitions(topic, 3)
        write_transactions(first, topic, partition=2)
        mirror.run(lambda: False, once=True)
        for name, partition in ((topic, 0), (topic, 1), (topic, 2), (stamped, 0)):
            copied = contents(target, name, partition)
            assert copied == contents(source, name, partition)
            assert copied
        assert Admin(target).describe_topic_configs(topic)["cleanup.policy"].value == "compact"


def write_transactions(bootstrap: str, topic: str, partition: int = 0) -> None:
    with TransactionalProducer(bootstrap, topic) as producer:
        for number in range(4):
            producer.begin()
            producer.send(topic, b"%d" % number, b"transaction", partition=partition)
            producer.flush()
            producer.abort() if number % 2 else producer.commit()
