"""Processes that a test has started, with their descendants."""

from pathlib import Path

MARK = "ONCEFLOW_TEST_MARK"
"""Environment variable for a test's own text; children inherit it."""


def processes_of(mark: str) -> dict[int, str]:
    """Return the command line of each process that carries `mark` in its environment, by its pid."""
    commands = {}
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark.encode() in (process / "environ").read_bytes():
                commands[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return commands


def jvms_of(mark: str) -> list[int]:
    """Return the pids of the JVMs that run a Spark driver among them.

    A child that a JVM has forked looks like the JVM until it runs its own program.
    """
    jvms = {pid for pid, command in processes_of(mark).items() if "org.apache.spark.deploy.SparkSubmit" in command}
    return [pid for pid in jvms if parent_of(pid) not in jvms]


def parent_of(process_id: int) -> int | None:
    """Return the pid of a process's parent; None if the process has ended."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name before it stands in brackets and may have any characters.
    return int(stat.rpartition(")")[2].split()[1])
