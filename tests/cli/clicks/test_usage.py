"""Wrong usage: exit code 2 and a message with the correct form, before any side effect."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from onceflow.cli import onceflow

FIELDS = ["--field", "uid=user"]
REVERSED = ["--from", "2026-02-15", "--to", "2026-02-14"]


@pytest.mark.parametrize("command", ["run", "verify", "clicks", "dead", "dashboard", "sink reset redis"])
@pytest.mark.parametrize("url", ["localhost:6379", "redis://h:99999/1", "redis://[::1/1", "redis://h/one"])
def test_invalid_redis_addresses_are_wrong_usage(command: str, url: str) -> None:
    done = CliRunner().invoke(onceflow, [*command.split(), "--redis", url])
    assert (done.exit_code, "write it as redis://HOST:PORT/DATABASE" in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--master", "foo"], "'foo' is not a valid master"),
        (["run", "foo"], "'foo' is not a valid master"),
        (["run", "local[2]", "--master", "local[1]"], "the master is given twice: local[2] and --master local[1]"),
        (["run", "--trigger", "5"], "'5' is not a valid trigger; expected available-now or a pause like '5 seconds'"),
        (["run", "--key-field", ""], "must have different names"),
        (["run", "--value-field", "uid"], "must have different names"),
        (["run", "--hash-key", ""], "the name must not be empty"),
        (["sink", "reset", "redis", "--hash-key", ""], "the name must not be empty"),
        (["demo", "--json"], "it needs --seconds"),
        (["clicks", "ada", "--top", "3"], "choose one"),
        (["log", "dump", __file__, "--format", "first", "--records"], "leave --records, --offset and --topic out"),
        (["generate", "--json", "--echo"], "choose one"),
        (["windows", "--length", "1h", *REVERSED], "--from is after --to"),
        (["sessions", *REVERSED], "--from is after --to"),
        (["query", "totals", *REVERSED, "--archive-only"], "--from is after --to"),
        (["replay", "f.csv", *FIELDS, "--const", "uid=1"], "'uid' is given by --field and by --const"),
        (["replay", "f.csv", *FIELDS, "--const", "click_count=x"], "is not a count"),
        (["replay", "f.csv", *FIELDS, "--time-format", "foo"], "nor a pattern like"),
        (["replay", "f.csv", "--field", "uuid=user"], "did you mean --field uid=user?"),
        (["replay", "f.csv", *FIELDS, "--field", "event_tme=at"], "did you mean --field event_time=at?"),
        (["replay", "f.csv", *FIELDS, "--const", "click_counts=1"], "did you mean --const click_count=1?"),
    ],
)
def test_invalid_options_are_wrong_usage(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(onceflow, arguments)
    assert (done.exit_code, message in done.output) == (2, True), done.output


def test_additional_fields_may_resemble_known_ones(tmp_path: Path, bootstrap: str, topic: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text('{"user":"ada","id":"7"}\n')
    fields = ["--field", "uid=user", "--field", "uuid=id", "--const", "click_count=1"]
    done = CliRunner().invoke(
        onceflow, ["replay", str(path), *fields, "--bootstrap", bootstrap, "--topic", topic, "--json"]
    )
    assert json.loads(done.output)["sent"] == 1


def test_unusable_directories_give_one_line() -> None:
    command = [sys.executable, "-m", "onceflow", "demo", "--data", "/dev/null/demo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "/dev/null/demo" in done.stderr
