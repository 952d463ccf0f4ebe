"""A cluster, a topic with records in it and a faulty network, on the broker that the whole suite uses."""

import io
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from onceflow.cli import main
from onceflow.client.addresses import parse_address
from onceflow.client.cluster import Cluster
from onceflow.client.producer import EventWriter
from tests.client.proxy import FaultyProxy


@pytest.fixture
def cluster(bootstrap: str) -> Iterator[Cluster]:
    with Cluster(bootstrap) as connected:
        yield connected


@pytest.fixture
def proxy(bootstrap: str) -> Iterator[FaultyProxy]:
    with FaultyProxy(parse_address(bootstrap)) as running:
        yield running


@pytest.fixture
def filled(bootstrap: str, cluster: Cluster, topic: str) -> Callable[..., str]:
    """Creates the test's topic and writes values with timestamps 1000, 1001 … to one of its partitions."""

    def fill(values: list[bytes], *, partitions: int = 1, partition: int = 0) -> str:
        cluster.create_topic(topic, partitions)
        # librdkafka waits up to 0.5 s for a producer id, which these tests do not need.
        with EventWriter(bootstrap, topic, **{"enable.idempotence": False}) as writer:
            for number, value in enumerate(values):
                writer.write(None, value, 1000 + number, partition)
        return topic

    return fill


@pytest.fixture
def run(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command line inside this process, with `main`'s exit codes and sentences."""

    def run(*words: str, stdin: str | bytes = "") -> subprocess.CompletedProcess[str]:
        given = io.TextIOWrapper(io.BytesIO(stdin.encode() if isinstance(stdin, str) else stdin), "utf-8")
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with monkeypatch.context() as patch:
            patch.setenv("ONCEFLOW_BOOTSTRAP", bootstrap)
            patch.setattr(sys, "argv", ["onceflow", *words])
            for name, stream in (("stdin", given), ("stdout", out), ("stderr", err)):
                patch.setattr(sys, name, stream)
            with pytest.raises(SystemExit) as ended:
                main()
        texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
        return subprocess.CompletedProcess(list(words), int(ended.value.code or 0), *texts)

    return run
