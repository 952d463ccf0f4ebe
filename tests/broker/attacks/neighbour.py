"""An innocent client beside an attack: the latency of its requests, the broker's memory, and the time to recover.

The innocent client writes records with acks=all to a topic of its own, one at a time, of 100 bytes unless a test uses
larger ones. Each larger one has a new connection with a small receive buffer. The attack is one of the programs beside
this module, in a process of its own.
"""

import math
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from onceflow.testing import BrokerProcess
from onceflow.wire.batch import Record, encode_batch
from onceflow.wire.codecs import Codec
from tests.broker.raw_client import RawClient

READY = "ATTACKING"
READY_SECONDS_MAX = 60
LATENCY_MS_MAX = 100.0
"""Bound of the neighbour's 99th percentile during an attack."""
GROWTH_MIB_MAX = 128.0
RECOVERY_SECONDS_MAX = 2.0
RECOVERY_WATCHED_SECONDS = 30.0
CALM_SECONDS = 3.0
TOPIC = "innocent"
TIME_MS = 1_700_000_000_000
VALUE_BYTES = 100
FIRST_BUFFER_BYTES = 4096
"""Bytes that the broker receives of each connection without reserving memory."""
PAUSE_SECONDS = 0.002


@dataclass(frozen=True)
class Figures:
    """Figures of one attack."""

    quiet_p99_ms: float
    p99_ms: float
    max_ms: float
    growth_mib: float
    """The broker's largest resident set during the attack and the recovery, less the one before."""
    recovery_seconds: float
    """Time from the attack's end until the neighbour's 99th percentile over CALM_SECONDS is below LATENCY_MS_MAX again.
    """

    def __str__(self) -> str:
        return (
            f"p99 {self.quiet_p99_ms:.1f} ms quiet, {self.p99_ms:.1f} ms attacked (max {self.max_ms:.0f});"
            f" {self.growth_mib:.0f} MiB more at most; recovered in {self.recovery_seconds:.2f} s"
        )

    def check(self) -> None:
        """Fail unless the figures are within the bounds of every attack."""
        assert self.p99_ms < LATENCY_MS_MAX, self
        assert self.growth_mib <= GROWTH_MIB_MAX, self
        assert self.recovery_seconds <= RECOVERY_SECONDS_MAX, self


class Neighbour:
    """Writes in a thread from `start` to `stop`, and records the start and the latency of each request."""

    def __init__(self, bootstrap: str, value_bytes: int = VALUE_BYTES, *, is_compacted: bool = False) -> None:
        """Options of a compacted topic; its batches are compressed, so that a thread checks their records."""
        self._bootstrap = bootstrap
        record = Record(0, TIME_MS, b"k", bytes(value_bytes))
        self._batch = encode_batch([record], codec=Codec.GZIP if is_compacted else Codec.NONE)
        self._client = self._connect()
        self._client.create_topic(TOPIC, cleanup_policy="compact" if is_compacted else "delete")
        self._samples: list[tuple[float, float]] = []
        self._is_over = threading.Event()
        self._began_at = math.inf
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _connect(self) -> RawClient:
        client = RawClient(self._bootstrap)
        client.socket.settimeout(120)
        return client

    def _run(self) -> None:
        has_new_connections = len(self._batch) > FIRST_BUFFER_BYTES
        try:
            while not self._is_over.wait(PAUSE_SECONDS):
                self._began_at = time.monotonic()
                if has_new_connections:
                    self._client.close()
                    self._client = self._connect()
                response = self._client.produce(TOPIC, 0, self._batch)
                assert response.error_code == 0, response
                self._samples.append((self._began_at, time.monotonic() - self._began_at))
                self._began_at = math.inf
        except (OSError, AssertionError) as failure:
            self._failure = failure

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Raise the thread's error, if any."""
        self._is_over.set()
        self._thread.join()
        self._client.close()
        if self._failure is not None:
            raise self._failure

    def latencies_ms(self, begin: float, end: float = math.inf) -> list[float]:
        """Return the latencies, ascending, of requests that began in this time or had no response at `begin`."""
        samples = list(self._samples)
        pending = self._began_at
        if pending < end:
            samples.append((pending, time.monotonic() - pending))
        return sorted(1000 * took for at, took in samples if at < end and at + took >= begin)

    def calm_since(self, begin: float) -> float:
        """Return when, after `begin`, the 99th percentile of the following CALM_SECONDS was first below its bound."""
        slow = [at + took for at, took in self._samples if at + took > begin and took * 1000 >= LATENCY_MS_MAX]
        candidates = [begin, *slow]
        calm = (at for at in candidates if p99(self.latencies_ms(at, at + CALM_SECONDS)) < LATENCY_MS_MAX)
        return next(calm, candidates[-1])


@contextmanager
def attacking(attack: str, bootstrap: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run the attack `tests.broker.attacks.{attack}` from its READY line to the end of the block."""
    command = [sys.executable, "-m", f"tests.broker.attacks.{attack}", bootstrap, *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    watchdog = threading.Timer(READY_SECONDS_MAX, process.kill)
    watchdog.start()
    try:
        line = process.stdout.readline()
        watchdog.cancel()
        assert line.strip() == READY, f"{attack} could not start: {line!r}"
        yield process
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def ready() -> None:
    """Report the start of the attack; called by an attack program."""
    print(READY, flush=True)


def is_over() -> bool:
    """Return whether the harness of an attack program has ended: its standard input is closed."""
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable)


def measure(
    broker: BrokerProcess,
    attack: str,
    *options: str,
    value_bytes: int = VALUE_BYTES,
    is_compacted: bool = False,
    seconds: float = 10.0,
) -> Figures:
    """Run an attack for some seconds beside the innocent client of a running broker."""
    neighbour = Neighbour(broker.bootstrap, value_bytes, is_compacted=is_compacted)
    neighbour.start()
    try:
        time.sleep(0.5)
        quiet_at = time.monotonic()
        time.sleep(2)
        before_mib = memory_mib(broker.pid)
        quiet = neighbour.latencies_ms(quiet_at)
        reset_peak(broker.pid)
        with attacking(attack, broker.bootstrap, *options):
            began_at = time.monotonic()
            time.sleep(seconds)
        ended_at = time.monotonic()
        attacked = neighbour.latencies_ms(began_at, ended_at)
        wait_for_calm(neighbour, ended_at)
        growth_mib = memory_mib(broker.pid, "VmHWM") - before_mib
        recovered_at = neighbour.calm_since(ended_at)
    finally:
        neighbour.stop()
    return Figures(p99(quiet), p99(attacked), attacked[-1], growth_mib, recovered_at - ended_at)


def wait_for_calm(neighbour: Neighbour, ended_at: float) -> None:
    """Wait until nothing was slow for CALM_SECONDS, at most RECOVERY_WATCHED_SECONDS."""
    while time.monotonic() < ended_at + RECOVERY_WATCHED_SECONDS:
        time.sleep(CALM_SECONDS)
        latest = neighbour.latencies_ms(time.monotonic() - CALM_SECONDS)
        if latest and latest[-1] < LATENCY_MS_MAX:
            return


def p99(latencies_ms: Sequence[float]) -> float:
    """Return the 99th percentile of ascending latencies."""
    return latencies_ms[max(0, math.ceil(len(latencies_ms) * 0.99) - 1)]


def memory_mib(process_id: int, which: str = "VmRSS") -> float:
    """Return a process's resident set, or with VmHWM its peak, in MiB (proc(5))."""
    status = Path(f"/proc/{process_id}/status").read_text()
    match = re.search(rf"^{which}:\s+(\d+) kB", status, re.MULTILINE)
    assert match is not None
    return int(match[1]) / 1024


def cpu_seconds(process_id: int) -> float:
    """Return the user and system time of a process (proc(5))."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def reset_peak(process_id: int) -> None:
    """Reset VmHWM to the present resident set (proc(5), clear_refs)."""
    Path(f"/proc/{process_id}/clear_refs").write_text("5")
