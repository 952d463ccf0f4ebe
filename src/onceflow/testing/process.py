"""`onceflow broker` in a process of its own, for tests that kill it."""

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from onceflow.remedies import Remedy
from onceflow.testing.in_process import BrokerNotUsable

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 30.0


class BrokerProcess:
    """`onceflow broker` in a process of its own, on 127.0.0.1; `start` may be called again after `stop` or `kill`.

    The first start picks a port, later ones reuse it, like a restarted broker. `arguments` are passed to the command
    line unchanged. The broker's log is in `log_path`, beside the data.
    """

    def __init__(self, data: str | os.PathLike[str], port: int = 0, *arguments: str) -> None:
        self.data = Path(data)
        self.port = port
        self.log_path = self.data.with_name(self.data.name + ".log")
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The running broker's process id. Raises BrokerNotUsable if it does not run."""
        if self._process is None:
            raise BrokerNotUsable(f"the broker on {self.data} is not running; {Remedy.START_TEST_BROKER}")
        return self._process.pid

    def start(self) -> "BrokerProcess":
        """Start and wait until it listens, at most 30 s. Raises BrokerNotUsable if it is already running, or with its
        log."""
        if self._process is not None:
            raise BrokerNotUsable(
                f"the broker on {self.data} is already running, with pid {self.pid}; {Remedy.STOP_TEST_BROKER}"
            )
        listen = ("--listen", f"127.0.0.1:{self.port}")
        command = [*self._program(), "broker", "--data", str(self.data), *listen, *self._arguments]
        self.data.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=self._environment())
        line = self._first_line(START_SECONDS_MAX)
        if not line.startswith("listening on "):
            self.kill()
            raise BrokerNotUsable(f"the broker on {self.data} did not start: {self.log_path.read_text()[-2000:]}")
        self.port = int(line.rpartition(":")[2])
        return self

    def _program(self) -> list[str]:
        return [sys.executable, "-m", "onceflow"]

    def _environment(self) -> Mapping[str, str] | None:
        """Return the process's environment; None for this process's own."""
        return None

    def _first_line(self, timeout_seconds: float) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:  # select() takes no descriptor above 1,023.
            selector.register(self._process.stdout, selectors.EVENT_READ)
            ready = selector.select(timeout_seconds)
        return self._process.stdout.readline().decode().strip() if ready else ""

    def kill(self) -> None:
        """Send SIGKILL, like a crash of the process."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Send SIGTERM and wait for the clean end, at most 30 s; return the exit code, 0 if it is not running.

        Raises subprocess.TimeoutExpired, after it has killed the process.
        """
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(timeout=STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            if process.stdout is not None:
                process.stdout.close()

    def __enter__(self) -> "BrokerProcess":
        return self.start()

    def __exit__(self, *_exception: object) -> None:
        self.stop()
