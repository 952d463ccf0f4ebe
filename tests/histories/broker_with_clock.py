"""Broker process whose wall clock jumps on a test's command: `python -m tests.histories.broker_with_clock broker …`.

The test and the process share a file of 8 bytes, the milliseconds by which the broker's clock differs from the
machine's. The monotonic clock does not jump, as on any machine.

Its connections to other brokers come from an address of its own if it is given one, so that a test's network can tell
whose they are.
"""

import asyncio
import functools
import mmap
import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

from onceflow import cli, services
from onceflow.broker import server
from onceflow.log.clock import SystemClock
from onceflow.testing import BrokerProcess

SKEW_FILE = "ONCEFLOW_TEST_CLOCK_SKEW"
SOURCE_ADDRESS = "ONCEFLOW_TEST_SOURCE_ADDRESS"
STARTED_WITHIN_S = 300.0
"""Limit of a restart while other tests use the machine."""
_SKEW = struct.Struct("<q")


class Skew:
    """The shared file."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(_SKEW.pack(0))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SKEW.size)

    @property
    def ms(self) -> int:
        """Offset of the broker's clock from the machine's, in ms."""
        return int(_SKEW.unpack_from(self._memory)[0])

    @ms.setter
    def ms(self, ms: int) -> None:
        _SKEW.pack_into(self._memory, 0, ms)


class SkewedClock(SystemClock):
    """This machine's clock, ahead by `skew`."""

    def __init__(self, skew: Skew) -> None:
        self._skew = skew

    def now_ms(self) -> int:
        return super().now_ms() + self._skew.ms


class SkewedBroker(BrokerProcess):
    """A broker process whose clock `skew` sets."""

    def __init__(self, directory: Path, *arguments: str, port: int = 0, source_address: str = "") -> None:
        # While the broker is dead, nothing else takes a port of `services`.
        super().__init__(directory / "broker", port or services.free_port(), *arguments)
        self._source_address = source_address
        directory.mkdir(parents=True, exist_ok=True)
        self._skew_path = directory / "skew"
        self.skew = Skew(self._skew_path)

    def _program(self) -> list[str]:
        return [sys.executable, "-m", "tests.histories.broker_with_clock"]

    def _first_line(self, _timeout_seconds: float) -> str:
        return super()._first_line(STARTED_WITHIN_S)

    def _environment(self) -> Mapping[str, str]:
        return {**os.environ, SKEW_FILE: str(self._skew_path), SOURCE_ADDRESS: self._source_address}


def main() -> None:
    """Run the command line with a skewed clock."""
    skew = Skew(Path(os.environ[SKEW_FILE]))
    server.SystemClock = lambda: SkewedClock(skew)  # type: ignore[assignment, attr-defined]
    if source := os.environ[SOURCE_ADDRESS]:
        asyncio.open_connection = functools.partial(asyncio.open_connection, local_addr=(source, 0))
    cli.main()


if __name__ == "__main__":
    main()
