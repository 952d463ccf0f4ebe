"""Kafka's releases by the versions of their APIs: what a broker that plays an older Kafka serves.

The rows are `ApiKeys.latestVersion` of kafka-clients in each release, without unstable versions. They have the APIs for
clients; between brokers nothing changes.
"""

from collections.abc import Mapping

from onceflow.wire import apis

_ROWS: tuple[tuple[int, str], ...] = (
    # API, RELEASE:VERSION where the highest version changes
    (apis.PRODUCE, "0.11:3 1.0:5 2.0:6 2.1:7 2.4:8 2.8:9 3.7:10 3.8:11 4.0:12"),
    (apis.FETCH, "0.11:5 1.0:6 1.1:7 2.0:8 2.1:10 2.3:11 2.7:12 3.1:13 3.5:15 3.7:16 3.9:17"),
    (apis.LIST_OFFSETS, "0.11:2 2.0:3 2.1:4 2.2:5 2.8:6 3.0:7 3.5:8 3.9:9 4.0:10"),
    (apis.METADATA, "0.11:4 1.0:5 2.0:6 2.1:7 2.3:8 2.4:9 2.8:11 3.1:12 4.0:13"),
    (apis.OFFSET_COMMIT, "0.11:3 2.0:4 2.1:6 2.3:7 2.4:8 3.7:9"),
    (apis.OFFSET_FETCH, "0.11:3 2.0:4 2.1:5 2.4:6 2.5:7 3.0:8 3.7:9"),
    (apis.FIND_COORDINATOR, "0.11:1 2.0:2 2.4:3 3.0:4 3.8:5 3.9:6"),
    (apis.JOIN_GROUP, "0.11:2 2.0:3 2.2:4 2.3:5 2.4:6 2.5:7 3.2:9"),
    (apis.HEARTBEAT, "0.11:1 2.0:2 2.3:3 2.4:4"),
    (apis.LEAVE_GROUP, "0.11:1 2.0:2 2.4:4 3.2:5"),
    (apis.SYNC_GROUP, "0.11:1 2.0:2 2.3:3 2.4:4 2.5:5"),
    (apis.DESCRIBE_GROUPS, "0.11:1 2.0:2 2.3:3 2.4:5 4.0:6"),
    (apis.LIST_GROUPS, "0.11:1 2.0:2 2.4:3 2.6:4 3.8:5"),
    (apis.SASL_HANDSHAKE, "0.11:0 1.0:1"),
    (apis.API_VERSIONS, "0.11:1 2.0:2 2.4:3 3.9:4"),
    (apis.CREATE_TOPICS, "0.11:2 2.0:3 2.4:5 2.7:6 2.8:7"),
    (apis.DELETE_TOPICS, "0.11:1 2.0:2 2.1:3 2.4:4 2.7:5 2.8:6"),
    (apis.DELETE_RECORDS, "0.11:0 2.0:1 2.6:2"),
    (apis.INIT_PRODUCER_ID, "0.11:0 2.0:1 2.4:2 2.5:3 2.7:4 3.8:5"),
    (apis.OFFSET_FOR_LEADER_EPOCH, "0.11:0 2.0:1 2.1:2 2.3:3 2.8:4"),
    (apis.ADD_PARTITIONS_TO_TXN, "0.11:0 2.0:1 2.7:2 2.8:3 3.6:4 3.8:5"),
    (apis.ADD_OFFSETS_TO_TXN, "0.11:0 2.0:1 2.7:2 2.8:3 3.8:4"),
    (apis.END_TXN, "0.11:0 2.0:1 2.7:2 2.8:3 3.8:4 4.0:5"),
    (apis.TXN_OFFSET_COMMIT, "0.11:0 2.0:1 2.1:2 2.5:3 3.8:4 4.0:5"),
    (apis.DESCRIBE_ACLS, "0.11:0 2.0:1 2.5:2 3.3:3"),
    (apis.CREATE_ACLS, "0.11:0 2.0:1 2.5:2 3.3:3"),
    (apis.DELETE_ACLS, "0.11:0 2.0:1 2.5:2 3.3:3"),
    (apis.DESCRIBE_CONFIGS, "0.11:0 1.1:1 2.0:2 2.6:3 2.8:4"),
    (apis.ALTER_CONFIGS, "0.11:0 2.0:1 2.8:2"),
    (apis.DESCRIBE_LOG_DIRS, "1.0:0 2.0:1 2.6:2 3.2:3 3.3:4"),
    (apis.SASL_AUTHENTICATE, "1.0:0 2.2:1 2.5:2"),
    (apis.CREATE_PARTITIONS, "1.0:0 2.0:1 2.5:2 2.7:3"),
    (apis.DELETE_GROUPS, "1.1:0 2.0:1 2.4:2"),
    (apis.ELECT_LEADERS, "2.2:0 2.4:2"),
    (apis.INCREMENTAL_ALTER_CONFIGS, "2.3:0 2.4:1"),
    (apis.LIST_PARTITION_REASSIGNMENTS, "2.4:0"),
    (apis.OFFSET_DELETE, "2.4:0"),
    (apis.DESCRIBE_CLIENT_QUOTAS, "2.6:0 2.8:1"),
    (apis.ALTER_CLIENT_QUOTAS, "2.6:0 2.8:1"),
    (apis.DESCRIBE_USER_SCRAM_CREDENTIALS, "2.7:0"),
    (apis.ALTER_USER_SCRAM_CREDENTIALS, "2.7:0"),
    (apis.DESCRIBE_CLUSTER, "2.8:0 3.7:1 4.0:2"),
    (apis.DESCRIBE_PRODUCERS, "2.8:0"),
    (apis.DESCRIBE_TRANSACTIONS, "3.0:0"),
    (apis.LIST_TRANSACTIONS, "3.0:0 3.8:1"),
)

NOT_SERVED = -1


def _number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


_STEPS = {
    key: [(_number(release), int(version)) for release, version in (step.split(":") for step in row.split())]
    for key, row in _ROWS
}
RELEASES = ("0.11", "1.0", "1.1", *(f"2.{minor}" for minor in range(9)), *(f"3.{minor}" for minor in range(10)), "4.0")


def versions_max(release: str) -> Mapping[int, int]:
    """Return the highest version of each API in one of `RELEASES`; NOT_SERVED for APIs that it does not have."""
    wanted = _number(release)
    return {
        key: max((version for since, version in steps if since <= wanted), default=NOT_SERVED)
        for key, steps in _STEPS.items()
    }
