"""Logs of a failed test's processes, shown with its failure."""

from collections.abc import Iterator
from pathlib import Path

SHOWN_BYTES_MAX = 8 * 1024
DEPTH_MAX = 2


def ends_of_logs(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield (path, last lines) of each log file below `directory` that is not a partition's."""
    for depth in range(DEPTH_MAX):
        for path in sorted(directory.glob("*/" * depth + "*.log")):
            # A segment is named after its first offset.
            if path.is_file() and not path.stem.isdigit() and path.stat().st_size:
                with path.open("rb") as log:
                    log.seek(max(0, path.stat().st_size - SHOWN_BYTES_MAX))
                    yield str(path.relative_to(directory)), log.read().decode(errors="replace")
