"""The end of unfinished transactions, and the checks of their outcome."""

from onceflow.wire import apis
from tests.broker.simulation.ledger import Found, Ledger
from tests.broker.simulation.members import TRANSACTION_MS, Attempt
from tests.broker.simulation.world import World


def end_transactions(world: World) -> None:
    """Let everything come to its end without producers: time-outs, markers, syncs."""
    for _ in range(8):
        world.broker.settle()
        world.clock.advance_ms(TRANSACTION_MS // 4)
    world.broker.settle()
    response = world.ask_now(apis.LIST_TRANSACTIONS, 1, state_filters=(), producer_id_filters=(), duration_filter=-1)
    states = {
        transaction_state.transactional_id: transaction_state.transaction_state
        for transaction_state in response.transaction_states
    }
    assert set(states.values()) <= {"Empty", "CompleteCommit", "CompleteAbort", "Dead"}, states


def check_attempts(world: World, attempts: list[Attempt]) -> None:
    """Check that each is atomic, with its reported outcome; offsets are those of the last committed transaction."""
    committed: dict[Ledger, list[Found]] = {}
    for topic in world.topics.values():
        for ledger in topic.ledgers:
            committed[ledger] = world.read_all(ledger, committed=True)
            assert ledger.last_stable_offset == ledger.high_watermark, f"{ledger}: something hangs"
    offsets = {group: world.fetch_offset(group) for group in {attempt.group for attempt in attempts}}
    last = dict.fromkeys(offsets, -1)
    for attempt in attempts:
        is_committed = _is_committed(attempt, committed)
        if attempt.offset >= 0 and (
            is_committed or (is_committed is None and offsets[attempt.group] == attempt.offset)
        ):
            last[attempt.group] = attempt.offset
    assert offsets == last


def _is_committed(attempt: Attempt, committed: dict[Ledger, list[Found]]) -> bool | None:
    """None where nothing but its offset could tell."""
    seen = {
        is_seen
        for ledger, values in attempt.values.items()
        if ledger in committed
        for value in values
        if (is_seen := _is_seen(ledger, value, committed[ledger])) is not None
    }
    assert len(seen) <= 1, f"half of {attempt}"
    if not attempt.asked_to_commit:
        assert True not in seen, f"it was not committed: {attempt}"
        return False
    if attempt.is_acknowledged:
        assert False not in seen, f"it was committed: {attempt}"
        return True
    return seen.pop() if seen else None


def _is_seen(ledger: Ledger, value: bytes, records: list[Found]) -> bool | None:
    """None where retention or compaction may have taken it."""
    if any(entry.value == value for entry in records):
        return True
    offset = ledger.places[value]
    if offset < ledger.log_start_offset:
        return None
    key = ledger.sent[value].key
    if ledger.kind == "compacted" and any(item.key == key and item.offset > offset for item in records):
        return None
    return False
