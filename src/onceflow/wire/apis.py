"""The one table of APIs and versions that the broker serves: "a plain 3.x broker".

ApiVersions, dispatch and docs/protocol.md come from it; `python -m onceflow.wire.apis > docs/protocol.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

PRODUCE = 0
FETCH = 1
LIST_OFFSETS = 2
METADATA = 3
LEADER_AND_ISR = 4
STOP_REPLICA = 5
UPDATE_METADATA = 6
CONTROLLED_SHUTDOWN = 7
OFFSET_COMMIT = 8
OFFSET_FETCH = 9
FIND_COORDINATOR = 10
JOIN_GROUP = 11
HEARTBEAT = 12
LEAVE_GROUP = 13
SYNC_GROUP = 14
DESCRIBE_GROUPS = 15
LIST_GROUPS = 16
SASL_HANDSHAKE = 17
API_VERSIONS = 18
CREATE_TOPICS = 19
DELETE_TOPICS = 20
DELETE_RECORDS = 21
INIT_PRODUCER_ID = 22
OFFSET_FOR_LEADER_EPOCH = 23
ADD_PARTITIONS_TO_TXN = 24
ADD_OFFSETS_TO_TXN = 25
END_TXN = 26
WRITE_TXN_MARKERS = 27
TXN_OFFSET_COMMIT = 28
DESCRIBE_ACLS = 29
CREATE_ACLS = 30
DELETE_ACLS = 31
DESCRIBE_CONFIGS = 32
ALTER_CONFIGS = 33
DESCRIBE_LOG_DIRS = 35
SASL_AUTHENTICATE = 36
CREATE_PARTITIONS = 37
DELETE_GROUPS = 42
ELECT_LEADERS = 43
INCREMENTAL_ALTER_CONFIGS = 44
ALTER_PARTITION_REASSIGNMENTS = 45
LIST_PARTITION_REASSIGNMENTS = 46
OFFSET_DELETE = 47
DESCRIBE_CLIENT_QUOTAS = 48
ALTER_CLIENT_QUOTAS = 49
DESCRIBE_USER_SCRAM_CREDENTIALS = 50
ALTER_USER_SCRAM_CREDENTIALS = 51
ALTER_PARTITION = 56
DESCRIBE_CLUSTER = 60
DESCRIBE_PRODUCERS = 61
DESCRIBE_TRANSACTIONS = 65
LIST_TRANSACTIONS = 66
ALLOCATE_PRODUCER_IDS = 67

NEVER = 2**15
"""Above all versions: an API that has no flexible one."""


@dataclass(frozen=True, slots=True)
class Api:
    """One API: served from `version_min` to `version_max`, in KIP-482's compact encoding from `flexible_from`.

    `advertised_min` is the minimum in ApiVersions. It is below `version_min` for Produce only: librdkafka before 2.11
    sends gzip, snappy and lz4 batches uncompressed to a broker whose Produce does not start at 0 (KIP-896 keeps 0 in
    Kafka's own response for that reason). The versions 0 to 2 are still refused.

    `advertised_max` is below `version_max` for Fetch in a cluster: Apache Kafka's followers send the version of their
    `inter.broker.protocol.version`, whatever is advertised, and clients keep the versions with topic names.
    """

    key: int
    name: str
    version_min: int
    version_max: int
    flexible_from: int
    advertised_min: int
    advertised_max: int


# aiokafka sets the floors, Java 4.x the ceilings; Produce 9 and Fetch 12 are the last without topic ids or with
# fields that only a cluster fills.
_ROWS = (
    # key, name, versions from, to, flexible from
    (PRODUCE, "Produce", 3, 9, 9),
    (FETCH, "Fetch", 4, 12, 12),
    (LIST_OFFSETS, "ListOffsets", 0, 10, 6),
    (METADATA, "Metadata", 0, 12, 9),
    (OFFSET_COMMIT, "OffsetCommit", 2, 8, 8),
    (OFFSET_FETCH, "OffsetFetch", 1, 8, 6),
    (FIND_COORDINATOR, "FindCoordinator", 0, 4, 3),
    (JOIN_GROUP, "JoinGroup", 0, 9, 6),
    (HEARTBEAT, "Heartbeat", 0, 4, 4),
    (LEAVE_GROUP, "LeaveGroup", 0, 5, 4),
    (SYNC_GROUP, "SyncGroup", 0, 5, 4),
    (DESCRIBE_GROUPS, "DescribeGroups", 0, 6, 5),
    (LIST_GROUPS, "ListGroups", 0, 5, 3),
    (SASL_HANDSHAKE, "SaslHandshake", 0, 1, NEVER),
    (API_VERSIONS, "ApiVersions", 0, 4, 3),
    (CREATE_TOPICS, "CreateTopics", 2, 7, 5),
    (DELETE_TOPICS, "DeleteTopics", 1, 6, 4),
    (DELETE_RECORDS, "DeleteRecords", 0, 2, 2),
    (INIT_PRODUCER_ID, "InitProducerId", 0, 4, 2),
    (OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, 4, 4),
    (ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", 0, 3, 3),
    (ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", 0, 3, 3),
    (END_TXN, "EndTxn", 0, 3, 3),
    (WRITE_TXN_MARKERS, "WriteTxnMarkers", 1, 1, 1),
    (TXN_OFFSET_COMMIT, "TxnOffsetCommit", 0, 3, 3),
    (DESCRIBE_ACLS, "DescribeAcls", 1, 3, 2),
    (CREATE_ACLS, "CreateAcls", 1, 3, 2),
    (DELETE_ACLS, "DeleteAcls", 1, 3, 2),
    (DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4, 4),
    (ALTER_CONFIGS, "AlterConfigs", 0, 2, 2),
    (DESCRIBE_LOG_DIRS, "DescribeLogDirs", 1, 4, 2),
    (SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, 2),
    (CREATE_PARTITIONS, "CreatePartitions", 0, 3, 2),
    (DELETE_GROUPS, "DeleteGroups", 0, 2, 2),
    (ELECT_LEADERS, "ElectLeaders", 0, 2, 2),
    (INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, 1),
    (LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", 0, 0, 0),
    (OFFSET_DELETE, "OffsetDelete", 0, 0, NEVER),
    (DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas", 0, 1, 1),
    (ALTER_CLIENT_QUOTAS, "AlterClientQuotas", 0, 1, 1),
    (DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentials", 0, 0, 0),
    (ALTER_USER_SCRAM_CREDENTIALS, "AlterUserScramCredentials", 0, 0, 0),
    (DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, 0),
    (DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0, 0),
    (DESCRIBE_TRANSACTIONS, "DescribeTransactions", 0, 0, 0),
    (LIST_TRANSACTIONS, "ListTransactions", 0, 1, 0),
)

APIS: Mapping[int, Api] = MappingProxyType(
    {row[0]: Api(*row, advertised_min=0 if row[0] == PRODUCE else row[2], advertised_max=row[3]) for row in _ROWS}
)

_INTER_BROKER_ROWS = (
    (LEADER_AND_ISR, "LeaderAndIsr", 7, 7, 4),
    (STOP_REPLICA, "StopReplica", 4, 4, 2),
    (UPDATE_METADATA, "UpdateMetadata", 8, 8, 6),
    (CONTROLLED_SHUTDOWN, "ControlledShutdown", 3, 3, 3),
    (ALTER_PARTITION, "AlterPartition", 3, 3, 0),
    (ALLOCATE_PRODUCER_IDS, "AllocateProducerIds", 0, 0, 0),
)

INTER_BROKER_APIS: Mapping[int, Api] = MappingProxyType(
    {row[0]: Api(*row, advertised_min=row[2], advertised_max=row[3]) for row in _INTER_BROKER_ROWS}
)
"""Requests between the brokers of a cluster on ZooKeeper, in the versions of inter.broker.protocol.version 3.9."""

_VERIFYING_ROW = (ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", 0, 5, 3)
"""Version 4 and later come from leaders of partitions (KIP-890)."""
_REASSIGNING_ROW = (ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments", 0, 0, 0)
_REPLICATING_ROW = (FETCH, "Fetch", 4, 17, 12)
"""Version 13 and later name topics by id (KIP-516), and come from followers."""

CLUSTER_APIS: Mapping[int, Api] = MappingProxyType(
    {
        **APIS,
        **{row[0]: Api(*row, advertised_min=0, advertised_max=row[3]) for row in (_VERIFYING_ROW, _REASSIGNING_ROW)},
        FETCH: Api(*_REPLICATING_ROW, advertised_min=4, advertised_max=APIS[FETCH].version_max),
        **INTER_BROKER_APIS,
    }
)
"""The APIs of a broker on ZooKeeper."""


def served(*, in_cluster: bool, down_converts: bool) -> Mapping[int, Api]:
    """Return the APIs of a broker, with the Fetch versions of old consumers if it converts records for them."""
    table = CLUSTER_APIS if in_cluster else APIS
    if not down_converts:
        return table
    return {**table, FETCH: replace(table[FETCH], version_min=0, advertised_min=0)}


_PAGE = """\
# Protocol

<!-- Written by `python -m onceflow.wire.apis > docs/protocol.md`; a test compares. -->

Kafka's own protocol, in the versions of a plain 3.x broker. librdkafka (confluent-kafka, kcat), kafka-python, aiokafka
and the Java clients up to 4.x choose the highest version that both sides support, so they need no settings.

## APIs and versions

`advertised` are the versions in the ApiVersions response, `supported` those that get a response. `flexible from` is the
first version in the compact encoding with tagged fields (KIP-482).

| key | API | advertised | supported | flexible from |
|---:|---|---|---|---:|
{rows}

- Produce is advertised from 0 and supported from 3: librdkafka before 2.11 sends gzip, snappy and lz4 batches
  uncompressed to a broker whose Produce does not start at 0. Apache Kafka 4 does the same.
- Produce ends at 9 and Fetch at 12: later versions name topics by id and have fields for clusters only. A broker on
  ZooKeeper supports Fetch up to 17 without advertising it: Apache Kafka's followers send that version.
- Fetch starts at 4, as in Apache Kafka 4. With `log.message.downconversion.enable` it starts at 0, for [consumers
  before Kafka 0.11](#down-conversion).
- No API has a version above Apache Kafka 4.1's: a client that infers the broker's release from the versions must not
  mistake it for a later one. kafka-python infers 4.0, from ListOffsets 10.
- ListOffsets starts at 0, which Apache Kafka 4 no longer supports: only this version returns where a partition's
  segments start.
- Every Fetch response has session id 0: there are no fetch sessions (KIP-227), each request names its partitions.
- An ApiVersions request above the highest version gets a response in version 0 with error 35 and the versions of
  ApiVersions (KIP-511), and the client retries. Any other request with an API or version outside the table closes its
  connection, as in Kafka.

## Frames

A frame is its size (int32, not counting itself), a header and a body. A request's header is API key, version,
correlation id and client id, followed by tagged fields in a flexible version. A response's header is the correlation
id, followed by tagged fields in a flexible version, except that ApiVersions has none there in any version.

Unknown tagged fields are skipped. Each length and each count is compared with the remaining bytes of the frame before
anything is allocated. A frame that ends too early, has null where it is not allowed or text that is not UTF-8 is
malformed, and its connection is closed. Bytes after a request's end are ignored, as in Kafka.

## Record batches

Only format 2 (magic 2), which clients have sent since Kafka 0.11. The broker reads a batch's header of 61 bytes and
checks its length, record count and CRC-32C. It writes base offset and leader epoch into the header, both outside the
CRC. The records are stored unchanged.

### Down-conversion

With `log.message.downconversion.enable` a broker also serves Fetch versions 0 to 3, as Apache Kafka up to 3.9 does,
and advertises Fetch from 0. It converts records to the older formats for each response: to message format 0 for the
versions 0 and 1, to format 1 for 2 and 3. Kafka 1.1.1's consumers through ZooKeeper send version 3.

- Offsets, keys and values stay, and the codec of a compressed batch. Record headers are dropped, and timestamps in
  format 0. A timestamp before 1970 becomes -1, none; Kafka fails at such a record.
- These versions have no isolation level: records of aborted and open transactions are read too. Control batches are
  left out. A request that finds nothing else continues after them; Kafka returns a cut message then, which its old
  consumer takes for a message that is too large.
- zstd is younger than these formats: the partition has UNSUPPORTED_COMPRESSION_TYPE at such a batch.
- A compressed batch has MESSAGE_TOO_LARGE if its records, or its messages before compression, exceed
  `batch.unpacked.max.bytes`.
- A thread converts, one batch of each request in turn, so that other clients are not held up. A response has batches of
  1 MiB at most, or one larger batch, and its messages are in memory until they are sent. Consumers of versions 0 to 2
  repeat one order of partitions, so their responses begin with another partition each time.
- A first batch larger than the limits is returned whole in all versions. Kafka returns nothing in the versions 0 to 2,
  and the consumer waits without an error.
- Messages are larger than uncompressed records. What exceeds the size of the batches is left to the next request; Kafka
  cuts the last message.
- A replica's request is refused (UNSUPPORTED_VERSION): its log would not be the leader's.

The setting applies to all topics; there is no `message.downconversion.enable` for one topic.

### Codecs of clients

Onceflow's own clients read all five codecs: none, gzip, snappy (with Java's xerial framing, and raw like librdkafka's),
lz4 and zstd, each with a limit on a batch's decompressed size. They write lz4 with independent blocks and xerial-framed
snappy, since Java reads no other.
"""


def page() -> str:
    """docs/protocol.md."""
    return _PAGE.format(rows="\n".join(map(_row, APIS.values())))


def _row(api: Api) -> str:
    advertised = f"{api.advertised_min} to {api.advertised_max}"
    flexible = "none" if api.flexible_from == NEVER else api.flexible_from
    return f"| {api.key} | {api.name} | {advertised} | {api.version_min} to {api.version_max} | {flexible} |"


if __name__ == "__main__":
    print(page(), end="")
