"""The marker of the Kafka sink: the proof, inside the transaction, of what it writes. This docstring is its format.

There are two copies, since each can be lost: offsets of a group without members expire (7 days), records can be
deleted. Both are written in the batch's transaction:

- the committed offset of the group named like the transactional id, on the marker topic's partition (never on the
  output's): the offset is the batch's number; the metadata is the *proof*, canonical JSON of at most 4,096 bytes, with
  `record`, the offset of the other copy;
- a record in the compacted marker topic: the key is the transactional id, the value the proof with `offsets` and
  `since`, which can be long.

| field | content |
|---|---|
| `format` | `1`, this table |
| `query`, `sink` | Spark's query id, from the checkpoint's `metadata`, and the sink's name within the query |
| `owner` | random id of the start of the query that wrote it |
| `batch` | number of the micro-batch |
| `digest` | SHA-256 over the batch's offset ranges, topic ids, plan and plan version |
| `ranges` | SHA-256 over the offset ranges alone |
| `plan`, `plan_version` | what is written, and the version of the code that produces it |
| `partitions` | number of partitions of each output topic when the query first wrote to it: pinned |
| `offsets` | end of the batch, `{"topic": {"0": end}}`: the next offset to write |
| `losses` | accepted data loss, as in every proof; absent if there is none |
| `since` | first offset ever written, `{"topic": {"0": begin}}`; null if no longer known |

A marker is always of a complete batch: a transaction is all or nothing.
"""

import contextlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from onceflow.client.admin import Admin
from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.errors import RequestRefused, TopicExists
from onceflow.client.records import read_records
from onceflow.remedies import Remedy
from onceflow.spark.errors import SinkStopped
from onceflow.spark.exactly_once.batch import canonical_json
from onceflow.spark.exactly_once.checkpoint import checkpoint_words
from onceflow.spark.exactly_once.decision import MISSING_OK, Wording
from onceflow.spark.exactly_once.proof import Proof, proof_fields
from onceflow.wire.murmur2 import partition_for_key

FORMAT = "1"
METADATA_BYTES_MAX = 4096
"""Kafka's default of `offset.metadata.max.bytes`."""
MARKER_TOPIC = "onceflow-markers"
MARKER_CONFIGS = {
    "cleanup.policy": "compact",
    # Small segments: the newest one is never compacted, and readers scan all of it.
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": str(60 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}


@dataclass(frozen=True, kw_only=True)
class KafkaMarker(Proof):
    """Marker of the last committed batch; `offsets` is None if only the group's copy exists."""

    owner: str
    partitions: Mapping[str, int]

    @property
    def shared(self) -> dict[str, Any]:
        """Fields of both copies."""
        names = ("query", "sink", "owner", "batch", "digest", "ranges", "plan", "plan_version")
        return {"format": FORMAT, **{name: getattr(self, name) for name in names}, "partitions": dict(self.partitions)}

    def value(self) -> bytes:
        """Return the record's value."""
        losses = {"losses": [asdict(loss) for loss in self.losses]} if self.losses else {}
        return canonical_json({**self.shared, "offsets": self.offsets, "since": self.since, **losses}).encode()

    def metadata(self, record_offset: int) -> str:
        """Return the committed offset's metadata. Raises SinkStopped if it would be too long."""
        text = canonical_json({**self.shared, "record": record_offset})
        if len(text.encode()) > METADATA_BYTES_MAX:
            raise SinkStopped(
                f"the marker of sink '{self.sink}' has {len(text.encode())} bytes, and {METADATA_BYTES_MAX} fit into a "
                f"group's offset: {Remedy.SHORTER_MARKER.format(count=len(self.partitions))}"
            )
        return text


def parse(copy: str, location: "MarkerLocation", text: str | bytes) -> tuple[KafkaMarker, int]:
    """Return the marker and the offset of its record (-1: `text` is that record); `copy` names the copy in messages.

    Raises SinkStopped.
    """
    where = f"{copy} of {location}"
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise SinkStopped(
                f"{where} has format {document['format']!r}, this version of onceflow reads {FORMAT!r}: "
                f"{Remedy.WRITER_VERSION}"
            )
        marker = KafkaMarker(
            **proof_fields(document),
            owner=str(document["owner"]),
            partitions={str(topic): int(count) for topic, count in document["partitions"].items()},
        )
        return marker, int(document.get("record", -1))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SinkStopped(
            f"{where} is not a marker ({type(error).__name__}: {error}) but {text[:80]!r}: {location.remedy}"
        ) from error


def kafka_reset(bootstrap: str, name: str, checkpoint: str | None, *, query: str, marker_topic: str) -> str:
    """Return the command that resets a Kafka sink; `query` replaces a checkpoint that is not on this machine."""
    words = ["--bootstrap", bootstrap, "--name", name, "--marker-topic", marker_topic]
    where = checkpoint_words(checkpoint) or ["--query", query]
    return shlex.join(["onceflow", "sink", "reset", "kafka", *words, *where, "--execute"])


def _remedy(reset: str) -> str:
    return f"{Remedy.PUT_BACK_TOGETHER}, or {Remedy.WRITE_AGAIN.format(reset=reset)}"


@dataclass(frozen=True, slots=True)
class MarkerLocation:
    """Location of one sink's marker: `name`, the transactional id, is the group and the record's key."""

    name: str
    topic: str
    partition: int
    reset: str = "onceflow sink reset kafka"
    """Command that deletes the marker and the query's checkpoint."""

    def __str__(self) -> str:
        return f"marker '{self.name}' (group, and key in {self.topic}-{self.partition})"

    @property
    def wording(self) -> Wording:
        """Names that messages use for the marker and its target."""
        return Wording(
            marker=str(self),
            target="the cluster",
            data="output",
            elsewhere="another cluster, or under another name= or marker_topic=",
            remedy=self.remedy,
            remedy_after_loss=_remedy(f"{self.reset} {MISSING_OK}"),
        )

    @property
    def remedy(self) -> str:
        """The last resort, for the end of a message."""
        return _remedy(self.reset)

    def end(self, cluster: Cluster, *, read_committed: bool = True) -> int:
        """Return the end of the marker's partition; with `read_committed`, the first offset of an open transaction."""
        positions = {self.partition: LATEST}
        return cluster.list_offsets(self.topic, positions, read_committed=read_committed)[self.partition].offset

    def read_record(self, cluster: Cluster, proven: int | None = None) -> KafkaMarker | None:
        """Return the newest readable record of this marker; None if there is none.

        `proven` is the record's offset in the group's copy. The record there was committed together with the group's
        offset, so it is read even if an open transaction hides it. Records after it are read if committed.
        """
        start = cluster.list_offsets(self.topic, {self.partition: EARLIEST})[self.partition].offset
        end = self.end(cluster)
        newest: bytes | None = None
        if proven is not None:
            newest = self._value(cluster, max(start, proven), proven + 1, read_committed=False)
            start = max(start, proven + 1)
        newest = self._value(cluster, start, end, read_committed=True) or newest
        return None if newest is None else parse("the record", self, newest)[0]

    def _value(self, cluster: Cluster, begin: int, end: int, *, read_committed: bool) -> bytes | None:
        if not read_committed:
            # If the topic was recreated, the log may end before the group's offset.
            end = min(end, self.end(cluster, read_committed=False))
        newest: bytes | None = None
        for record in read_records(cluster, self.topic, self.partition, begin, end, read_committed=read_committed):
            if record.key == self.name.encode():
                newest = record.value
        return newest


def newest_values(cluster: Cluster, topic: str, partition: int) -> dict[bytes, bytes]:
    """Return key → value of the newest readable record of each key in a marker partition, tombstones excluded."""
    start, end = (cluster.list_offsets(topic, {partition: at})[partition].offset for at in (EARLIEST, LATEST))
    newest: dict[bytes | None, bytes | None] = {}
    for record in read_records(cluster, topic, partition, start, end):
        newest[record.key] = record.value
    return {key: value for key, value in newest.items() if key is not None and value is not None}


def marker_location(cluster: Cluster, sink: str, topic: str, checkpoint: str | None, query: str) -> MarkerLocation:
    """Return the location of a sink's marker in the marker topic `topic`. Raises SinkStopped."""
    name = f"onceflow-{query}-{sink}"
    reset = kafka_reset(cluster.bootstrap, sink, checkpoint, query=query, marker_topic=topic)
    return MarkerLocation(name, topic, partition_for_key(name.encode(), _marker_partitions(cluster, topic)), reset)


def _marker_partitions(cluster: Cluster, topic: str) -> int:
    """Return the marker topic's partition count; create it if missing. Raises SinkStopped if it would drop markers."""
    metadata = cluster.topics(topic).get(topic)
    if metadata is None:
        with contextlib.suppress(TopicExists):
            cluster.create_topic(topic, 1, configs=MARKER_CONFIGS)
        metadata = cluster.require_topic(topic)
    with contextlib.suppress(RequestRefused):  # Without the right to read configs this cannot be checked.
        policy = Admin(cluster).describe_topic_configs(topic)["cleanup.policy"].value
        if policy != "compact":
            raise SinkStopped(
                f"marker topic {topic} has cleanup.policy {policy!r} and would drop markers: {Remedy.COMPACT_MARKERS}"
            )
    return len(metadata.partitions)


def agreed(location: MarkerLocation, in_group: KafkaMarker | None, in_record: KafkaMarker | None) -> KafkaMarker | None:
    """Return the marker that both copies agree on, or the one copy that is left. Raises SinkStopped."""
    if in_group is None or in_record is None:
        return in_record or in_group
    if in_group.shared != in_record.shared:
        raise SinkStopped(
            f"the two copies of {location} differ: the group's offset is of batch {in_group.batch} (digest "
            f"{in_group.digest[:12]}) and the record of batch {in_record.batch} (digest {in_record.digest[:12]}); "
            f"another program has changed one of them: {location.remedy}"
        )
    return in_record


def pinned(marker: KafkaMarker | None, counts: Mapping[str, int], accepted: Mapping[str, int]) -> dict[str, int]:
    """Return the pinned partition counts. Raises SinkStopped if a topic's count has changed since the first write."""
    known = dict(marker.partitions) if marker is not None else {}
    for topic, count in counts.items():
        before = known.get(topic, count)
        if before != count and accepted.get(topic) != count:
            raise SinkStopped(
                f"topic {topic} had {before} partitions when the query first wrote to it and has {count} now, so "
                f"keys would change partition: {Remedy.OTHER_TOPIC}, or "
                f"{Remedy.ACCEPT_PARTITIONS.format(partitions=f'{topic!r}: {count}')}"
            )
        known[topic] = count
    return known


def with_offset_of(location: MarkerLocation, batch_offset: int, marker: KafkaMarker) -> KafkaMarker:
    """Return the group's copy of the marker. Raises SinkStopped if offset and metadata name different batches."""
    if marker.batch != batch_offset:
        raise SinkStopped(
            f"the group's offset of {location} is {batch_offset} and its metadata is of batch {marker.batch}: another "
            f"program has changed it: {location.remedy}"
        )
    return replace(marker, offsets=None, since=None)
