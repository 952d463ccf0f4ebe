"""Topic configurations that this broker supports; any other name or value is refused, never stored and ignored.

Names, types, ranges and error messages are Kafka's (org.apache.kafka.storage.internals.log.LogConfig and
org.apache.kafka.common.config.ConfigDef). A value is stored as the text that Kafka would return for it: ` +5 ` is `5`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from onceflow.errors import OnceflowError
from onceflow.log.config import LogConfig
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
MIB = 1024 * 1024

CREATE_TIME, LOG_APPEND_TIME = "CreateTime", "LogAppendTime"
POLICIES = ("compact", "delete")

_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_FRACTION = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


class ConfigType(IntEnum):
    """DescribeConfigsResponse.ConfigType."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class InvalidConfig(OnceflowError):
    """A topic configuration has an unknown name or an invalid value."""

    error_code = ErrorCode.invalid_config


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One configuration. `read` parses a text into fields of LogConfig; `write` formats the text of a LogConfig.

    `read` raises ValueError with Kafka's message.
    """

    name: str
    type: ConfigType
    broker_setting: str
    """The broker setting with the default."""
    documentation: str
    read: Callable[[str], Mapping[str, Any]]
    write: Callable[[LogConfig], str]


def _number(
    name: str, field: str, smallest: int, setting: str, documentation: str, *, wide: bool = True
) -> TopicConfig:
    """Return a configuration that is a whole number of at least `smallest`: an int64 if `wide`, else an int32."""
    kind, largest = (ConfigType.LONG, INT64_MAX) if wide else (ConfigType.INT, INT32_MAX)

    def read(text: str) -> Mapping[str, Any]:
        if not _NUMBER.fullmatch(text) or not -largest - 1 <= int(text) <= largest:
            raise ValueError(f"Not a number of type {kind.name}")
        if int(text) < smallest:
            raise ValueError(f"Value must be at least {smallest}")
        return {field: int(text)}

    return TopicConfig(name, kind, setting, documentation, read, lambda config: str(getattr(config, field)))


def _one_value(name: str, kind: ConfigType, only: str, documentation: str, setting: str | None = None) -> TopicConfig:
    """Return one of Kafka's configurations that has a fixed value here.

    `setting` is the broker setting with its default: by default of the same name, "" if there is none.
    """

    def read(text: str) -> Mapping[str, Any]:
        if text.lower() != only.lower():
            raise ValueError(f"only {only} is supported, since {documentation[0].lower()}{documentation[1:-1]}")
        return {}

    return TopicConfig(name, kind, name if setting is None else setting, documentation, read, lambda _config: only)


def _read_ratio(text: str) -> Mapping[str, Any]:
    if not _FRACTION.fullmatch(text):
        raise ValueError("Not a number of type DOUBLE")
    if float(text) < 0:
        raise ValueError("Value must be at least 0")
    if float(text) > 1:
        raise ValueError("Value must be no more than 1")
    return {"min_cleanable_dirty_ratio": float(text)}


def _read_unclean(text: str) -> Mapping[str, Any]:
    if text.lower() not in ("true", "false"):
        raise ValueError("Expected value to be either true or false")
    return {"unclean_leader_election": text.lower() == "true"}


def _read_policy(text: str) -> Mapping[str, Any]:
    named = list_items(text)
    if not set(named) <= set(POLICIES):
        raise ValueError(f"String must be one of: {', '.join(POLICIES)}")
    return {"cleanup_delete": "delete" in named, "cleanup_compact": "compact" in named}


def _write_policy(config: LogConfig) -> str:
    named = (("delete", config.cleanup_delete), ("compact", config.cleanup_compact))
    return ",".join(policy for policy, is_set in named if is_set)


def _read_timestamp_type(text: str) -> Mapping[str, Any]:
    if text not in (CREATE_TIME, LOG_APPEND_TIME):
        raise ValueError(f"String must be one of: {CREATE_TIME}, {LOG_APPEND_TIME}")
    return {"log_append_time": text == LOG_APPEND_TIME}


_ROWS = (
    TopicConfig(
        "cleanup.policy",
        ConfigType.LIST,
        "log.cleanup.policy",
        "What happens to old records: delete removes segments by age and size, compact keeps the last record of each"
        " key.",
        _read_policy,
        _write_policy,
    ),
    _number(
        "retention.ms",
        "retention_ms",
        -1,
        "log.retention.ms",
        "How long records are kept before their segment is deleted; -1: no time limit.",
    ),
    _number(
        "retention.bytes",
        "retention_bytes",
        -1,
        "log.retention.bytes",
        "Maximum size of a partition's log before its oldest segments are deleted; -1: no size limit.",
    ),
    _number(
        "segment.bytes",
        "segment_bytes",
        MIB,
        "log.segment.bytes",
        "Maximum size of a segment file.",
        wide=False,
    ),
    _number("segment.ms", "segment_ms", 1, "log.roll.ms", "Maximum age of a segment, by its records' timestamps."),
    _number(
        "segment.index.bytes",
        "segment_index_bytes",
        4,
        "log.index.size.max.bytes",
        "Maximum size of an index of a segment.",
        wide=False,
    ),
    _number(
        "index.interval.bytes",
        "index_interval_bytes",
        0,
        "log.index.interval.bytes",
        "Number of bytes of a log between two index entries.",
        wide=False,
    ),
    _number(
        "max.message.bytes",
        "message_bytes_max",
        0,
        "message.max.bytes",
        "Maximum size of a record batch, after compression.",
        wide=False,
    ),
    TopicConfig(
        "message.timestamp.type",
        ConfigType.STRING,
        "log.message.timestamp.type",
        "Whether timestamps are set by the producer, or by the broker when it appends the record.",
        _read_timestamp_type,
        lambda config: LOG_APPEND_TIME if config.log_append_time else CREATE_TIME,
    ),
    _number(
        "message.timestamp.before.max.ms",
        "message_timestamp_before_max_ms",
        0,
        "log.message.timestamp.before.max.ms",
        "Maximum time by which a timestamp may be before the broker's clock.",
    ),
    _number(
        "message.timestamp.after.max.ms",
        "message_timestamp_after_max_ms",
        0,
        "log.message.timestamp.after.max.ms",
        "Maximum time by which a timestamp may be after the broker's clock.",
    ),
    _number(
        "delete.retention.ms",
        "delete_retention_ms",
        0,
        "log.cleaner.delete.retention.ms",
        "How long a tombstone is kept in a compacted log.",
    ),
    _number(
        "min.compaction.lag.ms",
        "min_compaction_lag_ms",
        0,
        "log.cleaner.min.compaction.lag.ms",
        "Minimum time that a record remains uncompacted.",
    ),
    _number(
        "max.compaction.lag.ms",
        "max_compaction_lag_ms",
        1,
        "log.cleaner.max.compaction.lag.ms",
        "Maximum time that a record remains uncompacted.",
    ),
    TopicConfig(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        "log.cleaner.min.cleanable.ratio",
        "Minimum ratio of the uncompacted part of a log for it to be compacted.",
        _read_ratio,
        lambda config: str(config.min_cleanable_dirty_ratio),
    ),
    _number(
        "file.delete.delay.ms",
        "file_delete_delay_ms",
        0,
        "log.segment.delete.delay.ms",
        "How long the files of a deleted segment are kept for clients that are still reading them.",
    ),
    _number(
        "flush.messages",
        "flush_messages",
        1,
        "log.flush.interval.messages",
        "Number of records after which they are flushed to disk, acknowledged from memory; by default each before its"
        " response.",
    ),
    _number(
        "flush.ms",
        "flush_ms",
        0,
        "log.flush.interval.ms",
        "Maximum time before records are flushed to disk, acknowledged from memory; by default each before its"
        " response.",
    ),
    _one_value("compression.type", ConfigType.STRING, "producer", "Batches stay as their producer compressed them."),
    _number(
        "min.insync.replicas",
        "min_insync_replicas",
        1,
        "min.insync.replicas",
        "Number of replicas that must be in sync for a record with acks=all; at most all of them are required.",
        wide=False,
    ),
    _one_value("preallocate", ConfigType.BOOLEAN, "false", "Files grow as they are written.", "log.preallocate"),
    _one_value(
        "segment.jitter.ms", ConfigType.LONG, "0", "Segments are rolled exactly when due.", "log.roll.jitter.ms"
    ),
    TopicConfig(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        "unclean.leader.election.enable",
        "Whether a replica that is not in sync leads when no other one is alive: acknowledged records may be lost.",
        _read_unclean,
        lambda config: str(config.unclean_leader_election).lower(),
    ),
    _one_value("remote.storage.enable", ConfigType.BOOLEAN, "false", "Records are on this broker's disk.", ""),
)

TOPIC_CONFIGS: Mapping[str, TopicConfig] = {row.name: row for row in _ROWS}
"""Configurations by name, in the order in which they are described."""


def list_items(text: str) -> list[str]:
    """Return the items of a comma-separated list, without spaces around them."""
    return [item.strip() for item in text.split(",")] if text.strip() else []


def normalized(configs: Mapping[str, str | None]) -> dict[str, str]:
    """Return the configurations with values as Kafka formats them. Raises InvalidConfig for the first invalid one."""
    texts = {}
    fields: dict[str, Any] = {}
    for name, text in configs.items():
        row = TOPIC_CONFIGS.get(name)
        if row is None:
            raise InvalidConfig(f"Unknown topic config name: {name}")
        if text is None:
            raise InvalidConfig(f"Null value not supported for topic configs: {name}")
        try:
            read = row.read(text.strip())
        except ValueError as error:
            raise InvalidConfig(f"Invalid value {text} for configuration {name}: {error}") from error
        fields.update(read)
        texts[name] = (
            ",".join(list_items(text)) if row.type is ConfigType.LIST else row.write(replace(LogConfig(), **read))
        )
    shortest = fields.get("min_compaction_lag_ms", 0)
    longest = fields.get("max_compaction_lag_ms", INT64_MAX)
    if shortest > longest:
        raise InvalidConfig(
            f"conflict topic config setting min.compaction.lag.ms ({shortest}) > max.compaction.lag.ms ({longest})"
        )
    return texts


def log_config(defaults: LogConfig, configs: Mapping[str, str]) -> LogConfig:
    """Return `defaults` with a topic's configurations. Raises InvalidConfig for one written by a later release."""
    fields: dict[str, Any] = {}
    for name, text in configs.items():
        row = TOPIC_CONFIGS.get(name)
        if row is None:
            raise InvalidConfig(f"this release does not know the topic config {name}; {Remedy.WRITER_RELEASE}")
        fields.update(row.read(text))
    return replace(defaults, **fields)
