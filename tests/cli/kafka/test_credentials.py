"""`onceflow credential`: on a running broker, and in a data directory before the first start."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from onceflow.broker.config import Endpoint
from onceflow.cli import onceflow
from tests.broker.driven_broker import InnerBroker

PASSWORD = "correct horse"


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "ada.password"
    path.touch(mode=0o600)
    path.write_text(f"{PASSWORD}\n")
    return path


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InnerBroker]:
    listeners = tuple(Endpoint(port=0, listener=name) for name in ("PLAINTEXT", "SASL_PLAINTEXT"))
    with InnerBroker(tmp_path / "data", listeners=listeners) as running:
        yield running


def run(*words: str, given: str = "") -> Result:
    return CliRunner().invoke(onceflow, ["credential", *words], prog_name="onceflow", input=given)


def listed(*place: str) -> list[tuple[str, str, int]]:
    return [tuple(entry.values()) for entry in json.loads(run("list", *place, "--json").stdout)]


def test_users_of_a_running_broker(broker: InnerBroker, password_file: Path, tmp_path: Path) -> None:
    place = ("--bootstrap", broker.bootstrap)
    added = run("add", "ada", *place, "--password-file", str(password_file), "--iterations", "5000")
    assert added.output == "user ada was stored: SCRAM-SHA-256, SCRAM-SHA-512\n"
    assert listed(*place) == [("ada", "SCRAM-SHA-256", 5000), ("ada", "SCRAM-SHA-512", 5000)]
    settings = tmp_path / "client.properties"
    settings.touch(0o600)
    settings.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config="
        f'org.apache.kafka.common.security.scram.ScramLoginModule required username="ada" password="{PASSWORD}";\n'
    )
    words = ["--config-file", str(settings), "topic", "list", "--bootstrap", broker.addresses["SASL_PLAINTEXT"]]
    shown = CliRunner().invoke(onceflow, words)
    assert shown.exit_code == 0, shown.output
    assert run("remove", "ada", *place, "--mechanism", "SCRAM-SHA-512").exit_code == 0
    assert listed(*place) == [("ada", "SCRAM-SHA-256", 5000)]
    refused = run("remove", "bob", *place)
    assert "user 'bob' was not removed: the broker returned RESOURCE_NOT_FOUND" in str(refused.exception)
    assert CliRunner().invoke(onceflow, words).exit_code != 0


def test_users_before_the_first_start(tmp_path: Path) -> None:
    data = tmp_path / "new"
    assert run("add", "ada", "--data", str(data), given=f"{PASSWORD}\n{PASSWORD}\n").exit_code == 0
    assert run("add", "eve", "--data", str(data), "--password-file", "-", given="x\n").exit_code == 0
    assert run("remove", "eve", "--data", str(data)).exit_code == 0
    expected = [("ada", "SCRAM-SHA-256", 4096), ("ada", "SCRAM-SHA-512", 4096)]
    assert listed("--data", str(data)) == expected
    with InnerBroker(data) as broker:
        assert listed("--bootstrap", broker.bootstrap) == expected
        assert "is in use" in str(run("list", "--data", str(data)).exception)
    assert "has no credential of SCRAM-SHA-256" in str(run("remove", "eve", "--data", str(data)).exception)


def test_open_password_files_are_refused(password_file: Path, tmp_path: Path) -> None:
    password_file.chmod(0o644)
    refused = run("add", "ada", "--data", str(tmp_path / "data"), "--password-file", str(password_file))
    assert "other users can read it" in str(refused.exception)
    assert not (tmp_path / "data").exists()


def test_an_empty_password_is_refused(tmp_path: Path) -> None:
    refused = run("add", "ada", "--data", str(tmp_path / "data"), "--password-file", "-", given="\n")
    assert refused.exit_code == 2
    assert "the password must not be empty" in refused.stderr
    refused = run("add", "ada", "--data", str(tmp_path / "data"), "--password-file", str(tmp_path / "missing"))
    assert refused.exit_code == 2
    assert "missing cannot be read: No such file or directory\n" in refused.stderr


def test_passwords_are_in_no_output(broker: InnerBroker, password_file: Path, tmp_path: Path) -> None:
    """Not in output, files of the broker, or the messages of a broker that refuses."""
    outputs = [
        run("add", "ada", "--bootstrap", broker.bootstrap, "--password-file", str(password_file)),
        run("add", "ada", "--bootstrap", "127.0.0.1:1", "--password-file", str(password_file)),
        run("add", "", "--bootstrap", broker.bootstrap, "--password-file", str(password_file)),
    ]
    for result in outputs:
        assert PASSWORD not in f"{result.output}{result.stderr}{result.exception!r}"
    stored = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert not [path for path in stored if PASSWORD.encode() in path.read_bytes()]
