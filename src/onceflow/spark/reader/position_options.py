"""Options for the start and end of a read: Spark's, and `committed` for a group's offsets.

    startingOffsets              earliest | latest | committed | {"visits": {"0": 23, "1": -2}}
    startingTimestamp            ms since 1970, for every partition
    startingOffsetsByTimestamp   {"visits": {"0": 1700000000000, "1": 1700000000000}}

The end of a batch read has three options like these. At most one of the three may be given.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from onceflow.spark.errors import WrongOption
from onceflow.spark.offsets import MalformedOffsets, Offsets, parse
from onceflow.spark.reader.subscription import Subscription

STARTING_OFFSETS = "startingOffsets"
STARTING_TIMESTAMP = "startingTimestamp"
STARTING_BY_TIMESTAMP = "startingOffsetsByTimestamp"
STARTING_STRATEGY = "startingOffsetsByTimestampStrategy"
ENDING_OFFSETS = "endingOffsets"
ENDING_TIMESTAMP = "endingTimestamp"
ENDING_BY_TIMESTAMP = "endingOffsetsByTimestamp"
GROUP_ID = "groupId"
NONE_COMMITTED = "startingOffsetsIfNoneCommitted"

STARTING = (STARTING_OFFSETS, STARTING_TIMESTAMP, STARTING_BY_TIMESTAMP)
ENDING = (ENDING_OFFSETS, ENDING_TIMESTAMP, ENDING_BY_TIMESTAMP)

EARLIEST = -2
"""The partition's first record, in offsets given as JSON. The number is Kafka's, in ListOffsets."""
LATEST = -1
"""The partition's end, in offsets given as JSON."""

COMMITTED = "committed"
FAIL = "fail"


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """First record of each partition at or after a time."""

    option: str
    everywhere_ms: int | None
    by_partition_ms: Mapping[str, Mapping[int, int]]
    """Topic → partition → ms, if the times differ."""
    fails_beyond: bool
    """Whether a time after all records is an error; otherwise it selects the end of the partition."""


@dataclass(frozen=True, slots=True)
class AtCommitted:
    """Committed offsets of a group."""

    group: str
    otherwise: Literal["earliest", "latest", "fail"]
    """Position in a partition without a committed offset."""


Position = Literal["earliest", "latest"] | Offsets | AtTimestamp | AtCommitted


def read_starting(
    values: Mapping[str, str], subscription: Subscription, default: Literal["earliest", "latest"]
) -> Position:
    """Return where the read starts; `values` are the options by lower-case name. Raises WrongOption."""
    name = _only_one(values, STARTING)
    group = values.get(GROUP_ID.lower())
    if STARTING_STRATEGY.lower() in values and name not in (STARTING_TIMESTAMP, STARTING_BY_TIMESTAMP):
        raise WrongOption(f"option {STARTING_STRATEGY} requires {STARTING_TIMESTAMP} or {STARTING_BY_TIMESTAMP}")
    if name is None:
        position: Position = default if group is None else _committed(values, default)
    elif name == STARTING_OFFSETS and values[name.lower()].lower() == COMMITTED:
        position = _committed(values, default)
    else:
        position = _position(values, name, STARTING_OFFSETS, subscription)
    if NONE_COMMITTED.lower() in values and not isinstance(position, AtCommitted):
        raise WrongOption(f"option {NONE_COMMITTED} requires a read that starts at {COMMITTED} offsets")
    return position


def is_start_given(values: Mapping[str, str]) -> bool:
    """Return whether an option sets where the read starts (a group does too); `values` have lower-case names."""
    return any(name.lower() in values for name in (*STARTING, GROUP_ID))


def read_ending(values: Mapping[str, str], subscription: Subscription) -> Position:
    """Return where a batch read ends; `values` are the options by lower-case name. Raises WrongOption."""
    name = _only_one(values, ENDING)
    return "latest" if name is None else _position(values, name, ENDING_OFFSETS, subscription)


def _only_one(values: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    given = [name for name in names if name.lower() in values]
    if len(given) > 1:
        raise WrongOption(f"options {' and '.join(given)} both set where the read {_VERB[names]}; give one of them")
    return given[0] if given else None


_VERB: dict[tuple[str, ...], str] = {STARTING: "starts", ENDING: "ends"}


def _committed(values: Mapping[str, str], default: Literal["earliest", "latest"]) -> AtCommitted:
    group = values.get(GROUP_ID.lower())
    if group is None:
        raise WrongOption(f"option {STARTING_OFFSETS}={COMMITTED} requires option {GROUP_ID}, the group that committed")
    otherwise = values.get(NONE_COMMITTED.lower(), default).lower()
    if otherwise == "earliest":
        return AtCommitted(group, "earliest")
    if otherwise == "latest":
        return AtCommitted(group, "latest")
    if otherwise == FAIL:
        return AtCommitted(group, "fail")
    raise WrongOption(f"option {NONE_COMMITTED}={otherwise!r} is neither earliest nor latest nor {FAIL}")


def _position(values: Mapping[str, str], name: str, offsets_name: str, subscription: Subscription) -> Position:
    value = values[name.lower()]
    if name == offsets_name:
        return _offsets(name, value, subscription)
    fails_beyond = name in STARTING and _strategy(values) == "error"
    if name in (STARTING_TIMESTAMP, ENDING_TIMESTAMP):
        if not (value.isascii() and value.isdecimal() and int(value) < 2**63):
            raise WrongOption(f"option {name}={value!r} is not a time in milliseconds since 1970")
        return AtTimestamp(name, int(value), {}, fails_beyond)
    times = _by_partition(name, value, subscription)
    for topic, partitions in times.by_topic.items():
        for partition, time_ms in partitions.items():
            if time_ms < 0:
                raise WrongOption(f"option {name}: time {time_ms} of {topic}-{partition} is before 1970")
    return AtTimestamp(name, None, times.by_topic, fails_beyond)


def _strategy(values: Mapping[str, str]) -> str:
    value = values.get(STARTING_STRATEGY.lower(), "error").lower()
    if value not in ("error", "latest"):
        raise WrongOption(f"option {STARTING_STRATEGY}={value!r} is neither error nor latest")
    return value


def _offsets(name: str, value: str, subscription: Subscription) -> Position:
    if value.lower() == "earliest":
        return "earliest"
    if value.lower() == "latest":
        return "latest"
    offsets = _by_partition(name, value, subscription)
    for topic, partitions in offsets.by_topic.items():
        for partition, offset in partitions.items():
            if offset < EARLIEST:
                raise WrongOption(
                    f"option {name}: offset {offset} of {topic}-{partition}; {EARLIEST} is earliest, {LATEST} is latest"
                )
    return offsets


def _by_partition(name: str, value: str, subscription: Subscription) -> Offsets:
    words = "neither earliest nor latest" + (f" nor {COMMITTED}" if name == STARTING_OFFSETS else "")
    try:
        given = parse(value)
    except MalformedOffsets as error:
        wrong = f"{words} nor offsets" if name in (STARTING_OFFSETS, ENDING_OFFSETS) else "not times by partition"
        raise WrongOption(f"option {name}={value!r} is {wrong}: {error}") from error
    # The topics that a pattern matches are not known yet.
    for topic in set(subscription.topics) ^ set(given.by_topic) if subscription.pattern is None else ():
        option = subscription.option
        has, lacks = (option, name) if topic in subscription.topics else (name, option)
        raise WrongOption(f"topic {topic} is in option {has} and not in {lacks}; both must name the same topics")
    return given
