"""Accepted data loss without Spark: missing offsets, their record in the proof, and refusals."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.spark.errors import MarkerRefused, WrongOption
from onceflow.spark.exactly_once import proof as proofs
from onceflow.spark.exactly_once.batch import AcceptedLoss, Batch
from onceflow.spark.exactly_once.checkpoint import LocalCheckpoint
from onceflow.spark.exactly_once.decision import Refuse, Write, decide
from onceflow.spark.exactly_once.proof import Proof, proof_of
from onceflow.spark.offsets import Loss, LossKind, OffsetRange
from onceflow.spark.reader.accepted_losses import AcceptDataLoss
from onceflow.spark.redis import marker as redis_marker
from onceflow.spark.redis.marker import wording
from onceflow.spark.sink import write_batch
from tests.spark.exactly_once.test_checkpoint import SparkFiles, files
from tests.spark.test_sink import Table, TableSink

__all__ = ["files"]

WORDS = wording("m")


def accepting(bootstrap: str, topic: str) -> AcceptDataLoss:
    source = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "failOnDataLoss": "false"}
    return AcceptDataLoss(source, now_ms=lambda: 17)


def loss(kind: LossKind, topic: str, begin: int, end: int | None, number: int = 1) -> AcceptedLoss:
    return AcceptedLoss(kind, topic, 0, begin, end, batch=number, at_ms=17, option="accept_data_loss")


@pytest.fixture
def planned(cluster: Cluster, topic: str, send: Any) -> Batch:
    """Batch 1, offsets 0 to 6 of a topic that has them."""
    created = cluster.create_topic(topic, 1)
    send(["x"] * 6)
    return Batch("query-1", 1, (OffsetRange(topic, 0, 0, 6),), "table", 1, {topic: str(created.topic_id)})


def test_nothing_is_missing(planned: Batch, bootstrap: str, topic: str) -> None:
    assert accepting(bootstrap, topic)(planned).accepted == ()


def test_trimmed_offsets(planned: Batch, cluster: Cluster, bootstrap: str, topic: str) -> None:
    Admin(cluster).delete_records(topic, {0: 4})
    assert accepting(bootstrap, topic)(planned).accepted == (loss(LossKind.TRIMMED, topic, 0, 4),)


def test_truncated_offsets(planned: Batch, bootstrap: str, topic: str) -> None:
    longer = replace(planned, ranges=(OffsetRange(topic, 0, 4, 9),))
    assert accepting(bootstrap, topic)(longer).accepted == (loss(LossKind.TRUNCATED, topic, 6, 9),)


def test_missing_and_recreated_topic(planned: Batch, cluster: Cluster, bootstrap: str, topic: str) -> None:
    accept = accepting(bootstrap, topic)
    cluster.delete_topic(topic)
    assert accept(planned).accepted == (loss(LossKind.MISSING, topic, 0, 6),)
    cluster.create_topic(topic, 1)
    assert accept(planned).accepted == (loss(LossKind.RECREATED, topic, 0, 6),)


def test_strict_stream_is_refused(bootstrap: str) -> None:
    with pytest.raises(WrongOption, match="failOnDataLoss=false; give both"):
        AcceptDataLoss({"kafka.bootstrap.servers": bootstrap, "subscribe": "t"})


def test_records_deleted_while_they_are_read(planned: Batch, cluster: Cluster, bootstrap: str, topic: str) -> None:
    """The attempt fails, and the proof of the next one lists the deleted offsets."""

    class Trimming(TableSink):
        def write(self, rows: Any) -> None:
            super().write(rows)
            Admin(cluster).delete_records(topic, {0: 2})

    table = Table()
    sink = Trimming(table)
    rows: Any = ["row"]
    first = replace(planned, number=0)
    assert write_batch(sink, rows, first, LocalCheckpoint(Path("nowhere")), accepting(bootstrap, topic))
    assert sink.steps.count("write") == 2
    assert table.rows == ["row"]
    assert table.proof is not None
    assert table.proof.losses == (loss(LossKind.TRIMMED, topic, 0, 2, 0),)


@pytest.fixture
def recreated(files: SparkFiles) -> tuple[Proof, Batch]:
    """The proof of batch 1, and batch 2 of a recreated topic with one partition fewer."""
    files.plan(0, {"clicks": {"0": 0, "1": 0}, "@ids": {"clicks": "old"}})
    files.plan(1, {"clicks": {"0": 20, "1": 5}, "@ids": {"clicks": "old"}})
    files.plan(2, {"clicks": {"0": 3}, "@ids": {"clicks": "new"}})
    checkpoint = LocalCheckpoint(files.directory)
    first, second, third = (checkpoint.batch(number, plan="p", plan_version=1) for number in range(3))
    return proof_of(second, "s", proof_of(first, "s", None)), third


def test_recreated_topic_needs_acceptance(recreated: tuple[Proof, Batch]) -> None:
    proof, batch = recreated
    refusal = decide(proof, batch, "s", WORDS)
    assert isinstance(refusal, Refuse)
    assert "topic clicks was deleted and created again" in refusal.reason
    assert "onceflow run --accept-data-loss" in refusal.reason


def test_accepted_new_topic_resets_the_ends(recreated: tuple[Proof, Batch]) -> None:
    proof, batch = recreated
    accepted = replace(batch, accepted=(loss(LossKind.RECREATED, "clicks", 20, None, 2),))
    assert decide(proof, accepted, "s", WORDS) == Write(1)
    after = proof_of(accepted, "s", proof)
    assert (after.offsets, after.since) == ({"clicks": {"0": 3}}, {"clicks": {"0": 3}})
    assert Proof.parse("here", after.text()) == after
    assert "losses" not in json.loads(proof.text())


def test_earlier_end_needs_acceptance(files: SparkFiles) -> None:
    files.plan(0, {"clicks": {"0": 0}})
    files.plan(1, {"clicks": {"0": 20}})
    files.plan(2, {"clicks": {"0": 15}})
    checkpoint = LocalCheckpoint(files.directory)
    first, second = (checkpoint.batch(number, plan="p", plan_version=1) for number in (1, 2))
    assert second.restarts == (Loss(LossKind.TRUNCATED, "clicks", 0, 15, 20),)
    proof = proof_of(first, "s", None)
    refusal = decide(proof, second, "s", WORDS)
    assert isinstance(refusal, Refuse) and "clicks-0 lost written offsets from 15 on" in refusal.reason
    assert decide(proof, replace(second, accepted=()), "s", WORDS) == Write(1)


def test_losses_of_the_redis_marker(recreated: tuple[Proof, Batch]) -> None:
    proof, batch = recreated
    accepted = replace(batch, accepted=(loss(LossKind.RECREATED, "clicks", 20, None, 2),))
    fields = redis_marker.first_fields(accepted) | redis_marker.begun_fields(proof, accepted, chunks=0, started_ms=1)
    assert "losses" not in fields
    marker = redis_marker.parse("m", fields | redis_marker.loss_fields(proof, accepted))
    assert marker is not None and marker.losses == accepted.accepted


def test_losses_have_a_bound(recreated: tuple[Proof, Batch], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "LOSSES_MAX", 2)
    proof, batch = recreated
    many = tuple(loss(LossKind.TRIMMED, "clicks", begin, begin + 1, 2) for begin in range(3))
    proof_of(replace(batch, accepted=many[:2]), "s", proof)
    with pytest.raises(MarkerRefused, match="accepted losses, the maximum"):
        proof_of(replace(batch, accepted=many), "s", proof)
