"""`onceflow reset`: the demo's folder goes, what `onceflow run` keeps in it stays."""

import io
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from onceflow.cli import main, onceflow
from onceflow.cli.demo.processes import DemoRuns, reset_command, take_folder
from onceflow.remedies import Remedy
from tests import remedies


def demo_folder(tmp_path: Path) -> Path:
    directory = tmp_path / ".onceflow"
    for child in ("broker", "redis", "checkpoint", "logs"):
        (directory / child).mkdir(parents=True)
    (directory / "demo.json").write_text("{}")
    (directory / "broker" / "meta.properties").touch()
    return directory


def test_the_demos_folder_is_removed_whole(tmp_path: Path) -> None:
    directory = demo_folder(tmp_path)
    done = CliRunner().invoke(onceflow, ["reset", "--data", str(directory), "--yes"], standalone_mode=False)
    assert done.exception is None
    assert not directory.exists()
    assert done.stdout == f"removed: {directory}\n"


def test_checkpoints_of_ones_own_pipelines_are_spared(tmp_path: Path) -> None:
    directory = demo_folder(tmp_path)
    kept = directory / "checkpoints" / "visits.app-users-click.651a8a8b" / "metadata"
    kept.parent.mkdir(parents=True)
    kept.touch()
    done = CliRunner().invoke(onceflow, ["reset", "--data", str(directory), "--yes"], standalone_mode=False)
    assert done.exception is None
    assert kept.exists()
    assert list(directory.iterdir()) == [directory / "checkpoints"]
    assert f"{directory / 'broker'}" in done.stdout
    assert f"{directory / 'checkpoints'} stays" in done.stderr


@pytest.mark.remedy(Remedy.SKIP_QUESTION)
def test_without_a_yes_the_demo_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = demo_folder(tmp_path)
    monkeypatch.setattr("sys.argv", ["onceflow", "reset", "--data", str(directory)])
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.endswith("onceflow: nothing was removed; --yes skips the question\n")
    assert (directory / "demo.json").exists()
    remedies.find(Remedy.SKIP_QUESTION, said)
    done = CliRunner().invoke(onceflow, ["reset", "--data", str(directory), "--yes"], standalone_mode=False)
    assert (done.exception, directory.exists()) == (None, False)


@pytest.mark.remedy(Remedy.STOP_DEMO, Remedy.OTHER_DEMO)
def test_the_folder_of_a_demo_that_runs(tmp_path: Path) -> None:
    directory = demo_folder(tmp_path)
    words = ["reset", "--data", str(directory), "--yes"]
    with take_folder(directory):
        refused = CliRunner().invoke(onceflow, words, standalone_mode=False)
        assert f"is running, pid {os.getpid()}" in str(refused.exception)
        with pytest.raises(DemoRuns) as raised, take_folder(directory):
            pass
        remedies.find(Remedy.OTHER_DEMO, raised.value)
        (tmp_path / "other").mkdir()
        with take_folder(tmp_path / "other"):
            pass
    for message in (refused.exception, raised.value):
        remedies.find(Remedy.STOP_DEMO, message)
    with take_folder(directory):
        pass
    done = CliRunner().invoke(onceflow, words, standalone_mode=False)
    assert (done.exception, directory.exists()) == (None, False)


def test_the_hint_names_a_folder_that_is_not_the_default() -> None:
    assert reset_command("onceflow", Path(".onceflow")) == "onceflow reset"
    assert reset_command("onceflow", Path("my demo")) == "onceflow reset --data 'my demo'"
