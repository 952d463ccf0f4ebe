"""What cannot be meant is wrong usage: exit code 2 and one sentence with the remedy, before anything is touched."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from onceflow.cli import onceflow

FIELDS = ["--field", "uid=user"]


@pytest.mark.parametrize("command", ["run", "verify", "clicks", "dead", "dashboard", "sink reset redis"])
@pytest.mark.parametrize("url", ["localhost:6379", "redis://h:99999/1", "redis://[::1/1", "redis://h/one"])
def test_a_redis_address_that_is_none(command: str, url: str) -> None:
    done = CliRunner().invoke(onceflow, [*command.split(), "--redis", url])
    assert (done.exit_code, "write it as redis://HOST:PORT/DATABASE" in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--master", "foo"], "'foo' is none of local[2]"),
        (["run", "foo"], "'foo' is none of local[2]"),
        (["run", "local[2]", "--master", "local[1]"], "the master is given twice: local[2] and --master local[1]"),
        (["run", "--trigger", "5"], "'5' is neither available-now nor a pause like '5 seconds'"),
        (["run", "--key-field", ""], "must be different names"),
        (["run", "--value-field", "uid"], "must be different names"),
        (["run", "--hash-key", ""], "an empty name names nothing"),
        (["sink", "reset", "redis", "--hash-key", ""], "an empty name names nothing"),
        (["demo", "--json"], "it goes with --seconds"),
        (["clicks", "ada", "--top", "3"], "choose one"),
        (["log", "dump", __file__, "--format", "first", "--records"], "leave --records, --offset, --topic out"),
        (["generate", "--json", "--echo"], "choose one"),
        (["replay", "f.csv", *FIELDS, "--const", "uid=1"], "'uid' is given by --field and by --const"),
        (["replay", "f.csv", *FIELDS, "--const", "click_count=x"], "is not a count"),
        (["replay", "f.csv", *FIELDS, "--time-format", "foo"], "nor a pattern like"),
        (["replay", "f.csv", "--field", "uuid=user"], "--field uid=user is meant"),
        (["replay", "f.csv", *FIELDS, "--field", "event_tme=at"], "--field event_time=at is meant"),
        (["replay", "f.csv", *FIELDS, "--const", "click_counts=1"], "--const click_count=1 is meant"),
    ],
)
def test_an_option_that_cannot_be_meant(arguments: list[str], sentence: str) -> None:
    done = CliRunner().invoke(onceflow, arguments)
    assert (done.exit_code, sentence in done.output) == (2, True), done.output


def test_a_further_field_may_be_near_one_that_is_given(tmp_path: Path, bootstrap: str, topic: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text('{"user":"ada","id":"7"}\n')
    fields = ["--field", "uid=user", "--field", "uuid=id", "--const", "click_count=1"]
    done = CliRunner().invoke(
        onceflow, ["replay", str(path), *fields, "--bootstrap", bootstrap, "--topic", topic, "--json"]
    )
    assert json.loads(done.output)["sent"] == 1


def test_a_folder_that_cannot_be_made_is_one_sentence() -> None:
    command = [sys.executable, "-m", "onceflow", "demo", "--data", "/dev/null/demo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "/dev/null/demo" in done.stderr
