"""Which files of segments the process holds open or mapped: those in use, and not many more.

A broker of ten thousand partitions must not need a descriptor for each segment. So a segment opens its file when it is
first needed, a sealed index maps its own when it is first searched (a mapping holds a descriptor, too), and each lets
go of it when others need the room and nobody has asked for it since the last look. Whoever holds the file itself, for
instance to send from it, keeps it open. A file with bytes that are not synced is never let go: that a write to it
failed later would be told to a descriptor that was open then, and to no later one for certain.
"""

import resource
import threading
from collections import deque
from typing import Protocol
from weakref import ref

LOOKS = 8
"""At how many files is looked when one more is opened: as many as that may be let go for it."""

HELD_MAX = 20_000
"""However many descriptors the process may have: Linux lets it map 65,530 files (vm.max_map_count)."""


class Holder(Protocol):
    """What opens a file when it needs it."""

    def let_go(self) -> bool:
        """Lets go of the file, unless it is in use; true if no file is held."""
        ...


class OpenFiles:
    """The files of one process. Any thread."""

    def __init__(self) -> None:
        self.opening = threading.RLock()
        """Held while a file is opened by its name, and while what must stay open is told before names change."""
        self._holders: deque[ref[Holder]] = deque()

    def opened(self, holder: Holder) -> None:
        """Takes note of a file that was just opened, and lets go of others beyond half of what the process may open."""
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        held_max = HELD_MAX if soft == resource.RLIM_INFINITY else min(HELD_MAX, soft // 2)
        with self.opening:
            self._holders.append(ref(holder))
            looks = LOOKS
            while looks and len(self._holders) > held_max:
                oldest = self._holders.popleft()
                held = oldest()
                if held is None:
                    continue
                looks -= 1
                if not held.let_go():
                    self._holders.append(oldest)


OPEN_FILES = OpenFiles()
"""A limit of the process, so that there is one of them, however many brokers run in it."""
