"""The connector's benchmark without a contender: latencies, wrong sums, child processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import latency
from benchmarks.child import Child, ChildFailed, processor_seconds, tree
from benchmarks.clicks_topic import Clicks, differences

ECHO = "import sys\nfor line in sys.stdin: print(line.strip().replace('work', 'done'), flush=True)"


def test_events_are_visible_when_counted() -> None:
    ticks = [(2, 10.0), (3, 11.0), (6, 12.0)]
    seen = [(0, 9.0), (3, 11.5), (6, 13.0)]
    assert latency.latencies_ms(ticks, seen).tolist() == [1500, 1500, 500, 1000, 1000, 1000]


def test_wrong_and_missing_sums_are_differences() -> None:
    clicks = Clicks("clicks", 9, {b"right": 3, b"wrong": 4, b"missing": 1, b"never": 0})
    assert differences({b"right": b"3", b"wrong": b"5", b"strange": b"1", b"none": b"0"}, clicks) == 3
    assert differences({b"right": b"3", b"wrong": b"4", b"missing": b"1"}, clicks) == 0


def test_children_respond_to_each_line(tmp_path: Path) -> None:
    with Child([sys.executable, "-c", ECHO], tmp_path / "child.log") as child:
        assert child.ask("drain", topic="clicks") == {"done": "drain", "topic": "clicks"}
        assert not child.has_ended
    assert child.has_ended


def test_failures_of_children_show_their_log(tmp_path: Path) -> None:
    failing = [sys.executable, "-c", "raise SystemExit('no Java')"]
    with Child(failing, tmp_path / "child.log") as child, pytest.raises(ChildFailed, match="no Java"):
        child.respond(30)


def test_processor_time_includes_ended_descendants(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\n{ECHO}"
    with Child([sys.executable, "-c", parent], tmp_path / "child.log") as child:
        child.ask("drain")
        # The kernel counts in ticks, for each process.
        assert child.cpu_seconds() >= 0.3 - 5 / os.sysconf("SC_CLK_TCK")


def test_a_killed_child_leaves_no_descendant(tmp_path: Path) -> None:
    parent = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'])\n{ECHO}"
    child = Child([sys.executable, "-c", parent], tmp_path / "child.log")
    child.ask("drain")
    (descendant,) = [
        pid for pid in tree(os.getpid()) if "time.sleep(99)" in command(pid) and "Popen" not in command(pid)
    ]
    child.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{descendant}").exists() and state(descendant) != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ended_processes_have_used_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert processor_seconds(process.pid) == 0


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"
