"""docs/security.md: its ten lines are executed, as a reader would, and the tests that it names exist."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from onceflow.services import free_port

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "security.md"
PORT = "9093"


def test_each_named_test_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text())
    assert len(named) > 20
    missing = [(path, name) for path, name in named if f"\ndef {name}(" not in (ROOT / path).read_text()]
    assert not missing


def own_variables() -> dict[str, str]:
    """The environment without settings of `onceflow`, which would override the lines' configuration file."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ONCEFLOW_")}


def test_the_ten_lines_set_up_security(tmp_path: Path) -> None:
    """The broker that the lines start in the background is ended at the end."""
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (allow,) = re.findall(r"^\$ (onceflow .* --group reports)$", PAGE.read_text(), re.MULTILINE)
    program = next(
        text for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "Consumer" in text
    )
    port = str(free_port())
    (tmp_path / "client.py").write_text(program.replace(PORT, port))
    lines = [*block.replace(PORT, port).splitlines(), allow, "python client.py"]
    refused = "! onceflow --config-file ada.conf topic create other 2> refused.txt"
    script = "\n".join(["set -eu", "trap 'kill %1; wait' EXIT", *lines, refused])
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    process = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**own_variables(), "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, errors
    assert out.splitlines()[-3:] == ["click", "added 1 ACL", "b'click'"], out
    assert "TOPIC_AUTHORIZATION_FAILED" in (tmp_path / "refused.txt").read_text()
    password = (tmp_path / "ada.password").read_text().strip()
    assert password not in errors + out
    stored = [file.read_bytes() for file in (tmp_path / "data").rglob("*") if file.is_file()]
    assert not [content for content in stored if password.encode() in content]
