"""PyFlink in a virtual environment in the user's cache, created once and not in the lock file."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks import maven

VERSION = "2.3.0"
CONNECTOR_VERSION = "5.0.0-2.2"
"""Newest connector, built for Flink 2.2; it works with 2.3."""
REDIS_CLIENT = "redis==8.1.0"
INSTALL_SECONDS_MAX = 580


class Flink(NamedTuple):
    """Interpreter with PyFlink, and the connector's jar."""

    python: Path
    jar: Path

    @property
    def command(self) -> list[str]:
        """Command for `child.Child`."""
        return [str(self.python), str(Path(__file__).with_name("flink_driver.py")), str(self.jar)]


def find() -> Flink | str:
    """Return PyFlink, or the reason why it is missing."""
    folder = maven.copied(
        f"flink-connector-{CONNECTOR_VERSION}", "flink-connector-pom.xml", connector_version=CONNECTOR_VERSION
    )
    if folder is None:
        return f"Maven gave no flink-sql-connector-kafka {CONNECTOR_VERSION}"
    python = maven.CACHE / f"pyflink-{VERSION}" / "bin" / "python"
    if not python.exists() and not _is_installed(python.parents[1]):
        return f"pip could not install apache-flink {VERSION} for this Python"
    return Flink(python, next(folder.glob("flink-sql-connector-kafka-*.jar")))


def _is_installed(folder: Path) -> bool:
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", f"apache-flink=={VERSION}", REDIS_CLIENT]
    try:
        for command in ([sys.executable, "-m", "venv", str(folder)], install):
            subprocess.run(command, check=True, timeout=INSTALL_SECONDS_MAX, stdout=subprocess.DEVNULL)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        shutil.rmtree(folder, ignore_errors=True)
        return False
    return True
