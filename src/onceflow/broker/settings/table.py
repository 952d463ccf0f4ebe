"""The one table of the broker's settings, under Kafka's names where Kafka has one.

From it come the options of `onceflow broker`, the names in the environment and in a `server.properties`, the answer to
DescribeConfigs and the table in docs/operating.md. Each row names the field of BrokerConfig that it sets; the default
is that field's.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import takewhile

from onceflow.broker.config import BrokerConfig
from onceflow.broker.settings.connections import CONNECTIONS
from onceflow.broker.settings.fixed import FIXED, fixed_type
from onceflow.broker.settings.kinds import (
    BOOLEAN,
    BYTES,
    COUNT,
    INT32_MAX,
    MS,
    MS_OR_NONE,
    MS_POSITIVE,
    Address,
    Choice,
    CleanupPolicy,
    ClusterId,
    Directory,
    Fraction,
    ImportPath,
    Whole,
)
from onceflow.broker.settings.setting import DEFAULTS, Setting

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
MIB = 1024**2

# Where several names set one field, the later one is the stronger, as in Kafka: ms beat minutes beat hours.
GROUPS: dict[str, tuple[Setting, ...]] = {
    "Address and data": (
        Setting("log.dir", "data", Directory(), "The same as log.dirs, which is the stronger of the two."),
        Setting(
            "log.dirs",
            "data",
            Directory(),
            "Directory that holds everything; made if it is not there. One broker at a time.",
            "--data",
            is_common=True,
        ),
        Setting(
            "log.dir.reserve.bytes",
            "reserve_bytes",
            Whole(0, INT32_MAX),
            "Disk space kept in the data directory for a full disk: deletions, the end of transactions and checkpoints"
            " use it then, changes of configurations half of it, and records are refused until as much is free again."
            " 0: none."
            " Onceflow's own.",
        ),
        Setting(
            "listeners",
            "host port",
            Address(any_host=True),
            "Address to take connections on; port 0 takes any free port.",
            "--listen",
            is_common=True,
        ),
        Setting(
            "advertised.listeners",
            "advertised",
            Address(any_host=False),
            "Address that clients are told to connect to, where they reach the broker by another one than it listens"
            " on: from another machine, or from outside its container. By default the one listened on.",
            "--advertise",
            is_common=True,
        ),
        Setting("broker.id", "node_id", Whole(0, INT32_MAX), "The same as node.id, which is the stronger of the two."),
        Setting(
            "node.id",
            "node_id",
            Whole(0, INT32_MAX),
            "The id that clients see for this broker. Written into a new data directory; another one's is refused.",
        ),
        Setting(
            "cluster.id",
            "cluster_id",
            ClusterId(),
            "The id of the cluster. Written into a new data directory, where a random one is made up if none is given,"
            " and the same ever after: a directory of another cluster is refused. Kafka is given it by kafka-storage.",
        ),
    ),
    "Topics": (
        Setting(
            "auto.create.topics.enable",
            "auto_create_topics",
            BOOLEAN,
            "Whether a client that asks for an unknown topic gets it created.",
            is_common=True,
        ),
        Setting(
            "num.partitions",
            "partition_count_default",
            Whole(1, 1000),
            "Partitions of a topic whose creator does not say how many.",
            "--partitions",
            is_common=True,
        ),
        Setting(
            "max.partitions",
            "partitions_max",
            COUNT,
            "Partitions of all topics together, the broker's own two not counted. Onceflow's own.",
        ),
        Setting("delete.topic.enable", "delete_topics", BOOLEAN, "Whether clients may delete topics."),
        Setting(
            "message.max.bytes",
            "log.message_bytes_max",
            Whole(0, INT32_MAX),
            "The largest record batch taken, after compression; a topic's max.message.bytes overrides it.",
            is_common=True,
        ),
        Setting(
            "batch.unpacked.max.bytes",
            "log.batch_unpacked_bytes_max",
            BYTES,
            "What a compressed batch may unpack to where its records are looked at: a topic that is compacted or"
            " limits the age of records refuses a larger one, and a search by time that meets one fails. On every"
            " topic a compressed batch is refused if it has more records than unpack to this size. Onceflow's own.",
        ),
        Setting(
            "log.message.timestamp.type",
            "log.log_append_time",
            Choice({"CreateTime": False, "LogAppendTime": True}),
            "Who dates the records: their producer, or the broker when it appends them.",
        ),
        Setting(
            "log.message.timestamp.before.max.ms",
            "log.message_timestamp_before_max_ms",
            MS,
            "How far in the past a record may be dated; older ones are refused.",
        ),
        Setting(
            "log.message.timestamp.after.max.ms",
            "log.message_timestamp_after_max_ms",
            MS,
            "How far in the future a record may be dated; later ones are refused.",
        ),
    ),
    "Retention": (
        Setting(
            "log.retention.hours",
            "log.retention_ms",
            Whole(1, INT32_MAX, unit=HOUR_MS, none=-1),
            "How long records are kept, consumed or not: a segment goes when its newest record is older. -1: for ever.",
            is_common=True,
        ),
        Setting(
            "log.retention.minutes",
            "log.retention_ms",
            Whole(1, INT32_MAX, unit=MINUTE_MS, none=-1),
            "The same in minutes; stronger than the hours.",
        ),
        Setting(
            "log.retention.ms",
            "log.retention_ms",
            MS_OR_NONE,
            "The same in milliseconds; stronger than the minutes.",
        ),
        Setting(
            "log.retention.bytes",
            "log.retention_bytes",
            MS_OR_NONE,
            "How many bytes of each partition are kept: its oldest segments beyond that go. -1: no limit.",
            is_common=True,
        ),
        Setting(
            "log.retention.check.interval.ms",
            "retention_check_interval_ms",
            MS_POSITIVE,
            "How often it is looked whether something is to be deleted.",
        ),
        Setting(
            "log.initial.task.delay.ms",
            "retention_check_first_ms",
            MS,
            "How long after the start it is looked for the first time, if that is sooner.",
        ),
        Setting(
            "log.retention.policy",
            "retention_policy",
            ImportPath(),
            "Python's MODULE:NAME of what decides which segments are deleted; Kafka has no such setting.",
        ),
        Setting(
            "log.segment.bytes",
            "log.segment_bytes",
            Whole(MIB, INT32_MAX),
            "Size at which a log's file is ended and a new one begun; retention removes whole files.",
            is_common=True,
        ),
        Setting(
            "log.roll.hours",
            "log.segment_ms",
            Whole(1, INT32_MAX, unit=HOUR_MS),
            "Age at which a log's file is ended, by the times of its records.",
        ),
        Setting("log.roll.ms", "log.segment_ms", MS_POSITIVE, "The same in milliseconds; stronger than the hours."),
        Setting(
            "log.segment.delete.delay.ms",
            "log.file_delete_delay_ms",
            MS,
            "How long the files of a deleted segment stay for those who still read them.",
        ),
    ),
    "Compaction": (
        Setting(
            "log.cleanup.policy",
            "log.cleanup_delete log.cleanup_compact",
            CleanupPolicy(),
            "What topics do with old records: delete them by age and size, or keep the last one of each key.",
        ),
        Setting("log.cleaner.enable", "cleaner_enabled", BOOLEAN, "Whether compacted topics are compacted."),
        Setting(
            "log.cleaner.backoff.ms",
            "cleaner_interval_ms",
            MS_POSITIVE,
            "How often it is looked whether something is to be compacted.",
        ),
        Setting(
            "log.cleaner.dedupe.buffer.size",
            "cleaner_dedupe_bytes",
            Whole(MIB),
            "Memory for a compaction's map of keys, about 200 bytes each; where it does not suffice, the log is read"
            " several times.",
        ),
        Setting(
            "log.cleaner.min.cleanable.ratio",
            "log.min_cleanable_dirty_ratio",
            Fraction(),
            "A log is compacted when this part of it is new since the last time.",
        ),
        Setting(
            "log.cleaner.min.compaction.lag.ms",
            "log.min_compaction_lag_ms",
            MS,
            "Younger records are left alone.",
        ),
        Setting(
            "log.cleaner.max.compaction.lag.ms",
            "log.max_compaction_lag_ms",
            MS_POSITIVE,
            "A log with an older record that was never compacted is compacted, however little of it is new.",
        ),
        Setting(
            "log.cleaner.delete.retention.ms",
            "log.delete_retention_ms",
            MS,
            "How long a deletion (a record without value) stays visible in a compacted log.",
        ),
    ),
    "Durability and indexes": (
        Setting(
            "log.flush.interval.messages",
            "log.flush_messages",
            MS_POSITIVE,
            "Acknowledge from memory and write to the disk after so many records of a partition: a power cut loses at"
            " most these. By default nothing is acknowledged to acks=all before it is on the disk.",
        ),
        Setting(
            "log.flush.interval.ms",
            "log.flush_ms",
            MS,
            "Acknowledge from memory and write to the disk after so many milliseconds; as above.",
        ),
        Setting(
            "log.index.interval.bytes",
            "log.index_interval_bytes",
            Whole(0, INT32_MAX),
            "Bytes of a log between two entries of its indexes.",
        ),
        Setting(
            "log.index.size.max.bytes",
            "log.segment_index_bytes",
            Whole(4, INT32_MAX),
            "A log's file is ended when one of its indexes would grow beyond this.",
        ),
        Setting(
            "producer.id.expiration.ms",
            "log.producer_id_expiration_ms",
            Whole(1, INT32_MAX),
            "How long a partition remembers an idle idempotent producer, to know its repeated batches.",
        ),
        Setting(
            "producer.id.expiration.check.interval.ms",
            "log.producer_id_expiration_check_ms",
            Whole(1, INT32_MAX),
            "How often a partition that hears of new producers looks for idle ones.",
        ),
        Setting(
            "max.producer.ids.per.partition",
            "log.producer_ids_max",
            COUNT,
            "Producer ids that a partition remembers. At the limit it forgets the one idle longest, if idle for 15"
            " minutes; else it refuses the new one. Onceflow's own.",
        ),
    ),
    "Connections and requests": CONNECTIONS,
    "Consumer groups": (
        Setting(
            "group.initial.rebalance.delay.ms",
            "group_initial_rebalance_delay_ms",
            Whole(0, INT32_MAX),
            "How long the first member of a new group waits for others. Kafka's default is 3000.",
        ),
        Setting(
            "group.min.session.timeout.ms",
            "group_session_timeout_min_ms",
            Whole(1, INT32_MAX),
            "The shortest session.timeout.ms that a member may have.",
        ),
        Setting(
            "group.max.session.timeout.ms",
            "group_session_timeout_max_ms",
            Whole(1, INT32_MAX),
            "The longest session.timeout.ms that a member may have.",
        ),
        Setting(
            "group.new.member.timeout.ms",
            "group_new_member_timeout_ms",
            Whole(1, INT32_MAX),
            "How long a member that joins for the first time, and cannot send heartbeats, is waited for in a rebalance."
            " Kafka has these five minutes too, and no setting.",
        ),
        Setting(
            "group.name.max.bytes",
            "group_name_bytes_max",
            Whole(1, 30_000),
            "The longest group id, instance id or protocol name. Onceflow's own.",
        ),
        Setting("group.max.size", "group_members_max", COUNT, "Members of one group."),
        Setting(
            "group.subscription.max.bytes",
            "group_subscription_bytes_max",
            BYTES,
            "Maximum size of one member's subscription, all its protocols together. Onceflow's own.",
        ),
        Setting(
            "groups.memory.max.bytes",
            "groups_memory_bytes_max",
            BYTES,
            "Memory for the members of all groups: subscriptions, assignments and names. Members that do not fit wait"
            " with COORDINATOR_NOT_AVAILABLE until others leave. Onceflow's own.",
        ),
        Setting(
            "group.max.pending.ids",
            "group_pending_ids_max",
            COUNT,
            "Maximum number of member ids of one group that were handed out and not used yet. One more withdraws the"
            " oldest. Onceflow's own.",
        ),
        Setting(
            "groups.max.pending.ids",
            "groups_pending_ids_max",
            COUNT,
            "The same over all groups. Onceflow's own.",
        ),
        Setting(
            "offset.metadata.max.bytes",
            "offset_metadata_bytes_max",
            Whole(0, INT32_MAX),
            "The largest text that a client may commit with an offset.",
        ),
        Setting(
            "offsets.retention.minutes",
            "offsets_retention_ms",
            Whole(1, INT32_MAX, unit=MINUTE_MS),
            "How long the offsets of a group without members are kept.",
        ),
        Setting(
            "offsets.retention.check.interval.ms",
            "offsets_retention_check_interval_ms",
            MS_POSITIVE,
            "How often it is looked whether offsets are to be forgotten.",
        ),
        Setting(
            "offsets.commit.timeout.ms",
            "offsets_commit_timeout_ms",
            Whole(1, INT32_MAX),
            "How long a commit may wait until it is durable; then it fails with COORDINATOR_NOT_AVAILABLE.",
        ),
        Setting(
            "offsets.topic.segment.bytes",
            "offsets_topic_segment_bytes",
            Whole(MIB, INT32_MAX),
            "Size of the files of __consumer_offsets; small ones are compacted sooner.",
        ),
    ),
    "Transactions": (
        Setting(
            "transaction.max.timeout.ms",
            "transaction_timeout_max_ms",
            Whole(1, INT32_MAX),
            "The longest transaction.timeout.ms that a producer may have.",
        ),
        Setting(
            "transactional.id.expiration.ms",
            "transactional_id_expiration_ms",
            Whole(1, INT32_MAX),
            "How long an unused transactional id is remembered.",
        ),
        Setting(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            "transaction_abort_interval_ms",
            Whole(1, INT32_MAX),
            "How often it is looked for transactions that took too long, to abort them.",
        ),
        Setting(
            "transaction.remove.expired.transaction.cleanup.interval.ms",
            "transactional_id_expiration_interval_ms",
            Whole(1, INT32_MAX),
            "How often it is looked for transactional ids to forget.",
        ),
        Setting(
            "transaction.state.log.segment.bytes",
            "transaction_log_segment_bytes",
            Whole(MIB, INT32_MAX),
            "Size of the files of __transaction_state; small ones are compacted sooner.",
        ),
    ),
}

SETTINGS: dict[str, Setting] = {setting.name: setting for group in GROUPS.values() for setting in group}
"""Name → row, in the table's order."""


def weaker_than(setting: Setting) -> list[Setting]:
    """Those that set the same field, and have no effect where `setting` is given in the same place."""
    earlier = takewhile(lambda other: other is not setting, SETTINGS.values())
    return [other for other in earlier if other.field == setting.field]


@dataclass(frozen=True)
class Described:
    """One entry of DescribeConfigs for the broker."""

    name: str
    value: str | None
    default: str | None
    """None also where there is no default."""
    kafka_type: int
    documentation: str

    @property
    def is_default(self) -> bool:
        return self.value == self.default


def described(config: BrokerConfig) -> list[Described]:
    """Every setting of a running broker with its value, and what is fixed because there is one broker."""
    found = []
    for setting in SETTINGS.values():
        value = setting.value(config)
        default = None if setting.field == "data" else setting.value(DEFAULTS)
        found.append(Described(setting.name, value, default, setting.kind.kafka_type, setting.documentation))
    for name, (allowed, reason) in FIXED.items():
        found.append(Described(name, allowed, allowed, fixed_type(name), reason))
    return found


def field_paths() -> Iterator[str]:
    """Every field that BrokerConfig has, those of its LogConfig as `log.NAME`."""
    for each in fields(BrokerConfig):
        if each.name == "log":
            yield from (f"log.{inner.name}" for inner in fields(DEFAULTS.log))
        else:
            yield each.name
