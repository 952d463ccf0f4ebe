"""What to do with a batch, given the proof that was found: the whole protocol on the driver's side, for every sink.

| proof found | what is done |
|---|---|
| complete k-1, same query | write batch k |
| a part of k, same digest | finish it |
| complete k, same offsets | skip it |
| none, batch 0 | write batch 0 |
| complete j < k-1, or a part of j < k | the target went back: the sink repairs it, else the query stops |
| anything else | the query stops, with a sentence that names both values and the way out |
"""

from dataclasses import dataclass

from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.batch import NO_BATCH, Batch
from onceflow.spark.exactly_once.proof import Proof, ranges_digest
from onceflow.spark.offsets import LossKind

MISSING_OK = "--missing-ok"
"""The option with which a reset takes a checkpoint of whose sink nothing is left."""


@dataclass(frozen=True, slots=True)
class Wording:
    """How a sink's sentences name what it writes to."""

    marker: str
    """The proof and its place: `marker {counts}:onceflow`."""
    target: str
    """Who may lose batches: `Redis`."""
    data: str
    """What is written: `counts`."""
    elsewhere: str
    """Where this checkpoint may have written before: `another hash key`."""
    anew: str
    """What is left where nothing else helps: `delete counts and checkpoint with 'onceflow sink reset …'`."""
    anew_after_loss: str
    """The same where the target has lost all: the checkpoint alone is left to delete."""


@dataclass(frozen=True, slots=True)
class Write:
    """Nothing of the batch is there: write it, after the complete batch `previous`; -1: none."""

    previous: int


@dataclass(frozen=True, slots=True)
class Finish:
    """A part of the batch is there, as the proof tells: write what is missing and complete it."""


@dataclass(frozen=True, slots=True)
class Skip:
    """The batch is written whole: only consume the DataFrame."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Proof and checkpoint do not belong together: the query must stop."""

    sentence: str


@dataclass(frozen=True, slots=True)
class WentBack(Refuse):
    """The target holds less than Spark has committed: it may be repaired, else the query must stop."""


Decision = Write | Finish | Skip | Refuse


def decide(found: Proof | None, batch: Batch, sink: str, wording: Wording) -> Decision:
    """What to do with `batch` of the sink named `sink`."""
    if found is None:
        return Write(NO_BATCH) if batch.number == 0 else missing(batch.number - 1, wording)
    refusal = _foreign(found, batch.query, sink, wording) or other_plan(found, batch.plan, wording)
    if refusal is not None:
        return refusal
    if found.batch == batch.number:
        return _same_batch(found, batch, wording)
    if found.batch > batch.number:
        return _older_checkpoint(found, batch.number, wording)
    if found.batch_done < batch.number - 1:
        return went_back(found, batch.number - 1, wording)
    return _next_batch(found, batch, wording)


def refusal_at_start(
    found: Proof | None,
    *,
    query: str,
    sink: str,
    committed: int,
    planned: int,
    wording: Wording,
    plan: str | None = None,
) -> Refuse | None:
    """Why a query must not start, or None. `committed` and `planned` are the checkpoint's newest batches, -1 none.

    Who looks at a sink from outside does not know the job's `plan`, and a proof of any is as good.
    """
    if found is None:
        return None if committed == NO_BATCH else missing(committed, wording)
    if found.batch > planned:
        return _foreign(found, query, sink, wording) or _older_checkpoint(found, planned, wording)
    refusal = _foreign(found, query, sink, wording)
    if refusal is None and plan is not None:
        refusal = other_plan(found, plan, wording)
    if refusal is None and found.batch_done < committed:
        return went_back(found, committed, wording)
    return refusal


def foreign_query(found: str, wanted: str, wording: Wording) -> Refuse:
    """The refusal of a proof that another query wrote."""
    return Refuse(
        f"{wording.marker} belongs to query {found} and the checkpoint to query {wanted}: "
        f"{Remedy.USE_ITS_CHECKPOINT.format(data=wording.data)}, "
        f"{Remedy.WRITE_ELSEWHERE.format(elsewhere=wording.elsewhere)}, or {wording.anew}"
    )


def used_already(found: Proof, wording: Wording) -> Refuse:
    """The refusal of a new checkpoint where a query has written."""
    topics = ", ".join(sorted(found.offsets or {})) or "nothing yet"
    return Refuse(
        f"{wording.marker} belongs to query {found.query}, which has read {topics}, and this query's checkpoint is "
        f"new: {Remedy.WRITE_ELSEWHERE.format(elsewhere=wording.elsewhere)}, or "
        f"{Remedy.USE_ITS_CHECKPOINT.format(data=wording.data)}; where that is lost, {wording.anew}"
    )


def other_plan(found: Proof, plan: str, wording: Wording) -> Refuse | None:
    """The refusal of a proof of another plan, None where it is of this one."""
    if found.plan == plan:
        return None
    return Refuse(
        f"{wording.marker} is of plan {found.plan!r} and this job is {plan!r}: {Remedy.FORMER_OPTIONS}, or "
        f"{wording.anew}"
    )


def other_version(found: Proof, wanted: int, wording: Wording) -> Refuse:
    """The refusal of a batch that another version of the plan's code has begun."""
    return Refuse(
        f"{wording.marker} holds a part of batch {found.batch} written by version {found.plan_version} of "
        f"{found.plan!r} and this job is version {wanted}: {Remedy.FORMER_VERSION}"
    )


def went_back(found: Proof, wanted: int, wording: Wording) -> WentBack:
    """The refusal of a target that holds less than Spark has committed."""
    return WentBack(
        f"{wording.target} lost batches: {wording.marker} {found.shown_state} and Spark has committed batch {wanted}; "
        f"{Remedy.RESTORE_TARGET.format(target=wording.target)}, or {wording.anew}"
    )


def missing(committed: int, wording: Wording) -> Refuse:
    """The refusal of a used checkpoint and a target where nothing was ever written, or nothing is left."""
    return Refuse(
        f"there is no {wording.marker} and Spark has committed batch {committed} by this checkpoint, so it wrote to "
        f"{wording.elsewhere}, or {wording.target} lost batches: {Remedy.CHECKPOINT_PER_TARGET}, "
        f"{Remedy.RESTORE_TARGET.format(target=wording.target)}, or {wording.anew_after_loss}"
    )


def _foreign(found: Proof, query: str, sink: str, wording: Wording) -> Refuse | None:
    if found.query != query:
        return foreign_query(found.query, query, wording)
    if found.sink != sink:
        return Refuse(
            f"{wording.marker} belongs to sink {found.sink!r} and this is sink {sink!r}: {Remedy.FORMER_NAME}, "
            f"{Remedy.WRITE_ELSEWHERE.format(elsewhere=wording.elsewhere)}, or {wording.anew}"
        )
    return None


def _older_checkpoint(found: Proof, number: int, wording: Wording) -> Refuse:
    return Refuse(
        f"{wording.marker} is at batch {found.batch} and the checkpoint is at batch {number}: the checkpoint is older "
        f"than the {wording.data}; {Remedy.PUT_CHECKPOINT_BACK.format(data=wording.data)}, or {wording.anew}"
    )


def _same_batch(found: Proof, batch: Batch, wording: Wording) -> Decision:
    if found.complete and found.ranges == ranges_digest(batch.ranges_json):
        # The plan's version may have changed since: what is complete was written by one version alone.
        return Skip()
    if not found.complete and found.digest == batch.digest:
        return Finish()
    if not found.complete and found.plan_version != batch.plan_version:
        return other_version(found, batch.plan_version, wording)
    return Refuse(
        f"{wording.marker} holds {'' if found.complete else 'a part of '}batch {batch.number} as {found.shown_ranges} "
        f"(digest {found.digest[:12]}) and the checkpoint plans it as {batch.ranges_json} (digest {batch.digest[:12]}):"
        f" {Remedy.PUT_CHECKPOINT_BACK.format(data=wording.data)}, or {wording.anew}"
    )


def _restarted(batch: Batch, wording: Wording) -> Refuse:
    loss = batch.restarts[0]
    what = {
        LossKind.RECREATED: f"topic {loss.topic} was deleted and created again",
        LossKind.TRUNCATED: f"{loss.topic}-{loss.partition} lost offsets from {loss.begin} on that were written before",
    }[loss.kind]
    return Refuse(
        f"{what}, and batch {batch.number} reads what is there now: to keep the {wording.data} of before beside it, "
        f"{Remedy.ACCEPT_DATA_LOSS}; else {wording.anew}"
    )


def _next_batch(found: Proof, batch: Batch, wording: Wording) -> Write | Refuse:
    if batch.restarts and batch.accepted is None:
        return _restarted(batch, wording)
    restarted = {(loss.topic, loss.partition) for loss in batch.restarts}
    for part in batch.ranges:
        written = found.end_of(part.topic, part.partition)
        if (part.topic, part.partition) in restarted:
            continue
        if written is not None and written != part.begin:
            return Refuse(
                f"{wording.marker} ends batch {found.batch} of {part.topic}-{part.partition} at offset {written} and "
                f"the checkpoint begins batch {batch.number} at {part.begin}: "
                f"{Remedy.PUT_CHECKPOINT_BACK.format(data=wording.data)}, or {wording.anew}"
            )
    return Write(found.batch)
