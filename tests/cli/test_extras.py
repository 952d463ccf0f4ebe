"""The extras of each command: it runs with them, and its error names them if a package is missing."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from onceflow import __version__
from onceflow.cli import EXTRAS, missing_extra
from onceflow.errors import installed_from
from onceflow.remedies import Remedy
from onceflow.testing import Broker
from tests import remedies

BROKER = ("--bootstrap", "{bootstrap}")
REDIS = ("--redis", "redis://127.0.0.1:1")
ARGUMENTS: dict[str, Sequence[str]] = {
    "produce": ("visits", *BROKER),
    "generate": ("--count", "1", *BROKER),
    "replay": ("{file}", "--topic", "visits", "--const", "click_count=1", *BROKER),
    "serve": (*BROKER, "--host", "192.0.2.1", "--keys", "{keys}"),
    "run": (*BROKER, *REDIS),
    "verify": (*BROKER, *REDIS),
    "rebuild": (*BROKER, *REDIS),
    "clicks": REDIS,
    "windows": ("--length", "1h", *REDIS),
    "top": ("os", *REDIS),
    "sessions": REDIS,
    "user": ("ada", *REDIS),
    "dead": (*BROKER, *REDIS),
    "dashboard": ("--host", "192.0.2.1"),
    "sink": ("show", "redis", "--redis", "redis://127.0.0.1:1/1"),
    "status": (*BROKER, *REDIS),
    "watch": ("--once", "--alert", "redis down", *BROKER, *REDIS),
    "load": ("missing", "{file}.d", *BROKER),
    "archive": ("{file}.d", "--topic", "absent", *BROKER),
    "query": ("totals", "--archive", "{file}.d"),
    "report": ("2026-02-14", "--archive", "{file}.d"),
}
RUN = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None
from onceflow.cli import main
sys.argv = ["onceflow", *{words!r}]
main()
"""


packages_distributions = cache(metadata.packages_distributions)
"""Names of distributions by package; it reads the lists of all installed files."""


@cache
def packages_of(extras: tuple[str, ...]) -> set[str]:
    """Return the top-level packages of Onceflow's requirements with these extras, transitively."""

    def required(distribution: str, extra: str) -> Iterable[Requirement]:
        for line in metadata.requires(distribution) or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                yield requirement

    todo = [("onceflow", extra) for extra in ("", *extras)]
    done: set[tuple[str, str]] = set()
    while todo:
        if (item := todo.pop()) not in done:
            done.add(item)
            todo += [(needed.name, extra) for needed in required(*item) for extra in ("", *needed.extras)]
    distributions = {name.lower().replace("_", "-") for name, _extra in done}
    return {
        package
        for package, homes in packages_distributions().items()
        if distributions & {home.lower().replace("_", "-") for home in homes}
    }


def run_with(extras: Sequence[str], words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run the command in a Python with only the packages of these extras."""
    blocked = sorted(packages_of(("demo",)) - packages_of(tuple(extras)))
    command = [sys.executable, "-c", RUN.format(blocked=blocked, words=list(words))]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False)


@pytest.mark.remedy(Remedy.INSTALL_EXTRA)
@pytest.mark.parametrize("command", EXTRAS)
def test_commands_name_the_smallest_extras(command: str, onceflow_broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "clicks.csv"
    file.write_text("uid,event_time,os_type\nann,1700000000000,iOS\n")
    keys = tmp_path / "keys.toml"
    keys.touch(0o600)
    keys.write_text('[keys.web]\nkey = "k"\n')
    values = {"file": file, "keys": keys, "bootstrap": onceflow_broker.bootstrap_servers}
    words = [command, *(word.format(**values) for word in ARGUMENTS[command])]
    extras = EXTRAS[command].split(",")

    with_them = run_with(extras, words)
    assert "needs the package" not in with_them.stderr, with_them.stderr
    assert "ModuleNotFoundError" not in with_them.stderr, with_them.stderr

    for missing in extras:
        without = run_with([extra for extra in extras if extra != missing], words)
        assert remedies.find(Remedy.INSTALL_EXTRA, without.stdout + without.stderr)["package"].endswith(
            f"[{EXTRAS[command]}]"
        )


def test_options_before_the_command_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "onceflow.conf").write_text("bootstrap=127.0.0.1:1\n")
    without = run_with([], ["--config-file", str(tmp_path / "onceflow.conf"), "produce", "visits"])
    assert "'onceflow produce' needs the package confluent_kafka" in without.stderr
    assert remedies.find(Remedy.INSTALL_EXTRA, without.stderr)["package"].endswith("[client]")


@pytest.mark.parametrize(
    ("command", "package", "extras"),
    [
        ("topic", "scramp", "client"),
        ("clicks", "scramp", "client,dashboard"),
        ("verify", "scramp", "client,dashboard"),
        ("clicks", "redis", "dashboard"),
        ("demo", "pyspark", "demo"),
        ("broker", "prometheus_client", "metrics"),
        ("broker", "kazoo", "cluster"),
        ("run", "prometheus_client", "metrics,spark"),
        ("serve", "prometheus_client", "client,dashboard"),
    ],
)
def test_the_message_names_the_smallest_extras(command: str, package: str, extras: str) -> None:
    message = str(missing_extra(command, ModuleNotFoundError(name=package)))
    assert message.startswith(f"'onceflow {command}' needs the package {package}, ")
    assert remedies.find(Remedy.INSTALL_EXTRA, message)["package"].endswith(f"[{extras}]")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    named = [line for extra in extras.split(",") for line in project["optional-dependencies"][extra]]
    assert extras == "demo" or package.replace("_", "-") in {Requirement(line).name for line in named}


@pytest.mark.remedy(Remedy.INSTALL_EXTRA)
def test_metrics_need_an_extra(tmp_path: Path) -> None:
    words = ["broker", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--metrics-port", "0"]
    without = run_with([], words)
    assert "'onceflow broker' needs the package prometheus_client" in without.stderr
    assert remedies.find(Remedy.INSTALL_EXTRA, without.stderr)["package"].endswith("[metrics]")
    # With the extra the broker starts: it refuses this address only after it has loaded the package.
    with_it = run_with(["metrics"], [*words, "--metrics-host", "203.0.113.7"])
    assert "cannot listen on port 0 of 203.0.113.7" in with_it.stderr, with_it.stderr


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("file://{directory}/a%20checkout", "{directory}/a checkout"),
        ("file://{directory}/deleted/onceflow-1-py3-none-any.whl", f"onceflow-{__version__}-py3-none-any.whl"),
        (None, f"onceflow-{__version__}-py3-none-any.whl"),
    ],
    ids=["existing", "deleted", "from an index"],
)
def test_the_installed_package_is_named(
    url: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a checkout").mkdir()
    direct_url = None if url is None else json.dumps({"url": url.format(directory=tmp_path), "dir_info": {}})
    monkeypatch.setattr(metadata.PathDistribution, "read_text", lambda _distribution, _name: direct_url)
    assert installed_from() == expected.format(directory=tmp_path)


def test_doctor_needs_no_extra(onceflow_broker: Broker) -> None:
    ended = run_with([], ["doctor", "--bootstrap", onceflow_broker.bootstrap_servers])
    assert ended.returncode == 0, ended.stderr
    assert "not checked  redis            the package redis is not installed; see the extra dashboard" in ended.stdout
