"""The marker of the Redis sink: the proof, beside the data, of what has been written. This docstring is its format.

One hash, `{H}:onceflow` for the hash key H (`app::users::click`): the same slot as H and every other key of the
sink. All values are text; numbers are decimal; JSON is canonical (sorted keys, no spaces).

| field | what |
|---|---|
| `format` | `3`, this table; in `2` the keys are not claimed yet, `1` is also without `written:KEY` |
| `query` | Spark's query id, from the checkpoint's `metadata` |
| `sink` | name of the sink that made the marker; absent in those of earlier versions |
| `owner` | owner epoch; one more with every start, whatever carries an older one is refused |
| `batch` | number of the micro-batch; `-1` before the first one |
| `complete` | `1` all of the batch is written; `0` some chunks may be missing |
| `digest` | SHA-256 over the batch's offset ranges, topic ids, plan and plan version |
| `plan`, `plan_version` | what is counted, and the version of the code that counts it |
| `ranges` | the batch's offsets, `{"topic": {"0": [begin, end]}}`, end exclusive; a repair's cover several batches |
| `topic_ids` | ids of the batch's topics, `{"topic": "5e1b2d3c-…"}`, as far as the broker tells them |
| `offsets` | where the batch ends, `{"topic": {"0": end}}`: the next offset to be counted, once complete |
| `since` | first offset ever counted, `{"topic": {"0": begin}}`; a partition found later is added then |
| `losses` | data loss that was accepted, a list as in every proof; absent where there is none |
| `chunks`, `done` | number of chunks of the batch, and how many of them are written; 0 for a batch of one script |
| `chunk:N` | `1`, chunk N is written; there only while the batch is not complete |
| `written:KEY` | `1`, the sink has written to its data key KEY, which must exist since then |
| `settled` | last batch that Redis was asked to sync to its append-only file |
| `started_ms`, `finished_ms`, `duration_ms` | the driver's clock, ms since 1970; absent before the first batch |

Beside it is the claims hash, `{H}:onceflow-claims` for every key whose hash tag is H: field KEY, value the name of the
marker that KEY belongs to. Marker, history and every data key of a sink are claimed when a start takes its owner epoch.

`onceflow.spark.exactly_once.decision` decides by it; the scripts in `lua/` check the same fields again,
atomically with each write.
"""

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.batch import NO_BATCH, AcceptedLoss, Batch, canonical_json
from onceflow.spark.exactly_once.decision import MISSING_OK, Wording
from onceflow.spark.exactly_once.proof import Proof, losses_after, proof_of, ranges_digest
from onceflow.spark.exactly_once.sink_errors import MarkerRefused
from onceflow.spark.offsets import OffsetRange

FORMAT = "3"
FORMATS_READ = ("1", "2", FORMAT)
"""The scripts bring a marker of an earlier format to this one when a start takes its owner epoch."""
WRITTEN = "written:"
RESET = "onceflow sink reset redis"
"""The command that forgets counts and checkpoint; whoever knows their places says it with its options."""
TAGS_MAX = 256
"""Hash tags of one sink."""
_CHUNK_FIELD = re.compile(r"chunk:(\d+)")


class MarkerUnreadable(MarkerRefused):
    """The key of the marker holds something that is not a marker of this format."""


def hash_tag(key: str) -> str:
    """What of a key's name decides on its slot: the text in the first braces, if there is any, else the whole name."""
    begin = key.find("{")
    end = key.find("}", begin + 1)
    return key[begin + 1 : end] if begin >= 0 and end > begin + 1 else key


def claims_key(key: str) -> str:
    """Return the name of the hash that says which marker `key` belongs to; it is in the slot of `key`."""
    return f"{{{hash_tag(key)}}}:onceflow-claims"


def tagged_key(key: str, tag: int) -> str:
    """A key as it is named in one of several tags: `counts` in tag 3 is `{counts/3}`, `{counts}:os` `{counts/3}:os`."""
    name = hash_tag(key)
    return f"{{{name}/{tag}}}" if key == name else key.replace(f"{{{name}}}", f"{{{name}/{tag}}}", 1)


def tag_of(field: bytes, tags: int) -> int:
    """The tag under which a field is kept."""
    return zlib.crc32(field) % tags


def same_slot(hash_key: str, name: str) -> str:
    """The key `name` beside `hash_key`, in the same slot of a Redis Cluster."""
    return f"{hash_key}:{name}" if "{" in hash_key else f"{{{hash_key}}}:{name}"


@dataclass(frozen=True, kw_only=True)
class Marker(Proof):
    """The marker as it stands in Redis."""

    ranges_json: str
    topic_ids: Mapping[str, str]
    chunks: int
    chunks_done: frozenset[int]
    lost: tuple[str, ...] = ()
    """Data keys that were written and do not exist any more."""

    @property
    def shown_state(self) -> str:
        if not self.lost:
            return super().shown_state
        keys = ", ".join(self.lost)
        return f"has written {keys}, which does not exist any more (evicted, expired or deleted),"

    def rewound(self) -> "Marker":
        """Return the marker as it is once everything is to be counted again from where counting began."""
        return replace(
            self,
            batch=NO_BATCH,
            complete=True,
            digest="",
            ranges=ranges_digest("{}"),
            ranges_json="{}",
            offsets=self.since,
            chunks=0,
            chunks_done=frozenset(),
        )

    @property
    def shown_ranges(self) -> str:
        return self.ranges_json

    @property
    def parts(self) -> tuple[OffsetRange, ...]:
        """The offsets of the batch, complete or not."""
        document: dict[str, dict[str, list[int]]] = json.loads(self.ranges_json)
        parts = ((topic, part) for topic, partitions in document.items() for part in partitions.items())
        return tuple(sorted(OffsetRange(topic, int(number), *ends) for topic, (number, ends) in parts))

    @property
    def chunks_missing(self) -> tuple[int, ...]:
        return tuple(number for number in range(self.chunks) if number not in self.chunks_done)


def wording(key: str, reset: str = RESET) -> Wording:
    """How sentences name a marker and what is beside it; `reset` is the command that forgets both."""
    return Wording(
        marker=f"marker {key}",
        target="Redis",
        data="counts",
        elsewhere="another hash key or another Redis",
        anew=anew(reset),
        anew_after_loss=anew(f"{reset} {MISSING_OK}"),
    )


def anew(reset: str) -> str:
    """What is left where nothing else helps, for the end of a sentence."""
    return Remedy.COUNT_AGAIN.format(reset=reset)


def written_keys(fields: Mapping[str, str]) -> list[str]:
    """Return the data keys that the marker knows as written."""
    return sorted(name.removeprefix(WRITTEN) for name in fields if name.startswith(WRITTEN))


def parse(
    key: str, fields: Mapping[str, str], *, sink: str = "", reset: str = RESET, absent: Iterable[str] = ()
) -> Marker | None:
    """Return the marker from HGETALL of `key`, of `sink` where it names none; None where nothing is there.

    `absent` are data keys that do not exist at that instant.

    Raises MarkerUnreadable.
    """
    if not fields:
        return None
    if fields.get("format") not in FORMATS_READ:
        raise MarkerUnreadable(
            f"marker {key} has format {fields.get('format')!r}, this version of onceflow knows {FORMAT!r}: "
            f"{Remedy.WRITER_VERSION}, or {anew(reset)}"
        )
    try:
        return Marker(
            query=fields["query"],
            sink=fields.get("sink") or sink or key,
            batch=int(fields["batch"]),
            complete={"1": True, "0": False}[fields["complete"]],
            digest=fields["digest"],
            plan=fields["plan"],
            plan_version=int(fields["plan_version"]),
            ranges=ranges_digest(fields["ranges"]),
            ranges_json=fields["ranges"],
            topic_ids=json.loads(fields.get("topic_ids", "{}")),
            offsets=json.loads(fields["offsets"]),
            since=json.loads(fields["since"]),
            losses=tuple(AcceptedLoss(**loss) for loss in json.loads(fields.get("losses", "[]"))),
            chunks=int(fields["chunks"]),
            chunks_done=frozenset(int(found[1]) for name in fields if (found := _CHUNK_FIELD.fullmatch(name))),
            lost=tuple(sorted(set(written_keys(fields)) & set(absent))),
        )
    except (KeyError, ValueError) as error:
        raise MarkerUnreadable(f"marker {key} is damaged ({type(error).__name__}: {error}): {anew(reset)}") from error


def first_fields(batch: Batch, sink: str = "") -> dict[str, str]:
    """The marker's fields before the first batch, without owner."""
    return {
        "format": FORMAT,
        "query": batch.query,
        "sink": sink,
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


def begun_fields(found: Proof | None, batch: Batch, *, chunks: int, started_ms: int) -> dict[str, str]:
    """The fields that change when `batch` is begun in so many chunks (0: one script writes all)."""
    proof = proof_of(batch, "", found)
    return {
        "batch": str(proof.batch),
        "complete": "0",
        "digest": proof.digest,
        "plan": proof.plan,
        "plan_version": str(proof.plan_version),
        "ranges": batch.ranges_json,
        "topic_ids": canonical_json(dict(batch.topic_ids)),
        "offsets": canonical_json(proof.offsets),
        "since": canonical_json(proof.since),
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


def loss_fields(found: Proof | None, batch: Batch) -> dict[str, str]:
    """Return the field that keeps accepted losses; none where there is no loss. Raises MarkerRefused."""
    losses = losses_after(found, batch)
    return {"losses": canonical_json([asdict(loss) for loss in losses])} if losses else {}
