"""The marker of the Redis sink: the proof, beside the data, of what is written. This docstring is its format.

One hash, `{H}:onceflow` for the hash key H (`app::users::click`): the same slot as H and every other key of the
sink. All values are text; numbers are decimal; JSON is canonical (sorted keys, no spaces).

| field | content |
|---|---|
| `format` | `4`, this table; format `3` has no `index:KEY`, `2` no claims either, `1` no `written:KEY` either |
| `query` | Spark's query id, from the checkpoint's `metadata` |
| `sink` | name of the sink that created the marker; absent in markers of earlier versions |
| `owner` | owner epoch; each start raises it to its clock in ms or higher, and writes with another one are refused |
| `batch` | number of the micro-batch; `-1` before the first one |
| `complete` | `1`: the whole batch is written; `0`: some chunks may be missing |
| `digest` | SHA-256 over the batch's offset ranges, topic ids, plan and plan version |
| `plan`, `plan_version` | what is counted, and the version of the code that counts it |
| `ranges` | the batch's offsets, `{"topic": {"0": [begin, end]}}`, end exclusive; several batches' after a repair |
| `topic_ids` | ids of the batch's topics, `{"topic": "5e1b2d3c-…"}`, as far as the broker reports them |
| `offsets` | end of the batch, `{"topic": {"0": end}}`: the next offset to count, once complete |
| `since` | first offset ever counted, `{"topic": {"0": begin}}`; a later partition is added with its first offset |
| `losses` | accepted data loss, a list as in every proof; absent if there is none |
| `chunks`, `done` | number of chunks of the batch, and of written ones; 0 for a batch of one script |
| `chunk:N` | `1`: chunk N is written; present only while the batch is not complete |
| `written:KEY` | `1`: the sink has written its data key KEY, which must exist since then |
| `index:KEY` | kind of the buckets that the sorted set KEY names, as in `onceflow.spark.redis.targets` |
| `newest_ms` | newest time of any row in a bucket, up to the last complete batch; retention is measured from it |
| `newest_next` | the same for the chunks of a batch that is not complete |
| `sealed` | digest of the batch whose ids are all claimed, before its first count is written |
| `ids_times` | newest time of ids by partition, `{"0": ms}`, up to the last complete batch |
| `ids_next` | the same for the sealed batch, until it is complete |
| `lost` | a bucket that no longer exists, or one of a deletion in progress: everything must be counted again |
| `rebuilt` | id of the last rebuild that replaced the counts, at the same batch; absent if there is none |
| `settled` | last batch for which Redis was asked to sync its append-only file |
| `started_ms`, `finished_ms`, `duration_ms` | the driver's clock, ms since 1970; absent before the first batch |

Beside it is the claims hash, `{H}:onceflow-claims` for every key whose hash tag is H: field KEY, value the name of the
marker that KEY belongs to. A start claims marker, history and every data key when it takes its owner epoch.

`onceflow.spark.exactly_once.decision` decides by the marker; the scripts in `lua/` check the same fields again,
atomically with each write.
"""

import json
import re
import shlex
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from onceflow.redis.address import shown
from onceflow.remedies import Remedy
from onceflow.spark.errors import MarkerRefused
from onceflow.spark.exactly_once.batch import NO_BATCH, AcceptedLoss, Batch, canonical_json
from onceflow.spark.exactly_once.checkpoint import checkpoint_words
from onceflow.spark.exactly_once.decision import MISSING_OK, Wording
from onceflow.spark.exactly_once.proof import Proof, losses_after, proof_of, ranges_digest
from onceflow.spark.offsets import OffsetRange
from onceflow.spark.redis.targets import Index

FORMAT = "4"
FORMATS_READ = ("1", "2", "3", FORMAT)
"""Formats that are read. A marker of an earlier one is upgraded when a start takes its owner epoch."""
WRITTEN = "written:"
INDEX = "index:"
RESET = "onceflow sink reset redis"
"""Command that deletes counts and checkpoint, without the options that `redis_reset` adds."""
TAGS_MAX = 256
"""Maximum number of hash tags of one sink."""
_CHUNK_FIELD = re.compile(r"chunk:(\d+)")


class MarkerUnreadable(MarkerRefused):
    """The marker's key does not hold a marker of a known format."""


def hash_tag(key: str) -> str:
    """Return the part of a key that determines its slot: the text in the first braces if not empty, else the key."""
    start = key.find("{")
    end = key.find("}", start + 1)
    return key[start + 1 : end] if start >= 0 and end > start + 1 else key


def claims_key(key: str) -> str:
    """Return the name of the hash with the claim on `key`; it is in the slot of `key`."""
    return f"{{{hash_tag(key)}}}:onceflow-claims"


def tagged_key(key: str, tag: int) -> str:
    """Return the key's name in one tag: `counts` in tag 3 is `{counts/3}`, `{counts}:os` is `{counts/3}:os`."""
    name = hash_tag(key)
    return f"{{{name}/{tag}}}" if key == name else key.replace(f"{{{name}}}", f"{{{name}/{tag}}}", 1)


def tag_of(field: bytes, tags: int) -> int:
    """Return the tag of a field."""
    return zlib.crc32(field) % tags


def same_slot(hash_key: str, name: str) -> str:
    """Return the key `name` beside `hash_key`, in the same slot of a Redis Cluster."""
    return f"{hash_key}:{name}" if "{" in hash_key else f"{{{hash_key}}}:{name}"


def redis_reset(
    url: str, hash_key: str, checkpoint: str | None, keys: Iterable[str] = (), *, tagged: bool = False
) -> str:
    """Return the command that resets a Redis sink with these data keys.

    Keys beside the hash key need not be named. A checkpoint that is not on this machine is omitted, since the command
    cannot remove it.
    """
    beside = same_slot(hash_key, "")
    others = [key for key in keys if key != hash_key and not key.startswith(beside)]
    words = [
        "--redis",
        shown(url),
        "--hash-key",
        hash_key,
        *(["--tags"] if tagged else []),
        *(word for key in others for word in ("--key", key)),
    ]
    return shlex.join([*RESET.split(), *words, *checkpoint_words(checkpoint), "--execute"])


@dataclass(frozen=True, kw_only=True)
class Marker(Proof):
    """The marker as read from Redis."""

    ranges_json: str
    topic_ids: Mapping[str, str]
    chunks: int
    chunks_done: frozenset[int]
    lost: tuple[str, ...] = ()
    """Data keys that were written and no longer exist."""
    newest_ms: int | None = None
    """Newest time in a bucket, from which retention is measured."""
    sealed: str = ""
    """Digest of the batch whose ids are claimed."""
    ids_times: Mapping[int, int] = field(default_factory=dict)
    """Newest time of ids by partition, up to the last complete batch."""

    @property
    def shown_state(self) -> str:
        if not self.lost:
            return super().shown_state
        keys = ", ".join(self.lost)
        return f"has written {keys}, which no longer exists (evicted, expired or deleted),"

    def rewound(self) -> "Marker":
        """Return the marker before the first batch, for counting everything again from its first offsets."""
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
            newest_ms=None,
            sealed="",
            ids_times={},
        )

    @property
    def shown_ranges(self) -> str:
        return self.ranges_json

    @property
    def parts(self) -> tuple[OffsetRange, ...]:
        """Offsets of the batch, complete or not."""
        document: dict[str, dict[str, list[int]]] = json.loads(self.ranges_json)
        parts = ((topic, part) for topic, partitions in document.items() for part in partitions.items())
        return tuple(sorted(OffsetRange(topic, int(number), *ends) for topic, (number, ends) in parts))

    @property
    def chunks_missing(self) -> tuple[int, ...]:
        return tuple(number for number in range(self.chunks) if number not in self.chunks_done)


def wording(key: str, reset: str = RESET) -> Wording:
    """Return the names that messages use for a marker and its counts; `reset` is the command that deletes both."""
    return Wording(
        marker=f"marker {key}",
        target="Redis",
        data="counts",
        elsewhere="another hash key or another Redis",
        remedy=remedy(reset),
        remedy_after_loss=remedy(f"{reset} {MISSING_OK}"),
    )


def remedy(reset: str) -> str:
    """Return the last resort, for the end of a message."""
    return Remedy.COUNT_AGAIN.format(reset=reset)


def written_keys(fields: Mapping[str, str]) -> list[str]:
    """Return the data keys that the marker lists as written."""
    return sorted(name.removeprefix(WRITTEN) for name in fields if name.startswith(WRITTEN))


def indexes(fields: Mapping[str, str]) -> list[Index]:
    """Return the indexes of buckets that the marker lists."""
    return [Index(kind, name.removeprefix(INDEX), None) for name, kind in fields.items() if name.startswith(INDEX)]


def parse(
    key: str, fields: Mapping[str, str], *, sink: str = "", reset: str = RESET, absent: Iterable[str] = ()
) -> Marker | None:
    """Return the marker from HGETALL of `key`, of `sink` if it names none; None if the key does not exist.

    `absent` are data keys that do not exist at that instant. Raises MarkerUnreadable.
    """
    if not fields:
        return None
    if fields.get("format") not in FORMATS_READ:
        raise MarkerUnreadable(
            f"marker {key} has format {fields.get('format')!r}, this version of onceflow reads {FORMAT!r}: "
            f"{Remedy.WRITER_VERSION}, or {remedy(reset)}"
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
            chunks_done=frozenset(int(match[1]) for name in fields if (match := _CHUNK_FIELD.fullmatch(name))),
            lost=tuple(sorted({*written_keys(fields)} & {*absent} | {*filter(None, [fields.get("lost")])})),
            newest_ms=int(fields["newest_ms"]) if "newest_ms" in fields else None,
            sealed=fields.get("sealed", ""),
            ids_times={int(number): int(ms) for number, ms in json.loads(fields.get("ids_times", "{}")).items()},
        )
    except (KeyError, ValueError) as error:
        raise MarkerUnreadable(f"marker {key} is damaged ({type(error).__name__}: {error}): {remedy(reset)}") from error


def first_fields(batch: Batch, sink: str = "") -> dict[str, str]:
    """Return the marker's fields before the first batch, without owner."""
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


def begun_fields(previous: Proof | None, batch: Batch, *, chunks: int, started_ms: int) -> dict[str, str]:
    """Return the fields that change when `batch` is begun in `chunks` chunks (0: one script writes it)."""
    proof = proof_of(batch, "", previous)
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
    """Return the fields that change when a batch is completed; `started_ms` is this attempt's."""
    return {
        "complete": "1",
        "finished_ms": str(finished_ms),
        "duration_ms": str(max(0, finished_ms - started_ms)),
    }


def loss_fields(previous: Proof | None, batch: Batch) -> dict[str, str]:
    """Return the field with accepted losses; empty if there is no loss. Raises MarkerRefused."""
    losses = losses_after(previous, batch)
    return {"losses": canonical_json([asdict(loss) for loss in losses])} if losses else {}
