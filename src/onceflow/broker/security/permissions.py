"""The one table of permissions: API → the operations on resources that a client needs for it.

Dispatch checks the rows of whole requests; handlers check the others, each topic, group and transactional id for
itself. docs/acls.md is written from the table, and tests compare it with what handlers ask. The source is Kafka's
KafkaApis and ControllerApis.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from onceflow.wire import apis
from onceflow.wire.acls import AclOperation, ResourceType

_CLUSTER, _GROUP, _TOPIC = ResourceType.CLUSTER, ResourceType.GROUP, ResourceType.TOPIC
_TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID


@dataclass(frozen=True, slots=True)
class Permission:
    """An operation on a resource, and what it is needed for."""

    operation: AclOperation
    resource_type: ResourceType
    needed_for: str
    is_whole: bool = False
    """Whether the request as a whole is refused without it; one such row of several suffices."""


def _whole(operation: AclOperation) -> Permission:
    return Permission(operation, _CLUSTER, "the whole request", is_whole=True)


def _group_member() -> tuple[Permission, ...]:
    return (Permission(AclOperation.READ, _GROUP, "the request"),)


_CONFIGS = "each broker"
_ALTER_CONFIGS = (
    Permission(AclOperation.ALTER_CONFIGS, _TOPIC, "each topic"),
    Permission(AclOperation.ALTER_CONFIGS, _CLUSTER, _CONFIGS),
)

PERMISSIONS: Mapping[int, tuple[Permission, ...]] = MappingProxyType(
    {
        apis.PRODUCE: (
            Permission(AclOperation.WRITE, _TOPIC, "each topic"),
            Permission(AclOperation.WRITE, _TRANSACTIONAL_ID, "transactional batches"),
        ),
        apis.FETCH: (
            Permission(AclOperation.READ, _TOPIC, "each topic"),
            Permission(AclOperation.CLUSTER_ACTION, _CLUSTER, "a follower's fetch, instead of Read"),
        ),
        apis.LIST_OFFSETS: (Permission(AclOperation.DESCRIBE, _TOPIC, "each topic"),),
        apis.METADATA: (
            Permission(AclOperation.DESCRIBE, _TOPIC, "each topic; a list of all topics leaves out the others"),
            Permission(AclOperation.CREATE, _CLUSTER, "automatic creation of a topic"),
            Permission(AclOperation.CREATE, _TOPIC, "the same, for one topic"),
            Permission(AclOperation.DESCRIBE, _CLUSTER, "the authorized operations on the cluster"),
        ),
        apis.OFFSET_COMMIT: (
            Permission(AclOperation.READ, _GROUP, "the request"),
            Permission(AclOperation.READ, _TOPIC, "each topic"),
        ),
        apis.OFFSET_FETCH: (
            Permission(AclOperation.DESCRIBE, _GROUP, "each group"),
            Permission(AclOperation.DESCRIBE, _TOPIC, "each topic; a list of all offsets leaves out the others"),
        ),
        apis.FIND_COORDINATOR: (
            Permission(AclOperation.DESCRIBE, _GROUP, "each group"),
            Permission(AclOperation.DESCRIBE, _TRANSACTIONAL_ID, "each transactional id"),
        ),
        apis.JOIN_GROUP: _group_member(),
        apis.HEARTBEAT: _group_member(),
        apis.LEAVE_GROUP: _group_member(),
        apis.SYNC_GROUP: _group_member(),
        apis.DESCRIBE_GROUPS: (Permission(AclOperation.DESCRIBE, _GROUP, "each group"),),
        apis.LIST_GROUPS: (
            Permission(AclOperation.DESCRIBE, _CLUSTER, "all groups"),
            Permission(AclOperation.DESCRIBE, _GROUP, "each group; the list leaves out the others"),
        ),
        apis.SASL_HANDSHAKE: (),
        apis.API_VERSIONS: (),
        apis.CREATE_TOPICS: (
            Permission(AclOperation.CREATE, _CLUSTER, "all topics"),
            Permission(AclOperation.CREATE, _TOPIC, "each topic"),
            Permission(AclOperation.DESCRIBE_CONFIGS, _TOPIC, "partitions and configs in the response"),
        ),
        apis.DELETE_TOPICS: (
            Permission(AclOperation.DELETE, _CLUSTER, "all topics"),
            Permission(AclOperation.DELETE, _TOPIC, "each topic"),
            Permission(AclOperation.DESCRIBE, _TOPIC, "the name of a topic that was given by its id"),
        ),
        apis.DELETE_RECORDS: (Permission(AclOperation.DELETE, _TOPIC, "each topic"),),
        apis.INIT_PRODUCER_ID: (
            Permission(AclOperation.WRITE, _TRANSACTIONAL_ID, "a transactional producer"),
            Permission(AclOperation.IDEMPOTENT_WRITE, _CLUSTER, "an idempotent producer"),
            Permission(AclOperation.WRITE, _TOPIC, "the same, on at least one topic"),
        ),
        apis.OFFSET_FOR_LEADER_EPOCH: (
            Permission(AclOperation.CLUSTER_ACTION, _CLUSTER, "all topics"),
            Permission(AclOperation.DESCRIBE, _TOPIC, "each topic"),
        ),
        apis.ADD_PARTITIONS_TO_TXN: (
            Permission(AclOperation.WRITE, _TRANSACTIONAL_ID, "the request"),
            Permission(AclOperation.WRITE, _TOPIC, "each topic"),
        ),
        apis.ADD_OFFSETS_TO_TXN: (
            Permission(AclOperation.WRITE, _TRANSACTIONAL_ID, "the request"),
            Permission(AclOperation.READ, _GROUP, "the request"),
        ),
        apis.END_TXN: (Permission(AclOperation.WRITE, _TRANSACTIONAL_ID, "the request"),),
        apis.WRITE_TXN_MARKERS: (_whole(AclOperation.ALTER), _whole(AclOperation.CLUSTER_ACTION)),
        apis.TXN_OFFSET_COMMIT: (
            Permission(AclOperation.WRITE, _TRANSACTIONAL_ID, "the request"),
            Permission(AclOperation.READ, _GROUP, "the request"),
            Permission(AclOperation.READ, _TOPIC, "each topic"),
        ),
        apis.DESCRIBE_ACLS: (_whole(AclOperation.DESCRIBE),),
        apis.CREATE_ACLS: (_whole(AclOperation.ALTER),),
        apis.DELETE_ACLS: (_whole(AclOperation.ALTER),),
        apis.DESCRIBE_CONFIGS: (
            Permission(AclOperation.DESCRIBE_CONFIGS, _TOPIC, "each topic"),
            Permission(AclOperation.DESCRIBE_CONFIGS, _CLUSTER, _CONFIGS),
        ),
        apis.ALTER_CONFIGS: _ALTER_CONFIGS,
        apis.DESCRIBE_LOG_DIRS: (_whole(AclOperation.DESCRIBE),),
        apis.SASL_AUTHENTICATE: (),
        apis.CREATE_PARTITIONS: (Permission(AclOperation.ALTER, _TOPIC, "each topic"),),
        apis.DELETE_GROUPS: (Permission(AclOperation.DELETE, _GROUP, "each group"),),
        apis.ELECT_LEADERS: (_whole(AclOperation.ALTER),),
        apis.INCREMENTAL_ALTER_CONFIGS: _ALTER_CONFIGS,
        apis.LIST_PARTITION_REASSIGNMENTS: (_whole(AclOperation.DESCRIBE),),
        apis.OFFSET_DELETE: (
            Permission(AclOperation.DELETE, _GROUP, "the request"),
            Permission(AclOperation.READ, _TOPIC, "each topic"),
        ),
        apis.DESCRIBE_CLIENT_QUOTAS: (_whole(AclOperation.DESCRIBE_CONFIGS),),
        apis.ALTER_CLIENT_QUOTAS: (_whole(AclOperation.ALTER_CONFIGS),),
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS: (_whole(AclOperation.DESCRIBE),),
        apis.ALTER_USER_SCRAM_CREDENTIALS: (_whole(AclOperation.ALTER),),
        apis.DESCRIBE_CLUSTER: (
            Permission(AclOperation.DESCRIBE, _CLUSTER, "the authorized operations on the cluster"),
        ),
        apis.DESCRIBE_PRODUCERS: (Permission(AclOperation.READ, _TOPIC, "each topic"),),
        apis.DESCRIBE_TRANSACTIONS: (
            Permission(AclOperation.DESCRIBE, _TRANSACTIONAL_ID, "each transactional id"),
            Permission(AclOperation.DESCRIBE, _TOPIC, "each topic; the list of partitions leaves out the others"),
        ),
        apis.LIST_TRANSACTIONS: (
            Permission(
                AclOperation.DESCRIBE, _TRANSACTIONAL_ID, "each transactional id; the list leaves out the others"
            ),
        ),
    }
)

INTER_BROKER_PERMISSIONS: Mapping[int, tuple[Permission, ...]] = MappingProxyType(
    dict.fromkeys(apis.INTER_BROKER_APIS, (_whole(AclOperation.CLUSTER_ACTION),))
)
"""Those of the requests between the brokers of a cluster."""

WHOLE_REQUESTS: Mapping[int, tuple[AclOperation, ...]] = MappingProxyType(
    {
        api_key: tuple(row.operation for row in rows)
        for api_key, rows in (*PERMISSIONS.items(), *INTER_BROKER_PERMISSIONS.items())
        if rows and all(row.is_whole for row in rows)
    }
    | {apis.ALTER_PARTITION_REASSIGNMENTS: (AclOperation.ALTER,)}
)
"""API → operations on the cluster, of which a client needs one for any such request."""
