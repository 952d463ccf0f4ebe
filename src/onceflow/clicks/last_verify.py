"""The result of the last recorded verification, beside the counts; the dashboard shows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceflow.clicks.beside import write_beside
from onceflow.clicks.results import Keys


@dataclass(frozen=True, slots=True)
class LastVerify:
    """The result of `onceflow verify --record`, up to a micro-batch of one query."""

    query: str
    batch: int
    finished_ms: int
    events: int
    differences: int
    """Number of fields that differ between the log and Redis."""

    @property
    def is_equal(self) -> bool:
        return self.differences == 0

    def record(self, redis_url: str, keys: Keys) -> None:
        """Replace the recorded result. Raises NotRecorded."""
        values = {name: str(getattr(self, name)) for name in self.__slots__}
        write_beside(redis_url, keys, keys.verified, values)


def parse_last_verify(fields: Mapping[bytes, bytes], query: str) -> LastVerify | None:
    """Return the recorded result of a query's counts; None without one, or if it is of other counts."""
    given: dict[str, Any] = {name.decode(): value.decode() for name, value in fields.items()}
    if given.get("query") != query:
        return None
    numbers = {name: int(given[name]) for name in LastVerify.__slots__ if name != "query"}
    return LastVerify(query, **numbers)
