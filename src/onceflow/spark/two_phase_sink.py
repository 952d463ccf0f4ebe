"""The base of sinks that commit in two phases, with the life cycle of Flink's TwoPhaseCommitSinkFunction.

    sink = ExactlyOnce(MyTwoPhaseSink(state=Path(checkpoint, "two-phase.db")), checkpoint=checkpoint)

`Sink` needs a target that keeps the proof beside the data. This base needs transactions that outlive the process that
began them: it keeps the proof and the pending transaction in a SQLite file of the driver. docs/sinks.md compares both.
"""

import abc
import contextlib
import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from onceflow.remedies import Remedy
from onceflow.spark.sink import AttemptEnded, Batch, Proof, Sink, SinkStopped

_log = logging.getLogger(__name__)

_TABLE = "CREATE TABLE IF NOT EXISTS sinks (name TEXT PRIMARY KEY, epoch INTEGER, state TEXT)"

__all__ = ["TransactionLost", "TwoPhaseSink"]


class TransactionLost(AttemptEnded):
    """The target has rolled a pending transaction back, for example after its time-out; the batch is written again."""


@dataclass(frozen=True)
class _State:
    """Content of the state file."""

    proof: str | None = None
    """Proof of the last committed batch."""
    open: Any = None
    """Transaction to abort: it may have rows, which are not all flushed."""
    pending: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    """Number of a batch → its flushed transaction and its proof. Spark repeats a batch until it is committed, so
    there is one at most."""


class TwoPhaseSink(Sink):
    """A target with transactions that any process can commit or abort, given a JSON value that names the transaction.

    No two transactions have the same name. Committing one twice, or aborting one twice, must succeed.
    """

    def __init__(self, name: str, state: Path) -> None:
        self.name = name
        self._path = state
        self._epoch = 0
        self._state = _State()
        self._flushed: Any = None

    @abc.abstractmethod
    def begin_transaction(self) -> Any:
        """Begin a transaction without any row; return the value to abort it by."""

    @abc.abstractmethod
    def invoke(self, transaction: Any, rows: DataFrame) -> None:
        """Write the rows of a batch into the transaction, hidden from readers of committed data."""

    @abc.abstractmethod
    def pre_commit(self, transaction: Any) -> Any:
        """Flush the transaction, still hidden; return the value to commit it by."""

    @abc.abstractmethod
    def commit_transaction(self, transaction: Any) -> None:
        """Make a flushed transaction visible. Raises TransactionLost if the target has rolled it back."""

    @abc.abstractmethod
    def abort_transaction(self, transaction: Any) -> None:
        """Roll back a transaction that was never pending, and refuse what a frozen driver still writes into it."""

    def recover_and_commit(self, transaction: Any) -> None:
        """Commit a transaction that an earlier start has left pending; it may be committed already."""
        self.commit_transaction(transaction)

    def recover_and_abort(self, transaction: Any) -> None:
        """Abort a transaction that an earlier start has left open; it may be aborted already."""
        self.abort_transaction(transaction)

    def initialize_state(self) -> None:
        """Fence earlier starts, then commit the pending transaction and abort the open one that they have left."""
        # From here on, an earlier start cannot declare its open transaction pending, so it never commits it.
        self._take_over()
        proof = self._state.proof
        for number, (transaction, proof_of_pending) in self._state.pending.items():
            try:
                self.recover_and_commit(transaction)
                proof = proof_of_pending
            except TransactionLost as lost:
                _log.warning("batch %s of sink %r is written again: %s", number, self.name, lost)
        if self._state.open is not None:
            self.recover_and_abort(self._state.open)
        self._store(_State(proof))

    def snapshot_state(self, proof: Proof) -> None:
        """Declare the flushed transaction pending: whatever happens to this driver, it is committed and not aborted."""
        self._store(_State(self._state.proof, None, {str(proof.batch): (self._flushed, proof.text())}))

    def notify_checkpoint_complete(self) -> None:
        """Commit the pending transaction, then store its proof."""
        for transaction, proof in self._state.pending.values():
            self.commit_transaction(transaction)
            self._store(_State(proof))

    def recover(self, query: str) -> Proof | None:
        """Initialize the state; return the proof of the last committed batch."""
        self.initialize_state()
        return None if self._state.proof is None else Proof.parse(str(self._path), self._state.proof)

    def prepare(self, batch: Batch, previous: Proof | None) -> None:
        """Begin a transaction, and record that it is open."""
        self._store(replace(self._state, open=self.begin_transaction()))

    def write(self, rows: DataFrame) -> None:
        """Write the rows into the transaction and flush it."""
        self.invoke(self._state.open, rows)
        self._flushed = self.pre_commit(self._state.open)

    def commit(self, proof: Proof) -> None:
        """Snapshot the state and commit: Spark's checkpoint of a batch is complete before the batch's first row."""
        self.snapshot_state(proof)
        self.notify_checkpoint_complete()

    def abort(self) -> None:
        """Abort the open transaction; the next `recover` commits a pending one."""
        if self._state.open is not None:
            self.abort_transaction(self._state.open)

    def _take_over(self) -> None:
        with self._file() as file:
            file.execute(_TABLE)
            empty = json.dumps(asdict(_State()))
            file.execute("INSERT OR IGNORE INTO sinks VALUES (?, 0, ?)", (self.name, empty))
            query = "UPDATE sinks SET epoch = epoch + 1 WHERE name = ? RETURNING epoch, state"
            ((self._epoch, text),) = file.execute(query, (self.name,)).fetchall()
        self._state = _State(**json.loads(text))

    def _store(self, state: _State) -> None:
        """Replace the state. Raises SinkStopped if another start has taken over."""
        # First here: if the outcome in the file is unknown, `abort` must not touch what may be pending there.
        self._state = state
        with self._file() as file:
            query = "UPDATE sinks SET state = ? WHERE name = ? AND epoch = ?"
            if not file.execute(query, (json.dumps(asdict(state)), self.name, self._epoch)).rowcount:
                raise SinkStopped(
                    f"another start of the query has taken over sink {self.name!r}: {Remedy.STOP_ONE_QUERY}"
                )

    @contextlib.contextmanager
    def _file(self) -> Iterator[sqlite3.Connection]:
        """Open the state file; each statement is its own transaction, synced to disk."""
        # After a driver's thread has died, the garbage collector closes its file in another thread.
        file = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        with contextlib.closing(file):
            # With less a power cut may bring the journal's name back, and undo a change that the target followed.
            file.execute("PRAGMA synchronous = EXTRA")
            yield file
