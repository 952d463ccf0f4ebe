"""Error codes that each API of a healthy broker may return, for any request.

Codes of the broker's own failures are not among them (UNKNOWN_SERVER_ERROR, KAFKA_STORAGE_ERROR,
COORDINATOR_NOT_AVAILABLE): a request alone causes none.
"""

from collections.abc import Mapping

from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode

_ABSENT = "unknown_topic_or_partition invalid_topic_exception"
_GROUP = "invalid_group_id unknown_member_id illegal_generation fenced_instance_id rebalance_in_progress"
_TRANSACTION = (
    "invalid_producer_id_mapping invalid_producer_epoch producer_fenced invalid_txn_state concurrent_transactions"
    " invalid_request"
)
_EPOCH = "unknown_leader_epoch fenced_leader_epoch"

_NAMES = {
    apis.PRODUCE: f"{_ABSENT} {_TRANSACTION} invalid_record corrupt_message invalid_timestamp invalid_required_acks"
    " message_too_large record_list_too_large unsupported_compression_type out_of_order_sequence_number"
    " transactional_id_authorization_failed unsupported_for_message_format",
    apis.FETCH: f"{_ABSENT} {_EPOCH} offset_out_of_range not_leader_or_follower fetch_session_id_not_found",
    apis.LIST_OFFSETS: f"{_ABSENT} {_EPOCH} invalid_request unsupported_version",
    apis.METADATA: f"{_ABSENT} unknown_topic_id invalid_request leader_not_available",
    apis.OFFSET_COMMIT: f"{_ABSENT} {_GROUP} offset_metadata_too_large",
    apis.OFFSET_FETCH: f"{_ABSENT} {_GROUP} unstable_offset_commit",
    apis.FIND_COORDINATOR: "invalid_request",
    apis.JOIN_GROUP: f"{_GROUP} invalid_session_timeout inconsistent_group_protocol member_id_required",
    apis.HEARTBEAT: _GROUP,
    apis.LEAVE_GROUP: _GROUP,
    apis.SYNC_GROUP: f"{_GROUP} inconsistent_group_protocol",
    apis.DESCRIBE_GROUPS: "group_id_not_found invalid_group_id",
    apis.LIST_GROUPS: "",
    apis.SASL_HANDSHAKE: "illegal_sasl_state",
    apis.API_VERSIONS: "unsupported_version invalid_request",
    apis.CREATE_TOPICS: "invalid_topic_exception topic_already_exists invalid_config invalid_request invalid_partitions"
    " invalid_replication_factor invalid_replica_assignment",
    apis.DELETE_TOPICS: f"{_ABSENT} unknown_topic_id invalid_request",
    apis.DELETE_RECORDS: f"{_ABSENT} offset_out_of_range",
    apis.INIT_PRODUCER_ID: f"{_TRANSACTION} invalid_transaction_timeout",
    apis.OFFSET_FOR_LEADER_EPOCH: f"{_ABSENT} {_EPOCH}",
    apis.ADD_PARTITIONS_TO_TXN: f"{_ABSENT} {_TRANSACTION} operation_not_attempted topic_authorization_failed",
    apis.ADD_OFFSETS_TO_TXN: f"{_TRANSACTION} invalid_group_id",
    apis.END_TXN: _TRANSACTION,
    apis.WRITE_TXN_MARKERS: f"{_ABSENT} invalid_producer_epoch transaction_coordinator_fenced",
    apis.TXN_OFFSET_COMMIT: f"{_ABSENT} {_TRANSACTION} {_GROUP} offset_metadata_too_large",
    apis.DESCRIBE_ACLS: "security_disabled",
    apis.CREATE_ACLS: "security_disabled",
    apis.DELETE_ACLS: "security_disabled",
    apis.DESCRIBE_CONFIGS: f"{_ABSENT} invalid_request",
    apis.ALTER_CONFIGS: f"{_ABSENT} invalid_request invalid_config",
    apis.DESCRIBE_LOG_DIRS: "",
    apis.SASL_AUTHENTICATE: "illegal_sasl_state",
    apis.CREATE_PARTITIONS: f"{_ABSENT} invalid_partitions invalid_replica_assignment invalid_request",
    apis.DELETE_GROUPS: "group_id_not_found invalid_group_id non_empty_group",
    apis.ELECT_LEADERS: f"{_ABSENT} invalid_request election_not_needed",
    apis.INCREMENTAL_ALTER_CONFIGS: f"{_ABSENT} invalid_request invalid_config",
    apis.LIST_PARTITION_REASSIGNMENTS: "",
    apis.OFFSET_DELETE: f"{_ABSENT} group_id_not_found invalid_group_id non_empty_group group_subscribed_to_topic",
    apis.DESCRIBE_CLIENT_QUOTAS: "invalid_request unsupported_version",
    apis.ALTER_CLIENT_QUOTAS: "invalid_request",
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: "resource_not_found duplicate_resource",
    apis.ALTER_USER_SCRAM_CREDENTIALS: "unacceptable_credential unsupported_sasl_mechanism duplicate_resource"
    " resource_not_found",
    apis.DESCRIBE_CLUSTER: "unsupported_endpoint_type mismatched_endpoint_type",
    apis.DESCRIBE_PRODUCERS: f"{_ABSENT} not_leader_or_follower",
    apis.DESCRIBE_TRANSACTIONS: "transactional_id_not_found invalid_request",
    apis.LIST_TRANSACTIONS: "",
}

CODES: Mapping[int, frozenset[ErrorCode]] = {
    key: frozenset(ErrorCode[name] for name in ("none", *names.split())) for key, names in _NAMES.items()
}
