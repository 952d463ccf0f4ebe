"""Internal topics of a cluster: the partition that has the state of a key, and their creation.

The leader of a partition coordinates the keys in it: groups in `__consumer_offsets`, transactional ids in
`__transaction_state` (GroupMetadataManager.partitionFor, TransactionStateManager.partitionFor).
"""

import sys
from array import array

from onceflow.broker.config import BrokerConfig
from onceflow.broker.topics.topics import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, NewTopic, Topics

_INT32 = 2**32
_INT32_MIN = -(2**31)


def partition_of(key: str, partition_count: int) -> int:
    """Return the partition of a key: Java's hash of the string, its absolute value, modulo the count."""
    if partition_count == 1:
        return 0
    signed = java_hash(key)
    return (0 if signed == _INT32_MIN else abs(signed)) % partition_count


def java_hash(text: str) -> int:
    """Return Java's String.hashCode."""
    units = array("H", text.encode("utf-16-le", "surrogatepass"))
    if sys.byteorder == "big":
        units.byteswap()
    value = 0
    for unit in units:
        value = (31 * value + unit) % _INT32
    return value - _INT32 if value >= -_INT32_MIN else value


def new_internal_topic(name: str, config: BrokerConfig) -> NewTopic:
    """Return an internal topic to create, with Kafka's configurations (AutoTopicCreationManager.creatableTopic)."""
    counts = {
        GROUP_OFFSETS_TOPIC: (config.offsets_topic_partitions, config.offsets_topic_replication_factor),
        TRANSACTION_STATE_TOPIC: (config.transaction_log_partitions, config.transaction_log_replication_factor),
    }
    segment_bytes = {
        GROUP_OFFSETS_TOPIC: config.offsets_topic_segment_bytes,
        TRANSACTION_STATE_TOPIC: config.transaction_log_segment_bytes,
    }
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(segment_bytes[name]),
    }
    if name == TRANSACTION_STATE_TOPIC:
        configs["min.insync.replicas"] = str(config.transaction_log_min_isr)
    return NewTopic(name, *counts[name], configs)


def partition_count_of(name: str, topics: Topics, config: BrokerConfig) -> int:
    """Return the number of partitions of an internal topic, also before it is created."""
    known = topics.by_name.get(name)
    return new_internal_topic(name, config).partition_count if known is None else known.partition_count
