"""The processes that a test has started, with those that they have started in turn."""

from pathlib import Path

MARK = "ONCEFLOW_TEST_MARK"
"""A test puts a text of its own into this variable of the environment; children inherit it."""


def processes_of(mark: str) -> dict[int, str]:
    """Return the command line of each process that carries `mark` in its environment, by its pid."""
    found = {}
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark.encode() in (process / "environ").read_bytes():
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def jvms_of(mark: str) -> list[int]:
    """Return the pids of the JVMs that run a Spark driver among them."""
    return [pid for pid, command in processes_of(mark).items() if "org.apache.spark.deploy.SparkSubmit" in command]
