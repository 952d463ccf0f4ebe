"""The proof that a batch is written, as every sink keeps it: its fields and its text.

A sink stores it in the same system and the same atomic step as the batch's data, under its own name and the query's.
The text is canonical JSON, one object:

| field | content |
|---|---|
| `format` | `1`, this table |
| `query`, `sink` | Spark's query id, from the checkpoint's `metadata`, and the sink's name within the query |
| `batch` | number of the micro-batch |
| `complete` | false if only a part of the batch is written; only sinks that can finish a batch keep such a proof |
| `digest` | SHA-256 over the batch's offset ranges, topic ids, plan and plan version |
| `ranges` | SHA-256 over the offset ranges alone, which do not change with the job's code |
| `plan`, `plan_version` | what is written, and the version of the code that makes it |
| `offsets` | end of the batch, `{"topic": {"0": end}}`: the next offset to write; null if unknown |
| `losses` | accepted data loss, each with kind, offsets, batch, time and option; absent if there is none |
| `since` | first offset ever written, `{"topic": {"0": begin}}`; a later partition enters with its first offset |
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from onceflow.remedies import Remedy
from onceflow.spark.errors import MarkerRefused
from onceflow.spark.exactly_once.batch import (
    AcceptedLoss,
    Batch,
    PartitionOffsets,
    canonical_json,
    offsets_after,
    since_after,
)

FORMAT = "1"
LOSSES_MAX = 1_000


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Proof of the last written batch; a value, so two proofs of one batch are equal."""

    query: str
    sink: str
    batch: int
    digest: str
    ranges: str
    plan: str
    plan_version: int
    offsets: PartitionOffsets | None
    since: PartitionOffsets | None
    complete: bool = True
    losses: tuple[AcceptedLoss, ...] = ()

    @property
    def batch_done(self) -> int:
        """Number of the last complete batch; -1: none."""
        return self.batch if self.complete else self.batch - 1

    def end_of(self, topic: str, partition: int) -> int | None:
        """Return the next offset to write of a partition; None if the proof does not know it."""
        return (self.offsets or {}).get(topic, {}).get(str(partition))

    @property
    def shown_state(self) -> str:
        """Predicate for a message about the proof, such as `is at batch 7`."""
        return f"is at batch {'none' if self.batch_done < 0 else self.batch_done}"

    @property
    def shown_ranges(self) -> str:
        """Offsets of the batch for a message, as far as the proof has them."""
        return f"ranges {self.ranges[:12]}"

    def text(self) -> str:
        """Return canonical JSON on one line: equal proofs have equal text."""
        fields = asdict(self)
        if not self.losses:
            del fields["losses"]
        return canonical_json({"format": FORMAT, **fields})

    @staticmethod
    def parse(where: str, text: str | bytes) -> "Proof":
        """Return the proof in `text`; `where` names its location in messages. Raises MarkerRefused."""
        try:
            document = json.loads(text)
            proof_format = document["format"]
            if proof_format == FORMAT:
                return Proof(**proof_fields(document))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MarkerRefused(
                f"{where} is not a proof ({type(error).__name__}: {error}) but {text[:80]!r}: {Remedy.PUT_PROOF_BACK}"
            ) from error
        raise MarkerRefused(
            f"{where} has format {proof_format!r}, this version of onceflow reads {FORMAT!r}: {Remedy.WRITER_VERSION}"
        )


def proof_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a Proof from parsed JSON. Raises KeyError, ValueError and TypeError."""
    texts = ("query", "sink", "digest", "ranges", "plan")
    return {
        **{name: str(document[name]) for name in texts},
        "batch": int(document["batch"]),
        "plan_version": int(document["plan_version"]),
        "offsets": document.get("offsets"),
        "since": document.get("since"),
        "complete": bool(document.get("complete", True)),
        "losses": tuple(AcceptedLoss(**loss) for loss in document.get("losses", ())),
    }


def proof_of(batch: Batch, sink: str, previous: Proof | None) -> Proof:
    """Return the proof of `batch`, which follows the proof `previous`."""
    known = {} if previous is None or previous.offsets is None else _without(previous.offsets, batch.recreated)
    return Proof(
        query=batch.query,
        sink=sink,
        batch=batch.number,
        digest=batch.digest,
        ranges=ranges_digest(batch.ranges_json),
        plan=batch.plan,
        plan_version=batch.plan_version,
        offsets=offsets_after(known, batch),
        # A lost first offset stays unknown: no later batch has it.
        since=None
        if previous is not None and previous.since is None
        else since_after(_without(_since(previous), batch.recreated), batch),
        losses=losses_after(previous, batch),
    )


def losses_after(previous: Proof | None, batch: Batch) -> tuple[AcceptedLoss, ...]:
    """Return all accepted losses up to `batch`, each once, oldest first. Raises MarkerRefused for too many."""
    known = () if previous is None else previous.losses
    losses = tuple(dict.fromkeys((*known, *(batch.accepted or ()))))
    if len(losses) > LOSSES_MAX:
        raise MarkerRefused(
            f"the marker of batch {batch.number} has {LOSSES_MAX} accepted losses, the maximum: "
            f"{Remedy.BEGIN_NEW_CHECKPOINT}, and {Remedy.LONGER_RETENTION}"
        )
    return losses


def _without(offsets: PartitionOffsets, topics: Collection[str]) -> PartitionOffsets:
    return {topic: partitions for topic, partitions in offsets.items() if topic not in topics}


def _since(previous: Proof | None) -> PartitionOffsets:
    return {} if previous is None or previous.since is None else previous.since


def ranges_digest(ranges_json: str) -> str:
    """Return the hex SHA-256 of a batch's offsets."""
    return hashlib.sha256(ranges_json.encode()).hexdigest()
