"""Decisions about a batch from the sink's proof: the driver's side of the protocol, for every sink.

| proof | decision |
|---|---|
| complete k-1, same query | write batch k |
| a part of k, same digest | finish it |
| complete k, same offsets | skip it |
| none, batch 0 | write batch 0 |
| complete j < k-1, or a part of j < k | the target lost batches: the sink repairs it, otherwise the query stops |
| anything else | the query stops, with a message that has both values and the remedy |
"""

import json
from dataclasses import dataclass

from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.batch import NO_BATCH, Batch
from onceflow.spark.exactly_once.proof import Proof, ranges_digest
from onceflow.spark.offsets import LossKind

MISSING_OK = "--missing-ok"
"""Option of a reset for a checkpoint whose sink has nothing left."""


@dataclass(frozen=True, slots=True)
class Wording:
    """Names that a sink's messages use."""

    marker: str
    """The proof and its location: `marker {counts}:onceflow`."""
    target: str
    """The system that may lose batches: `Redis`."""
    data: str
    """The written data: `counts`."""
    elsewhere: str
    """Other locations that this checkpoint may have written to: `another hash key`."""
    remedy: str
    """The last resort: `delete counts and checkpoint with 'onceflow sink reset …'`."""
    remedy_after_loss: str
    """The same if the target has lost everything: only the checkpoint is left to delete."""


@dataclass(frozen=True, slots=True)
class Write:
    """Write the batch, of which nothing exists, after the complete batch `previous`; -1: none."""

    previous: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Write the missing part of the batch and complete it."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Consume the DataFrame without writing: the batch is complete."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Stop the query: proof and checkpoint do not belong together."""

    reason: str


@dataclass(frozen=True, slots=True)
class TargetRolledBack(Refuse):
    """Repair the target, which holds less than Spark has committed, or stop the query."""


Decision = Write | Finish | Skip | Refuse


def decide(proof: Proof | None, batch: Batch, sink: str, wording: Wording) -> Decision:
    """Return what to do with `batch` of the sink named `sink`."""
    if proof is None:
        return Write(NO_BATCH) if batch.number == 0 else missing(batch.number - 1, wording)
    refusal = _foreign(proof, batch.query, sink, wording) or other_plan(proof, batch.plan, wording)
    if refusal is not None:
        return refusal
    if proof.batch == batch.number:
        return _same_batch(proof, batch, wording)
    if proof.batch > batch.number:
        return _older_checkpoint(proof, batch.number, wording)
    if proof.batch_done < batch.number - 1:
        return rolled_back(proof, batch.number - 1, wording)
    return _next_batch(proof, batch, wording)


def refusal_at_start(
    proof: Proof | None,
    *,
    query: str,
    sink: str,
    committed: int,
    planned: int,
    wording: Wording,
    plan: str | None = None,
) -> Refuse | None:
    """Return why a query must not start, or None. `committed` and `planned` are the checkpoint's newest batches.

    -1 means no batch. Without `plan`, which only the job knows, a proof of any plan is accepted.
    """
    if proof is None:
        return None if committed == NO_BATCH else missing(committed, wording)
    if proof.batch > planned:
        return _foreign(proof, query, sink, wording) or _older_checkpoint(proof, planned, wording)
    refusal = _foreign(proof, query, sink, wording)
    if refusal is None and plan is not None:
        refusal = other_plan(proof, plan, wording)
    if refusal is None and proof.batch_done < committed:
        return rolled_back(proof, committed, wording)
    return refusal


def foreign_query(owner: str, wanted: str, wording: Wording) -> Refuse:
    """Return the refusal of a proof that another query wrote."""
    return Refuse(
        f"{wording.marker} belongs to query {owner} and the checkpoint to query {wanted}: "
        f"{Remedy.USE_ITS_CHECKPOINT.format(data=wording.data)}, "
        f"{Remedy.WRITE_ELSEWHERE.format(elsewhere=wording.elsewhere)}, or {wording.remedy}"
    )


def used_already(proof: Proof, wording: Wording) -> Refuse:
    """Return the refusal of a new checkpoint whose target another query has written."""
    topics = ", ".join(sorted(proof.offsets or {})) or "nothing yet"
    return Refuse(
        f"{wording.marker} belongs to query {proof.query}, which has read {topics}, and this query's checkpoint is "
        f"new: {Remedy.WRITE_ELSEWHERE.format(elsewhere=wording.elsewhere)}, or "
        f"{Remedy.USE_ITS_CHECKPOINT.format(data=wording.data)}; if that is lost, {wording.remedy}"
    )


def other_plan(proof: Proof, plan: str, wording: Wording) -> Refuse | None:
    """Return the refusal of a proof of another plan; None if it has this plan."""
    if proof.plan == plan:
        return None
    former, present = _where_they_differ(proof.plan, plan)
    return Refuse(
        f"{wording.marker} is of plan {former} and this job is {present}: {Remedy.FORMER_OPTIONS}, or {wording.remedy}"
    )


def _where_they_differ(former: str, present: str) -> tuple[str, str]:
    """Return two plans as in a message: of JSON objects, as `onceflow run` writes, only the members that differ."""
    try:
        one, other = json.loads(former), json.loads(present)
    except ValueError:
        return repr(former), repr(present)
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return repr(former), repr(present)
    names = [name for name in {**one, **other} if (name in one, one.get(name)) != (name in other, other.get(name))]
    if not names:
        # The texts differ, or a number and a truth value that Python takes for equal.
        return repr(former), repr(present)
    shown = [json.dumps({name: plan[name] for name in names if name in plan}) for plan in (one, other)]
    return shown[0], shown[1]


def other_version(proof: Proof, wanted: int, wording: Wording) -> Refuse:
    """Return the refusal of a batch that another version of the plan's code has begun."""
    return Refuse(
        f"{wording.marker} holds a part of batch {proof.batch} written by version {proof.plan_version} of "
        f"{proof.plan!r} and this job is version {wanted}: {Remedy.FORMER_VERSION}"
    )


def rolled_back(proof: Proof, wanted: int, wording: Wording) -> TargetRolledBack:
    """Return the refusal of a target that holds less than Spark has committed."""
    return TargetRolledBack(
        f"{wording.target} lost batches: {wording.marker} {proof.shown_state} and Spark has committed batch {wanted}; "
        f"{Remedy.RESTORE_TARGET.format(target=wording.target)}, or {wording.remedy}"
    )


def missing(committed: int, wording: Wording) -> Refuse:
    """Return the refusal of a used checkpoint whose target is empty."""
    return Refuse(
        f"there is no {wording.marker} and Spark has committed batch {committed} in this checkpoint, so the query "
        f"wrote to {wording.elsewhere}, or {wording.target} lost batches: {Remedy.CHECKPOINT_PER_TARGET}, "
        f"{Remedy.RESTORE_TARGET.format(target=wording.target)}, or {wording.remedy_after_loss}"
    )


def _foreign(proof: Proof, query: str, sink: str, wording: Wording) -> Refuse | None:
    if proof.query != query:
        return foreign_query(proof.query, query, wording)
    if proof.sink != sink:
        return Refuse(
            f"{wording.marker} belongs to sink {proof.sink!r} and this is sink {sink!r}: {Remedy.FORMER_NAME}, "
            f"{Remedy.WRITE_ELSEWHERE.format(elsewhere=wording.elsewhere)}, or {wording.remedy}"
        )
    return None


def _older_checkpoint(proof: Proof, number: int, wording: Wording) -> Refuse:
    return Refuse(
        f"{wording.marker} is at batch {proof.batch} and the checkpoint is at batch {number}: the checkpoint is older "
        f"than the {wording.data}; {Remedy.PUT_CHECKPOINT_BACK.format(data=wording.data)}, or {wording.remedy}"
    )


def _same_batch(proof: Proof, batch: Batch, wording: Wording) -> Decision:
    if proof.complete and proof.ranges == ranges_digest(batch.ranges_json):
        # The plan's version may have changed since: a complete batch was written by one version alone.
        return Skip()
    if not proof.complete and proof.digest == batch.digest:
        return Finish()
    if not proof.complete and proof.plan_version != batch.plan_version:
        return other_version(proof, batch.plan_version, wording)
    return Refuse(
        f"{wording.marker} holds {'' if proof.complete else 'a part of '}batch {batch.number} as {proof.shown_ranges} "
        f"(digest {proof.digest[:12]}) and the checkpoint plans it as {batch.ranges_json} (digest {batch.digest[:12]}):"
        f" {Remedy.PUT_CHECKPOINT_BACK.format(data=wording.data)}, or {wording.remedy}"
    )


def _restarted(batch: Batch, wording: Wording) -> Refuse:
    loss = batch.restarts[0]
    what = {
        LossKind.RECREATED: f"topic {loss.topic} was deleted and created again",
        LossKind.TRUNCATED: f"{loss.topic}-{loss.partition} lost written offsets from {loss.begin} on",
    }[loss.kind]
    return Refuse(
        f"{what}, and batch {batch.number} reads the present records: to keep the earlier {wording.data}, too, "
        f"{Remedy.ACCEPT_DATA_LOSS}; otherwise {wording.remedy}"
    )


def _next_batch(proof: Proof, batch: Batch, wording: Wording) -> Write | Refuse:
    if batch.restarts and batch.accepted is None:
        return _restarted(batch, wording)
    restarted = {(loss.topic, loss.partition) for loss in batch.restarts}
    for part in batch.ranges:
        written = proof.end_of(part.topic, part.partition)
        if (part.topic, part.partition) in restarted:
            continue
        if written is not None and written != part.begin:
            return Refuse(
                f"{wording.marker} ends batch {proof.batch} of {part.topic}-{part.partition} at offset {written} and "
                f"the checkpoint begins batch {batch.number} at {part.begin}: "
                f"{Remedy.PUT_CHECKPOINT_BACK.format(data=wording.data)}, or {wording.remedy}"
            )
    return Write(proof.batch)
