"""One run by hand: `python -m tests.histories SEED SECONDS` prints figures and anomalies."""

import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.histories.checker import anomalies
from tests.histories.run import run

SHOWN_MAX = 30


def main(seed: int, seconds: float) -> int:
    """Return 0 where there is no anomaly."""
    with tempfile.TemporaryDirectory() as directory:
        history, figures = run(Path(directory), seed, seconds)
    listed = anomalies(history)
    print(f"seed {seed}, {seconds:g} s:", ", ".join(f"{count} {name}" for name, count in sorted(figures.items())))
    for kind, count in Counter(anomaly.kind for anomaly in listed).items():
        print(f"{count} x {kind.name}: {kind}")
    print("\n".join(map(str, listed[:SHOWN_MAX])) or "no anomaly")
    return 1 if listed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2])))
