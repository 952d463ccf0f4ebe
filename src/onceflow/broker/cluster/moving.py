"""The move of a broker's topics, ACLs, users and quotas from its own log to ZooKeeper.

That is at its first start in a cluster. They are written as any other change; then the caller deletes the log. A crash
before that repeats the move, which leaves out what ZooKeeper has. The partitions stay where they are, with this broker
as their one replica, those of `__consumer_offsets` and `__transaction_state` too. A reassignment can add replicas.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path

from onceflow.broker.cluster.metadata import RegistryMetadata
from onceflow.broker.topics.records import (
    AclRecord,
    ClientQuotaRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
    UserScramRecord,
)
from onceflow.broker.topics.security_state import SecurityState
from onceflow.broker.topics.topics import Topic, Topics
from onceflow.log.errors import DataDirectoryRefused
from onceflow.remedies import Remedy


def check_move(
    path: Path, own: Topics, own_security: SecurityState, present: Topics, metadata: RegistryMetadata
) -> None:
    """Raise DataDirectoryRefused if the state of the data directory `path` cannot be moved to this cluster."""
    reason = None
    conflicts = [name for name, topic in own.by_name.items() if _is_another(present.by_name.get(name), topic)]
    if not metadata.is_controller:
        reason = "another broker is the cluster's controller"
    elif conflicts:
        reason = f"the cluster has another topic {conflicts[0]}"
    elif own_security.acls.by_id and not metadata.has_acls:
        reason = "its ACLs need authorizer.class.name"
    if reason is not None:
        raise DataDirectoryRefused(
            f"{path} has the topics of a broker without ZooKeeper: {reason}; {Remedy.OTHER_DATA}"
        )


def _is_another(present: Topic | None, own: Topic) -> bool:
    return present is not None and present.topic_id != own.topic_id


def move(
    broker_id: int,
    own: Topics,
    own_security: SecurityState,
    present: Topics,
    security: SecurityState,
    metadata: RegistryMetadata,
) -> None:
    """Write to ZooKeeper what it does not have yet. Blocks. Raises LogError, Superseded, RegistrationRefused."""
    for topic in list(own.by_name.values()):
        if topic.topic_id not in present.by_id:
            metadata.record(list(_topic_records(topic, broker_id)))
            metadata.sync()
    for record in _security_records(own_security, security):
        metadata.record([record])
        metadata.sync()
    metadata.skip_producer_ids(own.next_producer_id)


def _topic_records(topic: Topic, broker_id: int) -> Iterator[MetadataRecord]:
    yield TopicRecord(topic.name, topic.topic_id)
    for name, value in topic.configs.items():
        yield ConfigRecord(topic.name, name, value)
    for index in range(topic.partition_count):
        yield PartitionRecord(index, topic.topic_id, broker_id, (broker_id,))


def _security_records(own: SecurityState, present: SecurityState) -> Iterator[MetadataRecord]:
    bindings = set(present.acls.by_id.values())
    for binding in list(own.acls.by_id.values()):
        if binding not in bindings:
            yield AclRecord(uuid.uuid4(), binding)
    for key, credential in own.credentials.by_key.items():
        if present.credentials.by_key.get(key) != credential:
            yield UserScramRecord(key, credential)
    for entity, quotas in own.quotas.by_entity.items():
        for name, value in quotas.items():
            if present.quotas.by_entity.get(entity, {}).get(name) != value:
                yield ClientQuotaRecord(entity, name, value)
