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
| `losses` | data loss that was accepted, as in every proof; absent where there is none |
| `since` | first offset ever written, `{"topic": {"0": begin}}`; null where that is no longer known |

A marker is always that of a complete batch: a transaction has no half.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from onceflow.client.admin import Admin
from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.errors import RequestRefused, TopicExists
from onceflow.client.records import read_records
from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.batch import canonical_json
from onceflow.spark.exactly_once.decision import MISSING_OK, Wording
from onceflow.spark.exactly_once.proof import Proof, proof_fields
from onceflow.spark.exactly_once.sink_errors import SinkStopped
from onceflow.spark.kafka.reset_command import kafka_reset
from onceflow.wire.murmur2 import partition_for_key

FORMAT = "1"
METADATA_BYTES_MAX = 4096
"""Kafka's default of `offset.metadata.max.bytes`."""
MARKER_TOPIC = "onceflow-markers"
MARKER_CONFIGS = {
    "cleanup.policy": "compact",
    # Small segments, because the newest one is never compacted and a reader passes through all of it.
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": str(60 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}


@dataclass(frozen=True, kw_only=True)
class KafkaMarker(Proof):
    """What the last committed batch left; `offsets` is None where only the group's metadata is there."""

    owner: str
    partitions: Mapping[str, int]

    @property
    def shared(self) -> dict[str, Any]:
        """The fields that both copies have."""
        names = ("query", "sink", "owner", "batch", "digest", "ranges", "plan", "plan_version")
        return {"format": FORMAT, **{name: getattr(self, name) for name in names}, "partitions": dict(self.partitions)}

    def value(self) -> bytes:
        """The record's value."""
        losses = {"losses": [asdict(loss) for loss in self.losses]} if self.losses else {}
        return canonical_json({**self.shared, "offsets": self.offsets, "since": self.since, **losses}).encode()

    def metadata(self, record_offset: int) -> str:
        """The committed offset's metadata. Raises SinkStopped where it would be too long."""
        text = canonical_json({**self.shared, "record": record_offset})
        if len(text.encode()) > METADATA_BYTES_MAX:
            raise SinkStopped(
                f"the marker of sink '{self.sink}' has {len(text.encode())} bytes and {METADATA_BYTES_MAX} fit into a "
                f"group's offset: {Remedy.SHORTER_MARKER.format(count=len(self.partitions))}"
            )
        return text


def parse(copy: str, place: "Place", text: str | bytes) -> tuple[KafkaMarker, int]:
    """The marker and the offset of its record (-1: this is the record); `copy` says which of the two this is.

    Raises SinkStopped.
    """
    where = f"{copy} of {place}"
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise SinkStopped(
                f"{where} has format {document['format']!r}, this version of onceflow knows {FORMAT!r}: "
                f"{Remedy.WRITER_VERSION}"
            )
        found = KafkaMarker(
            **proof_fields(document),
            owner=str(document["owner"]),
            partitions={str(topic): int(count) for topic, count in document["partitions"].items()},
        )
        return found, int(document.get("record", -1))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        shown = text[:80]
        raise SinkStopped(
            f"{where} is no marker ({type(error).__name__}: {error}), it holds {shown!r}: {place.anew}"
        ) from error


def _anew(reset: str) -> str:
    return f"{Remedy.PUT_BACK_TOGETHER}, or {Remedy.WRITE_AGAIN.format(reset=reset)}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one sink's marker is: the group and the record's key are `name`, the transactional id."""

    name: str
    topic: str
    partition: int
    reset: str = "onceflow sink reset kafka"
    """The command that forgets the marker and the query's checkpoint."""

    def __str__(self) -> str:
        return f"marker '{self.name}' (group, and key in {self.topic}-{self.partition})"

    @property
    def wording(self) -> Wording:
        """How sentences name the marker and what it proves."""
        return Wording(
            marker=str(self),
            target="the cluster",
            data="output",
            elsewhere="another cluster, or by another name= or marker_topic=",
            anew=self.anew,
            anew_after_loss=_anew(f"{self.reset} {MISSING_OK}"),
        )

    @property
    def anew(self) -> str:
        """What is left where nothing else helps, for the end of a sentence."""
        return _anew(self.reset)

    def end(self, cluster: Cluster, *, read_committed: bool = True) -> int:
        """Where the marker's partition ends: with `read_committed` the first offset that an open transaction hides."""
        asked = {self.partition: LATEST}
        return cluster.list_offsets(self.topic, asked, read_committed=read_committed)[self.partition].offset

    def read_record(self, cluster: Cluster, proven: int | None = None) -> KafkaMarker | None:
        """The newest record of this marker that can be read now; None where there is none.

        `proven` is an offset that the group names: a record there was committed with that, so it is read even where an
        open transaction hides it. Records behind it are read as far as they are committed.
        """
        asked = {self.partition: EARLIEST}
        start = cluster.list_offsets(self.topic, asked)[self.partition].offset
        end = self.end(cluster)
        newest: bytes | None = None
        if proven is not None:
            newest = self._value(cluster, max(start, proven), proven + 1, read_committed=False)
            start = max(start, proven + 1)
        newest = self._value(cluster, start, end, read_committed=True) or newest
        return None if newest is None else parse("the record", self, newest)[0]

    def _value(self, cluster: Cluster, begin: int, end: int, *, read_committed: bool) -> bytes | None:
        if not read_committed:
            # Where the topic was made anew the log may end before the offset that was named.
            end = min(end, self.end(cluster, read_committed=False))
        newest: bytes | None = None
        for record in read_records(cluster, self.topic, self.partition, begin, end, read_committed=read_committed):
            if record.key == self.name.encode():
                newest = record.value
        return newest


def newest_values(cluster: Cluster, topic: str, partition: int) -> dict[bytes, bytes]:
    """Key → value of every newest record of a partition of the marker topic that can be read and is no tombstone."""
    start, end = (cluster.list_offsets(topic, {partition: at})[partition].offset for at in (EARLIEST, LATEST))
    newest: dict[bytes | None, bytes | None] = {}
    for record in read_records(cluster, topic, partition, start, end):
        newest[record.key] = record.value
    return {key: value for key, value in newest.items() if key is not None and value is not None}


def place_of(cluster: Cluster, sink: str, topic: str, checkpoint: str | None, query: str) -> Place:
    """Where the marker of a query's sink is, in the marker topic `topic`. Raises SinkStopped."""
    name = f"onceflow-{query}-{sink}"
    reset = kafka_reset(cluster.bootstrap, sink, checkpoint, query=query, marker_topic=topic)
    return Place(name, topic, partition_for_key(name.encode(), _marker_partitions(cluster, topic)), reset)


def _marker_partitions(cluster: Cluster, topic: str) -> int:
    """How many the marker topic has; made where it is missing. Raises SinkStopped where it would forget markers."""
    found = cluster.topics(topic).get(topic)
    if found is None:
        with contextlib.suppress(TopicExists):
            cluster.create_topic(topic, 1, configs=MARKER_CONFIGS)
        found = cluster.require_topic(topic)
    with contextlib.suppress(RequestRefused):  # A user who may not read configs has to be believed.
        policy = Admin(cluster).describe_topic_configs(topic)["cleanup.policy"].value
        if policy != "compact":
            raise SinkStopped(
                f"marker topic {topic} has cleanup.policy {policy!r} and would forget markers: {Remedy.COMPACT_MARKERS}"
            )
    return len(found.partitions)


def agreed(place: Place, in_group: KafkaMarker | None, in_record: KafkaMarker | None) -> KafkaMarker | None:
    """The one marker that both copies are, or that one of them is where the other is lost. Raises SinkStopped."""
    if in_group is None or in_record is None:
        return in_record or in_group
    if in_group.shared != in_record.shared:
        raise SinkStopped(
            f"the two copies of {place} differ: the group's offset tells of batch {in_group.batch} (digest "
            f"{in_group.digest[:12]}) and the record of batch {in_record.batch} (digest {in_record.digest[:12]}); "
            f"somebody has changed one of them: {place.anew}"
        )
    return in_record


def pinned(found: KafkaMarker | None, counts: Mapping[str, int], accepted: Mapping[str, int]) -> dict[str, int]:
    """The partition counts to go on with. Raises SinkStopped where a topic's is not the one it was begun with."""
    known = dict(found.partitions) if found is not None else {}
    for topic, count in counts.items():
        before = known.get(topic, count)
        if before != count and accepted.get(topic) != count:
            raise SinkStopped(
                f"topic {topic} had {before} partitions when the query began to write to it and has {count} now, so "
                f"keys would change their partition: {Remedy.OTHER_TOPIC}, or "
                f"{Remedy.ACCEPT_PARTITIONS.format(partitions=f'{topic!r}: {count}')}"
            )
        known[topic] = count
    return known


def with_offset_of(place: Place, batch_offset: int, found: KafkaMarker) -> KafkaMarker:
    """The marker of a group's offset. Raises SinkStopped where offset and metadata name different batches."""
    if found.batch != batch_offset:
        raise SinkStopped(
            f"the group's offset of {place} is {batch_offset} and its metadata tells of batch {found.batch}: somebody "
            f"has changed it: {place.anew}"
        )
    return replace(found, offsets=None, since=None)
