"""A run in a process of its own: the threads of the clients that it abandons end with it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.campaigns import RecordProperty
from tests.histories.run import FIGURES

ROOT = Path(__file__).parents[2]


def run_in_process(
    directory: Path, seed: int, seconds: float, record_property: RecordProperty, *zookeeper: str
) -> None:
    """Run a campaign's part and report its figures. Raises AssertionError with the anomalies."""
    command = [sys.executable, "-m", "tests.histories", str(seed), str(seconds), str(directory), *zookeeper]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate()
    except BaseException:  # Including the test's timeout; the group has the brokers too.
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, f"seed {seed}:\n{output}"
    record_property("seeds", str(seed))
    for name, count in json.loads((directory / FIGURES).read_text()).items():
        record_property(name, count)
