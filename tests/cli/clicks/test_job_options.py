"""Options of the commands that run a streaming job."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

OWN_PRIORITY = os.getpriority(os.PRIO_PROCESS, 0)
AUTOGROUP = Path("/proc/self/autogroup")
PRINT_PRIORITY = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"
LOWER = f"""
import subprocess, sys
from onceflow.cli.clicks.job_options import lower_priority
lower_priority(%s)
print(subprocess.run([sys.executable, "-c", {PRINT_PRIORITY!r}], capture_output=True, text=True, check=True).stdout)
"""


def priority_of_child(nice: int | None, command: Sequence[str] = (), **environment: str) -> int:
    """Return the priority of a process that a driver with `--nice` starts."""
    arguments = [*command, sys.executable, "-c", LOWER % nice]
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize(("nice", "priority"), [(None, 10), (0, 0), (3, 3)])
def test_driver_has_the_priority_asked(nice: int | None, priority: int) -> None:
    assert priority_of_child(nice) == max(OWN_PRIORITY, priority)


def test_no_priority_is_raised() -> None:
    assert priority_of_child(3, ["nice", "-n", "12"]) == min(OWN_PRIORITY + 12, 19)


@pytest.mark.parametrize("leads", [False, True])
def test_a_leader_lowers_its_session(*, leads: bool) -> None:
    """Linux compares the priorities of processes within a session only; other systems have no such file."""
    shown = AUTOGROUP.read_text() if AUTOGROUP.exists() else ""
    script = f"{LOWER % 15}\nimport pathlib\nfile = pathlib.Path({str(AUTOGROUP)!r})\n"
    script += "print(file.read_text() if file.exists() else '')"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True, start_new_session=leads
    )
    if leads and shown:
        assert done.stdout.split()[-2:] == ["nice", "15"]
    else:
        assert done.stdout.split()[1:] == shown.split()
    assert not done.stderr


def test_spark_submit_decides_the_priority() -> None:
    submitted = {"PYSPARK_GATEWAY_PORT": "1"}
    assert priority_of_child(None, **submitted) == OWN_PRIORITY
    with pytest.raises(AssertionError, match="UsageError: --nice does not apply with spark-submit: start"):
        priority_of_child(5, **submitted)
