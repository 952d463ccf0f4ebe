"""What cannot be meant is wrong usage: exit code 2 and one sentence with the remedy, before anything is touched."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from onceflow.cli import onceflow
from onceflow.clicks.results import snapshot
from tests.clicks.counted import GOOD_AND_BAD, count
from tests.conftest import RedisProcess

FIELDS = ["--field", "uid=user"]


@pytest.mark.parametrize("command", ["run", "verify", "clicks", "dead", "dashboard", "reset"])
@pytest.mark.parametrize("url", ["localhost:6379", "redis://h:99999/1", "redis://[::1/1", "redis://h/one"])
def test_a_redis_address_that_is_none(command: str, url: str) -> None:
    done = CliRunner().invoke(onceflow, [command, "--redis", url])
    assert (done.exit_code, "write it as redis://HOST:PORT/DATABASE" in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--master", "foo"], "'foo' is none of local[2]"),
        (["run", "--trigger", "5"], "'5' is neither available-now nor a pause like '5 seconds'"),
        (["run", "--key-field", ""], "must be different names"),
        (["run", "--value-field", "uid"], "must be different names"),
        (["run", "--hash-key", ""], "an empty name names nothing"),
        (["reset", "--hash-key", ""], "an empty name names nothing"),
        (["reset", "--hash-key", "visits", "--yes"], "--hash-key goes with --redis"),
        (["reset", "--checkpoint", "x", "--yes"], "--checkpoint goes with --redis"),
        (["reset", "--redis", "redis://h:1/1", "--data", "x", "--yes"], "choose one"),
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


def test_reset_leaves_all_alone_where_the_checkpoint_is_none(tmp_path: Path) -> None:
    options = ["--redis", "redis://127.0.0.1:1/1", "--checkpoint", str(tmp_path / "missing"), "--yes"]
    done = CliRunner().invoke(onceflow, ["reset", *options], standalone_mode=False)
    assert "does not exist here: nothing was removed" in str(done.exception)


def test_a_folder_that_cannot_be_made_is_one_sentence() -> None:
    command = [sys.executable, "-m", "onceflow", "demo", "--data", "/dev/null/demo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "/dev/null/demo" in done.stderr


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a+")
fcntl.lockf(file, fcntl.LOCK_EX)
file.write("JVM with pid 7 on here")
file.flush()
print("held", flush=True)
sys.stdin.read()
"""


def test_reset_removes_nothing_while_a_driver_runs(tmp_path: Path, redis_server: RedisProcess, topic: str) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id":"query"}')
    count(redis_server.url, topic, "t", GOOD_AND_BAD)
    command = ["reset", "--redis", redis_server.url, "--hash-key", topic, "--yes"]

    def reset(*options: str) -> Result:
        return CliRunner().invoke(onceflow, [*command, *options], standalone_mode=False)

    holder = [sys.executable, "-c", HOLD, str(checkpoint / "onceflow.lock")]
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == b"held\n"
        refused = reset("--checkpoint", str(checkpoint))
        driver.communicate()
    assert "is in use by JVM with pid 7 on here" in str(refused.exception)
    assert snapshot(redis_server.url, topic).events == 9
    assert "checkpoint is still there" in reset().stderr
    assert reset("--checkpoint", str(checkpoint)).exception is None
    assert not checkpoint.exists()
