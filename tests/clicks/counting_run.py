"""One replayed topic, its checkpoint and its counts in Redis, for tests of the whole pipeline."""

import json
import threading
from pathlib import Path
from typing import Any

import redis
from click.testing import CliRunner
from pyspark.sql import SparkSession

from onceflow.cli import onceflow
from onceflow.clicks.pipeline import ClickPipeline
from onceflow.clicks.restarts import Restarts
from onceflow.clicks.results import Keys
from tests.conftest import RedisProcess


class CountingRun:
    """Replay of files, counting in the test's Spark session, and verification."""

    def __init__(self, bootstrap: str, topic: str, server: RedisProcess, directory: Path) -> None:
        self.bootstrap, self.topic, self.url = bootstrap, topic, server.url
        self.hash_key = f"test::{topic}"
        self.directory = directory
        self.keys = Keys(self.hash_key)

    def replay(self, *arguments: object, partitions: int = 4) -> dict[str, Any]:
        """Run `onceflow replay --json`."""
        where = ["--bootstrap", self.bootstrap, "--topic", self.topic, "--partitions", str(partitions)]
        rejects = ["--rejects", str(self.directory / "rejects.jsonl")]
        return self._json("replay", *map(str, arguments), *where, *rejects)

    def count(self, spark: SparkSession, **options: Any) -> None:
        """Count all events, as `onceflow run --trigger available-now` does."""
        pipeline = ClickPipeline(
            bootstrap=self.bootstrap,
            topic=self.topic,
            checkpoint=str(self.directory / "checkpoint"),
            redis_url=self.url,
            hash_key=self.hash_key,
            trigger="available-now",
            **options,
        )
        pipeline.check()
        assert pipeline.stream_with_restarts(spark, threading.Event(), Restarts(pipeline.restarts))

    def verify(self, code: int = 0) -> dict[str, Any]:
        """Run `onceflow verify --json`."""
        where = ["--bootstrap", self.bootstrap, "--topic", self.topic, "--redis", self.url, "--hash-key", self.hash_key]
        return self._json("verify", *where, code=code)

    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def by_user(self) -> dict[str, int]:
        """Return the hash as the article's reader sees it."""
        with self.redis() as client:
            return {uid.decode(): int(clicks) for uid, clicks in client.hscan_iter(self.hash_key, count=5000)}

    def _json(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        done = CliRunner().invoke(onceflow, [*arguments, "--json"], standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        assert (done.return_value or 0) == code, done.output
        document = json.loads(done.stdout)
        assert isinstance(document, dict)
        return document
