"""Files with secrets, which other users of the machine must not be able to read."""

import os
import stat
from pathlib import Path

MODE = "its mode must be 600"


def is_exposed(path: str | Path) -> bool:
    """Return whether every user of this machine can read a regular file. Raises OSError.

    A pipe, such as that of a shell's `<(…)`, has a mode without a meaning.
    """
    mode = os.stat(path).st_mode
    return stat.S_ISREG(mode) and bool(mode & stat.S_IROTH)
