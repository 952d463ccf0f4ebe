"""Every named moment at which something may die while a micro-batch goes to Kafka and to Redis: the one list.

Before and after each request to Kafka, each script in Redis, each file of the checkpoint, and what executors do.
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
VICTIMS = ("driver", "driver's machine", "executor", "broker", "redis", LOST_KEY, "redis went back")
"""Driver and Redis are killed -9 or, the driver's machine and a Redis that went back, lose what was not synced; the
broker always loses that, since its power is cut. An executor takes its blocks with it. Of the keys
that a sink has written one vanishes, its marker stays."""
SECOND_DRIVER = "another driver comes up"
"""No death: another start of the query, which no lock keeps out, writes this batch and more; then the first goes on."""


@dataclass(frozen=True, slots=True)
class Death:
    """`victim` dies at that visit of `point`, counted from 1 from when it was arranged."""

    point: str
    victim: str
    visit: int = 1

    def __str__(self) -> str:
        return f"{self.victim} dies {self.point} ({self.visit})"
