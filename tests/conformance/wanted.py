"""Differences from Apache Kafka 4.1.1 that are wanted, by the lines that show them.

A row: the cases, the lines, and what explains them in KNOWN_DIFFERENCES; `*` stands for anything. Each row has to be
needed by each of its cases: the list only shrinks.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple


class Wanted(NamedTuple):
    """Lines of differences in some cases."""

    cases: str
    line: str
    why: str


def _each(cases: str, why: str, lines: Iterable[str]) -> list[Wanted]:
    return [Wanted(cases, line, why) for line in lines]


NOT_SERVED = (17, 29, 30, 31, 34, 36, 38, 39, 40, 41, 45, 48, 49, 50, 51, 55, 57, 64, 68, 69, 74, 75, 76, 77, 78, 79)
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
    "share.coordinator.state.topic.min.isr",
    "share.coordinator.state.topic.replication.factor",
    "socket.listen.backlog.size",
    "socket.receive.buffer.bytes",
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
    "node.id",
    "offsets.topic.num.partitions",
    "offsets.topic.replication.factor",
    "transaction.state.log.min.isr",
    "transaction.state.log.num.partitions",
    "transaction.state.log.replication.factor",
)
"""Those that are in the server.properties of the peer and are a default here."""
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
"""Cases in which CreateTopics answers with all configs."""

NOT_TEXT = ("a client that is no text", "a negative client length", "text that is none", "a negative array")

WANTED = [
    *_each("ApiVersions *", "APIs and versions", VERSIONS),
    *_each("ApiVersions [34]", "FeatureCommand", FEATURES),
    Wanted("ListOffsets 0", "ListOffsets 0 : 'closed the connection' → *", "APIs and versions"),
    *(
        row
        for cases in CREATED
        for row in _each(cases, UNITS, (f"*.configs.{name}: * → 'absent'" for name in CONFIGS_ABSENT))
    ),
    *(
        Wanted(cases, "*.configs.min.insync.replicas.config_source: 3 → 5", "eligible leader replicas")
        for cases in CREATED
    ),
    *(
        Wanted(
            f"configure 'min.cleanable.dirty.ratio' as '{text}'",
            f"*.value: '{text}' → *",
            "values as they were written",
        )
        for text in (".5", "1.", "1e-1")
    ),
    *_each(
        "create a topic in no time",
        "time-outs of administrators",
        (
            "*.error_code: 'request_timed_out' → 'none'",
            "*.error_message: 'text' → None",
            "*.topic_id: None → 'uuid 1'",
            "*.num_partitions: -1 → 2",
            "*.replication_factor: -1 → 1",
            "*.configs.*: 'absent' → {'name': *, 'read_only': False, 'config_source': [45], 'is_sensitive': False}",
        ),
    ),
    Wanted(
        "describe configs of all brokers", "*.configs.min.insync.replicas: * → 'absent'", "eligible leader replicas"
    ),
    *_each(
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
    Wanted("alter with a* operation", "*: 'unknown_server_error' → 'invalid_request'", "what Kafka did not foresee"),
    *_each(
        "metadata of what has neither name nor id",
        "what Kafka did not foresee",
        (
            "*'unknown_server_error'* → 'absent'",
            "*: 'absent' → *'invalid_request'*",
            "Metadata 12 brokers.0: 'absent' → {'node_id': 1, 'host': 'HOST', 'port': 'PORT', 'rack': None}",
            "Metadata 12 cluster_id: None → 'CLUSTER_ID'",
            "Metadata 12 controller_id: -1 → 1",
        ),
    ),
    *_each(
        "metadata that makes topics",
        "topics that are made by asking",
        (
            "*.error_code: 'unknown_topic_or_partition' → 'none'",
            "*.topic_id: None → 'uuid 1'",
            "*.partitions.0: 'absent' → {'error_code': 'none', 'partition_index': 0, 'leader_id': 1, *",
        ),
    ),
    *_each(
        "produce under other names in a transaction",
        "names of transactions",
        (
            *NOT_WRITTEN_HERE,
            "Produce 9 *.error_code: 'none' → 'invalid_request'",
            "Produce 9 *.log_append_time: 1700000000000 → -1",
        ),
    ),
    *_each("produce as nobody in a transaction", "names of transactions", NOT_WRITTEN_HERE),
    *_each(
        "produce out of place in a transaction",
        "time of a repeated batch",
        ["*.log_append_time: 1700000000000 → -1"],
    ),
    *_each(
        "describe transactions and producers",
        "a producer's time",
        ["*.active_producers.0.last_timestamp: 1700000000000 → 'now'"],
    ),
    Wanted("write markers nowhere", "*: 'absent' → {'producer_id': *, 'topics': []}", "the same twice, or nothing"),
    *_each(
        "initialise after a time-out",
        "commit after a time-out",
        (
            "InitProducerId 4 error_code: 'none' → 'producer_fenced'",
            "InitProducerId 4 producer_id: 'producer 1' → -1",
            "InitProducerId 4 producer_epoch: 1 → -1",
        ),
    ),
    *(
        Wanted(f"frames with {what}", "a frame : b'* → 'closed the connection'", "stricter with frames")
        for what in (*NOT_TEXT, "endless tagged fields")
    ),
    *_each(
        "frames with endless lists",
        "limits on requests",
        (
            f"{api} : * → 'closed the connection'"
            for api in ("DescribeGroups 5", "DeleteGroups 2", "DescribeTransactions 0")
        ),
    ),
    *_each("DescribeConfigs *", UNITS, (f"*.configs.{name}: * → 'absent'" for name in CONFIGS_ABSENT)),
    Wanted("DescribeConfigs *", "*.configs.min.insync.replicas.config_source: 3 → 5", "eligible leader replicas"),
    Wanted("DescribeConfigs *", "*.configs.min.insync.replicas.synonyms.*", "eligible leader replicas"),
    *_each(
        "DescribeConfigs *",
        "synonyms of retention.ms",
        (f"*.configs.{name}.synonyms.log.*: 'absent' → *" for name in SYNONYMS),
    ),
    Wanted("DescribeProducers 0", "*.active_producers.0.last_timestamp: 1700000000000 → 'now'", "a producer's time"),
    *(
        Wanted(f"produce a batch: {case}", line, "stricter with batches")
        for case in STRICT_BATCHES
        for line in REFUSED_HERE
    ),
    Wanted("produce a batch: a batch and half another", "*.log_start_offset: 0 → -1", "stricter with batches"),
    *_each("produce a batch: a header from the future", "records are not decoded", REFUSED_HERE),
    *_each("produce a batch: no gzip in it", "records are not decoded", TAKEN_HERE),
    Wanted("produce a batch: a time before time", "Fetch 12 *.max_timestamp: -1 → -2", "records are not decoded"),
    Wanted(
        "produce a batch: codec [57]",
        "*error_code: 'unknown_server_error' → 'invalid_record'",
        "what Kafka did not foresee",
    ),
    Wanted("produce a batch: null", "Produce 9 : 'did not answer' → *'invalid_record'*", "no answer"),
    Wanted("join with a protocol twice", "JoinGroup 3 : 'did not answer' → {'error_code': 'none', *", "no answer"),
    Wanted("produce a batch: from the future", "*.record_errors.0: * → 'absent'", "record errors"),
    Wanted("produce without keys to a compacted topic", "*.record_errors.[01]: * → 'absent'", "record errors"),
    Wanted("produce times between bounds", "*.record_errors.0: * → 'absent'", "record errors"),
    *_each(
        "sequences in order and repeated",
        "time of a repeated batch",
        ["*.log_append_time: 1700000000001 → -1"],
    ),
    Wanted("sequences repeated that are too old", "*.log_append_time: 1700000000001 → -1", "time of a repeated batch"),
    Wanted("sequences that wrap", "*.log_append_time: 1700000000001 → -1", "time of a repeated batch"),
    Wanted("sequences in old versions", "*.log_append_time: 1700000000001 → -1", "time of a repeated batch"),
    *_each("produce to a partition twice", "the same twice, or nothing", PRODUCED_TWICE),
    *_each("produce to a topic twice", "the same twice, or nothing", TO_A_TOPIC_TWICE),
    Wanted(
        "produce to no partition", "*: 'absent' → {'name': *, 'partition_responses': *}", "the same twice, or nothing"
    ),
    Wanted("list offsets of no partition", "*: 'absent' → {'name': *, 'partitions': *}", "the same twice, or nothing"),
    *_each("delete records of a partition twice", "the same twice, or nothing", DELETED_TWICE),
    Wanted("delete no records", "*: 'absent' → {'name': *, 'partitions': *}", "the same twice, or nothing"),
    *(
        Wanted(f"fetch -1 bytes {what}", line, "what Kafka did not foresee")
        for what in ("in all", "of a partition")
        for line in ("Fetch *.error_code: 'unknown_server_error' → 'none'", *FETCHED_HERE)
    ),
    *_each(
        "fetch with a later last fetched epoch",
        "followers",
        ("Fetch 12 *.error_code: 'offset_out_of_range' → 'none'", *FETCHED_HERE),
    ),
    Wanted("fetch a new session", "Fetch 12 session_id: 'session 1' → 0", "fetch sessions"),
    Wanted("fetch an unknown session's new beginning", "Fetch 12 session_id: 'session 1' → 0", "fetch sessions"),
]


def patterns(case: str) -> list[str]:
    """The lines that are wanted in one case."""
    return [value.line for value in WANTED if fnmatchcase(case, value.cases)]
