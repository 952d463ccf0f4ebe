"""`onceflow reset`: deletes the demo's directory, except the checkpoints of `onceflow run`."""

import io
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from onceflow.cli import main, onceflow
from onceflow.cli.demo.processes import DemoRuns, lock_directory, reset_command
from onceflow.remedies import Remedy
from tests import remedies


def demo_folder(tmp_path: Path) -> Path:
    directory = tmp_path / ".onceflow"
    for child in ("broker", "redis", "checkpoint", "logs"):
        (directory / child).mkdir(parents=True)
    (directory / "demo.json").write_text("{}")
    (directory / "broker" / "meta.properties").touch()
    return directory


def test_the_demo_directory_is_deleted(tmp_path: Path) -> None:
    directory = demo_folder(tmp_path)
    done = CliRunner().invoke(onceflow, ["reset", "--data", str(directory), "--yes"], standalone_mode=False)
    assert done.exception is None
    assert not directory.exists()
    assert done.stdout == f"deleted: {directory}\n"


def test_checkpoints_of_pipelines_are_kept(tmp_path: Path) -> None:
    directory = demo_folder(tmp_path)
    kept = directory / "checkpoints" / "visits.app-users-click.651a8a8b" / "metadata"
    kept.parent.mkdir(parents=True)
    kept.touch()
    done = CliRunner().invoke(onceflow, ["reset", "--data", str(directory), "--yes"], standalone_mode=False)
    assert done.exception is None
    assert kept.exists()
    assert list(directory.iterdir()) == [directory / "checkpoints"]
    assert f"{directory / 'broker'}" in done.stdout
    assert f"kept: {directory / 'checkpoints'}" in done.stderr


@pytest.mark.remedy(Remedy.SKIP_QUESTION)
def test_unconfirmed_resets_keep_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = demo_folder(tmp_path)
    monkeypatch.setattr("sys.argv", ["onceflow", "reset", "--data", str(directory)])
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    printed = capsys.readouterr().err
    assert printed.endswith(f"onceflow: nothing was deleted; {Remedy.SKIP_QUESTION}\n")
    assert (directory / "demo.json").exists()
    remedies.find(Remedy.SKIP_QUESTION, printed)
    done = CliRunner().invoke(onceflow, ["reset", "--data", str(directory), "--yes"], standalone_mode=False)
    assert (done.exception, directory.exists()) == (None, False)


@pytest.mark.remedy(Remedy.STOP_DEMO, Remedy.OTHER_DEMO)
def test_running_demos_hold_their_directory(tmp_path: Path) -> None:
    directory = demo_folder(tmp_path)
    words = ["reset", "--data", str(directory), "--yes"]
    with lock_directory(directory):
        refused = CliRunner().invoke(onceflow, words, standalone_mode=False)
        assert f"is running, pid {os.getpid()}" in str(refused.exception)
        with pytest.raises(DemoRuns) as raised, lock_directory(directory):
            pass
        remedies.find(Remedy.OTHER_DEMO, raised.value)
        (tmp_path / "other").mkdir()
        with lock_directory(tmp_path / "other"):
            pass
    for message in (refused.exception, raised.value):
        remedies.find(Remedy.STOP_DEMO, message)
    with lock_directory(directory):
        pass
    done = CliRunner().invoke(onceflow, words, standalone_mode=False)
    assert (done.exception, directory.exists()) == (None, False)


def test_the_reset_command_names_the_directory() -> None:
    assert reset_command("onceflow", Path(".onceflow")) == "onceflow reset"
    assert reset_command("onceflow", Path("my demo")) == "onceflow reset --data 'my demo'"
