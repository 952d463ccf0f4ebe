"""One run in a process of its own: `python -m tests.histories SEED SECONDS DIRECTORY [ZOOKEEPER/CHROOT]`.

With the address of a ZooKeeper there are three brokers, otherwise one. Their data and logs are in DIRECTORY. It prints
figures and anomalies, and writes the figures to DIRECTORY/figures.json. The exit status is 1 if there is an anomaly.
"""

import json
import sys
from collections import Counter
from pathlib import Path

from tests.histories.checker import anomalies
from tests.histories.cluster import run_on_cluster
from tests.histories.run import FIGURES, run

SHOWN_MAX = 30


def main(seed: int, seconds: float, directory: Path, zookeeper: str = "") -> int:
    """Return the exit status."""
    if zookeeper:
        history, figures = run_on_cluster(directory, zookeeper, seed, seconds)
    else:
        history, figures = run(directory, seed, seconds)
    listed = anomalies(history)
    figures["anomalies"] = len(listed)
    (directory / FIGURES).write_text(json.dumps(figures))
    print(f"seed {seed}, {seconds:g} s:", ", ".join(f"{count} {name}" for name, count in sorted(figures.items())))
    for kind, count in Counter(anomaly.kind for anomaly in listed).items():
        print(f"{count} x {kind.name}: {kind}")
    print("\n".join(map(str, listed[:SHOWN_MAX])) or "no anomaly")
    return 1 if listed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:]))
