"""Expected differences from Apache Kafka 4.1.1, by the lines that show them.

A row has the cases, the lines, and their explanation in KNOWN_DIFFERENCES; `*` matches anything. Each of its cases must
need each row: the list only shrinks.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple


class Expected(NamedTuple):
    """A line of differences in some cases."""

    cases: str
    line: str
    why: str


def _rows(cases: str, why: str, lines: Iterable[str]) -> list[Expected]:
    return [Expected(cases, line, why) for line in lines]


NOT_SERVED: tuple[int, ...] = (
    34,
    38,
    39,
    40,
    41,
    45,
    55,
    57,
    64,
    68,
    69,
    74,
    75,
    76,
    77,
    78,
    79,
)
NOT_SERVED += (80, 81, 83, 84, 85, 86, 87, 90, 91, 92)
OTHER_MAXIMA = {0: (13, 9), 1: (18, 12), 3: (13, 12), 8: (9, 8), 9: (9, 8), 10: (6, 4), 22: (5, 4)}
OTHER_MAXIMA |= {24: (5, 3), 25: (4, 3), 26: (5, 3), 28: (5, 3), 66: (2, 1)}

VERSIONS = [
    *(f"* api_keys.{key}: * → 'absent'" for key in NOT_SERVED),
    *(f"* api_keys.{key}.max_version: {theirs} → {ours}" for key, (theirs, ours) in OTHER_MAXIMA.items()),
    "* api_keys.2.min_version: 1 → 0",
]
FEATURES = (
    "* supported_features.*: * → 'absent'",
    "* finalized_features.*: * → 'absent'",
    "* finalized_features_epoch: *",
)

CONFIGS_ABSENT = (
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.zstd.level",
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
)
SYNONYMS = ("flush.ms", "retention.ms", "segment.jitter.ms", "segment.ms")
UNITS = "configs of tiered storage, throttles and compression levels"

OWN_VALUES = (
    "advertised.listeners",
    "broker.id",
    "group.coordinator.rebalance.protocols",
    "group.initial.rebalance.delay.ms",
    "inter.broker.listener.name",
    "listener.security.protocol.map",
    "listeners",
    "log.dir",
    "log.dirs",
    "log.flush.interval.ms",
    "log.retention.minutes",
    "log.retention.ms",
    "log.roll.jitter.ms",
    "log.roll.ms",
    "max.connections",
    "max.connections.per.ip",
    "max.incremental.fetch.session.cache.slots",
    "min.insync.replicas",
    "node.id",
    "offsets.topic.num.partitions",
    "offsets.topic.replication.factor",
    "queued.max.request.bytes",
    "replica.selector.class",
    "sasl.enabled.mechanisms",
    "sasl.mechanism.inter.broker.protocol",
    "sasl.oauthbearer.jwt.validator.class",
    "share.coordinator.state.topic.min.isr",
    "share.coordinator.state.topic.replication.factor",
    "socket.listen.backlog.size",
    "socket.receive.buffer.bytes",
    "ssl.keystore.type",
    "ssl.truststore.type",
    "transaction.state.log.min.isr",
    "transaction.state.log.num.partitions",
    "transaction.state.log.replication.factor",
)
"""Settings of the broker with another value or default than Kafka's; their types are the same."""
SET_BY_KAFKAS_FILE = (
    "advertised.listeners",
    "broker.id",
    "group.initial.rebalance.delay.ms",
    "inter.broker.listener.name",
    "listener.security.protocol.map",
    "node.id",
    "offsets.topic.num.partitions",
    "offsets.topic.replication.factor",
    "transaction.state.log.min.isr",
    "transaction.state.log.num.partitions",
    "transaction.state.log.replication.factor",
)
"""Settings that are in the server.properties of the peer and have their default here."""
REFUSED_HERE = (
    "Produce 9 *.error_code: 'none' → 'invalid_*'",
    "Produce 9 *.base_offset: 0 → -1",
    "Produce 9 *.error_message: None → 'text'",
    "Fetch 12 *.records.0: {* → 'absent'",
    "Fetch 12 *.high_watermark: 1 → 0",
    "Fetch 12 *.last_stable_offset: 1 → 0",
)
TAKEN_HERE = (
    "Produce 9 *.error_code: 'unknown_server_error' → 'none'",
    "Produce 9 *.base_offset: -1 → 0",
    "Produce 9 *.error_message: 'text' → None",
    "Fetch 12 *.records.0: 'absent' → {*",
    "Fetch 12 *.high_watermark: 0 → 1",
    "Fetch 12 *.last_stable_offset: 0 → 1",
)
FETCHED_HERE = (
    "Fetch *.high_watermark: -1 → 3",
    "Fetch *.last_stable_offset: -1 → 3",
    "Fetch *.log_start_offset: -1 → 0",
    "Fetch *.records.*",
)
BEGUN_AMID = (
    "Produce 9 *.error_code: 'none' → 'not_enough_replicas'",
    "Produce 9 *.base_offset: * → -1",
    "Produce 9 *.error_message: None → 'text'",
    "Fetch 12 *.high_watermark: * → 0",
    "Fetch 12 *.last_stable_offset: * → 0",
    "Fetch 12 *.records.*: * → 'absent'",
)
NOT_WRITTEN_HERE = (
    "Produce 9 *.error_code: 'none' → 'invalid_producer_id_mapping'",
    "Produce 9 *.base_offset: * → -1",
    "Produce 9 *.log_start_offset: 0 → -1",
    "Produce 9 *.error_message: None → 'text'",
)
STRICT_BATCHES = ("a batch and half another", "log append time", "a delete horizon", "unused attributes")

PRODUCED_TWICE = (
    "Produce 3 *.partition_responses.1: 'absent' → {'index': 0, 'error_code': 'none', 'base_offset': 1, *",
    "Produce 9 *.partition_responses.0.base_offset: 1 → 2",
    "Produce 9 *.partition_responses.1: 'absent' → {'index': 0, 'error_code': 'none', 'base_offset': 3, *",
)
"""Two records in each version, where Kafka writes one."""
TO_A_TOPIC_TWICE = (
    "Produce 9 responses.produce-to-a-topic-twice: {*'error_code': 'none', 'base_offset': 0, * → 'absent'",
    *(
        f"Produce 9 responses.{place}: 'absent' → {{*'error_code': 'none', 'base_offset': {place}, *"
        for place in (0, 1)
    ),
)
THREE_BATCHES = (
    "{*'error_code': 'none', 'high_watermark': 3, 'last_stable_offset': 3, "
    "*'base_offset': 0, *'base_offset': 1, *'base_offset': 2, *"
)
DELETED_TWICE = (
    "*.partitions.1.partition_index: 1 → 0",
    "*.partitions.1.low_watermark: 0 → 2",
    "*.partitions.2: 'absent' → {'partition_index': 1, 'low_watermark': 0, 'error_code': 'none'}",
    *(
        line.format("{'partition_index': 9, 'low_watermark': -1, 'error_code': 'unknown_topic_or_partition'}")
        for line in ("*.partitions.9: {} → 'absent'", "*.partitions.3: 'absent' → {}")
    ),
)

CREATED = (
    "CreateTopics [567]",
    "configure *",
    "create a topic named '...' of 3",
    "create a topic named '-' of 1",
    "create a topic named '_' of 1",
    "create a topic named 'xxxxxxxxxxxxxxxxxxxx' of 249",
    "create a topic",
    "create a topic with defaults",
    "create an assigned topic",
    "create a topic with a config twice",
    "create a topic twice",
)
"""Cases with all configs in the CreateTopics response."""

NOT_TEXT = ("a client id that is not text", "a negative client length", "invalid text", "a negative array")

EXPECTED = [
    *_rows("ApiVersions *", "APIs and versions", VERSIONS),
    *_rows("ApiVersions [34]", "FeatureCommand", FEATURES),
    Expected("ListOffsets 0", "ListOffsets 0 : 'closed the connection' → *", "APIs and versions"),
    *(
        row
        for cases in CREATED
        for row in _rows(cases, UNITS, (f"*.configs.{name}: * → 'absent'" for name in CONFIGS_ABSENT))
    ),
    *(
        Expected(cases, "*.configs.min.insync.replicas.config_source: 3 → 5", "eligible leader replicas")
        for cases in CREATED
    ),
    *(
        Expected(
            f"configure 'min.cleanable.dirty.ratio' as '{text}'",
            f"*.value: '{text}' → *",
            "written form of values",
        )
        for text in (".5", "1.", "1e-1")
    ),
    *_rows(
        "create a topic in no time",
        "timeouts of administrative requests",
        (
            "*.error_code: 'request_timed_out' → 'none'",
            "*.error_message: 'text' → None",
            "*.topic_id: None → 'uuid 1'",
            "*.num_partitions: -1 → 2",
            "*.replication_factor: -1 → 1",
            "*.configs.*: 'absent' → {'name': *, 'read_only': False, 'config_source': [45], 'is_sensitive': False}",
        ),
    ),
    Expected(
        "describe configs of all brokers", "*.configs.min.insync.replicas: * → 'absent'", "eligible leader replicas"
    ),
    *_rows(
        "describe the broker's settings",
        "settings of the broker",
        (
            *(f"*.configs.{name}.[sv]*" for name in OWN_VALUES),
            *(f"*.configs.{name}.config_source: 4 → 5" for name in SET_BY_KAFKAS_FILE),
            "*.configs.log.dir.config_source: 5 → 4",
            "*.configs.min.insync.replicas.config_source: 3 → 5",
            "*.read_only: False → True",
        ),
    ),
    *_rows(
        "alter, refused: throttle",
        UNITS,
        ("*.error_code: 'none' → 'invalid_request'", "*.error_message: None → 'text'"),
    ),
    Expected("alter with a* operation", "*: 'unknown_server_error' → 'invalid_request'", "unexpected errors in Kafka"),
    *_rows(
        "metadata of a topic without name and id",
        "unexpected errors in Kafka",
        (
            "*'unknown_server_error'* → 'absent'",
            "*: 'absent' → *'invalid_request'*",
            "Metadata 12 brokers.0: 'absent' → {'node_id': 1, 'host': 'HOST', 'port': 'PORT', 'rack': None}",
            "Metadata 12 cluster_id: None → 'CLUSTER_ID'",
            "Metadata 12 controller_id: -1 → 1",
        ),
    ),
    *_rows(
        "metadata that makes topics",
        "automatic topic creation",
        (
            "*.error_code: 'unknown_topic_or_partition' → 'none'",
            "*.topic_id: None → 'uuid 1'",
            "*.partitions.0: 'absent' → {'error_code': 'none', 'partition_index': 0, 'leader_id': 1, *",
        ),
    ),
    *_rows(
        "produce under other names in a transaction",
        "transactional ids of batches",
        (
            *NOT_WRITTEN_HERE,
            "Produce 9 *.error_code: 'none' → 'invalid_request'",
            "Produce 9 *.log_append_time: 1700000000000 → -1",
        ),
    ),
    *_rows("produce without identity in a transaction", "transactional ids of batches", NOT_WRITTEN_HERE),
    *_rows(
        "produce out of place in a transaction",
        "time of a repeated batch",
        ["*.log_append_time: 1700000000000 → -1"],
    ),
    *_rows(
        "describe transactions and producers",
        "a producer's last timestamp",
        ["*.active_producers.0.last_timestamp: 1700000000000 → 'now'"],
    ),
    Expected("write markers nowhere", "*: 'absent' → {'producer_id': *, 'topics': []}", "repeated or empty entries"),
    *_rows(
        "initialise after a time-out",
        "commit after a timeout",
        (
            "InitProducerId 4 error_code: 'none' → 'producer_fenced'",
            "InitProducerId 4 producer_id: 'producer 1' → -1",
            "InitProducerId 4 producer_epoch: 1 → -1",
        ),
    ),
    *(
        Expected(f"frames with {what}", "a frame : b'* → 'closed the connection'", "stricter with frames")
        for what in (*NOT_TEXT, "endless tagged fields")
    ),
    *_rows(
        "frames with endless lists",
        "limits on requests",
        (
            f"{api} : * → 'closed the connection'"
            for api in ("DescribeGroups 5", "DeleteGroups 2", "DescribeTransactions 0")
        ),
    ),
    *_rows("DescribeConfigs *", UNITS, (f"*.configs.{name}: * → 'absent'" for name in CONFIGS_ABSENT)),
    Expected("DescribeConfigs *", "*.configs.min.insync.replicas.config_source: 3 → 5", "eligible leader replicas"),
    Expected("DescribeConfigs *", "*.configs.min.insync.replicas.synonyms.*", "eligible leader replicas"),
    *_rows(
        "DescribeConfigs *",
        "synonyms of retention.ms",
        (f"*.configs.{name}.synonyms.log.*: 'absent' → *" for name in SYNONYMS),
    ),
    Expected(
        "DescribeProducers 0",
        "*.active_producers.0.last_timestamp: 1700000000000 → 'now'",
        "a producer's last timestamp",
    ),
    *(
        Expected(f"produce a batch: {case}", line, "stricter with batches")
        for case in STRICT_BATCHES
        for line in REFUSED_HERE
    ),
    Expected("produce a batch: a batch and half another", "*.log_start_offset: 0 → -1", "stricter with batches"),
    *_rows("produce a batch: a header from the future", "records are not decoded", REFUSED_HERE),
    *_rows("produce a batch: no gzip in it", "records are not decoded", TAKEN_HERE),
    Expected("produce a batch: a time before time", "Fetch 12 *.max_timestamp: -1 → -2", "records are not decoded"),
    Expected(
        "produce a batch: codec [57]",
        "*error_code: 'unknown_server_error' → 'invalid_record'",
        "unexpected errors in Kafka",
    ),
    Expected("produce a batch: null", "Produce 9 : 'did not respond' → *'invalid_record'*", "no response"),
    Expected("join with a protocol twice", "JoinGroup 3 : 'did not respond' → {'error_code': 'none', *", "no response"),
    Expected("produce a batch: from the future", "*.record_errors.0: * → 'absent'", "record errors"),
    Expected("produce without keys to a compacted topic", "*.record_errors.[01]: * → 'absent'", "record errors"),
    Expected("produce times between bounds", "*.record_errors.0: * → 'absent'", "record errors"),
    *_rows(
        "sequences in order and repeated",
        "time of a repeated batch",
        ["*.log_append_time: 1700000000001 → -1"],
    ),
    Expected(
        "sequences repeated that are too old", "*.log_append_time: 1700000000001 → -1", "time of a repeated batch"
    ),
    *_rows("sequences begun amid", "first sequence of a producer", BEGUN_AMID),
    *_rows("produce a batch: an unknown producer within its sequence", "first sequence of a producer", BEGUN_AMID),
    Expected("sequences in old versions", "*.log_append_time: 1700000000001 → -1", "time of a repeated batch"),
    *_rows("produce to a partition twice", "repeated or empty entries", PRODUCED_TWICE),
    *_rows("produce to a topic twice", "repeated or empty entries", TO_A_TOPIC_TWICE),
    Expected(
        "produce to no partition", "*: 'absent' → {'name': *, 'partition_responses': *}", "repeated or empty entries"
    ),
    Expected("list offsets of no partition", "*: 'absent' → {'name': *, 'partitions': *}", "repeated or empty entries"),
    *_rows("delete records of a partition twice", "repeated or empty entries", DELETED_TWICE),
    Expected("delete no records", "*: 'absent' → {'name': *, 'partitions': *}", "repeated or empty entries"),
    *(
        Expected(f"fetch -1 bytes {what}", line, "unexpected errors in Kafka")
        for what in ("in total", "of a partition")
        for line in ("Fetch *.error_code: 'unknown_server_error' → 'none'", *FETCHED_HERE)
    ),
    Expected("fetch a new session", "Fetch 12 session_id: 'session 1' → 0", "fetch sessions"),
    Expected("fetch an unknown session's new beginning", "Fetch 12 session_id: 'session 1' → 0", "fetch sessions"),
]


def patterns(case: str) -> list[str]:
    """Return the expected lines of one case."""
    return [value.line for value in EXPECTED if fnmatchcase(case, value.cases)]


_CREATED_CONFIGS = (
    *(f"*.configs.{name}: * → 'absent'" for name in CONFIGS_ABSENT),
    "*.configs.min.insync.replicas.config_source: 3 → 5",
)
GUARDED = [
    *_rows("CreateTopics *", UNITS, _CREATED_CONFIGS),
    *_rows("DescribeConfigs *", UNITS, (*_CREATED_CONFIGS, "*.configs.min.insync.replicas.synonyms.*")),
    *_rows("DescribeConfigs *", "synonyms of retention.ms", (f"*.configs.{name}.synonyms.log.*" for name in SYNONYMS)),
    *_rows("DescribeConfigs *", "settings of the broker", ("*.configs.log.roll.ms.*",)),
    Expected("ListOffsets 0 *", "ListOffsets 0 : 'closed the connection' → *", "APIs and versions"),
    Expected("DescribeProducers 0 *", "*.last_timestamp: 1700000000000 → 'now'", "a producer's last timestamp"),
    *(
        Expected(cases, "CreateAcls * results.*", "unexpected errors in Kafka")
        for cases in ("ACLs of any *", "ACLs of matching patterns")
    ),
    *_rows(
        "Metadata 12 *",
        "automatic topic creation",
        (
            "*-missing.error_code: 'unknown_topic_or_partition' → 'none'",
            "*-missing.topic_id: None → 'uuid *'",
            "*-missing.partitions.0: 'absent' → {'error_code': 'none', 'partition_index': 0, 'leader_id': 1, *",
        ),
    ),
]
"""Expected differences of requests with some permissions; a refused request has fewer of them."""


def guarded_patterns(case: str) -> list[str]:
    """Return the expected lines of one case of `guarded.GUARDED_CASES`."""
    return [value.line for value in GUARDED if fnmatchcase(case, value.cases)]
