"""What a sink's marker says, read from outside, and whether it fits a checkpoint; nothing here changes anything.

The judgement is the sinks' own (`decision`): what the next start of the query would do.
"""

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
    """The folder that was named is not one of Spark's checkpoints."""


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """A checkpoint on this machine as it is now; `planned` and `committed` are its newest batches, -1 none."""

    checkpoint: LocalCheckpoint
    query: str
    planned: int
    committed: int
    driver: str | None
    """Who holds its lock, such as `JVM with pid 17 on host`; None where no driver runs."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether marker and checkpoint fit, and the reason."""

    fits: bool
    reason: str


def read_checkpoint(directory: Path) -> CheckpointState:
    """Raises NoCheckpoint, CheckpointUnreadable."""
    checkpoint = LocalCheckpoint(directory)
    query = checkpoint.query_id()
    if query is None:
        what = "is no Spark checkpoint (no file 'metadata' in it)" if directory.exists() else "does not exist here"
        raise NoCheckpoint(f"{directory} {what}: {Remedy.NAME_CHECKPOINT}")
    planned, committed = (checkpoint.newest_batch(folder) for folder in ("offsets", "commits"))
    return CheckpointState(checkpoint, query, planned, committed, holder_of(directory))


def judge(found: Proof | None, state: CheckpointState, sink: str, wording: Wording) -> Verdict:
    """What the next start of the query would do about the sink named `sink`, with the plan that `found` is of.

    Raises CheckpointUnreadable.
    """
    refusal = refusal_at_start(
        found, query=state.query, sink=sink, committed=state.committed, planned=state.planned, wording=wording
    )
    if refusal is not None:
        return Verdict(False, refusal.sentence)
    if found is None or state.planned == NO_BATCH:
        return Verdict(True, "nothing is written yet: the next start begins with batch 0")
    batch = state.checkpoint.batch(state.planned, plan=found.plan, plan_version=found.plan_version)
    decision = decide(found, batch, sink, wording)
    if isinstance(decision, Refuse):
        return Verdict(False, decision.sentence)
    if isinstance(decision, Finish):
        return Verdict(True, f"a part of batch {batch.number} is written: the next start finishes it")
    if not isinstance(decision, Skip):
        return Verdict(True, f"batch {found.batch} is written: the next start writes batch {batch.number}")
    if state.committed < batch.number:
        after = f"Spark has not noted that: the next start skips it and goes on with batch {batch.number + 1}"
        return Verdict(True, f"batch {batch.number} is written, {after}")
    return Verdict(True, f"batch {batch.number} is written: the next start goes on with batch {batch.number + 1}")


def parts(offsets: Mapping[str, Mapping[str, int]] | None) -> list[tuple[str, int, int]]:
    """(topic, partition, offset), in order."""
    return sorted(
        (topic, int(number), offset)
        for topic, partitions in (offsets or {}).items()
        for number, offset in partitions.items()
    )
