"""Jars of peers, copied from Maven's central repository once, into the user's cache."""

import shutil
import subprocess
from pathlib import Path

CACHE = Path.home() / ".cache" / "onceflow"
HERE = Path(__file__).parent
TIMEOUT_SECONDS = 300


def copied(name: str, pom: str, **properties: str) -> Path | None:
    """The folder `name` of the cache with what a pom of this folder names; None without Maven, or if it finds none."""
    folder = CACHE / name
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        return None
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    goal += [f"-D{property_name.replace('_', '.')}={value}" for property_name, value in properties.items()]
    command = [maven, "-q", "-f", str(HERE / pom), *goal]
    try:
        done = subprocess.run(command, check=False, timeout=TIMEOUT_SECONDS, stdout=subprocess.DEVNULL)
        is_done = done.returncode == 0
    except subprocess.TimeoutExpired:
        is_done = False
    if not is_done:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return folder
