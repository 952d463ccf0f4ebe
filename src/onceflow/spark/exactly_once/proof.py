"""The proof that a batch is written, as every sink keeps it: what it says, and its text.

A sink stores it in the same system and the same atomic step as the batch's data, under its own name and the query's.
The text is canonical JSON, one object:

| field | what |
|---|---|
| `format` | `1`, this table |
| `query`, `sink` | Spark's query id, from the checkpoint's `metadata`, and the sink's name within the query |
| `batch` | number of the micro-batch |
| `complete` | false where only a part of the batch is written, which a sink that can finish it may keep |
| `digest` | SHA-256 over the batch's offset ranges, topic ids, plan and plan version |
| `ranges` | SHA-256 over the offset ranges alone, which stay when the job's code changes |
| `plan`, `plan_version` | what is written, and the version of the code that makes it |
| `offsets` | where the batch ends, `{"topic": {"0": end}}`: the next offset to be written; null where it is not known |
| `losses` | data loss that was accepted, each with kind, offsets, batch, time and option; absent where there is none |
| `since` | first offset ever written, `{"topic": {"0": begin}}`; a partition found later enters where it began |
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.batch import (
    AcceptedLoss,
    Batch,
    PartitionOffsets,
    canonical_json,
    offsets_after,
    since_after,
)
from onceflow.spark.exactly_once.sink_errors import MarkerRefused

FORMAT = "1"
LOSSES_MAX = 1_000


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What the last written batch left; a value, so two of one batch are equal."""

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
        """Number of the last batch that is written whole; -1: none."""
        return self.batch if self.complete else self.batch - 1

    def end_of(self, topic: str, partition: int) -> int | None:
        """The next offset to be written of a partition; None where the proof does not know it."""
        return (self.offsets or {}).get(topic, {}).get(str(partition))

    @property
    def shown_state(self) -> str:
        """Say where the proof stands, after its name in a message."""
        return f"is at batch {'none' if self.batch_done < 0 else self.batch_done}"

    @property
    def shown_ranges(self) -> str:
        """The batch's offsets as a sentence names them, as far as the proof tells them."""
        return f"ranges {self.ranges[:12]}"

    def text(self) -> str:
        """Canonical JSON on one line: equal proofs are equal text."""
        fields = asdict(self)
        if not self.losses:
            del fields["losses"]
        return canonical_json({"format": FORMAT, **fields})

    @staticmethod
    def parse(where: str, text: str | bytes) -> "Proof":
        """The proof that `text` is; `where` names its place in a sentence. Raises MarkerRefused."""
        try:
            document = json.loads(text)
            found = document["format"]
            if found == FORMAT:
                return Proof(**proof_fields(document))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MarkerRefused(
                f"{where} is no proof ({type(error).__name__}: {error}), it holds {text[:80]!r}: "
                f"{Remedy.PUT_PROOF_BACK}"
            ) from error
        raise MarkerRefused(
            f"{where} has format {found!r}, this version of onceflow knows {FORMAT!r}: {Remedy.WRITER_VERSION}"
        )


def proof_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a Proof, out of parsed JSON. Raises KeyError, ValueError and TypeError."""
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


def proof_of(batch: Batch, sink: str, found: Proof | None) -> Proof:
    """The proof of `batch`, to be committed with it after the one that was `found`."""
    known = {} if found is None or found.offsets is None else _without(found.offsets, batch.recreated)
    return Proof(
        query=batch.query,
        sink=sink,
        batch=batch.number,
        digest=batch.digest,
        ranges=ranges_digest(batch.ranges_json),
        plan=batch.plan,
        plan_version=batch.plan_version,
        offsets=offsets_after(known, batch),
        # Where counting began is not known any more once it was lost; no later batch can tell it.
        since=None
        if found is not None and found.since is None
        else since_after(_without(_since(found), batch.recreated), batch),
        losses=losses_after(found, batch),
    )


def losses_after(found: Proof | None, batch: Batch) -> tuple[AcceptedLoss, ...]:
    """Return all accepted losses up to `batch`, each once, oldest first. Raises MarkerRefused for too many."""
    known = () if found is None else found.losses
    losses = tuple(dict.fromkeys((*known, *(batch.accepted or ()))))
    if len(losses) > LOSSES_MAX:
        raise MarkerRefused(
            f"the marker of batch {batch.number} has {LOSSES_MAX} accepted losses, more are refused: "
            f"{Remedy.BEGIN_NEW_CHECKPOINT}, and {Remedy.LONGER_RETENTION}"
        )
    return losses


def _without(offsets: PartitionOffsets, topics: Collection[str]) -> PartitionOffsets:
    return {topic: partitions for topic, partitions in offsets.items() if topic not in topics}


def _since(found: Proof | None) -> PartitionOffsets:
    return {} if found is None or found.since is None else found.since


def ranges_digest(ranges_json: str) -> str:
    """Hex SHA-256 of a batch's offsets alone."""
    return hashlib.sha256(ranges_json.encode()).hexdigest()
