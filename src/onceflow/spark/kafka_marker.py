"""The marker of the Kafka sink: the proof, inside the transaction, of what it writes. This docstring is its format.

It is kept twice, since each of the two can be lost: offsets of a group without members expire (7 days), records can be
deleted. Both are written in the transaction of the batch:

- the committed offset of the group that has the transactional id's name, on the marker topic's partition (never on
  the output's): the offset is the batch's number, the metadata is the *proof*, canonical JSON of at most 4,096 bytes,
  with `record`, the offset of the other one;
- a record in the marker topic, which is compacted: the key is the transactional id, the value the proof with `offsets`
  and `since` more, which can be long.

| field | what |
|---|---|
| `format` | `1`, this table |
| `query`, `sink` | Spark's query id, from the checkpoint's `metadata`, and the sink's name within the query |
| `owner` | which start of the query wrote it, a random id |
| `batch` | number of the micro-batch |
| `digest` | SHA-256 over the batch's offset ranges, topic ids, plan and plan version |
| `ranges` | SHA-256 over the offset ranges alone |
| `plan`, `plan_version` | what is written, and the version of the code that makes it |
| `partitions` | number of partitions of each output topic when the query first wrote to it: pinned |
| `offsets` | where the batch ends, `{"topic": {"0": end}}`: the next offset to be written |
| `since` | first offset ever written, `{"topic": {"0": begin}}`; null where that is no longer known |

A marker is always that of a complete batch: a transaction has no half.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.records import read_records
from onceflow.errors import OnceflowError
from onceflow.spark import marker as markers
from onceflow.spark.marker import NO_BATCH, Batch, PartitionOffsets, Refuse, Skip, Write, canonical_json

FORMAT = "1"
METADATA_BYTES_MAX = 4096
"""Kafka's default of `offset.metadata.max.bytes`."""


class SinkStopped(OnceflowError):
    """The Kafka sink cannot go on, and ends the query: whatever it might do could write a record twice or never."""


@dataclass(frozen=True, slots=True)
class KafkaMarker:
    """What the last committed batch left; `offsets` is None where only the group's metadata is there."""

    query: str
    sink: str
    owner: str
    batch: int
    digest: str
    ranges: str
    plan: str
    plan_version: int
    partitions: Mapping[str, int]
    offsets: PartitionOffsets | None
    since: PartitionOffsets | None

    @property
    def proof(self) -> dict[str, Any]:
        """The fields that both copies have."""
        names = ("query", "sink", "owner", "batch", "digest", "ranges", "plan", "plan_version")
        return {"format": FORMAT, **{name: getattr(self, name) for name in names}, "partitions": dict(self.partitions)}

    def value(self) -> bytes:
        """The record's value."""
        return canonical_json({**self.proof, "offsets": self.offsets, "since": self.since}).encode()

    def metadata(self, record_offset: int) -> str:
        """The committed offset's metadata. Raises SinkStopped where it would be too long."""
        text = canonical_json({**self.proof, "record": record_offset})
        if len(text.encode()) > METADATA_BYTES_MAX:
            raise SinkStopped(
                f"the marker of sink '{self.sink}' has {len(text.encode())} bytes and {METADATA_BYTES_MAX} fit into a "
                f"group's offset: give it a shorter plan, or fewer than its {len(self.partitions)} output topics"
            )
        return text


def next_marker(
    found: KafkaMarker | None, batch: Batch, sink: str, owner: str, counts: Mapping[str, int]
) -> KafkaMarker:
    """The marker that goes into the transaction of `batch`; `counts` has the output's partition counts as pinned."""
    known = found.offsets if found is not None and found.offsets is not None else {}
    since_unknown = found is not None and found.since is None
    return KafkaMarker(
        query=batch.query,
        sink=sink,
        owner=owner,
        batch=batch.number,
        digest=batch.digest,
        ranges=ranges_digest(batch),
        plan=batch.plan,
        plan_version=batch.plan_version,
        partitions=counts,
        offsets=markers.offsets_after(known, batch),
        since=None if since_unknown else markers.since_after((found and found.since) or {}, batch),
    )


def ranges_digest(batch: Batch) -> str:
    """Hex SHA-256 of the offsets alone, which stay when the job's code changes."""
    return hashlib.sha256(batch.ranges_json.encode()).hexdigest()


def parse(where: str, text: str | bytes) -> tuple[KafkaMarker, int]:
    """The marker and the offset of its record (-1: this is the record). Raises SinkStopped."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise SinkStopped(
                f"{where} has format {document['format']!r}, this version of onceflow knows {FORMAT!r}: use the "
                "version that wrote it"
            )
        found = KafkaMarker(
            query=str(document["query"]),
            sink=str(document["sink"]),
            owner=str(document["owner"]),
            batch=int(document["batch"]),
            digest=str(document["digest"]),
            ranges=str(document["ranges"]),
            plan=str(document["plan"]),
            plan_version=int(document["plan_version"]),
            partitions={str(topic): int(count) for topic, count in document["partitions"].items()},
            offsets=document.get("offsets"),
            since=document.get("since"),
        )
        return found, int(document.get("record", -1))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        shown = text[:80]
        raise SinkStopped(
            f"{where} is no marker ({type(error).__name__}: {error}), it holds {shown!r}: {_ANEW}"
        ) from error


_ANEW = (
    "put back what belongs together, or write anew with an empty checkpoint, and another name= or another output topic"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one sink's marker is: the group and the record's key are `name`, the transactional id."""

    name: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"marker '{self.name}' (group, and key in {self.topic}-{self.partition})"

    def hidden_from(self, cluster: Cluster) -> int | None:
        """From which offset on records cannot be read now, because another sink's transaction is open; None: none."""
        ends = [
            cluster.list_offsets(self.topic, {self.partition: LATEST}, read_committed=committed)[self.partition].offset
            for committed in (True, False)
        ]
        return ends[0] if ends[0] < ends[1] else None

    def read_record(self, cluster: Cluster, proven: int | None = None) -> KafkaMarker | None:
        """The newest record of this marker that can be read now; None where there is none.

        `proven` is an offset that the group names: a record there was committed with that, so it is read even where an
        open transaction hides it. Records behind it are read as far as they are committed.
        """
        asked = {self.partition: EARLIEST}
        start = cluster.list_offsets(self.topic, asked)[self.partition].offset
        end = cluster.list_offsets(self.topic, {self.partition: LATEST})[self.partition].offset
        newest: bytes | None = None
        if proven is not None:
            newest = self._value(cluster, max(start, proven), proven + 1, read_committed=False)
            start = max(start, proven + 1)
        newest = self._value(cluster, start, end, read_committed=True) or newest
        return None if newest is None else parse(f"the record of {self}", newest)[0]

    def _value(self, cluster: Cluster, begin: int, end: int, *, read_committed: bool) -> bytes | None:
        if not read_committed:
            # Where the topic was made anew the log may end before the offset that was named.
            asked = {self.partition: LATEST}
            end = min(end, cluster.list_offsets(self.topic, asked, read_committed=False)[self.partition].offset)
        newest: bytes | None = None
        for record in read_records(cluster, self.topic, self.partition, begin, end, read_committed=read_committed):
            if record.key == self.name.encode():
                newest = record.value
        return newest


def agreed(place: Place, in_group: KafkaMarker | None, in_record: KafkaMarker | None) -> KafkaMarker | None:
    """The one marker that both copies are, or that one of them is where the other is lost. Raises SinkStopped."""
    if in_group is None or in_record is None:
        return in_record or in_group
    if in_group.proof != in_record.proof:
        raise SinkStopped(
            f"the two copies of {place} differ: the group's offset tells of batch {in_group.batch} (digest "
            f"{in_group.digest[:12]}) and the record of batch {in_record.batch} (digest {in_record.digest[:12]}); "
            f"somebody has changed one of them: {_ANEW}"
        )
    return in_record


def decide(found: KafkaMarker | None, batch: Batch, sink: str, place: Place) -> Write | Skip | Refuse:
    """What to do with `batch`, given the marker that was found."""
    if found is None:
        if batch.number > 0:
            return Refuse(
                f"there is no {place}, neither offset nor record, and the checkpoint is at batch {batch.number}, so "
                f"what was written is not known: {_ANEW}"
            )
        return Write(NO_BATCH)
    for word, theirs, ours in (("query", found.query, batch.query), ("sink", found.sink, sink)):
        if theirs != ours:
            return Refuse(f"{place} belongs to {word} {theirs} and this is {word} {ours}: {_ANEW}")
    if found.plan != batch.plan:
        return Refuse(
            f"{place} is of plan {found.plan!r} and this job is {batch.plan!r}: start it with the former one, "
            f"or {_ANEW}"
        )
    if found.batch == batch.number:
        # The plan's version may have changed since: what is committed was written by one version alone.
        if found.ranges == ranges_digest(batch):
            return Skip()
        return Refuse(
            f"{place} says that batch {batch.number} was written with other offsets (digest {found.digest[:12]}) than "
            f"the checkpoint plans ({batch.digest[:12]}): {_ANEW}"
        )
    if found.batch > batch.number:
        return Refuse(
            f"{place} is at batch {found.batch} and the checkpoint at batch {batch.number}: the checkpoint is older "
            f"than the output; {_ANEW}"
        )
    if found.batch < batch.number - 1:
        return Refuse(
            f"{place} is at batch {found.batch} and the checkpoint at batch {batch.number}: the cluster has lost the "
            f"batches between; {_ANEW}"
        )
    return _decide_next(found, batch, place)


def _decide_next(found: KafkaMarker, batch: Batch, place: Place) -> Write | Refuse:
    for part in batch.ranges:
        written = (found.offsets or {}).get(part.topic, {}).get(str(part.partition))
        if written is not None and written != part.begin:
            return Refuse(
                f"{place} ends batch {found.batch} of {part.topic}-{part.partition} at offset {written} and the "
                f"checkpoint begins batch {batch.number} at {part.begin}: {_ANEW}"
            )
    return Write(found.batch)


def pinned(found: KafkaMarker | None, counts: Mapping[str, int], accepted: Mapping[str, int]) -> dict[str, int]:
    """The partition counts to go on with. Raises SinkStopped where a topic's is not the one it was begun with."""
    known = dict(found.partitions) if found is not None else {}
    for topic, count in counts.items():
        before = known.get(topic, count)
        if before != count and accepted.get(topic) != count:
            raise SinkStopped(
                f"topic {topic} had {before} partitions when the query began to write to it and has {count} now, so "
                f"keys would change their partition: write to another topic, or accept that with "
                f"accept_partitions={{{topic!r}: {count}}}"
            )
        known[topic] = count
    return known


def with_offset_of(place: Place, batch_offset: int, found: KafkaMarker) -> KafkaMarker:
    """The marker of a group's offset. Raises SinkStopped where offset and metadata name different batches."""
    if found.batch != batch_offset:
        raise SinkStopped(
            f"the group's offset of {place} is {batch_offset} and its metadata tells of batch {found.batch}: somebody "
            f"has changed it: {_ANEW}"
        )
    return replace(found, offsets=None, since=None)
