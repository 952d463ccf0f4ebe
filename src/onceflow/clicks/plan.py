"""The plan of `onceflow run`: what a marker's counts are. A checkpoint and a hash key are bound to one plan."""

import json
from dataclasses import dataclass, field
from typing import Any

from onceflow.clicks.events import TIME_FIELD
from onceflow.clicks.measures import MeasureSettings


@dataclass(frozen=True)
class Plan:
    """The fields of an event that are counted, and the measures."""

    hash_key: str
    """Part of the plan, because `h` and `{h}` share a marker and are two hashes."""
    key_field: str
    value_field: str | None
    time_field: str = TIME_FIELD
    measures: MeasureSettings = field(default_factory=MeasureSettings)
    event_ids_ms: int | None = None
    """Window in which an event's id counts once; None counts every record."""

    @property
    def text(self) -> str:
        """JSON, as the marker stores it."""
        plan: dict[str, Any] = {
            "counts": "clicks",
            "hash_key": self.hash_key,
            "key_field": self.key_field,
            "value_field": self.value_field,
        }
        if self.measures != MeasureSettings():
            plan |= {"time_field": self.time_field, **self.measures.as_json()}
        if self.event_ids_ms is not None:
            plan["event_ids_ms"] = self.event_ids_ms
        return json.dumps(plan)


def parse_plan(text: str) -> Plan | None:
    """Return the plan in a marker; None if another job wrote it."""
    try:
        plan = json.loads(text)
        measures = {name: plan[name] for name in MeasureSettings().as_json() if name in plan}
        return Plan(
            plan.get("hash_key", ""),
            plan["key_field"],
            plan["value_field"],
            plan.get("time_field", TIME_FIELD),
            MeasureSettings(**measures),
            plan.get("event_ids_ms"),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
