"""The configuration file of the commands."""

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from onceflow.cli import onceflow

NOWHERE = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def settings_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty configuration directory of the user; the environment is restored afterwards."""
    monkeypatch.setattr(click, "get_app_dir", lambda name: str(tmp_path / "settings" / name))
    for variable in ("ONCEFLOW_BOOTSTRAP", "ONCEFLOW_REDIS", "ONCEFLOW_CONFIG_FILE"):
        monkeypatch.setenv(variable, "")
    folder = tmp_path / "settings" / "onceflow"
    folder.mkdir(parents=True)
    return folder


def error_of(*words: str) -> str:
    """Return the error of a failing command."""
    done = CliRunner().invoke(onceflow, words)
    assert done.exit_code != 0
    return f"{done.exception} {done.output}"


def test_the_users_own_file_is_found(settings_folder: Path) -> None:
    assert "127.0.0.1:9092" in CliRunner().invoke(onceflow, ["topic", "list", "--help"]).output
    (settings_folder / "onceflow.conf").write_text(f"# mine\nbootstrap = {NOWHERE}\nredis=redis://127.0.0.1:1/7\n")
    assert f"no Kafka broker responds at {NOWHERE}" in error_of("topic", "list")
    assert "redis://127.0.0.1:1/7" in error_of("clicks")


def test_the_file_is_for_one_command(settings_folder: Path) -> None:
    """Neither the process nor its children get its addresses."""
    (settings_folder / "onceflow.conf").write_text(f"bootstrap = {NOWHERE}\n")
    error_of("topic", "list")
    assert os.environ["ONCEFLOW_BOOTSTRAP"] == ""


def test_options_override_environment_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "given.conf"
    file.write_text("bootstrap=127.0.0.1:2\n")
    assert "responds at 127.0.0.1:2" in error_of("--config-file", str(file), "topic", "list")
    monkeypatch.setenv("ONCEFLOW_BOOTSTRAP", "127.0.0.1:3")
    assert "responds at 127.0.0.1:3" in error_of("--config-file", str(file), "topic", "list")
    assert "responds at 127.0.0.1:4" in error_of(
        "--config-file", str(file), "topic", "list", "--bootstrap", "127.0.0.1:4"
    )
    monkeypatch.setenv("ONCEFLOW_BOOTSTRAP", "")
    monkeypatch.setenv("ONCEFLOW_CONFIG_FILE", str(file))
    assert "responds at 127.0.0.1:2" in error_of("topic", "list")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bootstarp=h:1", "unknown setting bootstarp; did you mean bootstrap?"),
        ("topic=visits", "unknown setting topic; it can have bootstrap, redis and Kafka's TLS and SASL"),
        ("bootstrap=h", "'h' is not a broker address"),
        ("redis=\udcff", "cannot read the configuration file"),
        (None, "given.conf: No such file or directory"),
    ],
)
def test_invalid_files_are_refused(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "given.conf"
    if text is not None:
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
    done = CliRunner().invoke(onceflow, ["--config-file", str(file), "topic", "list"])
    assert (done.exit_code, message in " ".join(done.output.split())) == (2, True), done.output
