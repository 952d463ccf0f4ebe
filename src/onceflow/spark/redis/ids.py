"""Claims of a batch's ids, before its first count is written.

Each record with an id claims it by its position in the log, in the order of offsets. The first one counts; the others
are duplicates, which the job leaves out of its rows (`duplicates`). A claim depends only on the log and on the claims
of earlier records, so a batch that is tried again, a repair and a rebuild decide alike. Two partitions have no order:
if records of both have one id, either may count.

`onceflow.spark.redis.targets.Ids` describes the keys, `lua/ids.lua` has the rule.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import redis

from onceflow.redis import errors as redis_errors
from onceflow.redis import pool as redis_pool
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis.buckets import Argument
from onceflow.spark.redis.scripts import Keys
from onceflow.spark.redis.targets import Ids

IDS_PER_CLAIM = 2_000
COLUMNS = ("id", "partition", "offset", "timestamp")
"""Columns of the records; the id is binary, or null."""
REPORT = "partition int, claim string, first_ms bigint, newest_ms bigint, reply string"


class Times(NamedTuple):
    """First and newest time of the ids of one partition in a batch."""

    first_ms: int
    newest_ms: int


@dataclass(frozen=True)
class ClaimWriter:
    """Writer of claims in a task; it has only plain values, since it is pickled."""

    url: str
    keys: Keys
    identity: tuple[Argument, ...]
    """Query, owner, batch, digest, batch before."""
    batch: int
    times: Mapping[int, int]
    """Newest time by partition before the batch."""

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Claim the ids of records, each partition's in the order of offsets; yield a REPORT of each script.

        The last one has the script's refusal, if there is one. Raises RedisFailed.
        """
        reached: dict[int, Times] = {}
        claims: dict[int, str] = {}
        for part in _parts(batches):
            partition = part.column("partition")[0].as_py()
            before, claims[partition] = claims.get(partition, ""), _name_of(part)
            reply = self._claim(part, reached, before, claims[partition])
            is_refused = reply[0] not in ("done", "already")
            yield _report(partition, claims[partition], *reached[partition], json.dumps(reply) if is_refused else "")
            if is_refused:
                return

    def _claim(self, part: pa.RecordBatch, reached: dict[int, Times], claim_before: str, claim: str) -> list[str]:
        """Claim the ids of some records of one partition; return the script's reply."""
        ids = self.keys.ids
        assert ids is not None
        partition = part.column("partition")[0].as_py()
        before = reached[partition].newest_ms if partition in reached else self.times.get(partition, -1)
        timestamps_ms = part.column("timestamp").cast(pa.int64()).to_numpy() // 1000
        times = np.maximum(np.maximum.accumulate(timestamps_ms), max(before, 0))
        first_ms = reached[partition].first_ms if partition in reached else int(times[0])
        reached[partition] = Times(first_ms, int(times[-1]))
        starts = times // ids.width_ms * ids.width_ms
        cuts = [0, *(np.flatnonzero(np.diff(starts)) + 1).tolist(), len(starts)]
        words, offsets = part.column("id").to_pylist(), part.column("offset").to_pylist()
        arguments: list[Argument] = [partition, claim_before, claim, len(cuts) - 1]
        touched: dict[bytes, None] = {}
        for begin, end in itertools.pairwise(cuts):
            start = int(starts[begin])
            arguments += (start, end - begin, *words[begin:end], *offsets[begin:end])
            touched |= dict.fromkeys(_near(ids, start))
        indexes = [*redis_scripts.index_arguments(self.keys), len(self.keys.indexes)]
        try:
            client = redis_pool.client(self.url, self.keys.marker)
            return redis_scripts.run(client, "claim", self.keys, [*self.identity, *indexes, *arguments], list(touched))
        except redis.RedisError as error:
            raise redis_errors.failed(self.url, f"in batch {self.batch}, while its ids were claimed", error) from error


class Claimed(NamedTuple):
    """All claims of a batch."""

    times: dict[int, Times]
    """Times of each partition."""
    scripts: list[str]
    """`PARTITION:FIRST:LAST` of each script, by its offsets; Redis keeps them until the batch is complete."""


def claim(records: Any, writer: ClaimWriter) -> Claimed:
    """Claim the ids of a DataFrame of records in Spark's tasks.

    A task reads the ranges of some partitions, each of them whole. Raises the errors of `raise_refusal`, RedisFailed.
    """
    rows = records.select(*COLUMNS).where("id IS NOT NULL").mapInArrow(writer.write, REPORT).collect()
    claimed = Claimed({}, [])
    for row in rows:
        if row.reply:
            redis_scripts.raise_refusal(writer.keys, json.loads(row.reply))
        known = claimed.times.get(row.partition, row)
        first_ms, newest_ms = min(known.first_ms, row.first_ms), max(known.newest_ms, row.newest_ms)
        claimed.times[row.partition] = Times(first_ms, newest_ms)
        claimed.scripts.append(row.claim)
    return claimed


def seal_arguments(keys: Keys, times: Mapping[int, int], claimed: Claimed) -> list[Argument]:
    """Return the arguments of `seal` after the batch; `times` are those before it."""
    ids = keys.ids
    assert ids is not None
    newest = dict(times) | {partition: of.newest_ms for partition, of in claimed.times.items()}
    document = json.dumps({str(partition): ms for partition, ms in sorted(newest.items())})
    arguments: list[Argument] = [document, *redis_scripts.index_arguments(keys), len(keys.indexes)]
    arguments += (len(claimed.scripts), *claimed.scripts, len(newest))
    for partition, newest_ms in newest.items():
        of = claimed.times.get(partition, Times(newest_ms, newest_ms))
        first = times.get(partition, of.first_ms) // ids.width_ms * ids.width_ms - ids.index.limit * ids.width_ms
        arguments += (first, newest_ms // ids.width_ms * ids.width_ms)
    return arguments


def duplicates(url: str, ids: Ids, partition: int, first: int, last: int) -> set[int]:
    """Return the offsets from `first` to `last` of records that do not count, in the batch being written.

    Raises RedisFailed.
    """
    try:
        client = redis_pool.client(url, ids.duplicates_key)
        positions: Any = redis_errors.patiently(
            lambda: client.zrangebyscore(ids.duplicates_key, first, last), pool=client.connection_pool
        )
    except redis.RedisError as error:
        raise redis_errors.failed(url, "while the duplicates of a batch were read", error) from error
    own = f"{partition}:".encode()
    return {int(position.removeprefix(own)) for position in positions if position.startswith(own)}


def _parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the records in parts of one partition, each for one script."""
    for batch in batches:
        numbers = batch.column("partition").to_numpy()
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for begin, end in itertools.pairwise(cuts):
            for first in range(begin, end, IDS_PER_CLAIM):
                yield batch.slice(first, min(IDS_PER_CLAIM, end - first))


def _name_of(part: pa.RecordBatch) -> str:
    """Return the name of the claim of these records, `PARTITION:FIRST:LAST`."""
    offsets = part.column("offset")
    return f"{part.column('partition')[0]}:{offsets[0]}:{offsets[-1]}"


def _report(*cells: int | str) -> pa.RecordBatch:
    types = (pa.int32(), pa.string(), pa.int64(), pa.int64(), pa.string())
    arrays = [pa.array([cell], kind) for cell, kind in zip(cells, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[column.split()[0] for column in REPORT.split(", ")])


def _near(ids: Ids, start: int) -> list[bytes]:
    """Return the keys of the buckets at most a window from the one at `start`."""
    span = ids.index.limit * ids.width_ms
    starts = range(max(0, start - span), start + span + 1, ids.width_ms)
    return [f"{ids.key}:{at}".encode() for at in starts]
