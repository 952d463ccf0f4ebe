"""Table of the broker's settings, under Kafka's names where Kafka has the setting.

It defines the options of `onceflow broker`, the names in the environment and in a `server.properties`, the response to
DescribeConfigs and the table in docs/operating.md. Each row names the field of BrokerConfig that it sets; the default
is that field's.
"""

from dataclasses import dataclass
from itertools import takewhile

from onceflow.broker.config import BrokerConfig
from onceflow.broker.settings.addresses import Endpoints, ProtocolMap
from onceflow.broker.settings.authorization import AUTHORIZATION, QUOTAS
from onceflow.broker.settings.connections import CONNECTIONS
from onceflow.broker.settings.fixed import FIXED, fixed_type
from onceflow.broker.settings.inter_broker import INTER_BROKER
from onceflow.broker.settings.kinds import (
    BOOLEAN,
    BYTES,
    CLUSTER_ID,
    COUNT,
    HOST,
    IMPORT_PATH,
    INT32_MAX,
    MS,
    MS_OR_NONE,
    MS_POSITIVE,
    ZOOKEEPER,
    Choice,
    CleanupPolicy,
    Directory,
    Fraction,
    Short,
    Whole,
)
from onceflow.broker.settings.replication import REPLICATION
from onceflow.broker.settings.security import SASL, SECURITY
from onceflow.broker.settings.setting import Setting
from onceflow.broker.settings.zookeeper import ZOOKEEPER_SECURITY

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
MIB = 1024**2

# If several names set one field, the later one takes precedence, as in Kafka: ms over minutes over hours.
GROUPS: dict[str, tuple[Setting, ...]] = {
    "Address and data": (
        Setting("log.dir", "data", Directory(), "The same as log.dirs, which takes precedence."),
        Setting(
            "log.dirs",
            "data",
            Directory(),
            "Directory for all data; created if it does not exist. Only one broker at a time can use it.",
            "--data",
            is_common=True,
        ),
        Setting(
            "log.dir.reserve.bytes",
            "reserve_bytes",
            Whole(0, INT32_MAX),
            "Disk space reserved in the data directory for a full disk. Deletions, transaction markers and"
            " checkpoints may use all of it, configuration changes half. Records are refused until this much space is"
            " free again. 0 disables it. Onceflow only.",
        ),
        Setting(
            "listeners",
            "listeners",
            Endpoints(any_host=True),
            "Addresses to listen on, with the name of each listener. Port 0 selects any free port.",
            "--listen",
            is_common=True,
        ),
        Setting(
            "advertised.listeners",
            "advertised",
            Endpoints(any_host=False),
            "Addresses that the clients of each listener connect to, if they differ from those the broker listens on:"
            " from another machine, or from outside the container. Default: the listen addresses.",
            "--advertise",
            is_common=True,
        ),
        Setting(
            "listener.security.protocol.map",
            "listener_protocols",
            ProtocolMap(),
            "Security protocol of each listener, by the listener's name.",
        ),
        Setting("broker.id", "node_id", Whole(0, INT32_MAX), "The same as node.id, which takes precedence."),
        Setting(
            "node.id",
            "node_id",
            Whole(0, INT32_MAX),
            "Id of this broker, as clients see it. It is written into a new data directory; a directory with another"
            " id is refused.",
        ),
        Setting(
            "cluster.id",
            "cluster_id",
            CLUSTER_ID,
            "Id of the cluster. Generated for a new data directory if not given; fixed afterwards. A directory of"
            " another cluster is refused. (In Kafka, kafka-storage.sh format sets it.)",
        ),
        Setting(
            "zookeeper.connect",
            "zookeeper_connect",
            ZOOKEEPER,
            "Addresses of ZooKeeper, with the chroot of the cluster. The broker registers there, and stores its topics"
            " and their configurations there instead of in the data directory. Default: no ZooKeeper.",
        ),
        Setting(
            "zookeeper.session.timeout.ms",
            "zookeeper_session_timeout_ms",
            Whole(1, INT32_MAX),
            "Time after which ZooKeeper ends the session of a broker that it does not hear from.",
        ),
        Setting(
            "zookeeper.connection.timeout.ms",
            "zookeeper_connection_timeout_ms",
            Whole(1, INT32_MAX),
            "Maximum time to connect to ZooKeeper at the start. Kafka's default is the session timeout.",
        ),
    ),
    "ZooKeeper's security": ZOOKEEPER_SECURITY,
    "Replication": REPLICATION,
    "Connections between brokers": INTER_BROKER,
    "Topics": (
        Setting(
            "auto.create.topics.enable",
            "auto_create_topics",
            BOOLEAN,
            "Whether topics are created automatically when a client requests metadata of one that does not exist.",
            is_common=True,
        ),
        Setting(
            "num.partitions",
            "partition_count_default",
            Whole(1, 1000),
            "Default number of partitions of a new topic.",
            "--partitions",
            is_common=True,
        ),
        Setting(
            "max.partitions",
            "partitions_max",
            COUNT,
            "Maximum number of partitions of all topics together, without the two internal topics. Onceflow only.",
        ),
        Setting("delete.topic.enable", "delete_topics", BOOLEAN, "Whether clients can delete topics."),
        Setting(
            "message.max.bytes",
            "log.message_bytes_max",
            Whole(0, INT32_MAX),
            "Maximum size of a record batch, after compression. A topic's max.message.bytes overrides it.",
            is_common=True,
        ),
        Setting(
            "batch.unpacked.max.bytes",
            "log.batch_unpacked_bytes_max",
            BYTES,
            "Maximum uncompressed size of a compressed batch whose records the broker reads. A topic that is"
            " compacted or limits the timestamps of records refuses a larger batch, and a search by time fails at"
            " one. Every topic refuses a compressed batch with more records than fit into this size. Onceflow only.",
        ),
        Setting(
            "log.message.timestamp.type",
            "log.log_append_time",
            Choice({"CreateTime": False, "LogAppendTime": True}),
            "Whether a record's timestamp is its creation time, set by the producer, or the time when the broker"
            " appends it.",
        ),
        Setting(
            "log.message.timestamp.before.max.ms",
            "log.message_timestamp_before_max_ms",
            MS,
            "Maximum time by which a record's timestamp may be before the broker's clock. Older records are refused.",
        ),
        Setting(
            "log.message.timestamp.after.max.ms",
            "log.message_timestamp_after_max_ms",
            MS,
            "Maximum time by which a record's timestamp may be after the broker's clock. Later records are refused.",
        ),
        Setting(
            "log.message.downconversion.enable",
            "down_converts",
            BOOLEAN,
            "Whether consumers before Kafka 0.11 are served: Fetch versions 0 to 3 with records converted to message"
            " formats 0 and 1. It applies to all topics and costs processor time for each of their requests. Kafka's"
            " default was true, and Kafka 4 has removed it.",
        ),
    ),
    "Retention": (
        Setting(
            "log.retention.hours",
            "log.retention_ms",
            Whole(1, INT32_MAX, unit=HOUR_MS, none=-1),
            "How long records are kept, consumed or not. A segment is deleted when its newest record is older. -1:"
            " no time limit.",
            is_common=True,
        ),
        Setting(
            "log.retention.minutes",
            "log.retention_ms",
            Whole(1, INT32_MAX, unit=MINUTE_MS, none=-1),
            "The same in minutes; takes precedence over log.retention.hours.",
        ),
        Setting(
            "log.retention.ms",
            "log.retention_ms",
            MS_OR_NONE,
            "The same in milliseconds; takes precedence over log.retention.minutes.",
        ),
        Setting(
            "log.retention.bytes",
            "log.retention_bytes",
            MS_OR_NONE,
            "Maximum size of a partition's log before its oldest segments are deleted. -1: no size limit.",
            is_common=True,
        ),
        Setting(
            "log.retention.check.interval.ms",
            "retention_check_interval_ms",
            MS_POSITIVE,
            "How often the broker checks for segments to delete.",
        ),
        Setting(
            "log.initial.task.delay.ms",
            "retention_check_first_ms",
            MS,
            "Delay before the first retention check, if shorter than the interval.",
        ),
        Setting(
            "log.retention.policy",
            "retention_policy",
            IMPORT_PATH,
            "Python function, as MODULE:NAME, that decides which segments are deleted. Onceflow only.",
        ),
        Setting(
            "log.segment.bytes",
            "log.segment_bytes",
            Whole(MIB, INT32_MAX),
            "Maximum size of a segment file. Retention deletes whole segments.",
            is_common=True,
        ),
        Setting(
            "log.roll.hours",
            "log.segment_ms",
            Whole(1, INT32_MAX, unit=HOUR_MS),
            "Maximum age of a segment, by the timestamps of its records, before a new one is started.",
        ),
        Setting(
            "log.roll.ms",
            "log.segment_ms",
            MS_POSITIVE,
            "The same in milliseconds; takes precedence over log.roll.hours.",
        ),
        Setting(
            "log.segment.delete.delay.ms",
            "log.file_delete_delay_ms",
            MS,
            "How long the files of a deleted segment are kept for clients that are still reading them.",
        ),
    ),
    "Compaction": (
        Setting(
            "log.cleanup.policy",
            "log.cleanup_delete log.cleanup_compact",
            CleanupPolicy(),
            "Default cleanup policy of topics: delete old segments by age and size, or compact the log to the last"
            " record of each key.",
        ),
        Setting(
            "log.cleaner.enable",
            "cleaner_enabled",
            BOOLEAN,
            "Whether the log cleaner runs. Without it, compacted topics are not compacted.",
        ),
        Setting(
            "log.cleaner.backoff.ms",
            "cleaner_interval_ms",
            MS_POSITIVE,
            "How often the broker checks for logs to compact.",
        ),
        Setting(
            "log.cleaner.dedupe.buffer.size",
            "cleaner_dedupe_bytes",
            Whole(MIB),
            "Memory for the map of keys during compaction, about 200 bytes per key. If the keys do not fit, the log"
            " is read several times.",
        ),
        Setting(
            "log.cleaner.min.cleanable.ratio",
            "log.min_cleanable_dirty_ratio",
            Fraction(),
            "Minimum ratio of the part of a log not yet compacted to the whole log for the log to be compacted.",
        ),
        Setting(
            "log.cleaner.min.compaction.lag.ms",
            "log.min_compaction_lag_ms",
            MS,
            "Minimum time that a record remains uncompacted.",
        ),
        Setting(
            "log.cleaner.max.compaction.lag.ms",
            "log.max_compaction_lag_ms",
            MS_POSITIVE,
            "Maximum time that a record remains uncompacted, however low the log's ratio is.",
        ),
        Setting(
            "log.cleaner.delete.retention.ms",
            "log.delete_retention_ms",
            MS,
            "How long a tombstone (a record without a value) is kept in a compacted log.",
        ),
    ),
    "Durability and indexes": (
        Setting(
            "log.flush.interval.messages",
            "log.flush_messages",
            MS_POSITIVE,
            "Number of records of a partition after which they are flushed to disk. They are acknowledged from"
            " memory, so a power cut can lose up to this many. By default a record is on disk before it is"
            " acknowledged to acks=all.",
        ),
        Setting(
            "log.flush.interval.ms",
            "log.flush_ms",
            MS,
            "Maximum time before a partition's records are flushed to disk. They are acknowledged from memory, so a"
            " power cut can lose those of this time. By default a record is on disk before it is acknowledged to"
            " acks=all.",
        ),
        Setting(
            "log.index.interval.bytes",
            "log.index_interval_bytes",
            Whole(0, INT32_MAX),
            "Number of bytes of a log between two entries of its offset index.",
        ),
        Setting(
            "log.index.size.max.bytes",
            "log.segment_index_bytes",
            Whole(4, INT32_MAX),
            "Maximum size of an index. A new segment is started before an index grows beyond it.",
        ),
        Setting(
            "producer.id.expiration.ms",
            "log.producer_id_expiration_ms",
            Whole(1, INT32_MAX),
            "How long a partition keeps the state of an idle idempotent producer, by which it detects repeated"
            " batches.",
        ),
        Setting(
            "producer.id.expiration.check.interval.ms",
            "log.producer_id_expiration_check_ms",
            Whole(1, INT32_MAX),
            "Minimum time between two checks of a partition for idle producers; new producers trigger the checks.",
        ),
        Setting(
            "max.producer.ids.per.partition",
            "log.producer_ids_max",
            COUNT,
            "Maximum number of producer ids in a partition's state. At the limit, a new producer replaces the one"
            " idle longest if that was idle for 15 minutes; otherwise it is refused. Onceflow only.",
        ),
    ),
    "Connections and requests": CONNECTIONS,
    "TLS": SECURITY,
    "SASL": SASL,
    "Authorization": AUTHORIZATION,
    "Quotas": QUOTAS,
    "Metrics": (
        Setting(
            "metrics.port",
            "metrics_port",
            Whole(0, 65535, none=-1),
            "Port for Prometheus, which reads http://HOST:PORT/metrics. 0 selects any free port, -1 serves no metrics."
            " Onceflow only.",
            is_common=True,
        ),
        Setting(
            "metrics.host",
            "metrics_host",
            HOST,
            "Address on which metrics.port listens. There is no authentication. Onceflow only.",
        ),
    ),
    "Consumer groups": (
        Setting(
            "group.initial.rebalance.delay.ms",
            "group_initial_rebalance_delay_ms",
            Whole(0, INT32_MAX),
            "How long the first rebalance of a new group waits for more members to join. Kafka's default is 3000.",
        ),
        Setting(
            "group.min.session.timeout.ms",
            "group_session_timeout_min_ms",
            Whole(1, INT32_MAX),
            "Minimum session timeout of a group member.",
        ),
        Setting(
            "group.max.session.timeout.ms",
            "group_session_timeout_max_ms",
            Whole(1, INT32_MAX),
            "Maximum session timeout of a group member.",
        ),
        Setting(
            "group.new.member.timeout.ms",
            "group_new_member_timeout_ms",
            Whole(1, INT32_MAX),
            "How long a rebalance waits for a member that joins for the first time and cannot send heartbeats yet."
            " In Kafka this is fixed at five minutes.",
        ),
        Setting(
            "group.name.max.bytes",
            "group_name_bytes_max",
            Whole(1, 30_000),
            "Maximum size of a group id, an instance id or a protocol name. Onceflow only.",
        ),
        Setting("group.max.size", "group_members_max", COUNT, "Maximum number of members of a group."),
        Setting(
            "group.subscription.max.bytes",
            "group_subscription_bytes_max",
            BYTES,
            "Maximum size of a member's subscription, with all its protocols. Onceflow only.",
        ),
        Setting(
            "groups.memory.max.bytes",
            "groups_memory_bytes_max",
            BYTES,
            "Memory for the members of all groups: subscriptions, assignments and names. Members beyond it get"
            " COORDINATOR_NOT_AVAILABLE until others leave. Onceflow only.",
        ),
        Setting(
            "group.max.pending.ids",
            "group_pending_ids_max",
            COUNT,
            "Maximum number of member ids of a group that were assigned but not yet used. Another one replaces the"
            " oldest. Onceflow only.",
        ),
        Setting(
            "groups.max.pending.ids",
            "groups_pending_ids_max",
            COUNT,
            "The same for all groups together. Onceflow only.",
        ),
        Setting(
            "offset.metadata.max.bytes",
            "offset_metadata_bytes_max",
            Whole(0, INT32_MAX),
            "Maximum size of the metadata that a client commits with an offset.",
        ),
        Setting(
            "offsets.retention.minutes",
            "offsets_retention_ms",
            Whole(1, INT32_MAX, unit=MINUTE_MS),
            "How long the offsets of a group are kept after its last member left.",
        ),
        Setting(
            "offsets.retention.check.interval.ms",
            "offsets_retention_check_interval_ms",
            MS_POSITIVE,
            "How often the broker checks for expired group offsets.",
        ),
        Setting(
            "offsets.commit.timeout.ms",
            "offsets_commit_timeout_ms",
            Whole(1, INT32_MAX),
            "Maximum time for an offset commit to become durable. Then it fails with COORDINATOR_NOT_AVAILABLE.",
        ),
        Setting(
            "offsets.topic.segment.bytes",
            "offsets_topic_segment_bytes",
            Whole(MIB, INT32_MAX),
            "Maximum size of a segment file of __consumer_offsets. Small segments are compacted sooner.",
        ),
        Setting(
            "offsets.topic.num.partitions",
            "offsets_topic_partitions",
            Whole(1, 1000),
            "Number of partitions of __consumer_offsets, whose leaders coordinate the groups. With `zookeeper.connect`"
            " the default is 50; without it there is one.",
        ),
        Setting(
            "offsets.topic.replication.factor",
            "offsets_topic_replication_factor",
            Short(1),
            "Number of replicas of __consumer_offsets. With `zookeeper.connect` the default is 3, and groups have no"
            " coordinator until that number of brokers is registered; without it there is one.",
        ),
    ),
    "Transactions": (
        Setting(
            "transaction.max.timeout.ms",
            "transaction_timeout_max_ms",
            Whole(1, INT32_MAX),
            "Maximum transaction timeout that a producer can request.",
        ),
        Setting(
            "transactional.id.expiration.ms",
            "transactional_id_expiration_ms",
            Whole(1, INT32_MAX),
            "How long an unused transactional id is kept.",
        ),
        Setting(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            "transaction_abort_interval_ms",
            Whole(1, INT32_MAX),
            "How often the broker checks for timed-out transactions to abort.",
        ),
        Setting(
            "transaction.remove.expired.transaction.cleanup.interval.ms",
            "transactional_id_expiration_interval_ms",
            Whole(1, INT32_MAX),
            "How often the broker checks for expired transactional ids.",
        ),
        Setting(
            "transaction.state.log.segment.bytes",
            "transaction_log_segment_bytes",
            Whole(MIB, INT32_MAX),
            "Maximum size of a segment file of __transaction_state. Small segments are compacted sooner.",
        ),
        Setting(
            "transaction.state.log.num.partitions",
            "transaction_log_partitions",
            Whole(1, 1000),
            "Number of partitions of __transaction_state, whose leaders coordinate the transactions. With"
            " `zookeeper.connect` the default is 50; without it there is one.",
        ),
        Setting(
            "transaction.state.log.replication.factor",
            "transaction_log_replication_factor",
            Short(1),
            "Number of replicas of __transaction_state. With `zookeeper.connect` the default is 3, and transactions"
            " have no coordinator until that number of brokers is registered; without it there is one.",
        ),
        Setting(
            "transaction.state.log.min.isr",
            "transaction_log_min_isr",
            Whole(1, INT32_MAX),
            "Number of replicas of __transaction_state that must be in sync for a change of a transaction. With"
            " `zookeeper.connect` the default is 2; without it there is one.",
        ),
    ),
}

SETTINGS: dict[str, Setting] = {setting.name: setting for group in GROUPS.values() for setting in group}
"""Name → row, in the table's order."""


def weaker_than(setting: Setting) -> list[Setting]:
    """Return the settings of the same field that have no effect if `setting` is given in the same source."""
    earlier = takewhile(lambda other: other is not setting, SETTINGS.values())
    return [other for other in earlier if other.field == setting.field]


@dataclass(frozen=True)
class Described:
    """One entry of DescribeConfigs for the broker; a secret has no value."""

    name: str
    value: str | None
    default: str | None
    """None also if the setting has no default."""
    kafka_type: int
    documentation: str
    is_default: bool
    is_secret: bool = False


def described(config: BrokerConfig) -> list[Described]:
    """Return every setting of a running broker with its value, and Kafka's settings that are fixed here."""
    entries = []
    for setting in SETTINGS.values():
        value, default = setting.value(config), setting.default
        shown = None if setting.is_secret else value
        kind, text = setting.kind.kafka_type, setting.documentation
        entries.append(Described(setting.name, shown, default, kind, text, value == default, setting.is_secret))
    for name, (allowed, reason) in FIXED.items():
        entries.append(Described(name, allowed, allowed, fixed_type(name), reason, is_default=True))
    return entries
