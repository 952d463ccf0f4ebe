"""The source's options: Spark's own names, parsed once; unknown options are refused."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from onceflow.client import security
from onceflow.client.addresses import InvalidAddress, parse_bootstrap
from onceflow.client.errors import InvalidSecurity
from onceflow.client.registry.settings import SessionSettings, read_session_file
from onceflow.client.security import PLAINTEXT, Security, read_security
from onceflow.client.settings import InvalidSetting
from onceflow.spark.errors import WrongOption
from onceflow.spark.offsets import Offsets
from onceflow.spark.pushdown import options as pushdown_options
from onceflow.spark.pushdown.options import Pushdown, parse_pushdown
from onceflow.spark.reader import position_options as positions
from onceflow.spark.reader import subscription
from onceflow.spark.reader.position_options import (
    EARLIEST,
    LATEST,
    AtCommitted,
    Position,
    is_start_given,
    read_ending,
    read_starting,
)
from onceflow.spark.reader.subscription import Subscription, read_subscription

BOOTSTRAP_SERVERS = "kafka.bootstrap.servers"
COMMIT_OFFSETS = "commitOffsets"
ZOOKEEPER_CONNECT = "zookeeperConnect"
ZOOKEEPER_CONFIG = "zookeeperConfig"
MAX_OFFSETS_PER_TRIGGER = "maxOffsetsPerTrigger"
MIN_OFFSETS_PER_TRIGGER = "minOffsetsPerTrigger"
MAX_TRIGGER_DELAY = "maxTriggerDelay"
MAX_EVENT_TIME_SKEW = "maxEventTimeSkew"
MIN_PARTITIONS = "minPartitions"
MAX_PARTITIONS = "maxPartitions"
MAX_RECORDS_PER_PARTITION = "maxRecordsPerPartition"
FAIL_ON_DATA_LOSS = "failOnDataLoss"
INCLUDE_HEADERS = "includeHeaders"
ISOLATION_LEVEL = "isolation.level"

STREAM_ONLY = (
    COMMIT_OFFSETS,
    MAX_OFFSETS_PER_TRIGGER,
    MIN_OFFSETS_PER_TRIGGER,
    MAX_TRIGGER_DELAY,
    MAX_EVENT_TIME_SKEW,
)
BATCH_ONLY = positions.ENDING
KAFKA = "kafka."
"""Prefix of Kafka's own client settings, as in Spark's connector."""
SECURITY_NAMES = tuple(KAFKA + name for name in security.NAMES)
NAMES = (
    BOOTSTRAP_SERVERS,
    *subscription.OPTIONS,
    *positions.STARTING,
    positions.STARTING_STRATEGY,
    positions.GROUP_ID,
    positions.NONE_COMMITTED,
    COMMIT_OFFSETS,
    ZOOKEEPER_CONNECT,
    ZOOKEEPER_CONFIG,
    *positions.ENDING,
    MAX_OFFSETS_PER_TRIGGER,
    MIN_OFFSETS_PER_TRIGGER,
    MAX_TRIGGER_DELAY,
    MAX_EVENT_TIME_SKEW,
    MIN_PARTITIONS,
    MAX_PARTITIONS,
    MAX_RECORDS_PER_PARTITION,
    FAIL_ON_DATA_LOSS,
    INCLUDE_HEADERS,
    *pushdown_options.NAMES,
    ISOLATION_LEVEL,
    *SECURITY_NAMES,
)
_ALIASES = {"kafka.isolation.level": ISOLATION_LEVEL}
"""Spark's connector passes each option that starts with "kafka." to its consumer; this one means the same here."""
WITHOUT_EFFECT = {
    "kafka.group.id": f"a query is not a group member; {positions.GROUP_ID} names the group to commit to",
    "groupidprefix": f"a query is not a group member; {positions.GROUP_ID} names the group to commit to",
    "fetchoffset.numretries": "offset requests are retried until the client's time-out",
    "fetchoffset.retryintervalms": "offset requests are retried until the client's time-out",
    "kafkaconsumer.polltimeoutms": "a read fails when a partition returns no records for 30 s",
    "kafka.max.poll.records": f"{MAX_OFFSETS_PER_TRIGGER} limits a micro-batch, {MAX_RECORDS_PER_PARTITION} a task",
    "kafka.auto.offset.reset": f"{positions.STARTING_OFFSETS} sets where a fresh query starts",
    "kafka.enable.auto.commit": f"{positions.GROUP_ID} and {COMMIT_OFFSETS} control commits to a group",
    "kafka.key.deserializer": "key is binary; CAST(key AS string) converts it to text",
    "kafka.value.deserializer": "value is binary; CAST(value AS string) converts it to text, decode to columns",
    "kafka.ssl.truststore.password": "a truststore in PEM has none",
}
"""Options of Spark's connector without effect here, in lower case, and why."""
_SUPPORTED_OF_CONSUMER = (
    f"of the settings of Kafka's consumer it supports {BOOTSTRAP_SERVERS}, kafka.{ISOLATION_LEVEL} and those of TLS "
    "and SASL that docs/spark.md lists"
)
_LIKENESS_MIN = 0.5
_LIKENESS_OF_KAFKAS_MIN = 0.85
"""Most of the consumer's settings resemble one of ours; a typing error resembles it more."""

MAX_TRIGGER_DELAY_MS = 15 * 60_000
"""Spark's default."""
_DURATION = re.compile(r"(\d{1,15})\s*(ms|s|m|min|h|d)?")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

Mode = Literal["stream", "batch"]
_T = TypeVar("_T", int, None)

__all__ = ["EARLIEST", "LATEST", "Position", "SourceOptions", "WrongOption", "read_options"]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Parsed options of a source."""

    bootstrap: str
    subscription: Subscription
    starting: Position
    ending: Position = "latest"
    start_given: bool = False
    """Whether an option sets where a fresh query starts; `starting` is the default otherwise."""
    commits_to: str | None = None
    """The group to which the query commits its offsets."""
    zookeeper: SessionSettings | None = None
    """The ZooKeeper with the group's offsets; None: they are in Kafka."""
    offsets_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    trigger_delay_max_ms: int = MAX_TRIGGER_DELAY_MS
    event_time_skew_ms: int | None = None
    tasks_min: int | None = None
    tasks_max: int | None = None
    offsets_per_task_max: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    pushdown: Pushdown | None = None
    read_committed: bool = True
    security: Security = PLAINTEXT


def read_options(given: Mapping[str, str], mode: Mode | None = None) -> SourceOptions:
    """Parse the options. Names are case-insensitive, as everywhere in Spark. Raises WrongOption.

    Without a mode, options of a stream and of a batch are both accepted: Spark asks for the schema before it selects
    one of the two.
    """
    for name in given:
        _require_known(name)
    values = _by_lower_name(given)
    for name in STREAM_ONLY if mode == "batch" else BATCH_ONLY if mode == "stream" else ():
        if name.lower() in values:
            raise WrongOption(f"option {name} has no effect in a {mode} read; remove it")
    wanted = read_subscription(values)
    options = SourceOptions(
        bootstrap=_servers(_required(values, BOOTSTRAP_SERVERS, "host:port, or several with commas between")),
        subscription=wanted,
        starting=read_starting(values, wanted, "earliest" if mode == "batch" else "latest"),
        ending=read_ending(values, wanted),
        start_given=is_start_given(values),
        commits_to=_group_to_commit_to(values, mode),
        zookeeper=_zookeeper(values),
        offsets_per_trigger_max=_count(values, MAX_OFFSETS_PER_TRIGGER),
        offsets_per_trigger_min=_count(values, MIN_OFFSETS_PER_TRIGGER),
        trigger_delay_max_ms=_duration_ms(values, MAX_TRIGGER_DELAY, MAX_TRIGGER_DELAY_MS),
        event_time_skew_ms=_duration_ms(values, MAX_EVENT_TIME_SKEW, None),
        tasks_min=_count(values, MIN_PARTITIONS),
        tasks_max=_count(values, MAX_PARTITIONS),
        offsets_per_task_max=_count(values, MAX_RECORDS_PER_PARTITION),
        fail_on_data_loss=_flag(values, FAIL_ON_DATA_LOSS, default=True),
        include_headers=_flag(values, INCLUDE_HEADERS, default=False),
        pushdown=parse_pushdown(values, include_headers=_flag(values, INCLUDE_HEADERS, default=False)),
        read_committed=_choice(values, ISOLATION_LEVEL, "read_committed", "read_uncommitted") == "read_committed",
        security=_security(values),
    )
    _require_sense(options, values)
    if mode is not None:
        _require_use_of_group(options, values, mode)
    if mode == "batch":
        _require_rows(options)
    return options


def _by_lower_name(given: Mapping[str, str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in given.items():
        lower = _ALIASES.get(name.lower(), name).lower()
        if values.setdefault(lower, value.strip()) != value.strip():
            raise WrongOption(
                f"option {name}={value.strip()!r} is also given as {values[lower]!r} under its other name"
            )
    return values


def _require_known(name: str) -> None:
    by_lower = {known.lower(): known for known in NAMES} | _ALIASES
    if name.lower() in by_lower:
        return
    of_kafka = name.lower().startswith(KAFKA)
    cutoff = _LIKENESS_OF_KAFKAS_MIN if of_kafka else _LIKENESS_MIN
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    if of_kafka and not nearest:
        # A name of the source itself, with the consumer's prefix by mistake.
        own = difflib.get_close_matches(name.lower().removeprefix(KAFKA), by_lower, n=1, cutoff=cutoff)
        nearest = own if name.lower() not in WITHOUT_EFFECT else []
    why = WITHOUT_EFFECT.get(name.lower(), _SUPPORTED_OF_CONSUMER if of_kafka and not nearest else None)
    if why is not None:
        raise WrongOption(f"option {name} has no effect on source onceflow, remove it: {why}")
    remedy = f"did you mean {by_lower[nearest[0]]}?" if nearest else f"the options are {', '.join(NAMES)}"
    raise WrongOption(f"unknown option {name} of source onceflow; {remedy}")


def _require_sense(options: SourceOptions, values: Mapping[str, str]) -> None:
    least, most = options.offsets_per_trigger_min, options.offsets_per_trigger_max
    if least is not None and most is not None and least > most:
        raise WrongOption(f"option {MIN_OFFSETS_PER_TRIGGER}={least} is more than {MAX_OFFSETS_PER_TRIGGER}={most}")
    if options.tasks_min is not None and options.tasks_max is not None:
        raise WrongOption(f"options {MIN_PARTITIONS} and {MAX_PARTITIONS} are both set; remove one")
    if MAX_TRIGGER_DELAY.lower() in values and least is None:
        raise WrongOption(f"option {MAX_TRIGGER_DELAY} requires option {MIN_OFFSETS_PER_TRIGGER}")


def _require_use_of_group(options: SourceOptions, values: Mapping[str, str], mode: Mode) -> None:
    """Raise WrongOption for a group from which nothing is read and to which nothing is committed."""
    if positions.GROUP_ID.lower() not in values or options.commits_to or isinstance(options.starting, AtCommitted):
        return
    why = "a batch read commits nothing" if mode == "batch" else f"{COMMIT_OFFSETS} is false"
    raise WrongOption(
        f"option {positions.GROUP_ID} has no effect here: the read does not start at {positions.COMMITTED} offsets and "
        f"{why}; remove it, or start there with {positions.STARTING_OFFSETS}={positions.COMMITTED}"
    )


def _require_rows(options: SourceOptions) -> None:
    if options.starting == "latest" or _mentions(options.starting, LATEST):
        raise WrongOption(f"option {positions.STARTING_OFFSETS} is latest in a batch read, which would have no records")
    if options.ending == "earliest" or _mentions(options.ending, EARLIEST):
        raise WrongOption(f"option {positions.ENDING_OFFSETS} is earliest in a batch read, which would have no records")


def _mentions(position: Position, sought: int) -> bool:
    return isinstance(position, Offsets) and any(
        offset == sought for partitions in position.by_topic.values() for offset in partitions.values()
    )


def _group_to_commit_to(values: Mapping[str, str], mode: Mode | None) -> str | None:
    group = values.get(positions.GROUP_ID.lower())
    if group == "":
        raise WrongOption(f"option {positions.GROUP_ID} is empty; it takes a group's name")
    if group is None and COMMIT_OFFSETS.lower() in values:
        raise WrongOption(f"option {COMMIT_OFFSETS} requires option {positions.GROUP_ID}, the group to commit to")
    return group if _flag(values, COMMIT_OFFSETS, default=True) and mode != "batch" else None


def _zookeeper(values: Mapping[str, str]) -> SessionSettings | None:
    file = values.get(ZOOKEEPER_CONFIG.lower())
    if ZOOKEEPER_CONNECT.lower() not in values:
        if file is not None:
            raise WrongOption(f"option {ZOOKEEPER_CONFIG} requires option {ZOOKEEPER_CONNECT}")
        return None
    if positions.GROUP_ID.lower() not in values:
        raise WrongOption(
            f"option {ZOOKEEPER_CONNECT} requires option {positions.GROUP_ID}, the group whose offsets are there"
        )
    where = _required(values, ZOOKEEPER_CONNECT, "host:port of ZooKeeper, with the cluster's chroot")
    if file is None:
        return SessionSettings(where)
    try:
        return read_session_file(where, Path(file))
    except InvalidSetting as error:
        raise WrongOption(f"option {ZOOKEEPER_CONFIG}={file!r}: {error}") from error


def _required(values: Mapping[str, str], name: str, meaning: str) -> str:
    if not values.get(name.lower()):
        raise WrongOption(f"option {name} of source onceflow is missing; it takes {meaning}")
    return values[name.lower()]


def _servers(value: str) -> str:
    try:
        return ",".join(str(address) for address in parse_bootstrap(value))
    except InvalidAddress as error:
        raise WrongOption(f"option {BOOTSTRAP_SERVERS}={value!r}: {error}") from error


def _security(values: Mapping[str, str]) -> Security:
    given = {name: values[(KAFKA + name).lower()] for name in security.NAMES if (KAFKA + name).lower() in values}
    try:
        return read_security(given)
    except InvalidSecurity as error:
        raise WrongOption(f"option {KAFKA}{error}") from error


def _count(values: Mapping[str, str], name: str) -> int | None:
    value = values.get(name.lower())
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and 0 < int(value) < 2**63):
        raise WrongOption(f"option {name}={value!r} is not a whole number above 0")
    return int(value)


def _duration_ms(values: Mapping[str, str], name: str, default_ms: _T) -> int | _T:
    value = values.get(name.lower())
    if value is None:
        return default_ms
    duration = _DURATION.fullmatch(value.lower())
    if duration is None:
        raise WrongOption(f"option {name}={value!r} is not a time like 500ms, 30s, 15m, 2h or 1d")
    return int(duration[1]) * _UNIT_MS[duration[2] or "ms"]


def _flag(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    return _choice(values, name, str(default).lower(), str(not default).lower()) == "true"


def _choice(values: Mapping[str, str], name: str, default: str, other: str) -> str:
    value = values.get(name.lower(), default).lower()
    if value not in (default, other):
        raise WrongOption(f"option {name}={value!r} is neither {default} nor {other}")
    return value
