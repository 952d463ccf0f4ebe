"""Administrative requests to any Kafka, except for topics and offsets, which `Cluster` has itself.

    with Cluster("localhost:9092") as cluster:
        admin = Admin(cluster)
        admin.alter_configs("events", set={"retention.ms": "3600000"})

Reads are retried like those of `Cluster`. A change is sent once, since an attempt without a response may have
succeeded. Every method raises ClientError; the docstrings name specific errors.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from onceflow.client import requests
from onceflow.client.admin_responses import (
    ActiveProducer,
    ClusterDescription,
    CommittedOffset,
    ConfigEntry,
    GroupDescription,
    GroupListing,
    TransactionDescription,
    TransactionListing,
    read_acl,
    read_cluster,
    read_configs,
    read_group,
    read_producers,
    read_transaction,
)
from onceflow.client.cluster import Cluster
from onceflow.client.errors import CoordinatorUnavailable, LeaderUnavailable, RequestRefused, UnknownTopic
from onceflow.remedies import Remedy
from onceflow.wire import TopicPartition, apis
from onceflow.wire.acls import AclBinding, AclFilter
from onceflow.wire.errors import ErrorCode, error_name

TOPIC = 2
BROKER = 4
"""Resource types (org.apache.kafka.common.config.ConfigResource.Type)."""
SET, DELETE, APPEND, SUBTRACT = range(4)
"""org.apache.kafka.clients.admin.AlterConfigOp.OpType."""
MIN_INSYNC_REPLICAS = "min.insync.replicas"
DESCRIBED_AT_ONCE = 1000
"""Topics in one DescribeConfigs request."""
ALL_OFFSETS_VERSION_MIN = 2
STATE_FILTER_VERSION = 4
BROKER_ENDPOINT = 1

_COORDINATOR_CODES = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)


class Admin:
    """Administrative requests. Belongs to the cluster's thread and lives as long as the cluster's connections."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._router = cluster.router

    # Configs

    def describe_topic_configs(self, topic: str) -> dict[str, ConfigEntry]:
        """Return the topic's configs by name, with the source of each value. Raises UnknownTopic."""
        return self._describe_configs(TOPIC, topic, None)

    def describe_broker_configs(self, broker_id: int) -> dict[str, ConfigEntry]:
        """Return a broker's settings by name."""
        return self._describe_configs(BROKER, str(broker_id), broker_id)

    def _describe_configs(self, kind: int, name: str, broker_id: int | None) -> dict[str, ConfigEntry]:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        build = requests.message(
            apis.DESCRIBE_CONFIGS, resources=[resource], include_synonyms=True, include_documentation=True
        )

        def attempt() -> dict[str, ConfigEntry]:
            if broker_id is None:
                response = self._router.ask_any(apis.DESCRIBE_CONFIGS, build)
            else:
                response = self._router.ask_broker(broker_id, apis.DESCRIBE_CONFIGS, build)
            (result,) = response.results
            _check(f"the configs of {_resource(kind, name)} are not available", result.error_code, result.error_message)
            return read_configs(result.configs)

        return self._router.retry(attempt)

    def min_insync_replicas(self, topics: Iterable[str]) -> dict[str, int]:
        """Return min.insync.replicas of each topic; topics that do not exist are left out."""
        names = list(topics)
        values: dict[str, int] = {}
        for first in range(0, len(names), DESCRIBED_AT_ONCE):
            values |= self._min_insync_replicas(names[first : first + DESCRIBED_AT_ONCE])
        return values

    def _min_insync_replicas(self, names: Iterable[str]) -> dict[str, int]:
        resources = [
            {"resource_type": TOPIC, "resource_name": name, "configuration_keys": [MIN_INSYNC_REPLICAS]}
            for name in names
        ]
        build = requests.message(
            apis.DESCRIBE_CONFIGS, resources=resources, include_synonyms=False, include_documentation=False
        )

        def attempt() -> dict[str, int]:
            values = {}
            for result in self._router.ask_any(apis.DESCRIBE_CONFIGS, build).results:
                if result.error_code != ErrorCode.unknown_topic_or_partition:
                    failure = f"the configs of topic '{result.resource_name}' are not available"
                    _check(failure, result.error_code, result.error_message)
                    values[result.resource_name] = int(read_configs(result.configs)[MIN_INSYNC_REPLICAS].value or 1)
            return values

        return self._router.retry(attempt)

    def alter_topic_configs(
        self,
        topic: str,
        *,
        set: Mapping[str, str] | None = None,
        delete: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change some configs of a topic and keep the others; all changes are applied, or none.

        `append` and `subtract` change lists such as cleanup.policy. Raises UnknownTopic, RequestRefused.
        """
        operations = [(name, SET, value) for name, value in (set or {}).items()]
        operations += [(name, APPEND, value) for name, value in (append or {}).items()]
        operations += [(name, SUBTRACT, value) for name, value in (subtract or {}).items()]
        configs: list[Mapping[str, Any]] = [
            {"name": name, "config_operation": operation, "value": value} for name, operation, value in operations
        ]
        configs += [{"name": name, "config_operation": DELETE, "value": None} for name in delete]
        resource = {"resource_type": TOPIC, "resource_name": topic, "configs": configs}
        build = requests.message(apis.INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=validate_only)
        (result,) = self._router.ask_controller(apis.INCREMENTAL_ALTER_CONFIGS, build).responses
        _check(f"the configs of topic '{topic}' were not changed", result.error_code, result.error_message)

    # Topics and records

    def create_partitions(self, topic: str, partitions: int, *, validate_only: bool = False) -> None:
        """Increase the topic's number of partitions to `partitions`. Raises UnknownTopic, RequestRefused."""
        build = requests.message(
            apis.CREATE_PARTITIONS,
            topics=[{"name": topic, "count": partitions, "assignments": None}],
            timeout=self._timeout(),
            validate_only=validate_only,
        )
        (result,) = self._router.ask_controller(apis.CREATE_PARTITIONS, build).results
        _check(f"topic '{topic}': the partitions were not created", result.error_code, result.error_message)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Delete each partition's records below an offset, -1 for its end; return the new log start offsets.

        Raises UnknownTopic, RequestRefused (`OFFSET_OUT_OF_RANGE`: the offset is above the partition's end).
        """
        self.cluster.require_topic(topic)
        starts: dict[int, int] = {}
        for leader, resource in self._router.by_leader(topic, before).items():
            partitions = [{"partition_index": index, "offset": offset} for index, offset in resource.items()]
            topics = [{"name": topic, "partitions": partitions}]
            build = requests.message(apis.DELETE_RECORDS, topics=topics, timeout=self._timeout())
            for entry in self._router.ask_broker(leader, apis.DELETE_RECORDS, build).topics[0].partitions:
                _check(f"the records of {topic}-{entry.partition_index} were not deleted", entry.error_code)
                starts[entry.partition_index] = entry.low_watermark
        return starts

    # The cluster

    def describe_cluster(self) -> ClusterDescription:
        """Return cluster id, controller and brokers."""
        build = requests.message(
            apis.DESCRIBE_CLUSTER,
            include_cluster_authorized_operations=False,
            endpoint_type=BROKER_ENDPOINT,
            include_fenced_brokers=False,
        )

        def attempt() -> ClusterDescription:
            response = self._router.ask_any(apis.DESCRIBE_CLUSTER, build)
            _check("the cluster cannot be described", response.error_code, response.error_message)
            return read_cluster(response)

        return self._router.retry(attempt)

    def _every_broker(self, api_key: int, build: requests.Build, version_min: int = 0) -> list[tuple[int, Any]]:
        """Return (broker id, response) of each broker; raise for a broker's own error code, if it has one."""

        def attempt() -> list[tuple[int, Any]]:
            responses = []
            for broker_id in self._router.brokers():
                response = self._router.ask_broker(broker_id, api_key, build, version_min)
                _check(f"broker {broker_id} refused the request", getattr(response, "error_code", ErrorCode.none))
                responses.append((broker_id, response))
            return responses

        return self._router.retry(attempt)

    # Groups

    def list_groups(self, states: Iterable[str] = ()) -> list[GroupListing]:
        """List all groups, or those in one of `states`; filtering requires Kafka 2.6 or newer."""
        wanted = tuple(states)
        build = requests.message(apis.LIST_GROUPS, states_filter=wanted)
        version_min = STATE_FILTER_VERSION if wanted else 0
        return [
            GroupListing(group.group_id, group.protocol_type, getattr(group, "group_state", ""))
            for _broker_id, response in self._every_broker(apis.LIST_GROUPS, build, version_min)
            for group in response.groups
        ]

    def describe_group(self, group: str) -> GroupDescription:
        """Describe the group with its members; one that does not exist has the state "Dead"."""
        build = requests.message(apis.DESCRIBE_GROUPS, groups=(group,), include_authorized_operations=False)

        def attempt() -> GroupDescription:
            (entry,) = self._router.ask_coordinator(group, apis.DESCRIBE_GROUPS, build).groups
            if entry.error_code != ErrorCode.group_id_not_found:
                _check(f"group '{group}' cannot be described", entry.error_code)
            return read_group(entry, self._router.coordinator_address(group))

        return self._router.retry(attempt)

    def delete_group(self, group: str) -> None:
        """Delete a group and its offsets. RequestRefused: `GROUP_ID_NOT_FOUND`, `NON_EMPTY_GROUP`."""
        build = requests.message(apis.DELETE_GROUPS, groups_names=(group,))
        (result,) = self._router.ask_coordinator(group, apis.DELETE_GROUPS, build).results
        _check(f"group '{group}' was not deleted", result.error_code)

    def group_offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """Return every committed offset of the group by (topic, partition); empty for an unknown group."""
        build = requests.all_offsets(group)

        def attempt() -> dict[TopicPartition, CommittedOffset]:
            response = self._router.ask_coordinator(group, apis.OFFSET_FETCH, build, ALL_OFFSETS_VERSION_MIN)
            result = requests.fetched_group(response)
            _check(f"the offsets of group '{group}' are not available", result.error_code)
            committed = {}
            for topic in result.topics:
                for entry in topic.partitions:
                    _check(f"group '{group}': {topic.name}-{entry.partition_index}", entry.error_code)
                    committed[topic.name, entry.partition_index] = CommittedOffset(
                        entry.committed_offset, entry.metadata or ""
                    )
            return committed

        return self._router.retry(attempt)

    def delete_group_offsets(self, group: str, topic: str, partitions: Iterable[int]) -> None:
        """Delete the group's offsets of these partitions. RequestRefused: `GROUP_SUBSCRIBED_TO_TOPIC` and others."""
        resource = [{"partition_index": index} for index in partitions]
        build = requests.message(apis.OFFSET_DELETE, group_id=group, topics=[{"name": topic, "partitions": resource}])
        response = self._router.ask_coordinator(group, apis.OFFSET_DELETE, build)
        failure = f"the offsets of group '{group}' were not deleted"
        _check(failure, response.error_code)
        for entry in (entry for topic_entry in response.topics for entry in topic_entry.partitions):
            _check(f"{failure}: {topic}-{entry.partition_index}", entry.error_code)

    # Transactions

    def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = ()
    ) -> list[TransactionListing]:
        """List all transactional ids, or those in one of `states` or with one of `producer_ids`."""
        build = requests.message(
            apis.LIST_TRANSACTIONS, state_filters=tuple(states), producer_id_filters=tuple(producer_ids)
        )
        return [
            TransactionListing(listed.transactional_id, listed.producer_id, listed.transaction_state)
            for _broker_id, response in self._every_broker(apis.LIST_TRANSACTIONS, build)
            for listed in response.transaction_states
        ]

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Describe the transaction of that id. RequestRefused: `TRANSACTIONAL_ID_NOT_FOUND`."""
        build = requests.message(apis.DESCRIBE_TRANSACTIONS, transactional_ids=(transactional_id,))

        def attempt() -> TransactionDescription:
            response = self._router.ask_coordinator(
                transactional_id, apis.DESCRIBE_TRANSACTIONS, build, key_type=requests.TRANSACTION
            )
            (entry,) = response.transaction_states
            _check(f"transactional id '{transactional_id}' cannot be described", entry.error_code)
            return read_transaction(entry)

        return self._router.retry(attempt)

    def fence_producer(self, transactional_id: str) -> tuple[int, int]:
        """Abort the open transaction of the id's producer and fence it; return the (producer id, epoch) that replace
        it.

        This is InitProducerId from outside, like Kafka's `Admin.fenceProducers`; it returns when the abort is complete.
        """
        build = requests.init_producer_id(requests.ProducerIdentity(transactional_id), 1000)

        def attempt() -> tuple[int, int]:
            response = self._router.ask_coordinator(
                transactional_id, apis.INIT_PRODUCER_ID, build, key_type=requests.TRANSACTION
            )
            _check(f"the producer of transactional id '{transactional_id}' was not fenced", response.error_code)
            return response.producer_id, response.producer_epoch

        return self._router.retry(attempt)

    def active_producers(self, topic: str, partition: int) -> list[ActiveProducer]:
        """Return the partition's known producers, with their open transactions. Raises UnknownTopic."""
        build = requests.message(apis.DESCRIBE_PRODUCERS, topics=[{"name": topic, "partition_indexes": (partition,)}])

        def attempt() -> list[ActiveProducer]:
            (leader,) = self._router.by_leader(topic, {partition: 0})
            (entry,) = self._router.ask_broker(leader, apis.DESCRIBE_PRODUCERS, build).topics[0].partitions
            _check(f"the producers of {topic}-{partition} are not available", entry.error_code, entry.error_message)
            return read_producers(entry.active_producers)

        return self._router.retry(attempt)

    # ACLs

    def create_acls(self, bindings: Sequence[AclBinding]) -> None:
        """Create ACLs; one that exists is kept. Raises RequestRefused for the first that is refused.

        `SECURITY_DISABLED`: the broker has no authorizer.
        """
        creations = [
            {
                "resource_type": binding.pattern.resource_type,
                "resource_name": binding.pattern.name,
                "resource_pattern_type": binding.pattern.pattern_type,
                "principal": binding.principal,
                "host": binding.host,
                "operation": binding.operation,
                "permission_type": binding.permission,
            }
            for binding in bindings
        ]
        response = self._router.ask_controller(
            apis.CREATE_ACLS, requests.message(apis.CREATE_ACLS, creations=creations)
        )
        for binding, result in zip(bindings, response.results, strict=True):
            _check(f"the ACL of {binding.principal} was not created", result.error_code, result.error_message)

    def describe_acls(self, wanted: AclFilter) -> list[AclBinding]:
        """Return the ACLs that a filter selects. RequestRefused: `SECURITY_DISABLED` without an authorizer."""
        build = requests.message(apis.DESCRIBE_ACLS, **requests.acl_filter(wanted))

        def attempt() -> list[AclBinding]:
            response = self._router.ask_any(apis.DESCRIBE_ACLS, build)
            _check("the ACLs are not available", response.error_code, response.error_message)
            return [read_acl(resource, entry) for resource in response.resources for entry in resource.acls]

        return self._router.retry(attempt)

    def delete_acls(self, filters: Sequence[AclFilter]) -> list[AclBinding]:
        """Delete the ACLs that the filters select, and return them. Raises RequestRefused for the first refusal."""
        build = requests.message(apis.DELETE_ACLS, filters=[requests.acl_filter(wanted) for wanted in filters])
        deleted = []
        for result in self._router.ask_controller(apis.DELETE_ACLS, build).filter_results:
            _check("the ACLs were not deleted", result.error_code, result.error_message)
            for entry in result.matching_acls:
                _check("an ACL was not deleted", entry.error_code, entry.error_message)
                deleted.append(read_acl(entry, entry))
        return deleted

    def _timeout(self) -> timedelta:
        return timedelta(milliseconds=self.cluster.timeout_ms)


def _resource(kind: int, name: str) -> str:
    return f"topic '{name}'" if kind == TOPIC else f"broker {name}"


def _check(failure: str, code: ErrorCode, message: str | None = None) -> None:
    """Raise the error of `code`; `failure` names what failed."""
    if code == ErrorCode.none:
        return
    reason = f"{failure}: the broker returned {error_name(code)}" + (f" ({message})" if message else "")
    if code in (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id):
        raise UnknownTopic(f"{reason}; {Remedy.LIST_TOPICS}")
    if code in _COORDINATOR_CODES or code == ErrorCode.unstable_offset_commit:
        raise CoordinatorUnavailable(f"{reason}; {Remedy.TRY_AGAIN}")
    if code in (ErrorCode.not_leader_or_follower, ErrorCode.leader_not_available):
        raise LeaderUnavailable(f"{reason}; {Remedy.TRY_AGAIN}")
    raise RequestRefused(reason, code)
