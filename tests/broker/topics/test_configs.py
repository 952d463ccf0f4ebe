"""Topic configurations: accepted values, their stored form, and error messages."""

import pytest

from onceflow.broker.settings.kinds import INT32_MAX
from onceflow.broker.settings.table import SETTINGS
from onceflow.broker.topics import configs as topic_configs
from onceflow.broker.topics.configs import TOPIC_CONFIGS, InvalidConfig
from onceflow.log.config import LogConfig

KAFKAS_DEFAULTS = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
    "segment.index.bytes": "10485760",
    "index.interval.bytes": "4096",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.after.max.ms": "3600000",
    "delete.retention.ms": "86400000",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "9223372036854775807",
    "min.cleanable.dirty.ratio": "0.5",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "compression.type": "producer",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "segment.jitter.ms": "0",
    "unclean.leader.election.enable": "false",
    "remote.storage.enable": "false",
}
"""Configurations of a new topic in Apache Kafka 4.1.1."""


def test_names_and_defaults_are_kafkas() -> None:
    assert {name: row.write(LogConfig()) for name, row in TOPIC_CONFIGS.items()} == KAFKAS_DEFAULTS


@pytest.mark.parametrize("name", TOPIC_CONFIGS)
def test_defaults_are_valid_values(name: str) -> None:
    row = TOPIC_CONFIGS[name]
    default = row.write(LogConfig())
    assert topic_configs.normalized({name: f" {default} "}) == {name: default}
    assert topic_configs.log_config(LogConfig(), {name: default}) == LogConfig()
    assert row.documentation.endswith(".")


def test_defaults_come_from_broker_settings() -> None:
    from onceflow.broker.settings.fixed import FIXED

    without = {row.name for row in TOPIC_CONFIGS.values() if not row.broker_setting}
    assert without == {"remote.storage.enable"}
    assert {row.broker_setting for row in TOPIC_CONFIGS.values() if row.broker_setting} <= {*SETTINGS, *FIXED}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("retention.ms", "x", "Invalid value x for configuration retention.ms: Not a number of type LONG"),
        ("retention.ms", "", "Invalid value  for configuration retention.ms: Not a number of type LONG"),
        ("retention.ms", "1e3", "Not a number of type LONG"),
        ("retention.ms", "1_000", "Not a number of type LONG"),
        ("retention.ms", "٣", "Not a number of type LONG"),
        ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("segment.bytes", "1048575", "Value must be at least 1048576"),
        ("segment.bytes", str(INT32_MAX + 1), "Not a number of type INT"),
        ("segment.ms", "0", "Value must be at least 1"),
        ("segment.index.bytes", "3", "Value must be at least 4"),
        ("flush.messages", "0", "Value must be at least 1"),
        ("max.compaction.lag.ms", "0", "Value must be at least 1"),
        ("min.cleanable.dirty.ratio", "1.5", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "-0.1", "Value must be at least 0"),
        ("min.cleanable.dirty.ratio", "nan", "Not a number of type DOUBLE"),
        ("cleanup.policy", "compact,x", "String must be one of: compact, delete"),
        ("message.timestamp.type", "createtime", "String must be one of: CreateTime, LogAppendTime"),
        ("min.insync.replicas", "0", "Value must be at least 1"),
        ("compression.type", "zstd", "only producer is supported"),
        ("unheard.of", "x", "Unknown topic config name: unheard.of"),
        ("retention.ms", None, "Null value not supported for topic configs: retention.ms"),
    ],
)
def test_error_messages_are_kafkas(name: str, value: str | None, message: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        topic_configs.normalized({name: value})
    assert message in str(refused.value)


def test_contradicting_lags_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"min.compaction.lag.ms \(10\) > max.compaction.lag.ms \(5\)"):
        topic_configs.normalized({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})


@pytest.mark.parametrize(
    ("given", "kept"), [("+5", "5"), (" 007", "7"), ("-0", "0"), ("9223372036854775807", "9223372036854775807")]
)
def test_numbers_are_stored_as_in_kafka(given: str, kept: str) -> None:
    assert topic_configs.normalized({"flush.ms": given}) == {"flush.ms": kept}


def test_configurations_reach_the_log() -> None:
    configs = {
        "segment.bytes": "2000000",
        "retention.ms": "-1",
        "max.message.bytes": "99",
        "cleanup.policy": "compact",
        "message.timestamp.type": "LogAppendTime",
        "min.cleanable.dirty.ratio": ".25",
    }
    config = topic_configs.log_config(LogConfig(), topic_configs.normalized(configs))
    assert (config.segment_bytes, config.retention_ms, config.message_bytes_max) == (2_000_000, -1, 99)
    assert (config.cleanup_compact, config.cleanup_delete, config.log_append_time) == (True, False, True)
    assert config.min_cleanable_dirty_ratio == 0.25


def test_configuration_of_later_release_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="start the release that wrote it"):
        topic_configs.log_config(LogConfig(), {"from.the.future": "1"})
