"""Topics and partitions that a source reads, by one of Spark's options subscribe, subscribePattern and assign."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from onceflow.client.metadata import TopicMetadata
from onceflow.spark.errors import WrongOption

SUBSCRIBE = "subscribe"
SUBSCRIBE_PATTERN = "subscribePattern"
ASSIGN = "assign"
OPTIONS = (SUBSCRIBE, SUBSCRIBE_PATTERN, ASSIGN)

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_EXAMPLE = '{"visits": [0, 1]}'


@dataclass(frozen=True, slots=True)
class Subscription:
    """Topics or partitions that one of the three options selects."""

    option: str
    topics: tuple[str, ...] = ()
    """The named topics; empty for a pattern."""
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The named partitions of each topic, ascending; empty unless option assign is given."""

    def covers(self, topic: str, partition: int) -> bool:
        """Return whether the partition is selected."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics and partition in self.partitions.get(topic, (partition,))

    def select(self, existing: Mapping[str, TopicMetadata]) -> dict[str, list[int]]:
        """Return the existing partitions to read, ascending. A pattern matches no internal topic."""
        selected = {}
        for name, topic in sorted(existing.items()):
            partitions = [partition for partition in sorted(topic.partitions) if self.covers(name, partition)]
            if partitions and not (self.pattern is not None and topic.internal):
                selected[name] = partitions
        return selected

    def missing_from(self, existing: Mapping[str, TopicMetadata]) -> str | None:
        """Return a named partition that its existing topic lacks; None if there is none."""
        for topic, partitions in self.partitions.items():
            for partition in partitions:
                if topic in existing and partition not in existing[topic].partitions:
                    return f"{topic}-{partition}"
        return None


def subscribed(*topics: str) -> Subscription:
    """Return a subscription to all partitions of these topics."""
    return Subscription(SUBSCRIBE, topics)


def read_subscription(values: Mapping[str, str]) -> Subscription:
    """Parse the subscription from options by lower-case name. Raises WrongOption."""
    given = [name for name in OPTIONS if values.get(name.lower())]
    if not given:
        raise WrongOption(f"option {SUBSCRIBE} of source onceflow is missing (or {SUBSCRIBE_PATTERN}, or {ASSIGN})")
    if len(given) > 1:
        raise WrongOption(f"options {' and '.join(given)} both select what to read; give one of them")
    value = values[given[0].lower()]
    if given[0] == SUBSCRIBE:
        return Subscription(SUBSCRIBE, _topics(value))
    if given[0] == SUBSCRIBE_PATTERN:
        return Subscription(SUBSCRIBE_PATTERN, pattern=_pattern(value))
    partitions = _assignment(value)
    return Subscription(ASSIGN, tuple(partitions), partitions=partitions)


def _topics(value: str) -> tuple[str, ...]:
    topics = tuple(topic.strip() for topic in value.split(","))
    for topic in topics:
        _require_topic_name(SUBSCRIBE, value, topic)
    if len(set(topics)) < len(topics):
        raise WrongOption(f"option {SUBSCRIBE}={value!r} names a topic twice")
    return topics


def _require_topic_name(option: str, value: str, topic: str) -> None:
    if not _TOPIC.fullmatch(topic):
        raise WrongOption(
            f"option {option}={value!r}: {topic!r} is not a valid topic name; use letters, digits, '.', '_' and '-', "
            "at most 249"
        )


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise WrongOption(f"option {SUBSCRIBE_PATTERN}={value!r} is not a valid regular expression: {error}") from error
    return value


def _assignment(value: str) -> dict[str, tuple[int, ...]]:
    wrong = f"option {ASSIGN}={value!r} is not partitions by topic, like {_EXAMPLE}"
    try:
        document = json.loads(value)
    except json.JSONDecodeError as error:
        raise WrongOption(f"{wrong}: {error}") from error
    if not isinstance(document, dict) or not document:
        raise WrongOption(wrong)
    assignment = {}
    for topic, partitions in document.items():
        _require_topic_name(ASSIGN, value, topic)
        if (
            not isinstance(partitions, list)
            or not partitions
            or not all(_is_partition(partition) for partition in partitions)
        ):
            raise WrongOption(wrong)
        if len(set(partitions)) < len(partitions):
            raise WrongOption(f"option {ASSIGN}={value!r} names a partition of {topic} twice")
        assignment[topic] = tuple(sorted(partitions))
    return assignment


def _is_partition(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
