"""Logs of a failed test's processes."""

from pathlib import Path

from tests.process_logs import SHOWN_BYTES_MAX, ends_of_logs


def test_logs_of_processes_are_shown(tmp_path: Path) -> None:
    (tmp_path / "driver.log").write_text("x" * SHOWN_BYTES_MAX + "last line\n")
    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / "server.log").write_text("ready\n")
    (tmp_path / "redis" / "empty.log").touch()
    (tmp_path / "data" / "topic-0").mkdir(parents=True)
    (tmp_path / "data" / "00000000000000000000.log").write_bytes(b"\0")
    (tmp_path / "data" / "topic-0" / "server.log").write_text("too deep\n")
    shown = dict(ends_of_logs(tmp_path))
    assert shown.keys() == {"driver.log", "redis/server.log"}
    assert shown["driver.log"].endswith("last line\n")
    assert len(shown["driver.log"]) == SHOWN_BYTES_MAX
