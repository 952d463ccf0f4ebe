"""The topic configurations that this broker honours; every other name or value is refused, never stored and ignored.

Names and meanings are Kafka's (org.apache.kafka.common.config.TopicConfig). There is no retention and no compaction
yet, so of their configurations only the values that say so are taken.
"""

from collections.abc import Mapping
from dataclasses import replace

from onceflow.errors import OnceflowError
from onceflow.log.config import LogConfig
from onceflow.wire.errors import ErrorCode

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

NUMBERS = {
    "segment.bytes": ("segment_bytes", 1024 * 1024, INT32_MAX),
    "segment.ms": ("segment_ms", 1, INT64_MAX),
    "index.interval.bytes": ("index_interval_bytes", 0, INT32_MAX),
    "max.message.bytes": ("message_bytes_max", 0, INT32_MAX),
}
"""Name → field of LogConfig, smallest and largest value (both as in Kafka 4.1)."""

FIXED = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
}
"""Name → the one value that describes what this broker does."""


class InvalidConfig(OnceflowError):
    """A topic's configuration cannot be honoured."""

    error_code = ErrorCode.invalid_config


def check(topic: str, configs: Mapping[str, str | None]) -> None:
    """Raises InvalidConfig that names the first configuration that cannot be honoured."""
    for name, value in configs.items():
        if name in NUMBERS:
            _check_number(topic, name, value)
        elif name not in FIXED:
            known = ", ".join(sorted((*NUMBERS, *FIXED)))
            raise InvalidConfig(f"topic {topic}: {name} is not supported here; supported are {known}")
        elif value != FIXED[name]:
            raise InvalidConfig(f"topic {topic}: {name}={value} is not supported here; only {FIXED[name]} is")


def _check_number(topic: str, name: str, value: str | None) -> None:
    _field, smallest, largest = NUMBERS[name]
    is_number = value is not None and value.isascii() and value.isdigit()
    if not is_number or not smallest <= int(value or 0) <= largest:
        raise InvalidConfig(f"topic {topic}: {name}={value} is not a number from {smallest} to {largest}")


def log_config(defaults: LogConfig, configs: Mapping[str, str]) -> LogConfig:
    """`defaults` with a topic's checked configurations."""
    numbers = {NUMBERS[name][0]: int(value) for name, value in configs.items() if name in NUMBERS}
    return replace(defaults, **numbers)
