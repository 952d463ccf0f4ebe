"""The document that the page gets, from given results."""

import pytest

from onceflow.clicks.results import HistoryEntry, Snapshot, parse_marker
from onceflow.dashboard.board import Board, exact, largest
from onceflow.dashboard.sources import Addresses, Backlog, NotOurs

NOW_MS = 1_700_000_000_000


def counts(*, finished_ms: int = NOW_MS - 2_000, complete: int = 1, batch: int = 3, duration_ms: int = 0) -> Snapshot:
    marker = parse_marker(
        {
            "batch": str(batch),
            "complete": str(complete),
            "offsets": '{"events": {"0": 40, "1": 2}}',
            "started_ms": str(finished_ms - 700),
            "finished_ms": str(finished_ms),
            **({"duration_ms": str(duration_ms)} if duration_ms else {}),
        }
    )
    history = [HistoryEntry(3, finished_ms, 7, {0: 40, 1: 2}), HistoryEntry(2, finished_ms - 5_000, 35, {0: 35, 1: 0})]
    return Snapshot("h", 42, 2**60, 1, 2, [("ann", 2**60), ("bob", 5)], {"iOS": 3}, {"not JSON": 1}, marker, history)


def board_with(backlog: Backlog | None = None, **options: int) -> Board:
    board = Board(Addresses(topic="named"))
    board.set_counts(counts(**options), NOW_MS)
    if backlog is not None:
        board.set_backlog(backlog, NOW_MS)
    return board


def test_before_anything_is_known() -> None:
    document = Board(Addresses(topic="named")).document(NOW_MS)
    assert document["counted"] is False
    assert document["topic"] == "named"
    assert document["lag"] is None
    assert document["services"]["redis"]["state"] == "unknown"


def test_counts_with_topic_of_the_marker() -> None:
    document = board_with(Backlog(0, None)).document(NOW_MS)
    assert document["topic"] == "events"
    assert document["batch"] == {"number": 3, "events": 7, "duration_ms": 700, "finished_ms": NOW_MS - 2_000}
    assert document["lag"] == {"messages": 0, "seconds": 0.0, "oldest_ms": None, "topic_exists": True}
    assert document["totals"] == {"events": 42, "clicks": str(2**60), "bad": 1, "users": 2}
    assert document["top"][0] == {"uid": "ann", "clicks": str(2**60)}


def test_duration_belongs_to_the_last_batch() -> None:
    assert board_with(complete=0).document(NOW_MS)["batch"]["duration_ms"] is None
    assert board_with(batch=4).document(NOW_MS)["batch"]["duration_ms"] is None


def test_lag_is_age_of_oldest_message() -> None:
    document = board_with(Backlog(9, NOW_MS - 4_500)).document(NOW_MS + 500)
    assert document["lag"]["seconds"] == 5.0


@pytest.mark.parametrize(
    ("messages", "idle_ms", "stopped"),
    [(1, 60_000, True), (0, 60_000, False), (1, 14_000, False), (1, 17_000, False), (1, 18_000, True)],
    ids=["backlog", "no backlog", "within 15 s", "within three gaps and durations", "beyond them"],
)
def test_stopped_stream(messages: int, idle_ms: int, stopped: bool) -> None:
    # Batches come every 5 s here and take 0.8 s.
    board = board_with(Backlog(messages, NOW_MS), finished_ms=NOW_MS - idle_ms, duration_ms=800)
    assert board.document(NOW_MS)["stopped_since_ms"] == (NOW_MS - idle_ms if stopped else None)


def test_counts_while_redis_is_unreachable() -> None:
    board = board_with(Backlog(0, None))
    board.redis.failed(NotOurs("first."), NOW_MS + 1_000)
    board.redis.failed(NotOurs("second."), NOW_MS + 2_000)
    document = board.document(NOW_MS + 2_000)
    assert document["services"]["redis"] == {
        "state": "down",
        "since_ms": NOW_MS + 1_000,
        "error": "second",
        "other_job": False,
    }
    assert document["totals"]["events"] == 42
    board.set_counts(counts(), NOW_MS + 3_000)
    assert board.document(NOW_MS)["services"]["redis"]["state"] == "up"


def test_a_lag_does_not_outlive_the_broker() -> None:
    board = board_with(Backlog(5, NOW_MS))
    board.broker_failed(NotOurs("away"), NOW_MS)
    assert board.document(NOW_MS)["lag"] is None


def test_large_counts_are_text() -> None:
    assert exact(2**53 - 1) == 2**53 - 1
    assert exact(2**53) == "9007199254740992"


def test_many_names_become_eight_and_the_others() -> None:
    bars = largest({f"os{number:02}": number for number in range(1_000)})
    assert bars[0] == ("os999", 999)
    assert len(bars) == 9
    assert bars[-1] == ("992 others", sum(range(992)))
