"""A sink's marker compared with a checkpoint, read-only: what the next start of the query would do (`decision`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.batch import NO_BATCH
from onceflow.spark.exactly_once.checkpoint import LocalCheckpoint
from onceflow.spark.exactly_once.checkpoint_lock import holder_of
from onceflow.spark.exactly_once.decision import Finish, Refuse, Skip, Wording, decide, refusal_at_start
from onceflow.spark.exactly_once.proof import Proof


class NoCheckpoint(OnceflowError):
    """The given folder is not one of Spark's checkpoints."""


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The present state of a local checkpoint; `planned` and `committed` are its newest batches, -1 none."""

    checkpoint: LocalCheckpoint
    query: str
    planned: int
    committed: int
    driver: str | None
    """Process that holds its lock, such as `JVM with pid 17 on host`; None if no driver runs."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether marker and checkpoint belong together, and the consequence as a message."""

    fits: bool
    reason: str


def read_checkpoint(directory: Path) -> CheckpointState:
    """Return the state of the checkpoint. Raises NoCheckpoint, CheckpointUnreadable."""
    checkpoint = LocalCheckpoint(directory)
    query = checkpoint.query_id()
    if query is None:
        what = "is not a Spark checkpoint (it has no file 'metadata')" if directory.exists() else "does not exist here"
        raise NoCheckpoint(f"{directory} {what}: {Remedy.NAME_CHECKPOINT}")
    planned, committed = (checkpoint.newest_batch(folder) for folder in ("offsets", "commits"))
    return CheckpointState(checkpoint, query, planned, committed, holder_of(directory))


def judge(proof: Proof | None, state: CheckpointState, sink: str, wording: Wording) -> Verdict:
    """Return what the next start of the query would do about the sink named `sink`, with the plan of `proof`.

    Raises CheckpointUnreadable.
    """
    refusal = refusal_at_start(
        proof, query=state.query, sink=sink, committed=state.committed, planned=state.planned, wording=wording
    )
    if refusal is not None:
        return Verdict(False, refusal.reason)
    if proof is None or state.planned == NO_BATCH:
        return Verdict(True, "nothing is written yet: the next start writes batch 0")
    batch = state.checkpoint.batch(state.planned, plan=proof.plan, plan_version=proof.plan_version)
    decision = decide(proof, batch, sink, wording)
    if isinstance(decision, Refuse):
        return Verdict(False, decision.reason)
    if isinstance(decision, Finish):
        return Verdict(True, f"a part of batch {batch.number} is written: the next start finishes it")
    if not isinstance(decision, Skip):
        return Verdict(True, f"batch {proof.batch} is written: the next start writes batch {batch.number}")
    if state.committed < batch.number:
        after = f"but not committed by Spark: the next start skips it and continues with batch {batch.number + 1}"
        return Verdict(True, f"batch {batch.number} is written, {after}")
    return Verdict(True, f"batch {batch.number} is written: the next start continues with batch {batch.number + 1}")


def parts(offsets: Mapping[str, Mapping[str, int]] | None) -> list[tuple[str, int, int]]:
    """Return (topic, partition, offset), sorted."""
    return sorted(
        (topic, int(number), offset)
        for topic, partitions in (offsets or {}).items()
        for number, offset in partitions.items()
    )
