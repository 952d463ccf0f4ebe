"""The log as JSON: every line on standard error, whatever wrote it."""

import json
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onceflow.cli.logs import TEXT_LAYOUT, JsonLines, TextLines
from onceflow.testing import BrokerProcess
from tests.broker.raw_client import RawClient, batch_of
from tests.end_to_end.pipeline import ONCEFLOW


def entries(*words: str) -> list[dict[str, Any]]:
    """Return the log of a command that fails."""
    options = ["--log-format", "json"]
    done = subprocess.run([*ONCEFLOW, *options, *words], capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    return [json.loads(line) for line in done.stderr.splitlines()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("broker", "--data", "/proc/x", "--listen", "127.0.0.1:0"), "cannot use --data /proc/x: "),
        (("brok",), "No such command 'brok'. Did you mean 'broker'?"),
        (("verify", "--topic"), "Option '--topic' requires an argument."),
        (("verify", "--redis", "redis://127.0.0.1:1/1"), "inconclusive: failed to read "),
    ],
    ids=["error", "command", "option", "own exit code"],
)
def test_errors_are_json(words: tuple[str, ...], message: str) -> None:
    (entry,) = entries(*words)
    assert entry["level"] == "error"
    assert entry["message"].startswith(message)
    assert entry.keys() == {"time", "level", "logger", "message"}


def test_a_broker_logs_json(tmp_path: Path) -> None:
    (tmp_path / "foreign-0").mkdir()
    (tmp_path / "foreign-0" / "x").touch()
    command = [*ONCEFLOW, "--log-format", "json", "broker", "--data", str(tmp_path), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None and broker.stderr is not None
        assert broker.stdout.readline().startswith("listening on ")
        broker.send_signal(signal.SIGTERM)
        logged = [json.loads(line) for line in broker.stderr]
    assert broker.returncode == 0
    assert {entry["level"] for entry in logged} <= {"info", "warning"}
    assert any("foreign-0" in entry["message"] and entry["logger"].startswith("onceflow.broker") for entry in logged)


def test_a_message_is_one_line() -> None:
    """No name can forge another entry of the log, or control the terminal that shows it."""
    for name in ("x\n2026-01-01 00:00:00,000 ERROR forged", "\r\x1b[2Jx", "x\u2028forged\x85", "t\tab\x7f"):
        record = logging.LogRecord("a.b", logging.INFO, "f.py", 1, "topic %s", (name,), None)
        assert TextLines(TEXT_LAYOUT).format(record).isprintable()
    record = logging.LogRecord("a.b", logging.INFO, "f.py", 1, "Zoë's C:\\topic", (), None)
    assert TextLines("%(message)s").format(record) == "Zoë's C:\\topic"


def test_clients_cannot_forge_entries(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        client = RawClient(broker.bootstrap)
        client.send_batch("x\n2026-01-01 00:00:00,000 ERROR forged", 0, batch_of(b"x"), acks=0)
        assert client.receive_frame() == b""
        client.close()
        log = broker.log_path.read_text()
    assert "topic x\\n2026-01-01" in log
    assert "\n2026-01-01" not in log


def test_an_exception_has_its_stack_trace() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("a.b", logging.WARNING, "f.py", 1, "failed: %s", ("x",), sys.exc_info())
    (line,) = JsonLines().format(record).splitlines()
    entry = json.loads(line)
    assert (entry["logger"], entry["level"], entry["message"]) == ("a.b", "warning", "failed: x")
    assert entry["exception"].startswith("Traceback") and entry["exception"].endswith("ValueError: two\nlines\n")
    assert entry["time"].endswith("+00:00")
