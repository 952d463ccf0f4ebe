"""State of a file, by which a change is noticed."""

import os

FileState = tuple[int, int, int] | None
"""Inode, time of the last change and size; None: the file cannot be found."""


def file_state(path: str | None) -> FileState:
    """Return the state of a file; None without a path."""
    if path is None:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
