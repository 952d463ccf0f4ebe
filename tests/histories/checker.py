"""Checker of histories: `anomalies(history)` lists what exactly-once logs never show.

The order of a key is that of the offsets known to have a record: polled ones, and those of acknowledged sends. Offsets
between them belong to aborted records and to markers, so gaps are not anomalies. The kinds are those of
Jepsen's Kafka workload, and more: PHANTOM, REORDERED, OUT_OF_SEQUENCE and the two about consumed records.
"""

import enum
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tests.histories.history import History, Operation, Outcome, Poll, Send


class Kind(enum.StrEnum):
    """Anomalies."""

    INCONSISTENT_OFFSET = "two values at one offset"
    DUPLICATE = "one value at two offsets"
    LOST_WRITE = "acknowledged, and no reader has seen it"
    PHANTOM = "read, and never sent"
    ABORTED_READ = "read, though its transaction was aborted (G1a)"
    TORN_TRANSACTION = "read in part: other records of its transaction are missing (G1b)"
    PRECOMMITTED_READ = "read before its commit was asked for"
    INTERNAL_POLL_SKIP = "one operation skipped records"
    INTERNAL_POLL_NONMONOTONIC = "one operation read back or twice"
    EXTERNAL_POLL_SKIP = "records were skipped between two operations of a session"
    EXTERNAL_POLL_NONMONOTONIC = "a session read back or twice"
    INTERNAL_SEND_NONMONOTONIC = "one operation's records are not in the order of its sends"
    EXTERNAL_SEND_NONMONOTONIC = "a session's records are not in the order of its operations"
    REORDERED = "stored before a record that was acknowledged before it was sent"
    OUT_OF_SEQUENCE = "an idempotent producer cannot continue: the log lacks what came before"
    CONSUMED_TWICE = "consumed, and produced twice"
    NOT_CONSUMED = "not consumed, or what it became is lost"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that a log must not show."""

    kind: Kind
    key: str
    detail: str

    def __str__(self) -> str:
        return f"{self.key}: {self.kind}: {self.detail}"


def anomalies(history: History) -> list[Anomaly]:
    """Return every anomaly of `history`."""
    index = _Index(history)
    checks = (_offsets, _lost, _read_wrongly, _torn, _polls, _sends, _reordered, _refused, _consumed)
    return [anomaly for check in checks for anomaly in check(index)]


class _Index:
    """Lookup tables of the checks."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.sends = [(operation, send) for operation in history.operations for send in operation.sends]
        self.polls = [poll for operation in history.operations for poll in operation.polls]
        self.writer = {send.value: operation for operation, send in self.sends}
        self.polled = {poll.value for poll in self.polls}
        self.order = self._order()

    def _order(self) -> dict[str, list[int]]:
        offsets: dict[str, set[int]] = defaultdict(set)
        for key, offset, _ in self.placed():
            offsets[key].add(offset)
        return {key: sorted(known) for key, known in offsets.items()}

    def placed(self) -> Iterator[tuple[str, int, int]]:
        """Yield key, offset and value of every record known to be in the log."""
        for poll in self.polls:
            yield poll.key, poll.offset, poll.value
        for operation, send in self.sends:
            if operation.outcome is Outcome.OK and send.offset is not None:
                yield send.key, send.offset, send.value

    def rank(self, key: str, offset: int) -> int:
        """Return the number of known offsets up to `offset`."""
        return bisect_right(self.order[key], offset)


def _offsets(index: _Index) -> Iterator[Anomaly]:
    values: dict[tuple[str, int], set[int]] = defaultdict(set)
    offsets: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for key, offset, value in index.placed():
        values[key, offset].add(value)
        offsets[value].add((key, offset))
    for (key, offset), stored in values.items():
        if len(stored) > 1:
            yield Anomaly(Kind.INCONSISTENT_OFFSET, key, f"offset {offset} has values {sorted(stored)}")
    for value, places in offsets.items():
        if len(places) > 1:
            yield Anomaly(Kind.DUPLICATE, min(places)[0], f"value {value} is at {sorted(places)}")


def _lost(index: _Index) -> Iterator[Anomaly]:
    highest: dict[str, int] = {}
    for poll in index.polls:
        highest[poll.key] = max(poll.offset, highest.get(poll.key, -1))
    for operation, send in index.sends:
        if operation.outcome is not Outcome.OK or send.value in index.polled:
            continue
        was_passed = send.offset is not None and send.offset <= highest.get(send.key, -1)
        if was_passed or index.history.is_read_to_end:
            yield Anomaly(Kind.LOST_WRITE, send.key, f"value {send.value}, acknowledged at offset {send.offset}")


def _read_wrongly(index: _Index) -> Iterator[Anomaly]:
    for poll in index.polls:
        writer = index.writer.get(poll.value)
        if writer is None:
            yield Anomaly(Kind.PHANTOM, poll.key, f"value {poll.value} at offset {poll.offset}")
        elif writer.outcome is Outcome.FAILED:
            yield Anomaly(Kind.ABORTED_READ, poll.key, f"value {poll.value} at offset {poll.offset}")
        elif writer.committing is not None and poll.at < writer.committing:
            early_ms = (writer.committing - poll.at) * 1000
            yield Anomaly(Kind.PRECOMMITTED_READ, poll.key, f"value {poll.value}, {early_ms:.1f} ms before the commit")


def _torn(index: _Index) -> Iterator[Anomaly]:
    if not index.history.is_read_to_end:
        return
    for operation in index.history.operations:
        missing = [send for send in operation.sends if send.value not in index.polled]
        if operation.outcome is Outcome.FAILED or not operation.is_transaction:
            continue
        if 0 < len(missing) < len(operation.sends):
            detail = f"{len(missing)} of {len(operation.sends)} values are missing: {[send.value for send in missing]}"
            yield Anomaly(Kind.TORN_TRANSACTION, missing[0].key, detail)


def _polls(index: _Index) -> Iterator[Anomaly]:
    last: dict[tuple[int, str], tuple[Poll, Operation]] = {}
    for operation in index.history.operations:
        for key in operation.moved:
            last.pop((operation.session, key), None)
        for poll in operation.polls:
            place = operation.session, poll.key
            if place in last:
                yield from _step(index, *last[place], poll, operation)
            last[place] = poll, operation


def _step(index: _Index, before: Poll, earlier: Operation, poll: Poll, operation: Operation) -> Iterator[Anomaly]:
    """Compare two polls of one key that follow each other in a session."""
    is_internal = earlier is operation
    between = index.rank(poll.key, poll.offset) - index.rank(before.key, before.offset)
    detail = f"session {operation.session}: offset {poll.offset} after {before.offset}"
    if between > 1:
        kind = Kind.INTERNAL_POLL_SKIP if is_internal else Kind.EXTERNAL_POLL_SKIP
        yield Anomaly(kind, poll.key, f"{detail}, {between - 1} records between")
    elif between < 1:
        kind = Kind.INTERNAL_POLL_NONMONOTONIC if is_internal else Kind.EXTERNAL_POLL_NONMONOTONIC
        yield Anomaly(kind, poll.key, detail)


def _sends(index: _Index) -> Iterator[Anomaly]:
    last: dict[tuple[int, str], tuple[int, Operation]] = {}
    for operation, send in index.sends:
        if operation.outcome is not Outcome.OK or send.offset is None:
            continue
        place = operation.session, send.key
        before, earlier = last.get(place, (-1, operation))
        if send.offset <= before:
            is_internal = earlier is operation
            kind = Kind.INTERNAL_SEND_NONMONOTONIC if is_internal else Kind.EXTERNAL_SEND_NONMONOTONIC
            yield Anomaly(kind, send.key, f"session {operation.session}: offset {send.offset} after {before}")
        last[place] = send.offset, operation


def _reordered(index: _Index) -> Iterator[Anomaly]:
    """Find a record that was sent after another was acknowledged, and has a lower offset."""
    by_key: dict[str, list[tuple[int, Send]]] = defaultdict(list)
    for operation, send in index.sends:
        if operation.outcome is Outcome.OK and send.offset is not None:
            by_key[send.key].append((send.offset, send))
    for key, placed in by_key.items():
        first: Send | None = None  # Of the higher offsets, the one that was acknowledged first.
        for _, send in sorted(placed, key=lambda pair: -pair[0]):
            if first is not None and first.acknowledged is not None and first.acknowledged < send.began:
                detail = f"value {send.value} at offset {send.offset}, acknowledged earlier: {first.offset}"
                yield Anomaly(Kind.REORDERED, key, detail)
            if send.acknowledged is not None and (
                first is None or first.acknowledged is None or send.acknowledged < first.acknowledged
            ):
                first = send


def _refused(index: _Index) -> Iterator[Anomaly]:
    for operation in index.history.operations:
        if operation.refused:
            yield Anomaly(Kind.OUT_OF_SEQUENCE, f"session {operation.session}", operation.refused)


def _consumed(index: _Index) -> Iterator[Anomaly]:
    keys = index.history.consumed
    if not keys:
        return
    copies: Counter[int] = Counter(
        send.source for _, send in index.sends if send.source is not None and send.value in index.polled
    )
    for key, value in sorted({(poll.key, poll.value) for poll in index.polls if poll.key in keys}):
        if copies[value] > 1:
            yield Anomaly(Kind.CONSUMED_TWICE, key, f"value {value} became {copies[value]} values")
        elif copies[value] == 0 and index.history.is_read_to_end:
            yield Anomaly(Kind.NOT_CONSUMED, key, f"value {value}")
