"""Options of the commands that run a streaming job."""

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

OWN_PRIORITY = os.getpriority(os.PRIO_PROCESS, 0)
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


def test_spark_submit_decides_the_priority() -> None:
    submitted = {"PYSPARK_GATEWAY_PORT": "1"}
    assert priority_of_child(None, **submitted) == OWN_PRIORITY
    with pytest.raises(AssertionError, match="UsageError: --nice does not apply with spark-submit: start"):
        priority_of_child(5, **submitted)
