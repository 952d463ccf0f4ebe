"""What the connector's rows share: one Apache Kafka, one Redis, the topic of clicks, and a driver for each contender.

Kafka is nobody's own broker here: both contenders read and write the same one. All is made when it is first asked for,
so that a row alone pays for what it needs.
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
"""By the names of their formats."""
CLIENTS_VERSION = "3.9.1"
CONNECTORS = ((pyspark.__version__, pyspark.__version__), ("4.2.0", "4.0.0"))
"""(connector, token provider): the one of our Spark if it is published, else the newest that works with it."""


class Stage:
    """Use as a context."""

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
        """Gone at the end."""
        return Path(self._exits.enter_context(tempfile.TemporaryDirectory()))

    @cached_property
    def bootstrap(self) -> str:
        """Of Apache Kafka. Raises SystemExit without its jars."""
        classpath = kafka.jars()
        if classpath is None:
            raise SystemExit("the connector is measured on Apache Kafka, whose jars Maven did not give")
        return self._exits.enter_context(kafka.KafkaProcess(self.directory / "kafka", classpath)).bootstrap

    @cached_property
    def redis_url(self) -> str:
        """Of a Redis that has synced what it acknowledged."""
        return f"redis://127.0.0.1:{queues.redis_server(self.directory / 'redis', 'always', self._exits)}/0"

    @cached_property
    def redis(self) -> redis.Redis:
        """A client of it."""
        client = redis.Redis.from_url(self.redis_url)
        self._exits.callback(client.close)
        return client

    @cached_property
    def clicks(self) -> clicks_topic.Clicks:
        """The topic that is drained."""
        return clicks_topic.fill(self.bootstrap, "clicks", self._clicks_count)

    @cached_property
    def connector(self) -> Path:
        """The jars of Spark's own connector. Raises SystemExit where Maven gives none."""
        for version, token_version in CONNECTORS:
            versions = {"connector_version": version, "token_version": token_version}
            found = maven.copied(
                f"spark-connector-{version}", "spark-connector-pom.xml", **versions, clients_version=CLIENTS_VERSION
            )
            if found is not None:
                return found
        raise SystemExit("Maven gave no spark-sql-kafka-0-10_2.13, the peer of these rows")

    def driver(self, contender: str) -> Child:
        """The contender's own, which stays for all rows."""
        if contender not in self._drivers:
            self._drivers[contender] = self._exits.enter_context(self.new_driver(contender))
        return self._drivers[contender]

    def new_driver(self, contender: str) -> Child:
        """One more."""
        directory = self.directory / self.fresh(f"driver-{contender}")
        directory.mkdir()
        classpath = [f"{self.connector}/*"] if contender == PEER else []
        command = [sys.executable, "-m", "benchmarks.spark_driver", str(directory), *classpath]
        return Child(command, directory / "driver.log")

    def fresh(self, name: str) -> str:
        """The name with a number that it has not had."""
        self._numbers[name] = self._numbers.get(name, 0) + 1
        return f"{name}-{self._numbers[name]}"

    def counting(self, pipeline: str, topic: str, **more: Any) -> dict[str, Any]:
        """Work for a driver: the topic's clicks into a fresh hash, with a fresh checkpoint."""
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
        """Users whose sum is not that of the topic."""
        found: dict[bytes, bytes] = self.redis.hgetall(f"{{{work['hash_key']}}}:count")  # type: ignore[assignment]
        return clicks_topic.differences(found, self.clicks)
