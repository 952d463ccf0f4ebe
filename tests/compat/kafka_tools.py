"""Kafka's own command line tools, run on a broker, with output that is comparable between two brokers."""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.compat.java_programs import environment

PACKAGES = {
    "ConsoleConsumer": "org.apache.kafka.tools.consumer",
    "ConsumerGroupCommand": "org.apache.kafka.tools.consumer.group",
    "ConfigCommand": "kafka.admin",
    "DumpLogSegments": "kafka.tools",
    "ReassignPartitionsCommand": "org.apache.kafka.tools.reassign",
}

PACKAGES_BEFORE_4 = {**PACKAGES, "AclCommand": "kafka.admin", "BrokerApiVersionsCommand": "kafka.admin"}
"""Packages of tools in releases before Kafka 4."""

OF_THIS_RUN = (
    (re.compile(r"TopicId: \S+"), "TopicId: ID"),
    (re.compile(r"-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "-UUID"),
    (re.compile(r"perf-consumer-\d+"), "perf-consumer-NUMBER"),
    (re.compile(r'"timestamp":\d+'), '"timestamp":TIME'),
    (re.compile(r'"logDir":"[^"]*"'), '"logDir":DIRECTORY'),
    (re.compile(r'"avg_throughput":[\d.E]+'), '"avg_throughput":FIGURE'),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[:.,]\d+"), "TIME"),
)
"""Parts of the output that differ between two runs on one broker too."""

OF_A_CLUSTER = (
    ("min.insync.replicas=1,", ""),
    ("Elr: N/A LastKnownElr: N/A", "Elr: LastKnownElr:"),
)
"""Known differences: a new KRaft cluster sets the first for all its topics and counts eligible leader replicas."""


@dataclass(frozen=True)
class Printed:
    """Output of a tool, and its exit code."""

    lines: list[str]
    code: int

    def __contains__(self, text: str) -> bool:
        return any(text in line for line in self.lines)


@dataclass(frozen=True)
class KafkaTools:
    """The tools of `jars` for one broker."""

    bootstrap: str
    jars: Path

    def run(self, tool: str, *arguments: str, stdin: str = "", timeout_seconds: float = 60) -> Printed:
        """Run `tool`; `BROKER` among the arguments is the broker's address. Standard error (log4j) is ignored."""
        is_before_4 = not any(self.jars.glob("kafka-clients-4.*.jar"))
        package = (PACKAGES_BEFORE_4 if is_before_4 else PACKAGES).get(tool, "org.apache.kafka.tools")
        words = [word.replace("BROKER", self.bootstrap) for word in arguments]
        command = ["java", "-cp", f"{self.jars}/*", f"{package}.{tool}", *words]
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            env=environment(),
            timeout=timeout_seconds,
            check=False,
        )
        return Printed(self._comparable(done.stdout), done.returncode)

    def _comparable(self, text: str) -> list[str]:
        text = text.replace(self.bootstrap, "BROKER")
        for pattern, replacement in OF_THIS_RUN:
            text = pattern.sub(replacement, text)
        text = re.sub(r"[ \t]+", " ", text)
        for ours, either in OF_A_CLUSTER:
            text = text.replace(ours, either)
        # Both are sets.
        text = re.sub(r"((?<=Configs: )|(?<=Isr: ))\S+", lambda match: ",".join(sorted(match[0].split(","))), text)
        return [line.strip() for line in text.splitlines() if line.strip()]


@dataclass(frozen=True)
class Peers:
    """Apache Kafka and Onceflow's broker, with the same requests at the same time."""

    theirs: KafkaTools
    ours: KafkaTools

    def ask(self, tool: str, *arguments: str, stdin: str = "", timeout_seconds: float = 60) -> tuple[Printed, Printed]:
        """Return the tool's output on Kafka and on Onceflow."""
        with ThreadPoolExecutor(2) as pool:
            theirs, ours = (
                pool.submit(tools.run, tool, *arguments, stdin=stdin, timeout_seconds=timeout_seconds)
                for tools in (self.theirs, self.ours)
            )
            return theirs.result(), ours.result()

    def same(self, tool: str, *arguments: str, stdin: str = "", about: str = "") -> Printed:
        """Return the tool's output after a check that both have the same lines, in any order.

        With `about` only lines with this text count: groups and transactions of other tests are listed too.
        """
        theirs, ours = self.ask(tool, *arguments, stdin=stdin)
        actual, expected = (sorted(line for line in outcome.lines if about in line) for outcome in (ours, theirs))
        assert (actual, ours.code) == (expected, theirs.code), (tool, *arguments, actual, expected)
        return Printed([line for line in ours.lines if about in line], ours.code)
