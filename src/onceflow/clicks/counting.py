"""Counting of click events in a Spark task: validate each event and emit sums per user.

It runs in Spark's Python workers, on Arrow batches with the columns `value` (binary), `partition`, `offset` and
`timestamp`. The workers need onceflow, msgspec and pyarrow, and nothing of the driver. The output is the rows of the
Redis sink, `target string, field binary, amount long`:

    count    uid → clicks                  totals   events, clicks, bad → number
    os       os_type → clicks              bad      reason → number
    dead     partition:offset:reason, ordered by the record's timestamp in microseconds

A field may have several rows, from several tasks or from one that reached USERS_MAX; the sink adds them.
"""

from collections.abc import Iterator

import pyarrow as pa

from onceflow.clicks.events import Reason, Rules

COUNT = "count"
OS = "os"
TOTALS = "totals"
BAD = "bad"
DEAD = "dead"
EVENTS, CLICKS, BAD_EVENTS = "events", "clicks", "bad"

ROWS_SCHEMA = pa.schema([("target", pa.string()), ("field", pa.binary()), ("amount", pa.int64())])
USERS_MAX = 200_000
"""Users whose sums one task keeps before it emits them."""


def count_events(
    batches: Iterator[pa.RecordBatch], *, key_field: str, value_field: str | None, dead_length: int
) -> Iterator[pa.RecordBatch]:
    """Convert a task's events to the sink's rows, for `DataFrame.mapInArrow`."""
    rules = Rules(key_field, value_field)
    sums = Sums(dead_length)
    for batch in batches:
        sums.add(rules, batch)
        if len(sums.by_user) >= USERS_MAX:
            yield sums.rows()
            sums = Sums(dead_length)
    yield sums.rows()


class Sums:
    """Sums of one task."""

    def __init__(self, dead_length: int) -> None:
        self.by_user: dict[str, int] = {}
        self.by_os: dict[str, int] = {}
        self.by_reason: dict[str, int] = {}
        self.dead: list[tuple[int, str]] = []
        self.events = 0
        self._dead_length = dead_length

    def add(self, rules: Rules, batch: pa.RecordBatch) -> None:
        """Add every event of one Arrow batch."""
        judge = rules.judge
        bad: list[tuple[int, Reason]] = []
        by_user, by_os = self.by_user, self.by_os
        for index, value in enumerate(batch.column("value").to_pylist()):
            verdict = judge(value)
            if isinstance(verdict, Reason):
                bad.append((index, verdict))
            else:
                uid, clicks, os_type = verdict
                by_user[uid] = by_user.get(uid, 0) + clicks
                by_os[os_type] = by_os.get(os_type, 0) + clicks
        self.events += batch.num_rows
        if bad:
            self._add_bad(batch, bad)

    def _add_bad(self, batch: pa.RecordBatch, bad: list[tuple[int, Reason]]) -> None:
        partitions, offsets = batch.column("partition"), batch.column("offset")
        timestamps_us = batch.column("timestamp").cast(pa.int64())
        for index, reason in bad:
            self.by_reason[reason] = self.by_reason.get(reason, 0) + 1
            pointer = f"{partitions[index].as_py()}:{offsets[index].as_py()}:{reason}"
            self.dead.append((timestamps_us[index].as_py(), pointer))
            if len(self.dead) >= 2 * self._dead_length:
                self._keep_newest_dead()

    def _keep_newest_dead(self) -> None:
        self.dead = sorted(self.dead)[-self._dead_length :]

    def rows(self) -> pa.RecordBatch:
        """Return all sums as the sink's rows."""
        self._keep_newest_dead()
        totals = {EVENTS: self.events, CLICKS: sum(self.by_user.values()), BAD_EVENTS: sum(self.by_reason.values())}
        rows = [(TOTALS, name, amount) for name, amount in totals.items() if self.events]
        rows += [(COUNT, uid, amount) for uid, amount in self.by_user.items()]
        rows += [(OS, system, amount) for system, amount in self.by_os.items()]
        rows += [(BAD, reason, amount) for reason, amount in self.by_reason.items()]
        rows += [(DEAD, pointer, timestamp_us) for timestamp_us, pointer in self.dead]
        columns: list[pa.Array] = [
            pa.array([target for target, _, _ in rows], pa.string()),
            pa.array([name.encode() for _, name, _ in rows], pa.binary()),
            pa.array([amount for _, _, amount in rows], pa.int64()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=ROWS_SCHEMA)
