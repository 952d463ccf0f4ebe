"""Runs every benchmark and writes the tables into README.md beside this file, with machine and date."""

import datetime
import os
import platform
import subprocess
from pathlib import Path

from benchmarks import against_kafka, in_process, memory, pipeline, start, stored

README = Path(__file__).with_name("README.md")
MARK = "<!-- figures: written by make bench -->"


def machine() -> str:
    """Cores, memory, system and the commit measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return (
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {os.cpu_count()} cores, {memory:.0f} GiB, "
        f"{platform.system()} {platform.machine()}, CPython {platform.python_version()}, "
        f"commit {commit.stdout.strip() or 'unknown'}"
    )


def main() -> None:
    """Measure, print, write."""
    sections = [MARK, f"Measured {machine()}."]
    tables = (
        ("The broker beside Apache Kafka", against_kafka.table),
        ("What is stored", stored.table),
        ("Memory", memory.table),
        ("Start to the first Metadata answer", start.table),
        ("A broker in the test's process", in_process.table),
        ("The pipeline", pipeline.table),
    )
    for title, table in tables:
        sections.append(f"## {title}\n\n{table()}")
        print(sections[-1], flush=True)
    before = README.read_text().split(MARK)[0].rstrip()
    README.write_text(before + "\n\n" + "\n\n".join(sections) + "\n")


if __name__ == "__main__":
    main()
