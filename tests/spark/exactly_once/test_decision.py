"""The decision table, one case for each row and kind of sink, and the refusals at a query's start."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.exactly_once.decision import (
    Finish,
    Refuse,
    Skip,
    TargetRolledBack,
    Wording,
    Write,
    decide,
    foreign_query,
    other_plan,
    refusal_at_start,
)
from onceflow.spark.exactly_once.proof import Proof, proof_of
from onceflow.spark.kafka.marker import KafkaMarker, MarkerLocation
from onceflow.spark.offsets import OffsetRange
from onceflow.spark.redis.marker import begun_fields, completed_fields, first_fields, parse, wording

NAME = "{h}:onceflow"


def batch(number: int, *, begin: int = 100, end: int = 110, **changes: object) -> Batch:
    plain = Batch("query-1", number, (OffsetRange("clicks", 0, begin, end),), "clicks", 1, {"clicks": "id-1"})
    return replace(plain, **changes)  # type: ignore[arg-type]


def of_users(of: Batch, *, complete: bool = True) -> Proof:
    return Proof.parse("test", replace(proof_of(of, NAME, None), complete=complete).text())


def of_kafka(of: Batch, *, complete: bool = True) -> Proof:
    return KafkaMarker(**vars(of_users(of, complete=complete)), owner="owner", partitions={"out": 3})


def of_redis(of: Batch, *, complete: bool = True) -> Proof:
    fields = first_fields(of) | begun_fields(None, of, chunks=4, started_ms=1)
    if complete:
        fields |= completed_fields(started_ms=1, finished_ms=2)
    proof = parse(NAME, fields)
    assert proof is not None
    return proof


Make = Callable[..., Proof]
KINDS: dict[str, tuple[Make, Wording]] = {
    "users": (of_users, Wording("the proof", "the target", "data", "another target", "or 'reset'", "or 'reset'")),
    "kafka": (of_kafka, MarkerLocation(NAME, "markers", 0).wording),
    "redis": (of_redis, wording(NAME)),
}

K = (batch(7), True)
"""A proof: its batch, and whether that is complete."""
K_MINUS_1 = (batch(6, begin=90, end=100), True)
PARTIAL = (batch(7), False)

ROWS = [
    pytest.param(K_MINUS_1, batch(7), Write(6), id="complete k-1"),
    pytest.param((batch(6, begin=90, end=100, plan_version=9), True), batch(7), Write(6), id="new version of plan"),
    pytest.param(PARTIAL, batch(7), Finish(), id="partial k"),
    pytest.param(K, batch(7), Skip(), id="complete k"),
    pytest.param(K, batch(7, plan_version=2), Skip(), id="complete k, new version of plan"),
    pytest.param(None, batch(0), Write(-1), id="no proof, batch 0"),
    pytest.param((batch(5), True), batch(7), "lost .*at batch 5 .*committed batch 6", id="complete j < k-1"),
    pytest.param((batch(6), False), batch(7), "lost .*at batch 5 .*batch 6", id="partial j < k"),
    pytest.param(None, batch(7), "no .*committed batch 6.*another .*lost", id="no proof, batch > 0"),
    pytest.param(K_MINUS_1, batch(7, query="query-2"), "query-1.*query-2.*, or ", id="another query"),
    pytest.param(K_MINUS_1, batch(7, plan="by ip"), "plan 'clicks'.*job is 'by ip'.*, or ", id="another plan"),
    pytest.param((batch(8), True), batch(7), "batch 8.*batch 7.*older.*, or ", id="a higher k"),
    pytest.param((batch(8), False), batch(7), "batch 8.*batch 7.*older", id="a higher partial k"),
    pytest.param(PARTIAL, batch(7, end=111), r"a part of batch 7 as .*\[100,111\]", id="partial k, other ranges"),
    pytest.param(PARTIAL, batch(7, plan_version=2), "version 1.*version 2", id="partial k, new version of plan"),
    pytest.param(PARTIAL, batch(7, topic_ids={"clicks": "id-2"}), "digest", id="partial k, recreated topic"),
    pytest.param(K, batch(7, end=111), r"holds batch 7 as .*\[100,111\].*, or ", id="complete k, other ranges"),
    pytest.param(K_MINUS_1, batch(7, begin=101), "offset 100.*at 101.*, or ", id="a gap between batches"),
    pytest.param(K_MINUS_1, batch(7, begin=99), "offset 100.*at 99.*, or ", id="batches that overlap"),
]


def make_proof(make: Make, held: tuple[Batch, bool] | None) -> Proof | None:
    return None if held is None else make(held[0], complete=held[1])


def assert_refused(refusal: object, message: str) -> None:
    assert isinstance(refusal, Refuse)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(refusal.reason)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("held", "wanted", "expected"), ROWS)
def test_decision(kind: str, held: tuple[Batch, bool] | None, wanted: Batch, expected: object) -> None:
    make, words = KINDS[kind]
    decision = decide(make_proof(make, held), wanted, NAME, words)
    if isinstance(expected, str):
        assert_refused(decision, expected)
        assert isinstance(decision, TargetRolledBack) == ("lost .*at batch" in expected)
        assert isinstance(decision, Refuse)
        assert words.marker in decision.reason
    else:
        assert decision == expected


def test_proof_of_another_sink_is_refused() -> None:
    words = KINDS["kafka"][1]
    assert_refused(decide(of_kafka(batch(6)), batch(7), "another", words), f"sink '{NAME}' and this is sink 'another'")


def test_new_redis_marker_is_before_batch_0() -> None:
    acquired = parse(NAME, first_fields(batch(0)))
    assert decide(acquired, batch(0), NAME, wording(NAME)) == Write(-1)
    assert_refused(decide(acquired, batch(7), NAME, wording(NAME)), "Redis lost batches.*none.*batch 6")


def test_ranges_of_the_marker_are_shown() -> None:
    assert_refused(
        decide(of_redis(batch(7)), batch(7, end=111), NAME, wording(NAME)), r"\[100,110\].*\[100,111\].*reset"
    )


START = [
    pytest.param(None, -1, 0, None, id="killed before batch 0 wrote"),
    pytest.param(K, 7, 7, None, id="stopped after a batch"),
    pytest.param(K, 6, 7, None, id="killed before the commit"),
    pytest.param(K_MINUS_1, 6, 7, None, id="killed before the batch"),
    pytest.param(PARTIAL, 6, 7, None, id="killed in the batch"),
    pytest.param(K, 5, 7, None, id="two commits not synced"),
    pytest.param(None, 3, 3, "committed batch 3.*another .*lost", id="proof lost"),
    pytest.param(K_MINUS_1, 7, 7, "lost batches.*6.*7", id="batches lost"),
    pytest.param(PARTIAL, 7, 7, "lost batches.*6.*7", id="part of a batch lost"),
    pytest.param(K, 6, 6, "older", id="older checkpoint"),
    pytest.param((batch(7, query="query-2"), True), 7, 7, "query-2.*query-1", id="another query"),
    pytest.param((batch(9, query="query-2"), True), 7, 7, "query-2.*query-1", id="another query, later batch"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("held", "committed", "planned", "expected"), START)
def test_start(kind: str, held: tuple[Batch, bool] | None, committed: int, planned: int, expected: str | None) -> None:
    make, words = KINDS[kind]
    refusal = refusal_at_start(
        make_proof(make, held), query="query-1", sink=NAME, committed=committed, planned=planned, wording=words
    )
    if expected is None:
        assert refusal is None
    else:
        assert_refused(refusal, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_another_plan_is_refused_at_the_start(kind: str) -> None:
    """The refusal does not wait for the next record, and comes before a repair by the other plan."""
    make, words = KINDS[kind]
    for held, committed in ((K, 7), (K, 6), (PARTIAL, 6), (K_MINUS_1, 7)):
        at: dict[str, Any] = {"query": "query-1", "sink": NAME, "committed": committed, "planned": 7, "wording": words}
        assert_refused(
            refusal_at_start(make_proof(make, held), **at, plan="by ip"), "plan 'clicks'.*job is 'by ip'.*, or "
        )
        refusal = refusal_at_start(make_proof(make, held), **at, plan="clicks")
        assert refusal is None or isinstance(refusal, TargetRolledBack)


@pytest.mark.parametrize(
    ("former", "present", "shown"),
    [
        ('{"gap_ms": 1, "zone": "UTC"}', '{"gap_ms": 2, "zone": "UTC"}', ('{"gap_ms": 1}', '{"gap_ms": 2}')),
        ('{"gap_ms": null}', '{"ids": [3]}', ('{"gap_ms": null}', '{"ids": [3]}')),
        ('{"zone": "UTC"}', "{}", ('{"zone": "UTC"}', "{}")),
        ("1", '{"gap_ms": 1}', ("'1'", "'{\"gap_ms\": 1}'")),
        ('{"ids": 1}', '{"ids": true}', ("'{\"ids\": 1}'", "'{\"ids\": true}'")),
    ],
)
def test_members_of_plans_that_differ(former: str, present: str, shown: tuple[str, str]) -> None:
    proof = of_users(batch(7, plan=former))
    refusal = other_plan(proof, present, wording(NAME))
    assert refusal is not None
    assert f" is of plan {shown[0]} and this job is {shown[1]}: " in refusal.reason


def test_proof_with_an_unused_checkpoint() -> None:
    assert_refused(foreign_query("query-1", "a new one", wording(NAME)), "query-1.*a new one.*reset")
