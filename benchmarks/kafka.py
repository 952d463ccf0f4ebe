"""Apache Kafka from Maven's jars, as one KRaft node with its defaults: the peer of the broker's benchmarks."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from benchmarks import maven
from onceflow import services

VERSION = "4.1.1"
JARS = maven.CACHE / f"kafka-{VERSION}"
START_SECONDS_MAX = 120
"""It takes some seconds, and a minute on a machine that is busy with other tests."""
CLUSTER_ID = "b25jZWZsb3ctYmVuY2htYQ"

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=CONTROLLER://127.0.0.1:{controller},{listeners}
advertised.listeners={listeners}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
log.dirs={directory}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.segment.delete.delay.ms=0
"""


def jars(version: str = VERSION) -> Path | None:
    """Return the directory of a version's jars, filled with Maven at first; None without them."""
    return maven.copied(f"kafka-{version}", "kafka-pom.xml", kafka_version=version)


class KafkaProcess:
    """A running Kafka; use as a context."""

    name = "Apache Kafka " + VERSION
    heap: tuple[str, ...] = ("-Xms1g", "-Xmx1g")
    """Options of the JVM: those of Kafka's own scripts."""

    def __init__(
        self,
        directory: Path,
        classpath: Path,
        settings: Mapping[str, str] = MappingProxyType({}),
        *,
        listeners: Mapping[str, int] = MappingProxyType({}),
        scram: Sequence[str] = (),
    ) -> None:
        """Configure a broker: `listeners` are further ports by protocol, `scram` users for StorageTool."""
        self.settings = settings
        self.port = services.free_port()
        self.listeners = {"PLAINTEXT": self.port, **listeners}
        self.scram = scram
        self.directory = directory
        self.classpath = f"{classpath}/*"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """Address of the broker."""
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The JVM."""
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        """Process id of the JVM."""
        return self.process.pid

    def format(self) -> None:
        """Format the data directory."""
        data = self.directory / "data"
        data.mkdir(parents=True)
        listeners = ",".join(f"{protocol}://127.0.0.1:{port}" for protocol, port in self.listeners.items())
        text = PROPERTIES.format(listeners=listeners, controller=services.free_port(), directory=data)
        self._properties.write_text(text + "".join(f"{name}={value}\n" for name, value in self.settings.items()))
        users = [word for user in self.scram for word in ("--add-scram", user)]
        self._run("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._properties), *users).wait()

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the process without waiting for anything."""
        self._process = self._run("kafka.Kafka", str(self._properties))
        return self._process

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _run(self, *arguments: str) -> subprocess.Popen[bytes]:
        java = str(services.find_java(self.directory / "java") / "bin" / "java")
        with (self.directory / "server.log").open("ab") as log:
            return subprocess.Popen([java, *self.heap, "-cp", self.classpath, *arguments], stdout=log, stderr=log)

    def start(self) -> "KafkaProcess":
        """Start, a second time too after `stop` or `kill`, and wait until it listens."""
        process = self.launch()
        deadline = time.monotonic() + START_SECONDS_MAX
        while not services.is_listening(self.port):
            if time.monotonic() > deadline or process.poll() is not None:
                self.kill()
                raise SystemExit(f"Kafka did not start: {self.directory / 'server.log'}")
            time.sleep(0.1)
        return self

    def stop(self) -> None:
        """SIGTERM, and wait for the clean end."""
        self.process.terminate()
        self.process.wait(timeout=60)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> "KafkaProcess":
        self.format()
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
