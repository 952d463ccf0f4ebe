"""Differences between the steps of two brokers, and the figures of a whole run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from tests.conformance.side import Step

ABSENT = "absent"
NAMING_FIELDS = ("api_key", "name", "topic", "partition_index", "partition", "index", "key", "group_id")


def differences(theirs: Sequence[Step], ours: Sequence[Step]) -> list[str]:
    """Return a line for each differing field: `API VERSION field.0.field: Kafka's → ours`."""
    assert [their.what for their in theirs] == [our.what for our in ours], "one case, two courses"
    differing = []
    for their, our in zip(theirs, ours, strict=True):
        differing += [
            f"{their.what} {path}: {left!r} → {right!r}" for path, left, right in _fields(their.came, our.came)
        ]
    return differing


def _fields(theirs: Any, ours: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    left, right = _parts(theirs), _parts(ours)
    if left is None or right is None:
        if theirs != ours:
            yield path, theirs, ours
        return
    for key in {**left, **right}:
        yield from _fields(left.get(key, ABSENT), right.get(key, ABSENT), f"{path}.{key}" if path else str(key))


def _parts(value: Any) -> dict[Any, Any] | None:
    """Return the fields of an entity, or the elements of a list by name or else by position; None for a plain value."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, list):
        return None
    for name in NAMING_FIELDS:
        named = {entry[name]: entry for entry in value if isinstance(entry, dict) and name in entry}
        if value and len(named) == len(value):
            return named
    return dict(enumerate(value))


@dataclass
class Figures:
    """Figures of one run."""

    cases: int = 0
    responses: int = 0
    fields: int = 0
    expected: int = 0
    versions: set[str] = field(default_factory=set)

    def count(self, steps: Sequence[Step], different: Sequence[str]) -> None:
        """Add one case: its steps and the lines of differences."""
        self.cases += 1
        self.responses += len(steps)
        self.fields += sum(_leaves(step.came) for step in steps)
        self.expected += len(different)
        self.versions |= {step.what for step in steps if isinstance(step.came, dict)}

    def __str__(self) -> str:
        apis = {version.rpartition(" ")[0] for version in self.versions}
        return (
            f"{self.cases} cases, {self.responses} responses of {len(apis)} APIs in {len(self.versions)} versions: "
            f"{self.fields} fields compared, {self.fields - self.expected} equal, {self.expected} different as expected"
        )


def _leaves(value: Any) -> int:
    parts = _parts(value)
    return 1 if parts is None else sum(map(_leaves, parts.values()))


def unlisted(lines: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the lines that no pattern allows."""
    return [line for line in lines if not any(fnmatchcase(line, pattern) for pattern in patterns)]


def unneeded(lines: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the patterns that no line needs."""
    return [pattern for pattern in patterns if not any(fnmatchcase(line, pattern) for line in lines)]
