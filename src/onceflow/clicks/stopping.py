"""Ctrl-C and SIGTERM as a flag, so that a loop ends between two events at a known position."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Return a flag that the first SIGINT or SIGTERM sets; the second one has its former effect. Main thread only."""
    stop = threading.Event()
    previous = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        restore()
        stop.set()

    for number in SIGNALS:
        signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        restore()
