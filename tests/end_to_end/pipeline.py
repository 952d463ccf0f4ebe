"""A pipeline of real processes that tests may kill: broker, Redis and Spark driver."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from onceflow.testing import BrokerProcess
from tests.conftest import WITHIN_S, RedisProcess

ONCEFLOW = [sys.executable, "-m", "onceflow"]
HASH_KEY = "app::users::click"
TOPIC = "user_events"


class Pipeline:
    """Broker, Redis and `onceflow run`, each started by the test and ended by its pid."""

    def __init__(
        self,
        directory: Path,
        java_home: str,
        *,
        appendfsync: str = "always",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.checkpoint = directory / "checkpoint"
        self.broker = BrokerProcess(directory / "broker")
        self.redis = RedisProcess(directory / "redis", appendfsync=appendfsync)
        self.driver: subprocess.Popen[bytes] | None = None
        self._environment = {**os.environ, "JAVA_HOME": java_home, **(environment or {})}

    def __enter__(self) -> Self:
        self.broker.start()
        self.redis.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_driver()
        self.redis.stop()
        self.broker.stop()

    @property
    def log(self) -> Path:
        """Output of the driver in all its starts."""
        return self.directory / "driver.log"

    def where(self) -> list[str]:
        """Options for topic and Redis."""
        return [*self.topic_options, "--redis", self.redis.url]

    @property
    def topic_options(self) -> list[str]:
        """Options for the topic."""
        return ["--bootstrap", self.broker.bootstrap, "--topic", TOPIC]

    def onceflow(
        self, *arguments: str, within_s: float = 500, code: int | None = 0
    ) -> "subprocess.CompletedProcess[str]":
        """Run one command to its end and check its exit code."""
        done = subprocess.run(
            [*ONCEFLOW, *arguments],
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
            env=self._environment,
        )
        assert code is None or done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start_driver(self, *options: str, trigger: str = "100 milliseconds") -> None:
        """Start `onceflow run`."""
        self.start_command("run", *self.where(), "--checkpoint", str(self.checkpoint), "--trigger", trigger, *options)

    def keep_driver(self, *options: str) -> None:
        """Start the driver again if it was killed or stopped because of a lost broker or Redis."""
        if self.driver is None or self.driver.poll() is not None:
            self.kill_driver()
            self.start_driver(*options)

    def start_command(self, *arguments: str) -> None:
        """Start a command as the driver, the leader of its own process group."""
        with self.log.open("ab") as log:
            self.driver = subprocess.Popen(
                [*ONCEFLOW, *arguments], stdout=log, stderr=log, env=self._environment, start_new_session=True
            )

    def kill_driver(self, *, only_python: bool = False) -> None:
        """SIGKILL the driver with its JVM and workers, or only its Python, so that the JVM survives for a moment."""
        if self.driver is None:
            return
        if only_python:
            self.driver.kill()
        else:
            # A driver that stopped by itself has no process left in its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.wait(timeout=WITHIN_S)
        self.driver = None

    def drain(self, *options: str, code: int | None = 0) -> "subprocess.CompletedProcess[str]":
        """Count all events in the log, in one available-now run."""
        arguments = ["run", *self.where(), "--checkpoint", str(self.checkpoint), "--trigger", "available-now", *options]
        return self.onceflow(*arguments, code=code)

    def verify(self, code: int = 0) -> dict[str, Any]:
        """Run `onceflow verify --json` and check its exit code."""
        document = json.loads(self.onceflow("verify", *self.where(), "--json", code=code).stdout)
        assert isinstance(document, dict)
        return document

    def marker(self) -> dict[str, str]:
        """Return the marker in Redis."""
        import redis

        with redis.Redis.from_url(self.redis.url, decode_responses=True) as client:
            marker = client.hgetall(f"{{{HASH_KEY}}}:onceflow")
        assert isinstance(marker, dict)
        return marker

    def batch(self) -> int:
        """Return the number of the last complete micro-batch, or -1."""
        marker = self.marker()
        return int(marker["batch"]) if marker.get("complete") == "1" else -1

    def wait_for_batch(self, number: int, within_s: float = 240) -> None:
        """Wait until micro-batch `number` is complete; fails when the driver has ended."""
        deadline = time.monotonic() + within_s
        while self.batch() < number:
            assert time.monotonic() < deadline, self.log.read_text()[-4000:]
            assert self.driver is None or self.driver.poll() is None, self.log.read_text()[-4000:]
            time.sleep(0.05)
