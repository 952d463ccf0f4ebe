"""Kafka's protocol and record formats as values: bytes in, values out; no socket, no file, no clock."""

import contextlib
import sys

import kio.static

# kio registers its types with hypothesis if that is installed: 0.15 s at each start, and a folder `.hypothesis` in the
# working directory. It is hidden while one small module loads; another thread that imports hypothesis in these
# milliseconds gets ModuleNotFoundError.
if "hypothesis" not in sys.modules:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        with contextlib.suppress(ModuleNotFoundError):
            import kio.static._phantom  # noqa: F401
    finally:
        del sys.modules["hypothesis"]

TopicPartition = tuple[str, int]
"""A topic and the number of one of its partitions."""
