"""Ways of a batch to Redis: one script of the driver, chunks of the driver, or chunks of tasks."""

import pytest

from onceflow.spark.redis import chunks as redis_chunks
from onceflow.spark.redis import rows as redis_rows

WHOLE, DRIVER, TASKS = "whole", "driver", "tasks"


def let_write(writer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the driver or tasks write all chunks."""
    monkeypatch.setattr(redis_chunks, "DRIVER_CHUNKS_MAX", 10_000 if writer == DRIVER else 0)


def write_in(way: str, rows_per_chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write batches in that way; with chunks, a batch of more rows than these has them."""
    if way != WHOLE:
        monkeypatch.setattr(redis_chunks, "ROWS_PER_CHUNK", rows_per_chunk)
        monkeypatch.setattr(redis_rows, "WHOLE_ROWS_MAX", rows_per_chunk)
        let_write(way, monkeypatch)
