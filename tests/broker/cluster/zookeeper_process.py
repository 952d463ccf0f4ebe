"""A real ZooKeeper, and a network to it that can be cut."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks import maven
from onceflow import services
from tests.client.tls import Authority, java_key

VERSION = "3.8.4"
"""The version that Apache Kafka 3.9 comes with."""
CONFIG = """\
tickTime=100
minSessionTimeout=200
maxSessionTimeout=60000
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
"""
SECURED = """\
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
secureClientPort={port}
secureClientPortAddress=127.0.0.1
ssl.keyStore.location={key}
ssl.keyStore.type=PEM
ssl.trustStore.location={trusted}
ssl.trustStore.type=PEM
ssl.clientAuth=want
"""
LOGGING = """\
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>
"""
START_SECONDS_MAX = 60


def jars() -> Path | None:
    """Return the directory of the jars, filled with Maven at first; None without them."""
    return maven.copied(f"zookeeper-{VERSION}", "zookeeper-pom.xml", zookeeper_version=VERSION)


class ZooKeeperProcess:
    """A ZooKeeper with its data in `directory`; use as a context."""

    def __init__(self, directory: Path, classpath: Path, more: str = "") -> None:
        """`more` are further lines of the configuration."""
        self._more = more
        self._directory = directory
        self._classpath = f"{classpath}/*"
        self.port = services.free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        config = self._directory / "zoo.cfg"
        (self._directory / "logback.xml").write_text(LOGGING)
        config.write_text(CONFIG.format(data=self._directory / "data", port=self.port) + self._more)
        java = str(services.find_java(self._directory / "java") / "bin" / "java")
        main = ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)]
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [java, "-Xmx64m", "-cp", f"{self._directory}:{self._classpath}", *main],
                stdout=log,
                stderr=log,
                cwd=self._directory,
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        # It listens before it can serve a session, and would not respond to one.
        while not services.is_listening(self.port, b"srvr", b"Zookeeper version"):
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.__exit__(None, None, None)
                raise AssertionError((self._directory / "server.log").read_text()[-2000:])
            time.sleep(0.02)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


@contextmanager
def secured_zookeeper(directory: Path, classpath: Path, authority: Authority) -> Iterator[str]:
    """Run a ZooKeeper; yield the address of its secure port. A client may have a certificate."""
    port, key = services.free_port(), java_key(authority.issue("127.0.0.1"))
    with ZooKeeperProcess(directory, classpath, SECURED.format(port=port, key=key, trusted=authority.trusted)):
        yield f"127.0.0.1:{port}"
