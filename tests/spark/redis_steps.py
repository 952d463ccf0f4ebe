"""A driver without Spark that takes the sink's steps one by one, with the sink's own scripts and decisions."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import redis

from onceflow.redis import pool as redis_pool
from onceflow.spark.errors import MarkerRefused
from onceflow.spark.exactly_once import decision as decisions
from onceflow.spark.exactly_once.batch import Batch
from onceflow.spark.exactly_once.checkpoint import Checkpoint
from onceflow.spark.exactly_once.decision import Decision, Refuse, Skip, TargetRolledBack
from onceflow.spark.offsets import OffsetRange
from onceflow.spark.redis import marker as markers
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis.buckets import Row
from onceflow.spark.redis.marker import Marker
from onceflow.spark.redis.repair import next_step
from onceflow.spark.redis.scripts import Keys
from onceflow.spark.redis.targets import Append, Increment

CHUNKS = 3
_names = itertools.count()


def new_keys() -> Keys:
    """Return the keys of a sink that no other test uses."""
    name = f"counts-{next(_names)}"
    return Keys(
        marker=markers.same_slot(name, "onceflow"),
        history=markers.same_slot(name, "history"),
        increments=(
            Increment("count", name, markers.same_slot(name, "top")),
            Increment("os", markers.same_slot(name, "os")),
        ),
        appends=(Append("dead", markers.same_slot(name, "dead"), 3),),
    )


def rows_of(number: int) -> list[tuple[str, bytes, int]]:
    """Return the rows of batch `number`: some fields are in every batch, some only in this one."""
    return [
        *(("count", f"user {user}".encode(), number + user) for user in range(6)),
        ("count", f"only {number}".encode(), 0),
        ("os", b"Android", 6),
    ]


def entries_of(number: int) -> dict[str, list[bytes]]:
    return {"dead": [f"{number}:a".encode(), f"{number}:b".encode()]}


def batch_of(number: int, **changes: Any) -> Batch:
    part = OffsetRange("clicks", 0, 10 * max(0, number - 1), 10 * number)
    fields: dict[str, Any] = {"query": "query-1", "number": number, "ranges": (part,), "plan": "p", "plan_version": 1}
    return Batch(**fields | changes)


def rows_again(batch: Batch) -> tuple[list[tuple[str, bytes, int]], dict[str, list[bytes]]]:
    """Return rows and entries of all batches whose offsets are in this one's ranges, as the log has them."""
    (part,) = batch.ranges
    counts: dict[tuple[str, bytes], int] = {}
    entries: list[bytes] = []
    for number in range(part.begin // 10 + 1, part.end // 10 + 1):
        entries += entries_of(number)["dead"]
        for target, field, amount in rows_of(number):
            counts[target, field] = counts.get((target, field), 0) + amount
    return [(*key, amount) for key, amount in counts.items()], {"dead": entries}


def full(rows: Sequence[tuple[Any, ...]]) -> list[Row]:
    """Return rows in the form of the scripts; rows without a value get None."""
    return [(target, field, amount, value[0] if value else None) for target, field, amount, *value in rows]


def chunk_of(row: tuple[str, bytes, int]) -> int:
    return sum(row[1]) % CHUNKS


class Driver:
    """One start of the query."""

    def __init__(self, url: str, keys: Keys, *, query: str = "query-1", checkpoint: Checkpoint | None = None) -> None:
        self.client: Any = redis_pool.client(url, keys.marker)
        self.keys = keys
        self.query = query
        self.checkpoint = checkpoint
        """Checkpoint for repairs; without it, lost batches stop the driver."""
        self.owner: str | None = None

    def call(self, name: str, *arguments: Any, touched: Sequence[bytes] = ()) -> str:
        reply = redis_scripts.run(self.client, name, self.keys, list(arguments), touched)
        redis_scripts.raise_refusal(self.keys, reply)
        return reply[1] if name == "acquire" else reply[0]

    def marker(self) -> Marker | None:
        fields = {name.decode(): value.decode() for name, value in self.client.hgetall(self.keys.marker).items()}
        return markers.parse(self.keys.marker, fields)

    def acquire(self, batch: Batch) -> str:
        first = markers.first_fields(batch)
        may_create = batch.number == 0
        arguments = redis_scripts.acquire_arguments(self.keys, batch.query, first, may_create=may_create, now_ms=0)
        self.owner = self.call("acquire", *arguments)
        return self.owner

    def identity(self, batch: Batch) -> tuple[Any, ...]:
        return (batch.query, self.owner, batch.number, batch.digest)

    def whole(self, batch: Batch, rows: Sequence[tuple[Any, ...]], previous: int | None = None) -> str:
        fields = markers.begun_fields(self.marker(), batch, chunks=0, started_ms=1)
        fields |= markers.completed_fields(started_ms=1, finished_ms=2)
        arguments, touched = redis_scripts.row_arguments(self.keys, full(rows))
        return self.call(
            "whole",
            *self.identity(batch),
            batch.number - 1 if previous is None else previous,
            *redis_scripts.field_arguments(fields),
            *arguments,
            *self.lists(batch),
            touched=touched,
        )

    def begin(self, batch: Batch, previous: int | None = None) -> str:
        fields = markers.begun_fields(self.marker(), batch, chunks=CHUNKS, started_ms=1)
        before = batch.number - 1 if previous is None else previous
        return self.call("begin", *self.identity(batch), before, *redis_scripts.field_arguments(fields))

    def chunk(self, batch: Batch, number: int, rows: Sequence[tuple[Any, ...]]) -> str:
        arguments, touched = redis_scripts.row_arguments(self.keys, full(rows))
        return self.call("chunk", *self.identity(batch), number, *arguments, touched=touched)

    def complete(self, batch: Batch) -> str:
        fields = redis_scripts.field_arguments(markers.completed_fields(started_ms=1, finished_ms=2))
        indexes = redis_scripts.index_arguments(self.keys)
        return self.call("complete", *self.identity(batch), *fields, *indexes, *self.lists(batch))

    def lists(self, batch: Batch) -> list[Any]:
        history = Append("history", self.keys.history, 5)
        entries = rows_again(batch)[1] if batch.ranges[0].size > 10 else entries_of(batch.number)
        return redis_scripts.list_arguments(self.keys, history, f'{{"batch":{batch.number}}}', entries)

    def settle(self, batch: Batch) -> None:
        assert redis_scripts.settle(self.client, self.keys, (batch.query, self.owner, batch.number), wait_ms=10_000)  # type: ignore[arg-type]

    def steps(self, batch: Batch) -> Iterator[str]:
        """Write the batch as the marker requires, one write at a time; yield the name of each afterwards."""
        if self.owner is None:
            self.acquire(batch)
            yield "acquire"
        marker, decision = self.decided(batch)
        if isinstance(decision, TargetRolledBack) and self.checkpoint is not None:
            yield from self.repair(batch.number - 1)
            marker, decision = self.decided(batch)
        if isinstance(decision, Refuse):
            raise MarkerRefused(decision.reason)
        if not isinstance(decision, Skip):
            yield from self.written(batch, rows_of(batch.number), marker, whole=batch.number % 2 == 0)

    def decided(self, batch: Batch) -> tuple[Marker | None, Decision]:
        marker = self.marker()
        return marker, decisions.decide(marker, batch, self.keys.marker, markers.wording(self.keys.marker))

    def written(
        self, batch: Batch, rows: list[tuple[str, bytes, int]], marker: Marker | None, *, whole: bool
    ) -> Iterator[str]:
        """Write the rows by a decision on `marker`; the scripts refuse if the marker has changed since."""
        assert marker is not None
        is_begun = marker.batch == batch.number
        if not is_begun and whole:
            self.whole(batch, rows, marker.batch)
            yield "whole"
            return
        if not is_begun:
            self.begin(batch, marker.batch)
            yield "begin"
        for number in marker.chunks_missing if is_begun else range(CHUNKS):
            self.chunk(batch, number, [row for row in rows if chunk_of(row) == number])
            yield f"chunk {number}"
        self.complete(batch)
        yield "complete"

    def repair(self, number: int) -> Iterator[str]:
        """Repair up to batch `number`, each step in chunks; yield the names of the steps."""
        assert self.checkpoint is not None
        target = self.checkpoint.batch(number, plan="p", plan_version=1)
        self.acquire(target)
        yield "repair: acquire"
        while True:
            marker = self.marker()
            assert marker is not None
            step = next_step(marker, target, self.checkpoint, markers.wording(self.keys.marker, "reset"))
            if step is None:
                return
            if isinstance(step, Refuse):
                raise MarkerRefused(step.reason)
            for name in self.written(step.batch, rows_again(step.batch)[0], marker, whole=False):
                yield f"repair: batch {step.batch.number}: {name}"


def expected_counts(batches: int) -> dict[str, dict[bytes, int]]:
    """Return the counts after batches 0 to `batches` - 1, by target."""
    totals: dict[str, dict[bytes, int]] = {"count": {}, "os": {}}
    for number in range(batches):
        for target, field, amount in rows_of(number):
            totals[target][field] = totals[target].get(field, 0) + amount
    return totals


def assert_counts(client: redis.Redis, keys: Keys, batches: int, *, repaired: bool = False) -> None:
    """Assert that every key holds exactly the sums of the batches; a repair is one entry of the history."""
    totals = expected_counts(batches)
    for increment in keys.increments:
        counts = {field: int(value) for field, value in client.hgetall(increment.key).items()}
        assert counts == totals[increment.target]
    ranking = client.zrange(keys.increments[0].ranking_key or "", 0, -1, withscores=True)
    assert {field: int(score) for field, score in ranking} == totals["count"]
    entries = [entry for number in range(batches) for entry in entries_of(number)["dead"]]
    assert client.lrange(keys.appends[0].key, 0, -1) == entries[::-1][:3]
    if not repaired:
        history = [f'{{"batch":{number}}}'.encode() for number in range(batches)]
        assert client.lrange(keys.history, 0, -1) == history[::-1][:5]


def recording_rows(path: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function for `mapInArrow` that appends each batch's number of rows to `path`, one line per batch."""

    def recording(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            with path.open("a") as file:
                file.write(f"{batch.num_rows}\n")
            yield batch

    return recording


def every_write(driver: Driver, number: int) -> list[Callable[[], object]]:
    """Return the scripts that write batch `number`, and the one that begins the next."""
    return [
        lambda: driver.whole(batch_of(number), rows_of(number)),
        lambda: driver.begin(batch_of(number + 1)),
        lambda: driver.chunk(batch_of(number), 0, rows_of(number)),
        lambda: driver.complete(batch_of(number)),
        lambda: driver.settle(batch_of(number)),
    ]
