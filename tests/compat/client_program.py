"""Runs of the programs in other languages: one case each, a line of JSON for each result."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Run = Callable[..., list[dict[str, Any]]]
"""`run(topic, case, …)` returns the program's lines; `security` is a client's settings."""


def runner(program: Sequence[str], bootstrap: str, environment: Mapping[str, str] | None = None) -> Run:
    """Return runs of a program, by default on the broker at `bootstrap`; a failed run is an AssertionError."""

    def run(topic: str, *arguments: str, address: str = bootstrap, security: str = "") -> list[dict[str, Any]]:
        own = {**os.environ, **(environment or {}), "COMPAT_SECURITY": security}
        command = [*program, address, topic, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=own, timeout=90, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run
