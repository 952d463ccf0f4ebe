"""The source's options: Spark's own names, read once, refused at once when they are not understood."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from onceflow.client.addresses import InvalidAddress, parse_bootstrap
from onceflow.errors import OnceflowError
from onceflow.spark.offsets import MalformedOffsets, Offsets, parse

BOOTSTRAP_SERVERS = "kafka.bootstrap.servers"
SUBSCRIBE = "subscribe"
STARTING_OFFSETS = "startingOffsets"
ENDING_OFFSETS = "endingOffsets"
MAX_OFFSETS_PER_TRIGGER = "maxOffsetsPerTrigger"
FAIL_ON_DATA_LOSS = "failOnDataLoss"
ISOLATION_LEVEL = "isolation.level"

NAMES = (
    BOOTSTRAP_SERVERS,
    SUBSCRIBE,
    STARTING_OFFSETS,
    ENDING_OFFSETS,
    MAX_OFFSETS_PER_TRIGGER,
    FAIL_ON_DATA_LOSS,
    ISOLATION_LEVEL,
)
STREAM_ONLY = (MAX_OFFSETS_PER_TRIGGER,)
BATCH_ONLY = (ENDING_OFFSETS,)

EARLIEST = -2
"""In offsets given as JSON: the partition's first record. The number is Kafka's, in ListOffsets."""
LATEST = -1
"""In offsets given as JSON: the partition's end."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")

Position = Literal["earliest", "latest"] | Offsets
Mode = Literal["stream", "batch"]


class WrongOption(OnceflowError):
    """An option is missing, unknown, or has a value that means nothing; the sentence says what would be right."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Every option of a source, understood."""

    bootstrap: str
    topics: tuple[str, ...]
    starting: Position
    ending: Position = "latest"
    offsets_per_trigger_max: int | None = None
    fail_on_data_loss: bool = True
    read_committed: bool = True


def read_options(given: Mapping[str, str], mode: Mode | None = None) -> SourceOptions:
    """What the user asked for. Names are taken in any case, as everywhere in Spark. Raises WrongOption.

    Without a mode, options of a stream and of a batch are both let through: Spark asks for the schema before it
    says which of the two it wants.
    """
    for name in given:
        _require_known(name)
    values = {name.lower(): value.strip() for name, value in given.items()}
    for name in STREAM_ONLY if mode == "batch" else BATCH_ONLY if mode == "stream" else ():
        if name.lower() in values:
            raise WrongOption(f"option {name} means nothing in a {mode} read; take it out")
    topics = _topics(_required(values, SUBSCRIBE, "a topic, or several with commas between"))
    options = SourceOptions(
        bootstrap=_servers(_required(values, BOOTSTRAP_SERVERS, "host:port, or several with commas between")),
        topics=topics,
        starting=_position(values, STARTING_OFFSETS, "earliest" if mode == "batch" else "latest", topics),
        ending=_position(values, ENDING_OFFSETS, "latest", topics),
        offsets_per_trigger_max=_count(values, MAX_OFFSETS_PER_TRIGGER),
        fail_on_data_loss=_choice(values, FAIL_ON_DATA_LOSS, "true", "false") == "true",
        read_committed=_choice(values, ISOLATION_LEVEL, "read_committed", "read_uncommitted") == "read_committed",
    )
    if mode == "batch":
        _require_rows(options)
    return options


def _require_known(name: str) -> None:
    by_lower = {known.lower(): known for known in NAMES}
    if name.lower() in by_lower:
        return
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    remedy = f"did you mean {by_lower[nearest[0]]}?" if nearest else f"the options are {', '.join(NAMES)}"
    raise WrongOption(f"unknown option {name} of source onceflow; {remedy}")


def _require_rows(options: SourceOptions) -> None:
    if options.starting == "latest" or _mentions(options.starting, LATEST):
        raise WrongOption(f"option {STARTING_OFFSETS} is latest in a batch read, where nothing comes after it")
    if options.ending == "earliest" or _mentions(options.ending, EARLIEST):
        raise WrongOption(f"option {ENDING_OFFSETS} is earliest in a batch read, where nothing comes before it")


def _mentions(position: Position, sought: int) -> bool:
    return isinstance(position, Offsets) and any(
        offset == sought for partitions in position.by_topic.values() for offset in partitions.values()
    )


def _required(values: Mapping[str, str], name: str, meaning: str) -> str:
    if not values.get(name.lower()):
        raise WrongOption(f"option {name} of source onceflow is missing; it takes {meaning}")
    return values[name.lower()]


def _topics(value: str) -> tuple[str, ...]:
    topics = tuple(topic.strip() for topic in value.split(","))
    for topic in topics:
        if not _TOPIC.fullmatch(topic):
            raise WrongOption(
                f"option {SUBSCRIBE}={value!r}: {topic!r} is not a topic's name, which has letters, digits, "
                "'.', '_' and '-', 249 at most"
            )
    if len(set(topics)) < len(topics):
        raise WrongOption(f"option {SUBSCRIBE}={value!r} names a topic twice")
    return topics


def _servers(value: str) -> str:
    try:
        return ",".join(str(address) for address in parse_bootstrap(value))
    except InvalidAddress as error:
        raise WrongOption(f"option {BOOTSTRAP_SERVERS}={value!r}: {error}") from error


def _position(values: Mapping[str, str], name: str, default: str, topics: tuple[str, ...]) -> Position:
    value = values.get(name.lower(), default)
    if value.lower() == "earliest":
        return "earliest"
    if value.lower() == "latest":
        return "latest"
    try:
        offsets = parse(value)
    except MalformedOffsets as error:
        raise WrongOption(f"option {name}={value!r} is neither earliest nor latest nor offsets: {error}") from error
    for topic in set(topics) ^ set(offsets.by_topic):
        has, lacks = (SUBSCRIBE, name) if topic in topics else (name, SUBSCRIBE)
        raise WrongOption(f"topic {topic} is in option {has} and not in {lacks}; both must name the same topics")
    for topic, partitions in offsets.by_topic.items():
        for partition, offset in partitions.items():
            if offset < EARLIEST:
                raise WrongOption(
                    f"option {name}: offset {offset} of {topic}-{partition}; {EARLIEST} is earliest, {LATEST} is latest"
                )
    return offsets


def _count(values: Mapping[str, str], name: str) -> int | None:
    value = values.get(name.lower())
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and 0 < int(value) < 2**63):
        raise WrongOption(f"option {name}={value!r} is not a whole number above 0")
    return int(value)


def _choice(values: Mapping[str, str], name: str, default: str, other: str) -> str:
    value = values.get(name.lower(), default).lower()
    if value not in (default, other):
        raise WrongOption(f"option {name}={value!r} is neither {default} nor {other}")
    return value
