"""The processes of a broker: its own, and the closer of its session with ZooKeeper."""

import os
import random
import signal
from pathlib import Path

from onceflow.testing import BrokerProcess


def closer_of(pid: int) -> int:
    """Return the process that closes a broker's session after its death."""
    (closer,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(closer)


def is_alive(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def lose_machine(broker: BrokerProcess) -> None:
    """Kill a broker with its closer, as the end of their machine does: its session lasts until the timeout."""
    os.kill(closer_of(broker.pid), signal.SIGKILL)
    broker.kill()


def crash(broker: BrokerProcess, chance: random.Random) -> None:
    """Kill a broker's process, or lose its machine: others learn of its death at once, or by the session's timeout."""
    chance.choice((BrokerProcess.kill, lose_machine))(broker)
