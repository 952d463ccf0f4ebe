"""Segment files that the process holds open or mapped: those in use, and few others.

A broker of ten thousand partitions must not need a descriptor for each segment. A segment opens its file when it is
first needed; a sealed index maps its file when it is first searched (a mapping holds a descriptor, too). Both release
it when others need descriptors and it was not used since the last check. A caller that holds the file itself, for
instance to send from it, keeps it open. A file with unsynced bytes is never released: a later write error would be
reported to a descriptor that was open then, not reliably to a later one.
"""

import resource
import threading
from collections import deque
from typing import Protocol
from weakref import ref

CHECKS = 8
"""Number of files that are checked, and may be released, when one more is opened."""

HELD_MAX = 20_000
"""Upper limit for any descriptor limit: Linux lets a process map 65,530 files (vm.max_map_count)."""


class Holder(Protocol):
    """An object that opens its file when it needs it."""

    def release_if_idle(self) -> bool:
        """Release the file unless it is in use; return whether none is held."""
        ...


class OpenFiles:
    """Open files of one process. Any thread."""

    def __init__(self) -> None:
        self.opening = threading.RLock()
        """Held while a file is opened by its name, and while files are pinned before names change."""
        self._holders: deque[ref[Holder]] = deque()

    def opened(self, holder: Holder) -> None:
        """Register a file that was just opened; release others beyond half of the process's descriptor limit."""
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        held_max = HELD_MAX if soft == resource.RLIM_INFINITY else min(HELD_MAX, soft // 2)
        with self.opening:
            self._holders.append(ref(holder))
            checks = CHECKS
            while checks and len(self._holders) > held_max:
                oldest = self._holders.popleft()
                held = oldest()
                if held is None:
                    continue
                checks -= 1
                if not held.release_if_idle():
                    self._holders.append(oldest)


OPEN_FILES = OpenFiles()
"""The process's one instance: the limit belongs to the process, however many brokers run in it."""
