"""The points at which a process may die while a micro-batch is written to Kafka and Redis.

They are before and after each request to Kafka, each script in Redis, each file of the checkpoint, and each job of the
executors.
"""

from dataclasses import dataclass

from onceflow.spark.kafka.steps import STEPS

KAFKA = tuple(step.name for step in STEPS)
REDIS = ("marker's hash", "acquire", "whole", "begin", "chunk", "complete", "settle")
SPARK = ("metadata", "offsets", "commits")
CHECKPOINT = (*SPARK, "syncs")
EXECUTORS = ("encode", "pull", "reading the rows alone")
OTHER = ("marker's record",)

POINTS = tuple(
    f"{side} {name}" for name in (*KAFKA, *OTHER, *REDIS, *CHECKPOINT, *EXECUTORS) for side in ("before", "after")
)
LOST_KEY = "a key of Redis"
ROLLED_BACK = "redis, rolled back"
VICTIMS = ("driver", "driver's machine", "executor", "broker", "redis", LOST_KEY, ROLLED_BACK)
"""Driver and Redis are killed -9; the driver's machine and the broker also lose unsynced files, by a power cut.

A dead executor loses its blocks. `LOST_KEY` deletes one key that a sink has written, but not its marker; `ROLLED_BACK`
restarts Redis with earlier data."""
SECOND_DRIVER = "another driver starts"
"""No death: a second start of the query, without a lock, writes this batch and more; then the first continues."""


@dataclass(frozen=True, slots=True)
class Death:
    """A death of `victim` at a visit of `point`, counted from 1 after the death is scheduled."""

    point: str
    victim: str
    visit: int = 1

    def __str__(self) -> str:
        return f"{self.victim} dies {self.point} ({self.visit})"
