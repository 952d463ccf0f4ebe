"""Writer of docs/campaigns.md: the last pass of each campaign, with its commit.

pytest's cache keeps each passed run with the sources, tests and locked libraries of its commit. So a campaign can
consist of parts (`make campaign ONLY=simulation`), also over commits that change only documents. Its row is replaced
when all its runs have passed with those of one commit. A campaign reports its counts with `record_property`, which are
summed over its parts, and its seeds as "0 to 99", which are merged; or it prints its figures. Failures on the same
commit before a pass are listed.
"""

import fcntl
import re
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

import pytest

RecordProperty = Callable[[str, object], None]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "campaigns.md"
CACHE = "campaigns"
SOURCES = ("src", "tests", "requirements.lock")
"""Paths on which a campaign's outcome depends."""
ALL = pytest.StashKey[list[str]]()
"""Node ids of all campaigns, selected or not; empty if only some of the tests were collected."""

_HEAD = """\
# Campaigns

<!-- Written by `make campaign`. -->

Long runs that `make test` does not include: kills, power cuts, damage and hostile clients, from seeds in the tests.
A campaign in several parts is one row; `make campaign ONLY=word` runs those whose names contain the word. Each row is
the campaign's last pass, with all parts on one commit; "-" if it has not passed yet.

| campaign | description | commit | date | runs | seconds | figures |
|---|---|---|---|---:|---:|---|
"""
_ROW = re.compile(r"\| `(?P<name>tests/[^`]+)` \|.*")


class Run(TypedDict):
    """One passed run of a campaign, or of a part of it."""

    seconds: float
    what: str
    counts: Mapping[str, float | str]
    printed: str
    commit: str
    finished: float
    """End of the run's session, in seconds since 1970."""


class Known(TypedDict):
    """Results on a commit: the latest passed runs, and the number of failures by name."""

    runs: dict[str, Run]
    reds: dict[str, int]


def note_all(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Store the ids of all campaigns, before some are deselected."""
    are_all = config.args_source is not pytest.Config.ArgsSource.ARGS
    config.stash[ALL] = [item.nodeid for item in items if item.get_closest_marker("campaign")] if are_all else []
    for item in items:
        if item.get_closest_marker("campaign"):
            what = (getattr(item, "obj", None).__doc__ or "").strip().split("\n")[0]
            item.user_properties.append(("what", what))


def finish(reporter: pytest.TerminalReporter) -> None:
    """Store passes and failures, and write the rows of the campaigns that have passed whole."""
    config = reporter.config
    passed = [
        report for report in reporter.getreports("passed") if "campaign" in report.keywords and report.when == "call"
    ]
    failed = {
        report.nodeid
        for outcome in ("failed", "error")  # A module that cannot be collected is an error without keywords.
        for report in reporter.getreports(outcome)
        if isinstance(report, pytest.TestReport) and "campaign" in report.keywords
    }
    cache = getattr(config, "cache", None)  # Missing with `-p no:cacheprovider`.
    if not (passed or failed) or cache is None:
        return
    sources = committed_sources(ROOT)
    if sources is None:
        reporter.write_line("docs/campaigns.md is unchanged: sources or tests are not committed")
        return
    commit, now = _git(ROOT, "rev-parse", "--short=10", "HEAD") or "", time.time()
    runs = {report.nodeid: run_of(report, commit, now) for report in passed}
    key = f"{CACHE}/{sources}"
    with _locked(cache.mkdir(CACHE) / "lock"):
        known = added(cache.get(key, Known(runs={}, reds={})), runs, failed)
        cache.set(key, known)
        if every := config.stash.get(ALL, []):
            PAGE.write_text(page(PAGE.read_text(), every, known))
            reporter.write_line("docs/campaigns.md is written")
        else:
            reporter.write_line("docs/campaigns.md is unchanged: only some of the tests were collected")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep out other sessions, which may end at the same time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def added(known: Known, runs: Mapping[str, Run], failed: Collection[str]) -> Known:
    """Return the results after one more session. A failure removes the pass, and is still listed after a new pass."""
    together = {name: run for name, run in {**known["runs"], **runs}.items() if name not in failed}
    return Known(runs=together, reds=dict(Counter(known["reds"]) + Counter(failed)))


def run_of(report: pytest.TestReport, commit: str, finished: float) -> Run:
    properties: dict[str, Any] = dict(report.user_properties)
    what = properties.pop("what", "")
    printed = report.capstdout.strip()
    return Run(seconds=report.duration, what=what, counts=properties, printed=printed, commit=commit, finished=finished)


def committed_sources(root: Path) -> str | None:
    """Return Git's hashes of `SOURCES`; None if they differ from the commit, or without a repository."""
    changed = _git(root, "status", "--porcelain", "--", *SOURCES)
    names = _git(root, "rev-parse", *(f"HEAD:{path}" for path in SOURCES)) if changed == "" else None
    return "-".join(name[:10] for name in names.split()) if names is not None else None


def _git(root: Path, *arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    return None if done.returncode else done.stdout.strip()


def page(before: str, every: Sequence[str], known: Known) -> str:
    """Return the text of docs/campaigns.md: the former text `before`, with new rows for what has passed whole.

    `every` holds the node ids of all campaigns; rows of campaigns that are no longer among them go.
    """
    rows = {row["name"]: row[0] for row in map(_ROW.fullmatch, before.splitlines()) if row}
    together: dict[str, list[str]] = defaultdict(list)
    for nodeid in sorted(every):
        together[nodeid.partition("[")[0]].append(nodeid)
    for name, parts in together.items():
        if known["runs"].keys() >= set(parts):
            rows[name] = _row(name, parts, known)
    return _HEAD + "".join(f"{rows.get(name, f'| `{name}` | - | - | - | - | - | - |')}\n" for name in together)


def _row(name: str, parts: Sequence[str], known: Known) -> str:
    runs = [known["runs"][part] for part in parts]
    what = runs[0]["what"] or name.partition("::")[2].removeprefix("test_").replace("_", " ")
    seconds = sum(run["seconds"] for run in runs)
    last = max(runs, key=lambda run: run["finished"])
    date = time.strftime("%Y-%m-%d", time.gmtime(last["finished"]))
    repeated = sum(part in known["reds"] for part in parts)
    figures = _figures(runs) + (f"; {repeated} repeated after a failure" if repeated else "")
    return f"| `{name}` | {what} | `{last['commit']}` | {date} | {len(runs)} | {seconds:.0f} | {figures} |"


def _figures(pieces: Sequence[Run]) -> str:
    sums: dict[str, float] = defaultdict(int)
    seeds: list[str] = []
    for run in pieces:
        for name, count in run["counts"].items():
            if isinstance(count, str):
                seeds.append(count)
            else:
                sums[name] = max(sums[name], count) if name.startswith("at most") else sums[name] + count
    figures = [f"seeds {joined(seeds)}"] if seeds else []
    figures += [f"{count:,} {name}" for name, count in sums.items()]
    if figures:
        return ", ".join(figures)
    return "; ".join(run["printed"].replace("\n", "; ").replace("|", "/") for run in pieces if run["printed"])


def seeds_of(seeds: range) -> str:
    """Return seeds as a campaign reports them: `record_property("seeds", seeds_of(range(100)))`."""
    return f"{seeds[0]} to {seeds[-1]}"


def tell(record_property: RecordProperty, seeds: range, counts: Mapping[str, int]) -> None:
    """Report a campaign's figures: its seeds and counts."""
    record_property("seeds", seeds_of(seeds))
    for name, count in counts.items():
        record_property(name, count)


def joined(seeds: Sequence[str]) -> str:
    """Return the seeds of several parts, adjacent ranges merged."""
    ranges: list[list[int]] = []
    for numbers in sorted([int(number) for number in re.findall(r"\d+", text)] for text in seeds):
        first, last = numbers[0], numbers[-1]
        if ranges and first <= ranges[-1][1] + 1:
            ranges[-1][1] = max(last, ranges[-1][1])
        else:
            ranges.append([first, last])
    return " and ".join(f"{first:,} to {last:,}" if first < last else f"{first:,}" for first, last in ranges)
