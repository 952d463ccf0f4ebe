"""Progress of a mirror, which other threads read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onceflow.wire import TopicPartition


@dataclass(slots=True)
class Progress:
    """Counts since the start, and the lag of each partition in offsets.

    `lag` is replaced and never changed, so that another thread may iterate over it.
    """

    records: int = 0
    size_bytes: int = 0
    transactions: int = 0
    restarts: int = 0
    lag: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def lag_messages(self) -> int:
        """Total lag."""
        return sum(self.lag.values())

    def as_json(self) -> dict[str, Any]:
        """Return it for `json.dumps`."""
        topics: dict[str, int] = {}
        for (topic, _), messages in sorted(self.lag.items()):
            topics[topic] = topics.get(topic, 0) + messages
        return {
            "records": self.records,
            "bytes": self.size_bytes,
            "transactions": self.transactions,
            "restarts": self.restarts,
            "lag": {"messages": sum(topics.values()), "topics": topics},
        }
