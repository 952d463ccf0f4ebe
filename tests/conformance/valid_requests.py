"""One valid request of each API, sent in every supported version."""

from collections.abc import Callable, Sequence
from typing import Any

from onceflow.wire import apis
from tests.broker.raw_client import batch_of, milliseconds
from tests.conformance.side import TIMEOUT, Side

Right = Callable[[Side, int], None]


def produce(side: Side, version: int) -> None:
    topic = side.create_topic(2)
    data = [{"index": at, "records": bytes(batch_of(b"a", b"b"))} for at in (0, 1)]
    for _ in range(2):
        side.ask(
            apis.PRODUCE, version, transactional_id=None, acks=-1, timeout=TIMEOUT,
            topic_data=[{"name": topic, "partition_data": data}],
        )  # fmt: skip


def fetch_fields(topic: str, *partitions: tuple[int, int], **fields: Any) -> dict[str, Any]:
    """Return a Fetch of (partition, offset)."""
    asked = [
        {"partition": value, "current_leader_epoch": -1, "fetch_offset": offset, "partition_max_bytes": 1_000_000}
        for value, offset in partitions
    ]
    limits = {"max_wait": milliseconds(0), "min_bytes": 0, "max_bytes": 10_000_000, "forgotten_topics_data": ()}
    return {"topics": [{"topic": topic, "partitions": asked}], **limits, **fields}


def fetch(side: Side, version: int) -> None:
    topic = side.create_topic(2)
    side.client().produce(topic, 0, batch_of(b"a", b"b"))
    side.ask(apis.FETCH, version, **fetch_fields(topic, (0, 0), (1, 0)))
    side.ask(apis.FETCH, version, **fetch_fields(topic, (0, 1), isolation_level=1))


def list_offsets(side: Side, version: int) -> None:
    topic = side.create_topic()
    side.client().produce(topic, 0, batch_of(b"a", b"b"))
    for timestamp in (-1, -2, 1_700_000_000_001):
        asked = {"partition_index": 0, "timestamp": timestamp, "max_num_offsets": 5}
        side.ask(
            apis.LIST_OFFSETS, version, replica_id=-1, isolation_level=0, timeout=TIMEOUT,
            topics=[{"name": topic, "partitions": [asked]}],
        )  # fmt: skip


def metadata(side: Side, version: int) -> None:
    asked = [{"name": side.create_topic(2), "topic_id": None}]
    for flag in (False, True):
        side.ask(
            apis.METADATA, version, topics=asked, allow_auto_topic_creation=False,
            include_topic_authorized_operations=flag, include_cluster_authorized_operations=flag,
        )  # fmt: skip


def commit_fields(group: str, topic: str, offset: int = 3, **fields: Any) -> dict[str, Any]:
    """Return an OffsetCommit of partition 0 from outside any generation; `place` changes the partition's entry."""
    place = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "note"}
    place |= fields.get("place", {})
    given = {name: value for name, value in fields.items() if name != "place"}
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time": milliseconds(-1),
        "topics": [{"name": topic, "partitions": [place]}],
        **given,
    }


def offset_commit(side: Side, version: int) -> None:
    side.ask(apis.OFFSET_COMMIT, version, **commit_fields(side.group, side.create_topic()))


def offset_fetch(side: Side, version: int) -> None:
    topic = side.create_topic(2)
    side.ask_quietly(apis.OFFSET_COMMIT, 8, **commit_fields(side.group, topic))
    topics = [{"name": topic, "partition_indexes": [0, 1]}]
    fields: dict[str, Any] = {"group_id": side.group, "topics": topics, "require_stable": False}
    side.ask(apis.OFFSET_FETCH, version, **fields, groups=[{"group_id": side.group, "topics": topics}])


def find_coordinator(side: Side, version: int) -> None:
    for kind in (0, 1) if version else (0,):
        side.ask(apis.FIND_COORDINATOR, version, key="x", key_type=kind, coordinator_keys=["x", "y"])


def join_fields(group: str, member_id: str = "", **fields: Any) -> dict[str, Any]:
    """Return a JoinGroup."""
    return {
        "group_id": group,
        "session_timeout": milliseconds(10_000),
        "rebalance_timeout": milliseconds(10_000),
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"m"}],
        **fields,
    }


def sync_fields(group: str, member_id: str, generation: int = 1, **fields: Any) -> dict[str, Any]:
    """Return a SyncGroup of a leader that assigns everything to itself."""
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": member_id, "assignment": b"mine"}],
        **fields,
    }


def stable_member(side: Side, group: str = "") -> str:
    """Join the one member of the case's group, in generation 1."""
    group = group or side.group
    member_id = side.ask_quietly(apis.JOIN_GROUP, 9, **join_fields(group)).member_id
    assert side.ask_quietly(apis.JOIN_GROUP, 9, **join_fields(group, member_id)).generation_id == 1
    assert side.ask_quietly(apis.SYNC_GROUP, 5, **sync_fields(group, member_id)).error_code == 0
    return str(member_id)


def join_group(side: Side, version: int) -> None:
    required = side.ask(apis.JOIN_GROUP, version, **join_fields(side.group))
    if version >= 4:
        side.ask(apis.JOIN_GROUP, version, **join_fields(side.group, required.member_id))


def sync_group(side: Side, version: int) -> None:
    member_id = side.ask_quietly(apis.JOIN_GROUP, 9, **join_fields(side.group)).member_id
    side.ask_quietly(apis.JOIN_GROUP, 9, **join_fields(side.group, member_id))
    side.ask(apis.SYNC_GROUP, version, **sync_fields(side.group, member_id))


def heartbeat(side: Side, version: int) -> None:
    member_id = stable_member(side)
    side.ask(apis.HEARTBEAT, version, group_id=side.group, generation_id=1, member_id=member_id)


def leave_group(side: Side, version: int) -> None:
    member_id = stable_member(side)
    members = [{"member_id": member_id, "group_instance_id": None}]
    side.ask(apis.LEAVE_GROUP, version, group_id=side.group, member_id=member_id, members=members)


def describe_groups(side: Side, version: int) -> None:
    stable_member(side)
    for flag in (False, True):
        side.ask(apis.DESCRIBE_GROUPS, version, groups=[side.group], include_authorized_operations=flag)


def list_groups(side: Side, version: int) -> None:
    stable_member(side)
    side.ask_about_own(apis.LIST_GROUPS, version, states_filter=(), types_filter=())


def api_versions(side: Side, version: int) -> None:
    side.ask(apis.API_VERSIONS, version, client_software_name="raw", client_software_version="1")


def topic_fields(name: str, **fields: Any) -> dict[str, Any]:
    """Return one topic of a CreateTopics."""
    return {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": (), **fields}


def create_topics(side: Side, version: int) -> None:
    configs = [{"name": "retention.ms", "value": "77"}]
    wanted = [topic_fields(side.topic, configs=configs)]
    for validate_only in (True, False):
        side.ask(apis.CREATE_TOPICS, version, topics=wanted, timeout=TIMEOUT, validate_only=validate_only)


def delete_topics(side: Side, version: int) -> None:
    topic = side.create_topic()
    side.ask(
        apis.DELETE_TOPICS, version, topics=[{"name": topic, "topic_id": None}], topic_names=[topic], timeout=TIMEOUT
    )


def delete_records(side: Side, version: int) -> None:
    topic = side.create_topic()
    side.client().produce(topic, 0, batch_of(b"a", b"b"))
    asked = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 1}]}]
    side.ask(apis.DELETE_RECORDS, version, topics=asked, timeout=TIMEOUT)


def init_producer_id(side: Side, version: int) -> None:
    fields = {"transaction_timeout": milliseconds(60_000), "producer_id": -1, "producer_epoch": -1}
    side.ask(apis.INIT_PRODUCER_ID, version, transactional_id=None, **fields)
    begin(side)
    for _ in range(2):
        side.ask(apis.INIT_PRODUCER_ID, version, transactional_id=side.topic, **fields)


def begin(side: Side, transactional_id: str = "", timeout_ms: int = 60_000) -> dict[str, Any]:
    """Return the fields that identify a transactional producer, from its InitProducerId."""
    transactional_id = transactional_id or side.topic
    fields = {"transaction_timeout": milliseconds(timeout_ms), "producer_id": -1, "producer_epoch": -1}
    response = side.until(
        lambda response: response.error_code == 0,
        apis.INIT_PRODUCER_ID, 4, transactional_id=transactional_id, **fields,
    )  # fmt: skip
    return {
        "transactional_id": transactional_id,
        "producer_id": response.producer_id,
        "producer_epoch": response.producer_epoch,
    }


def adding(who: dict[str, Any], *partitions: tuple[str, int]) -> dict[str, Any]:
    """Return an AddPartitionsToTxn, which has other field names."""
    topics = [{"name": topic, "partitions": [partition]} for topic, partition in partitions]
    return {f"v3_and_below_{name}": value for name, value in {**who, "topics": topics}.items()}


def offset_for_leader_epoch(side: Side, version: int) -> None:
    topic = side.create_topic()
    side.client().produce(topic, 0, batch_of(b"a", b"b"))
    asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    side.ask(apis.OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=[{"topic": topic, "partitions": [asked]}])


def add_partitions_to_txn(side: Side, version: int) -> None:
    topic = side.create_topic(2)
    side.ask(apis.ADD_PARTITIONS_TO_TXN, version, **adding(begin(side), (topic, 0), (topic, 1)))


def add_offsets_to_txn(side: Side, version: int) -> None:
    side.ask(apis.ADD_OFFSETS_TO_TXN, version, **begin(side), group_id=side.group)


def end_txn(side: Side, version: int) -> None:
    topic = side.create_topic()
    for committed in (True, False):
        who = begin(side)
        side.ask_quietly(apis.ADD_PARTITIONS_TO_TXN, 3, **adding(who, (topic, 0)))
        side.ask(apis.END_TXN, version, **who, committed=committed)


def write_txn_markers(side: Side, version: int) -> None:
    topic = side.create_topic()
    who = begin(side)
    side.ask_quietly(apis.ADD_PARTITIONS_TO_TXN, 3, **adding(who, (topic, 0)))
    marker = {
        "producer_id": who["producer_id"],
        "producer_epoch": who["producer_epoch"],
        "transaction_result": False,
        "topics": [{"name": topic, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    side.ask(apis.WRITE_TXN_MARKERS, version, markers=[marker])


def txn_offset_commit(side: Side, version: int) -> None:
    topic = side.create_topic()
    who = begin(side)
    side.ask_quietly(apis.ADD_OFFSETS_TO_TXN, 3, **who, group_id=side.group)
    place = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": 0, "committed_metadata": "m"}
    side.ask(
        apis.TXN_OFFSET_COMMIT, version, **who, group_id=side.group, topics=[{"name": topic, "partitions": [place]}]
    )


TOPIC, BROKER = 2, 4


def describing(kind: int, name: str, *keys: str) -> dict[str, Any]:
    """Describe some configs, or all."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}
    return {"resources": [resource], "include_synonyms": True, "include_documentation": True}


def describe_configs(side: Side, version: int) -> None:
    topic = side.create_topic(retention_ms="77", cleanup_policy="compact,delete")
    side.ask(apis.DESCRIBE_CONFIGS, version, **describing(TOPIC, topic))


def alter_configs(side: Side, version: int) -> None:
    configs = [{"name": "retention.ms", "value": "78"}]
    resource = {"resource_type": TOPIC, "resource_name": side.create_topic(), "configs": configs}
    for validate_only in (True, False):
        side.ask(apis.ALTER_CONFIGS, version, resources=[resource], validate_only=validate_only)


def incremental_alter_configs(side: Side, version: int) -> None:
    configs = [{"name": "retention.ms", "config_operation": 0, "value": "78"}]
    resource = {"resource_type": TOPIC, "resource_name": side.create_topic(), "configs": configs}
    for validate_only in (True, False):
        side.ask(apis.INCREMENTAL_ALTER_CONFIGS, version, resources=[resource], validate_only=validate_only)


def sasl_handshake(side: Side, version: int) -> None:
    side.ask(apis.SASL_HANDSHAKE, version, mechanism="PLAIN")


def sasl_authenticate(side: Side, version: int) -> None:
    side.ask(apis.SASL_AUTHENTICATE, version, auth_bytes=b"\0a\0b")


def scram_credential(user: str, iterations: int = 4096, mechanism: int = 1) -> dict[str, Any]:
    keys = {"salt": b"0123456789abcdef", "salted_password": bytes(range(32))}
    return {"name": user, "mechanism": mechanism, "iterations": iterations, **keys}


def describe_user_scram_credentials(side: Side, version: int) -> None:
    side.ask_quietly(apis.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=(), upsertions=[scram_credential("ada")])
    for names in (["ada"], ["no-such"], ["ada", "ada"]):
        users = [{"name": name} for name in names]
        side.ask(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, version, users=users)
    side.ask(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, version, users=())


def alter_user_scram_credentials(side: Side, version: int) -> None:
    def alter(*upsertions: dict[str, Any], deleted: Sequence[tuple[str, int]] = ()) -> None:
        deletions = [{"name": user, "mechanism": mechanism} for user, mechanism in deleted]
        side.ask(apis.ALTER_USER_SCRAM_CREDENTIALS, version, deletions=deletions, upsertions=upsertions)

    alter(scram_credential("bob", mechanism=2))
    alter(deleted=[("bob", 1)])
    alter(deleted=[("bob", 2)])
    for wrong in (
        scram_credential("bob", 4095),
        scram_credential("bob", 16385),
        scram_credential("bob", mechanism=0),
        scram_credential("bob", mechanism=3),
        scram_credential(""),
    ):
        alter(wrong)
    alter(scram_credential("bob"), scram_credential("bob", mechanism=2))
    alter(scram_credential("bob"), deleted=[("bob", 1)])


def describe_log_dirs(side: Side, version: int) -> None:
    topic = side.create_topic(2)
    side.client().produce(topic, 1, batch_of(b"a" * 100))
    side.ask(apis.DESCRIBE_LOG_DIRS, version, topics=[{"topic": topic, "partitions": (0, 1)}])


def create_partitions(side: Side, version: int) -> None:
    asked = [{"name": side.create_topic(), "count": 3, "assignments": None}]
    for validate_only in (True, False):
        side.ask(apis.CREATE_PARTITIONS, version, topics=asked, timeout=TIMEOUT, validate_only=validate_only)


def delete_groups(side: Side, version: int) -> None:
    side.ask_quietly(apis.OFFSET_COMMIT, 8, **commit_fields(side.group, side.create_topic()))
    side.ask(apis.DELETE_GROUPS, version, groups_names=[side.group])


def elect_leaders(side: Side, version: int) -> None:
    asked = [{"topic": side.create_topic(), "partitions": (0,)}]
    side.ask(apis.ELECT_LEADERS, version, election_type=0, topic_partitions=asked, timeout=TIMEOUT)


def list_partition_reassignments(side: Side, version: int) -> None:
    asked = [{"name": side.create_topic(), "partition_indexes": (0,)}]
    for topics in (None, asked):
        side.ask(apis.LIST_PARTITION_REASSIGNMENTS, version, topics=topics, timeout=TIMEOUT)


def offset_delete(side: Side, version: int) -> None:
    topic = side.create_topic()
    side.ask_quietly(apis.OFFSET_COMMIT, 8, **commit_fields(side.group, topic))
    topics = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    side.ask(apis.OFFSET_DELETE, version, group_id=side.group, topics=topics)


def describe_cluster(side: Side, version: int) -> None:
    for flag in (False, True):
        side.ask(
            apis.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=flag, endpoint_type=1,
            include_fenced_brokers=False,
        )  # fmt: skip


def describe_producers(side: Side, version: int) -> None:
    topic = side.create_topic()
    who = begin(side)
    side.ask_quietly(apis.ADD_PARTITIONS_TO_TXN, 3, **adding(who, (topic, 0)))
    transactional_batch(side, who, topic)
    side.ask(apis.DESCRIBE_PRODUCERS, version, topics=[{"name": topic, "partition_indexes": [0]}])


def transactional_batch(side: Side, who: dict[str, Any], topic: str, sequence: int = 0) -> None:
    """Write one record to partition 0 once Kafka's partition knows the transaction."""
    batch = batch_of(
        b"v", producer_id=who["producer_id"], producer_epoch=who["producer_epoch"], base_sequence=sequence,
        transactional=True,
    )  # fmt: skip
    data = [{"name": topic, "partition_data": [{"index": 0, "records": bytes(batch)}]}]
    side.until(
        lambda response: response.responses[0].partition_responses[0].error_code == 0,
        apis.PRODUCE, 9, transactional_id=who["transactional_id"], acks=-1, timeout=TIMEOUT, topic_data=data,
    )  # fmt: skip


def describe_transactions(side: Side, version: int) -> None:
    topic = side.create_topic()
    who = begin(side)
    side.ask(apis.DESCRIBE_TRANSACTIONS, version, transactional_ids=[side.topic])
    side.ask_quietly(apis.ADD_PARTITIONS_TO_TXN, 3, **adding(who, (topic, 0)))
    side.ask(apis.DESCRIBE_TRANSACTIONS, version, transactional_ids=[side.topic])


def list_transactions(side: Side, version: int) -> None:
    begin(side)
    side.ask_about_own(apis.LIST_TRANSACTIONS, version, state_filters=(), producer_id_filters=(), duration_filter=-1)


def acl_fields(side: Side) -> dict[str, Any]:
    """Return an ACL of CreateAcls."""
    return {
        "resource_type": 2,
        "resource_name": side.topic,
        "resource_pattern_type": 3,
        "principal": "User:ada",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }


def acl_filter(side: Side) -> dict[str, Any]:
    """Return a DescribeAcls, or a filter of DeleteAcls, for the ACLs of the case's topic."""
    return {
        "resource_type_filter": 2,
        "resource_name_filter": side.topic,
        "pattern_type_filter": 1,
        "principal_filter": "User:ada",
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }


def create_acls(side: Side, version: int) -> None:
    for _ in range(2):
        side.ask(apis.CREATE_ACLS, version, creations=[acl_fields(side)])


def quota_entity(side: Side) -> list[dict[str, Any]]:
    """Return a user of the case's own."""
    return [{"entity_type": "user", "entity_name": side.topic}]


def alter_client_quotas(side: Side, version: int) -> None:
    for remove in (False, True):
        ops = [{"key": "producer_byte_rate", "value": 1e12, "remove": remove}]
        entries = [{"entity": quota_entity(side), "ops": ops}]
        for validate_only in (True, False):
            side.ask(apis.ALTER_CLIENT_QUOTAS, version, entries=entries, validate_only=validate_only)


def describe_client_quotas(side: Side, version: int) -> None:
    ops = [{"key": "request_percentage", "value": 1e6, "remove": False}]
    entries = [{"entity": quota_entity(side), "ops": ops}]
    side.ask_quietly(apis.ALTER_CLIENT_QUOTAS, 1, entries=entries, validate_only=False)
    component = {"entity_type": "user", "match_type": 0, "match": side.topic}
    side.until(
        lambda response: response.entries,
        apis.DESCRIBE_CLIENT_QUOTAS, 1, components=[component], strict=True,
    )  # fmt: skip
    side.ask(apis.DESCRIBE_CLIENT_QUOTAS, version, components=[component], strict=True)
    removal = [{"entity": quota_entity(side), "ops": [{**ops[0], "remove": True}]}]
    side.ask_quietly(apis.ALTER_CLIENT_QUOTAS, 1, entries=removal, validate_only=False)


def describe_acls(side: Side, version: int) -> None:
    side.ask_quietly(apis.CREATE_ACLS, 3, creations=[acl_fields(side)])
    side.ask(apis.DESCRIBE_ACLS, version, **acl_filter(side))


def delete_acls(side: Side, version: int) -> None:
    side.ask_quietly(apis.CREATE_ACLS, 3, creations=[acl_fields(side)])
    for _ in range(2):
        side.ask(apis.DELETE_ACLS, version, filters=[acl_filter(side)])


VALID_REQUESTS: dict[int, Right] = {
    apis.PRODUCE: produce,
    apis.FETCH: fetch,
    apis.LIST_OFFSETS: list_offsets,
    apis.METADATA: metadata,
    apis.OFFSET_COMMIT: offset_commit,
    apis.OFFSET_FETCH: offset_fetch,
    apis.FIND_COORDINATOR: find_coordinator,
    apis.JOIN_GROUP: join_group,
    apis.HEARTBEAT: heartbeat,
    apis.LEAVE_GROUP: leave_group,
    apis.SYNC_GROUP: sync_group,
    apis.DESCRIBE_GROUPS: describe_groups,
    apis.LIST_GROUPS: list_groups,
    apis.SASL_HANDSHAKE: sasl_handshake,
    apis.API_VERSIONS: api_versions,
    apis.CREATE_TOPICS: create_topics,
    apis.DELETE_TOPICS: delete_topics,
    apis.DELETE_RECORDS: delete_records,
    apis.INIT_PRODUCER_ID: init_producer_id,
    apis.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
    apis.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    apis.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    apis.END_TXN: end_txn,
    apis.WRITE_TXN_MARKERS: write_txn_markers,
    apis.TXN_OFFSET_COMMIT: txn_offset_commit,
    apis.DESCRIBE_ACLS: describe_acls,
    apis.CREATE_ACLS: create_acls,
    apis.DELETE_ACLS: delete_acls,
    apis.DESCRIBE_CONFIGS: describe_configs,
    apis.ALTER_CONFIGS: alter_configs,
    apis.DESCRIBE_LOG_DIRS: describe_log_dirs,
    apis.SASL_AUTHENTICATE: sasl_authenticate,
    apis.CREATE_PARTITIONS: create_partitions,
    apis.DELETE_GROUPS: delete_groups,
    apis.ELECT_LEADERS: elect_leaders,
    apis.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    apis.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
    apis.OFFSET_DELETE: offset_delete,
    apis.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
    apis.ALTER_CLIENT_QUOTAS: alter_client_quotas,
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_user_scram_credentials,
    apis.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials,
    apis.DESCRIBE_CLUSTER: describe_cluster,
    apis.DESCRIBE_PRODUCERS: describe_producers,
    apis.DESCRIBE_TRANSACTIONS: describe_transactions,
    apis.LIST_TRANSACTIONS: list_transactions,
}
