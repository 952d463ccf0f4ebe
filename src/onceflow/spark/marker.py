"""The marker: the proof, beside the data in Redis, of what has been written. This docstring is its format.

One hash, `{H}:onceflow` for the hash key H (`app::users::click`): the same slot as H and every other key of the
sink. All values are text; numbers are decimal; JSON is canonical (sorted keys, no spaces).

| field | what |
|---|---|
| `format` | `1`, this table |
| `query` | Spark's query id, from the checkpoint's `metadata` |
| `owner` | owner epoch; one more with every start, whatever carries an older one is refused |
| `batch` | number of the micro-batch; `-1` before the first one |
| `complete` | `1` all of the batch is written; `0` some chunks may be missing |
| `digest` | SHA-256 over the batch's offset ranges, topic ids, plan and plan version |
| `plan`, `plan_version` | what is counted, and the version of the code that counts it |
| `ranges` | the batch's offsets, `{"topic": {"0": [begin, end]}}`, end exclusive; a repair's cover several batches |
| `topic_ids` | ids of the batch's topics, `{"topic": "5e1b2d3c-…"}`, as far as the broker tells them |
| `offsets` | where the batch ends, `{"topic": {"0": end}}`: the next offset to be counted, once complete |
| `since` | first offset ever counted, `{"topic": {"0": begin}}`; a partition found later is added then |
| `chunks`, `done` | number of chunks of the batch, and how many of them are written; 0 for a batch of one script |
| `chunk:N` | `1`, chunk N is written; there only while the batch is not complete |
| `settled` | last batch that Redis was asked to sync to its append-only file |
| `started_ms`, `finished_ms`, `duration_ms` | the driver's clock, ms since 1970; absent before the first batch |

The decision table of `decide` is the whole protocol on the driver's side; the scripts beside this module check the
same fields again, atomically with each write.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onceflow.errors import OnceflowError
from onceflow.spark.offsets import OffsetRange

FORMAT = "1"
NO_BATCH = -1
RESET = "onceflow reset"
"""The command that forgets counts and checkpoint; whoever knows their places says it with its options."""
_CHUNK_FIELD = re.compile(r"chunk:(\d+)")

PartitionOffsets = dict[str, dict[str, int]]
"""Topic → partition as text → offset."""


class MarkerUnreadable(OnceflowError):
    """The key of the marker holds something that is not a marker of this format."""


def same_slot(hash_key: str, name: str) -> str:
    """The key `name` beside `hash_key`, in the same slot of a Redis Cluster."""
    return f"{hash_key}:{name}" if "{" in hash_key else f"{{{hash_key}}}:{name}"


def canonical_json(document: Any) -> str:
    """The one text of a JSON document, so that equal documents are equal text."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one micro-batch is: told by the checkpoint and the job's code, the same at every attempt."""

    query: str
    number: int
    ranges: Sequence[OffsetRange]
    plan: str
    plan_version: int
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def ranges_json(self) -> str:
        document: dict[str, dict[str, list[int]]] = {}
        for part in self.ranges:
            document.setdefault(part.topic, {})[str(part.partition)] = [part.begin, part.end]
        return canonical_json(document)

    @property
    def digest(self) -> str:
        """Hex SHA-256: a job whose code changed in the middle of a batch must not finish it with the new code."""
        document = [json.loads(self.ranges_json), dict(self.topic_ids), self.plan, self.plan_version]
        return hashlib.sha256(canonical_json(document).encode()).hexdigest()

    @property
    def size_offsets(self) -> int:
        """Number of offsets; events where the log has neither transaction markers nor compaction."""
        return sum(part.size for part in self.ranges)


@dataclass(frozen=True, slots=True)
class Marker:
    """The marker as it stands in Redis."""

    query: str
    batch: int
    complete: bool
    digest: str
    plan: str
    plan_version: int
    ranges_json: str
    topic_ids: Mapping[str, str]
    offsets: PartitionOffsets
    since: PartitionOffsets
    chunks: int
    chunks_done: frozenset[int]

    @property
    def batch_done(self) -> int:
        """Number of the last batch that is written whole."""
        return self.batch if self.complete else self.batch - 1

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """The offsets of the batch, complete or not."""
        document: dict[str, dict[str, list[int]]] = json.loads(self.ranges_json)
        parts = ((topic, part) for topic, partitions in document.items() for part in partitions.items())
        return tuple(sorted(OffsetRange(topic, int(number), *ends) for topic, (number, ends) in parts))

    @property
    def chunks_missing(self) -> tuple[int, ...]:
        return tuple(number for number in range(self.chunks) if number not in self.chunks_done)

    def offsets_after(self, batch: Batch) -> PartitionOffsets:
        """The marker's offsets once `batch` is written; partitions that the batch does not name stay."""
        return offsets_after(self.offsets, batch)

    def since_after(self, batch: Batch) -> PartitionOffsets:
        """The first offsets once `batch` is written: partitions not known before enter where they begin."""
        return since_after(self.since, batch)


def offsets_after(offsets: PartitionOffsets, batch: Batch) -> PartitionOffsets:
    """`offsets` moved on to where `batch` ends; partitions that the batch does not name stay."""
    return _joined(offsets, {(part.topic, part.partition): part.end for part in batch.ranges})


def since_after(since: PartitionOffsets, batch: Batch) -> PartitionOffsets:
    """`since` with the partitions that `batch` is the first to name, each where it begins there."""
    new = {
        (part.topic, part.partition): part.begin
        for part in batch.ranges
        if str(part.partition) not in since.get(part.topic, {})
    }
    return _joined(since, new)


def _joined(known: PartitionOffsets, more: Mapping[tuple[str, int], int]) -> PartitionOffsets:
    result = {topic: dict(partitions) for topic, partitions in known.items()}
    for (topic, partition), offset in more.items():
        result.setdefault(topic, {})[str(partition)] = offset
    return result


def parse(key: str, fields: Mapping[str, str], *, reset: str = RESET) -> Marker | None:
    """The marker from HGETALL of `key`; None where nothing is there. Raises MarkerUnreadable."""
    if not fields:
        return None
    if fields.get("format") != FORMAT:
        raise MarkerUnreadable(
            f"marker {key} has format {fields.get('format')!r}, this version of onceflow knows {FORMAT!r}: use the "
            f"version that wrote it, or {anew(reset)}"
        )
    try:
        return Marker(
            query=fields["query"],
            batch=int(fields["batch"]),
            complete={"1": True, "0": False}[fields["complete"]],
            digest=fields["digest"],
            plan=fields["plan"],
            plan_version=int(fields["plan_version"]),
            ranges_json=fields["ranges"],
            topic_ids=json.loads(fields.get("topic_ids", "{}")),
            offsets=json.loads(fields["offsets"]),
            since=json.loads(fields["since"]),
            chunks=int(fields["chunks"]),
            chunks_done=frozenset(int(found[1]) for name in fields if (found := _CHUNK_FIELD.fullmatch(name))),
        )
    except (KeyError, ValueError) as error:
        raise MarkerUnreadable(f"marker {key} is damaged ({type(error).__name__}: {error}): {anew(reset)}") from error


def first_fields(batch: Batch) -> dict[str, str]:
    """The marker's fields before the first batch, without owner."""
    return {
        "format": FORMAT,
        "query": batch.query,
        "batch": str(NO_BATCH),
        "complete": "1",
        "digest": "",
        "plan": batch.plan,
        "plan_version": str(batch.plan_version),
        "ranges": "{}",
        "topic_ids": "{}",
        "offsets": "{}",
        "since": "{}",
        "chunks": "0",
        "done": "0",
    }


def begun_fields(marker: Marker | None, batch: Batch, *, chunks: int, started_ms: int) -> dict[str, str]:
    """The fields that change when `batch` is begun in so many chunks (0: one script writes all)."""
    known = marker or parse("", first_fields(batch))
    assert known is not None
    return {
        "batch": str(batch.number),
        "complete": "0",
        "digest": batch.digest,
        "plan": batch.plan,
        "plan_version": str(batch.plan_version),
        "ranges": batch.ranges_json,
        "topic_ids": canonical_json(dict(batch.topic_ids)),
        "offsets": canonical_json(known.offsets_after(batch)),
        "since": canonical_json(known.since_after(batch)),
        "chunks": str(chunks),
        "done": "0",
        "started_ms": str(started_ms),
    }


def completed_fields(*, started_ms: int, finished_ms: int) -> dict[str, str]:
    """The fields that change when the last of a batch is written; `started_ms` is this attempt's."""
    return {
        "complete": "1",
        "finished_ms": str(finished_ms),
        "duration_ms": str(max(0, finished_ms - started_ms)),
    }


@dataclass(frozen=True, slots=True)
class Write:
    """Nothing of the batch is there: write it, after the complete batch `previous`."""

    previous: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The batch was begun in `chunks` chunks: write the missing ones, if any, and complete it."""

    chunks: int
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Skip:
    """The batch is written whole: only consume the DataFrame."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The marker and the checkpoint do not belong together: the query must stop."""

    sentence: str


@dataclass(frozen=True, slots=True)
class WentBack(Refuse):
    """Redis holds less than Spark has committed: it may be repaired, else the query must stop."""


Decision = Write | Finish | Skip | Refuse


def anew(reset: str) -> str:
    """What is left where nothing else helps, for the end of a sentence."""
    return f"delete counts and checkpoint with '{reset}' and count the log again"


def decide(marker: Marker | None, batch: Batch, *, key: str, data_present: bool, reset: str = RESET) -> Decision:
    """What to do with `batch`, given the marker found at `key` and whether any data key exists beside it."""
    if marker is None:
        return _decide_without_marker(batch, key, data_present, reset)
    if marker.query != batch.query:
        return Refuse(foreign_query(key, marker.query, batch.query, reset))
    if marker.plan != batch.plan:
        return Refuse(other_plan(key, marker.plan, batch.plan, reset))
    if marker.batch == batch.number:
        return _decide_same_batch(marker, batch, key, reset)
    if marker.batch > batch.number:
        return Refuse(
            f"marker {key} is at batch {marker.batch} and the checkpoint is at batch {batch.number}: the checkpoint is "
            f"older than the counts; put the newer checkpoint back, or {anew(reset)}"
        )
    if marker.batch_done < batch.number - 1:
        return went_back(key, marker.batch_done, batch.number - 1, reset)
    return _decide_next_batch(marker, batch, key, reset)


def _decide_without_marker(batch: Batch, key: str, data_present: bool, reset: str) -> Decision:
    if data_present:
        return Refuse(
            f"there is no marker {key} but there are counts beside it, and batch {batch.number} cannot tell what they "
            f"hold: {anew(reset)}"
        )
    if batch.number > 0:
        return Refuse(_marker_missing(key, batch.number - 1, reset))
    return Write(NO_BATCH)


def _decide_same_batch(marker: Marker, batch: Batch, key: str, reset: str) -> Decision:
    if marker.complete:
        # The plan's version may have changed since: what is complete was counted by one version alone.
        if marker.ranges_json == batch.ranges_json:
            return Skip()
        return Refuse(
            f"marker {key} holds batch {batch.number} as {marker.ranges_json} and the checkpoint plans it as "
            f"{batch.ranges_json}: put the checkpoint that belongs to the counts back, or {anew(reset)}"
        )
    if marker.digest == batch.digest:
        return Finish(marker.chunks, marker.chunks_missing)
    if marker.plan_version != batch.plan_version:
        return Refuse(other_version(marker, key, batch.plan_version))
    return Refuse(
        f"marker {key} holds a part of batch {batch.number} as {marker.ranges_json} (digest {marker.digest[:12]}) and "
        f"the checkpoint plans it as {batch.ranges_json} (digest {batch.digest[:12]}): put the checkpoint that belongs "
        f"to the counts back, or {anew(reset)}"
    )


def _decide_next_batch(marker: Marker, batch: Batch, key: str, reset: str) -> Decision:
    for part in batch.ranges:
        counted = marker.offsets.get(part.topic, {}).get(str(part.partition))
        if counted is not None and counted != part.begin:
            return Refuse(
                f"marker {key} ends batch {marker.batch} of {part.topic}-{part.partition} at offset {counted} and the "
                f"checkpoint begins batch {batch.number} at {part.begin}: put the checkpoint that belongs to the "
                f"counts back, or {anew(reset)}"
            )
    return Write(marker.batch)


def refusal_at_start(
    marker: Marker | None,
    *,
    query: str | None,
    committed: int,
    planned: int,
    key: str,
    data_present: bool,
    reset: str = RESET,
) -> Refuse | None:
    """Why a query must not start, or None. `committed` and `planned` are the checkpoint's newest batches, -1 none.

    `query` is None for a checkpoint that no query has used yet.
    """
    if marker is None:
        if data_present:
            return Refuse(
                f"there is no marker {key} but there are counts beside it that it would belong to: {anew(reset)}"
            )
        return Refuse(_marker_missing(key, committed, reset)) if committed > NO_BATCH else None
    if query is None:
        return Refuse(foreign_query(key, marker.query, "a new one", reset))
    if marker.query != query:
        return Refuse(foreign_query(key, marker.query, query, reset))
    if marker.batch > planned:
        return Refuse(
            f"marker {key} is at batch {marker.batch} and the checkpoint is at batch {planned}: the checkpoint is "
            f"older than the counts; put the newer one back, or {anew(reset)}"
        )
    return went_back(key, marker.batch_done, committed, reset) if marker.batch_done < committed else None


def foreign_query(key: str, found: str, wanted: str, reset: str = RESET) -> str:
    """The sentence for a marker that another query wrote."""
    return (
        f"marker {key} belongs to query {found} and the checkpoint to query {wanted}: use the checkpoint of the "
        f"counts, another hash key, or {anew(reset)}"
    )


def other_plan(key: str, found: str, wanted: str, reset: str = RESET) -> str:
    """The sentence for a marker of another plan."""
    return (
        f"marker {key} counts {found!r} and this job counts {wanted!r}: start it with the former options, or "
        f"{anew(reset)}"
    )


def other_version(marker: Marker, key: str, wanted: int) -> str:
    """The sentence for a batch that another version of the plan's code has begun."""
    return (
        f"marker {key} holds a part of batch {marker.batch} counted by version {marker.plan_version} of "
        f"{marker.plan!r} and this job is version {wanted}: let the former version finish the batch"
    )


def went_back(key: str, found: int, wanted: int, reset: str = RESET) -> WentBack:
    """The refusal of a Redis that holds less than Spark has committed."""
    return WentBack(
        f"Redis lost batches: marker {key} is at batch {'none' if found == NO_BATCH else found} and Spark has "
        f"committed batch {wanted}; restore Redis, or {anew(reset)} (appendfsync always does not lose any)"
    )


def _marker_missing(key: str, committed: int, reset: str) -> str:
    """The sentence for a used checkpoint and a hash key under which nothing was ever counted, or nothing is left."""
    return (
        f"there is no marker {key} and Spark has committed batch {committed} by this checkpoint, so it counts into "
        "another hash key or another Redis, or Redis lost batches: give each hash key a checkpoint of its own, "
        f"restore Redis, or {anew(reset)}"
    )
