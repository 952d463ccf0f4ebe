"""Shared parts of the connector's rows: one Apache Kafka, one Redis, the topic of clicks, a driver per contender.

Both contenders use the same Kafka. Each part is created on first use, so that a single row starts only what it needs.
"""

import sys
import tempfile
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import pyspark
import redis

from benchmarks import clicks_topic, kafka, maven, queues
from benchmarks.child import Child
from benchmarks.peers import touch_memory

CLICKS = 3_000_000
OURS, PEER = "onceflow", "kafka"
"""Contenders, by the names of their formats."""
CLIENTS_VERSION = "3.9.1"
CONNECTORS = ((pyspark.__version__, pyspark.__version__), ("4.2.0", "4.0.0"))
"""(connector, token provider) of our Spark version if published, else the newest that works with it."""


class Stage:
    """Context of the shared parts."""

    def __init__(self, clicks: int = CLICKS) -> None:
        self._clicks_count = clicks
        self._exits = ExitStack()
        self._drivers: dict[str, Child] = {}
        self._numbers: dict[str, int] = {}

    def __enter__(self) -> "Stage":
        touch_memory()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    @cached_property
    def directory(self) -> Path:
        """Temporary directory."""
        return Path(self._exits.enter_context(tempfile.TemporaryDirectory()))

    @cached_property
    def bootstrap(self) -> str:
        """Address of Apache Kafka. Raises SystemExit without its jars."""
        classpath = kafka.jars()
        if classpath is None:
            raise SystemExit("the connector is measured on Apache Kafka, whose jars Maven did not give")
        return self._exits.enter_context(kafka.KafkaProcess(self.directory / "kafka", classpath)).bootstrap

    @cached_property
    def redis_url(self) -> str:
        """Address of a Redis that syncs before it acknowledges."""
        return f"redis://127.0.0.1:{queues.redis_server(self.directory / 'redis', 'always', self._exits)}/0"

    @cached_property
    def redis(self) -> redis.Redis:
        """Client of the Redis."""
        client = redis.Redis.from_url(self.redis_url)
        self._exits.callback(client.close)
        return client

    @cached_property
    def clicks(self) -> clicks_topic.Clicks:
        """Topic that is drained."""
        return clicks_topic.fill(self.bootstrap, "clicks", self._clicks_count)

    @cached_property
    def connector(self) -> Path:
        """Jars of Spark's own connector. Raises SystemExit if Maven has none."""
        for version, token_version in CONNECTORS:
            versions = {"connector_version": version, "token_version": token_version}
            jars = maven.copied(
                f"spark-connector-{version}", "spark-connector-pom.xml", **versions, clients_version=CLIENTS_VERSION
            )
            if jars is not None:
                return jars
        raise SystemExit("Maven gave no spark-sql-kafka-0-10_2.13, the peer of these rows")

    def driver(self, contender: str) -> Child:
        """Return the contender's driver for all rows."""
        if contender not in self._drivers:
            self._drivers[contender] = self._exits.enter_context(self.new_driver(contender))
        return self._drivers[contender]

    def new_driver(self, contender: str) -> Child:
        """Start another driver."""
        directory = self.directory / self.fresh(f"driver-{contender}")
        directory.mkdir()
        classpath = [f"{self.connector}/*"] if contender == PEER else []
        command = [sys.executable, "-m", "benchmarks.spark_driver", str(directory), *classpath]
        return Child(command, directory / "driver.log")

    def fresh(self, name: str) -> str:
        """Return the name with a new number."""
        self._numbers[name] = self._numbers.get(name, 0) + 1
        return f"{name}-{self._numbers[name]}"

    def counting(self, pipeline: str, topic: str, **more: Any) -> dict[str, Any]:
        """Return a driver's task: count the topic into a fresh hash, with a fresh checkpoint."""
        name = self.fresh(pipeline)
        return {
            "pipeline": pipeline,
            "topic": topic,
            "bootstrap": self.bootstrap,
            "redis": self.redis_url,
            "hash_key": name,
            "checkpoint": str(self.directory / "checkpoints" / name),
            **more,
        }

    def wrong_users(self, work: dict[str, Any]) -> int:
        """Return the number of users whose sum differs from the topic's."""
        stored: dict[bytes, bytes] = self.redis.hgetall(f"{{{work['hash_key']}}}:count")  # type: ignore[assignment]
        return clicks_topic.differences(stored, self.clicks)
