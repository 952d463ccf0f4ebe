"""The processes that a test has started, with those that they have started in turn."""

from pathlib import Path

MARK = "ONCEFLOW_TEST_MARK"
"""A test puts a text of its own into this variable of the environment; children inherit it."""


def processes_of(mark: str) -> list[str]:
    """The command lines of all processes that carry `mark` in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found
