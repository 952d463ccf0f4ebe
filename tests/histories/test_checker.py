"""The checker finds each anomaly in an otherwise valid history."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.histories.checker import Kind, anomalies
from tests.histories.history import History, Operation, Outcome, Poll, Send

A, B, COPY = "a-0", "b-0", "copy-0"
READER, WRITER, COPIER = 1, 2, 3


def sent(key: str, value: int, offset: int | None, *, source: int | None = None) -> Send:
    """Return a send at time `value`, acknowledged half a second later if it has an offset."""
    return Send(key, value, offset, value, None if offset is None else value + 0.5, source)


def polled(key: str, offset: int, value: int, at: float = 1000) -> Poll:
    return Poll(key, offset, value, at)


def valid() -> list[Operation]:
    """Return plain sends, a committed, an aborted and an unknown transaction, a copy, and a reader of everything."""
    return [
        Operation(WRITER, Outcome.OK, (sent(A, 10, 0), sent(A, 11, 1))),
        Operation(WRITER, Outcome.OK, (sent(A, 12, 2),)),
        Operation(WRITER, Outcome.OK, (sent(A, 20, 3), sent(B, 21, 0)), committing=22),
        # Offset 4 is the marker, 5 and 6 belong to the aborted transaction, 7 is its marker.
        Operation(WRITER, Outcome.FAILED, (sent(A, 30, 5), sent(A, 31, 6)), aborts=True),
        Operation(WRITER, Outcome.UNKNOWN, (sent(A, 40, None), sent(B, 41, None)), committing=42),
        Operation(WRITER, Outcome.UNKNOWN, (sent(A, 50, None),)),
        Operation(COPIER, Outcome.OK, (sent(COPY, 60, 0, source=21),), (polled(B, 0, 21, 59),), committing=61),
        Operation(COPIER, Outcome.OK, (sent(COPY, 62, 2, source=41),), (polled(B, 2, 41, 61.5),), committing=63),
        Operation(READER, Outcome.OK, (), (polled(A, 0, 10), polled(A, 1, 11)), moved=frozenset({A, B, COPY})),
        Operation(READER, Outcome.OK, (), (polled(A, 2, 12), polled(B, 0, 21), polled(A, 3, 20))),
        Operation(READER, Outcome.OK, (), (polled(A, 8, 40), polled(B, 2, 41))),
        Operation(READER, Outcome.OK, (), (polled(COPY, 0, 60), polled(COPY, 2, 62))),
        Operation(READER, Outcome.OK, (), (polled(A, 0, 10),), moved=frozenset({A})),
    ]


def kinds(operations: Sequence[Operation]) -> set[Kind]:
    return {anomaly.kind for anomaly in anomalies(History(operations, consumed=frozenset({B})))}


def test_a_valid_history_has_no_anomaly() -> None:
    assert anomalies(History(valid(), consumed=frozenset({B}))) == []


def test_an_empty_history_has_no_anomaly() -> None:
    assert anomalies(History([])) == []


def change(number: int, **fields: object) -> Callable[[], list[Operation]]:
    """Return the valid history with other fields in one operation."""

    def planted() -> list[Operation]:
        operations = valid()
        operations[number] = replace(operations[number], **fields)  # type: ignore[arg-type]
        return operations

    return planted


def add(*operations: Operation) -> Callable[[], list[Operation]]:
    return lambda: [*valid(), *operations]


PLANTED: list[tuple[Kind, Callable[[], list[Operation]], set[Kind]]] = [
    (
        Kind.INCONSISTENT_OFFSET,
        add(Operation(4, Outcome.OK, (sent(B, 70, None),)), Operation(5, Outcome.OK, (), (polled(B, 0, 70),))),
        set(),
    ),
    (Kind.DUPLICATE, add(Operation(5, Outcome.OK, (), (polled(A, 9, 10),))), set()),
    (Kind.LOST_WRITE, add(Operation(4, Outcome.OK, (sent(B, 70, 9),))), set()),
    (Kind.LOST_WRITE, add(Operation(4, Outcome.OK, (sent("other-0", 70, 0),))), set()),
    (Kind.PHANTOM, add(Operation(5, Outcome.OK, (), (polled(A, 9, 99),))), set()),
    (Kind.ABORTED_READ, add(Operation(5, Outcome.OK, (), (polled(A, 5, 30),))), {Kind.EXTERNAL_POLL_SKIP}),
    (
        Kind.TORN_TRANSACTION,
        change(4, sends=(sent(A, 40, None), sent(B, 41, None), sent(B, 43, None))),
        set(),
    ),
    (
        Kind.TORN_TRANSACTION,
        add(Operation(4, Outcome.OK, (sent(A, 70, 9), sent(B, 71, 9)), (polled(A, 9, 70),), committing=0)),
        {Kind.LOST_WRITE},
    ),
    # A read of the own transaction, and a read of another's.
    (
        Kind.PRECOMMITTED_READ,
        add(Operation(4, Outcome.OK, (sent(A, 70, 9),), (polled(A, 9, 70, at=71),), committing=72)),
        set(),
    ),
    (Kind.PRECOMMITTED_READ, add(Operation(5, Outcome.OK, (), (polled(A, 3, 20, at=21.5),))), set()),
    (Kind.INTERNAL_POLL_SKIP, add(Operation(5, Outcome.OK, (), (polled(A, 0, 10), polled(A, 2, 12)))), set()),
    (
        Kind.INTERNAL_POLL_NONMONOTONIC,
        add(Operation(5, Outcome.OK, (), (polled(A, 1, 11), polled(A, 0, 10)))),
        set(),
    ),
    (Kind.INTERNAL_POLL_NONMONOTONIC, add(Operation(5, Outcome.OK, (), (polled(A, 1, 11), polled(A, 1, 11)))), set()),
    (
        Kind.EXTERNAL_POLL_SKIP,
        add(Operation(5, Outcome.OK, (), (polled(A, 0, 10),)), Operation(5, Outcome.OK, (), (polled(A, 2, 12),))),
        set(),
    ),
    (Kind.EXTERNAL_POLL_NONMONOTONIC, change(12, moved=frozenset()), set()),
    (
        Kind.INTERNAL_SEND_NONMONOTONIC,
        change(0, sends=(sent(A, 11, 1), sent(A, 10, 0))),
        set(),
    ),
    (
        Kind.EXTERNAL_SEND_NONMONOTONIC,
        lambda: [valid()[1], valid()[0], *valid()[2:]],
        set(),
    ),
    (
        Kind.REORDERED,
        add(
            Operation(4, Outcome.OK, (Send(B, 70, 9, began=100, acknowledged=101),)),
            Operation(5, Outcome.OK, (Send(B, 71, 8, began=102, acknowledged=103),)),
            Operation(6, Outcome.OK, (), (polled(B, 8, 71), polled(B, 9, 70))),
            Operation(7, Outcome.OK, tuple(sent(COPY, v + 10, v, source=v) for v in (70, 71)), committing=99),
            Operation(6, Outcome.OK, (), (polled(COPY, 70, 80), polled(COPY, 71, 81))),
        ),
        set(),
    ),
    (Kind.OUT_OF_SEQUENCE, add(Operation(4, Outcome.UNKNOWN, refused="OUT_OF_ORDER_SEQUENCE_NUMBER")), set()),
    (
        Kind.CONSUMED_TWICE,
        add(
            Operation(4, Outcome.OK, (sent(COPY, 70, 4, source=21),), committing=71),
            Operation(READER, Outcome.OK, (), (polled(COPY, 4, 70),)),
        ),
        set(),
    ),
    (
        Kind.NOT_CONSUMED,
        add(Operation(4, Outcome.OK, (sent(B, 70, 9),)), Operation(READER, Outcome.OK, (), (polled(B, 9, 70),))),
        set(),
    ),
]


@pytest.mark.parametrize(("kind", "plant", "along"), PLANTED, ids=lambda value: getattr(value, "name", ""))
def test_a_planted_anomaly_is_found(kind: Kind, plant: Callable[[], list[Operation]], along: set[Kind]) -> None:
    """`along`: kinds that such a history necessarily has too."""
    seen = kinds(plant())
    assert kind in seen
    assert seen - {kind} <= along | ({Kind.NOT_CONSUMED} if kind is not Kind.NOT_CONSUMED else set())


def test_every_kind_is_planted() -> None:
    assert {kind for kind, _, _ in PLANTED} == set(Kind)


def test_unfinished_read_may_lack_last_records() -> None:
    operations = [*valid(), Operation(4, Outcome.OK, (sent(A, 70, 9),))]
    assert anomalies(History(operations, is_read_to_end=False)) == []
