"""The source and the Kafka sink with the oldest supported PySpark, installed for it, and with that of the tests."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from onceflow.client.cluster import Cluster
from onceflow.client.lag import log_ends
from onceflow.client.records import read_records
from tests.compat import pyspark_program

OLDEST = "4.2.0"
RECORDS = 1_000
LIMIT = 250
INSTALL_S, RUN_S = 900, 900

pytestmark = pytest.mark.timeout(2000)


@pytest.fixture(params=[OLDEST, pyspark.__version__])
def installed(request: pytest.FixtureRequest, wheel: Path, tmp_path: Path) -> tuple[str, Path]:
    """Return a version and the Python that has it, with the wheel."""
    if request.param == pyspark.__version__:
        return request.param, Path(sys.executable)
    environment = tmp_path / "environment"
    python = environment / "bin" / "python"
    for command in (
        ("venv", "--quiet", "--python", sys.executable, str(environment)),
        (
            "pip",
            "install",
            "--quiet",
            "--compile-bytecode",
            "--python",
            str(python),
            f"pyspark=={request.param}",
            f"{wheel}[spark]",
        ),
    ):
        subprocess.run([sys.executable, "-m", "uv", *command], check=True, timeout=INSTALL_S)
    return request.param, python


def test_source_and_kafka_sink(
    installed: tuple[str, Path],
    bootstrap: str,
    cluster: Cluster,
    filled: Callable[..., str],
    java_home: str,
    tmp_path: Path,
) -> None:
    """A batch read, a stream with a limit, and a sink return each of the 1,000 records once."""
    version, python = installed
    values = [b"event %04d" % number for number in range(RECORDS)]
    topic = filled(values)
    copy = f"{topic}-copy"
    cluster.create_topic(copy, 2)
    done = subprocess.run(
        [python, pyspark_program.__file__, bootstrap, topic, copy, str(tmp_path / "checkpoint"), str(LIMIT)],
        env={**os.environ, "PYTHONPATH": "", "JAVA_HOME": java_home, "PATH": f"{python.parent}:{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result == {
        "version": version,
        "read": [value.decode() for value in values],
        "batches": [0] + [LIMIT] * (RECORDS // LIMIT),
    }
    ends = log_ends(cluster, copy, range(2))
    records = [record for partition, end in ends.items() for record in read_records(cluster, copy, partition, *end)]
    assert Counter(record.value for record in records) == Counter(values)
