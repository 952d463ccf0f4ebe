"""History of a run: the clients' requests to the log, and their results.

A *key* is one partition, such as `events-0`. Each value is sent once in a run, so it names its send. Times are those of
one monotonic clock. A *session* is one client from its creation to its end; a client that failed is followed by
another session.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Outcome(enum.Enum):
    """Result of an operation, as its client knows it."""

    OK = enum.auto()
    """Acknowledged."""
    FAILED = enum.auto()
    """Aborted: no reader of committed data may see it."""
    UNKNOWN = enum.auto()
    """The response was lost: all of it happened, or none."""


@dataclass(frozen=True, slots=True)
class Send:
    """One record sent. `offset` is None if it was not acknowledged."""

    key: str
    value: int
    offset: int | None
    began: float
    acknowledged: float | None = None
    source: int | None = None
    """The consumed value from which this one was produced."""


@dataclass(frozen=True, slots=True)
class Poll:
    """One record that a reader of committed data received at time `at`."""

    key: str
    offset: int
    value: int
    at: float


@dataclass(frozen=True, slots=True)
class Operation:
    """Sends and polls that belong together, each in order; a transaction if `committing` or `aborts`."""

    session: int
    outcome: Outcome
    sends: tuple[Send, ...] = ()
    polls: tuple[Poll, ...] = ()
    committing: float | None = None
    """Time of the commit request; None outside of a transaction, and if it was aborted."""
    aborts: bool = False
    moved: frozenset[str] = frozenset()
    """Keys whose position was set before the polls, by an assignment."""
    refused: str = ""
    """Error after which an idempotent producer cannot continue, such as a refused sequence number."""

    @property
    def is_transaction(self) -> bool:
        return self.committing is not None or self.aborts


@dataclass(frozen=True, slots=True)
class History:
    """Operations, those of one session in their order."""

    operations: Sequence[Operation]
    is_read_to_end: bool = True
    """Whether a last reader has read every key from its first offset to its last."""
    consumed: frozenset[str] = frozenset()
    """Keys whose every value must have become exactly one value with it as its source."""
