"""Topics and groups that hold state of brokers and sinks; commands list them only on request."""

import re

MARKER_TOPIC = "onceflow-markers"
_MARKER_GROUP = re.compile(r"onceflow-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-.+")
"""Group of a Kafka sink: `onceflow-<query id>-<sink name>`."""


def is_internal_topic(name: str, by_broker: bool) -> bool:
    """Return whether a topic belongs to a broker (`by_broker`: it says so) or holds the markers of Kafka sinks."""
    return by_broker or name == MARKER_TOPIC


def is_marker_group(name: str) -> bool:
    """Return whether a Kafka sink keeps its marker in the offsets of this group."""
    return _MARKER_GROUP.fullmatch(name) is not None
