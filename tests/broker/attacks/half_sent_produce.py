"""Connections that announce a large Produce request and send it a byte at a time.

By default 38 of them announce 100 MiB, 1 MB or 65 KB and send a byte every ten seconds. Before the first pause they
send more than the broker receives without reserving memory.
"""

import argparse
import struct
import time
from contextlib import suppress

from onceflow.wire import apis
from tests.broker.attacks.neighbour import is_over, ready
from tests.broker.raw_client import RawClient

SIZES = (100 * 1024 * 1024,) * 5 + (1_000_000,) * 12 + (65_000,) * 21
"""512 MiB and a little more."""
PAUSE_SECONDS = 0.05
SEND_SECONDS_MAX = 2.0


class HalfSent:
    """One connection that never ends its request; reopened when the broker closes it."""

    def __init__(self, bootstrap: str, size_bytes: int, sent_bytes: int) -> None:
        self._bootstrap = bootstrap
        self._beginning = struct.pack(">ihh", size_bytes, apis.PRODUCE, 9) + bytes(min(sent_bytes, size_bytes - 1000))
        self._client: RawClient | None = None
        self._due_at = 0.0

    def dribble(self, now: float, every_seconds: float) -> None:
        """Send a byte if it is time; open the connection if there is none."""
        try:
            if self._client is None:
                self._client = RawClient(self._bootstrap)
                self._client.socket.settimeout(SEND_SECONDS_MAX)
                with suppress(TimeoutError):
                    self._client.socket.sendall(self._beginning)
                self._client.socket.setblocking(False)
            elif now >= self._due_at:
                with suppress(BlockingIOError):
                    self._client.socket.send(b"\0")
            else:
                return
            self._due_at = now + every_seconds
        except (ConnectionError, TimeoutError):
            self._client = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("--connections", type=int, default=38)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="announced bytes, in turn")
    parser.add_argument("--sent", type=int, default=5_000, help="bytes sent before the first pause, at most")
    parser.add_argument("--every", type=float, default=10.0, help="seconds from one byte to the next")
    options = parser.parse_args()
    sizes = options.sizes
    clients = [
        HalfSent(options.bootstrap, sizes[number % len(sizes)], options.sent) for number in range(options.connections)
    ]
    for client in clients:
        client.dribble(time.monotonic(), options.every)
    ready()
    while not is_over():
        for client in clients:
            client.dribble(time.monotonic(), options.every)
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
