"""docs/campaigns.md: what the campaigns did in their last full run, written by a run that completes it.

Each green campaign is remembered in pytest's cache under the commit that it ran on, so that a full run may be made of
pieces (`make campaign ONLY=simulation`). The page is written once every campaign of the tests has been green on one
commit, whose sources and tests nobody has changed. A campaign tells its counts with `record_property`, which are added
up over its pieces, or prints its figures.
"""

import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "campaigns.md"
CACHE = "campaigns"
ALL = pytest.StashKey[list[str]]()
"""Every campaign's node id, whatever was selected; empty where only some of the tests were looked at."""

_HEAD = """\
# The campaigns' last full run

<!-- Written by `make campaign` when every campaign was green on one commit. -->

Long runs that `make test` leaves out: kills, power cuts, damage and hostile frames, from seeds that the tests name.
A campaign in several pieces is one row; `make campaign ONLY=word` runs those whose names have the word.

Last full run: {date}, commit `{commit}`, {count} runs in {minutes:.0f} minutes.

| campaign | what it does | runs | seconds | figures |
|---|---|---:|---:|---|
"""


class Run(TypedDict):
    """One green run of one campaign, or of a piece of it."""

    seconds: float
    what: str
    counts: Mapping[str, float]
    printed: str


def note_all(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Before some are deselected."""
    are_all = config.args_source is not pytest.Config.ArgsSource.ARGS
    config.stash[ALL] = [item.nodeid for item in items if item.get_closest_marker("campaign")] if are_all else []
    for item in items:
        if item.get_closest_marker("campaign"):
            what = (getattr(item, "obj", None).__doc__ or "").strip().split("\n")[0]
            item.user_properties.append(("what", what))


def finish(reporter: pytest.TerminalReporter) -> None:
    """Remember what was green, and write the page if that was all that was missing."""
    config = reporter.config
    runs = {
        report.nodeid: run_of(report)
        for report in reporter.getreports("passed")
        if "campaign" in report.keywords and report.when == "call"
    }
    failed = {report.nodeid for report in reporter.getreports("failed") if "campaign" in report.keywords}
    if not (runs or failed) or config.cache is None:
        return
    commit = unchanged_commit()
    if commit is None:
        reporter.write_line("docs/campaigns.md stays: sources or tests are not a commit's")
        return
    key = f"{CACHE}/{commit}"
    runs = {name: run for name, run in {**config.cache.get(key, {}), **runs}.items() if name not in failed}
    config.cache.set(key, runs)
    missing = set(config.stash.get(ALL, [])) - runs.keys()
    if config.stash.get(ALL, []) and not missing:
        PAGE.write_text(page(commit, time.strftime("%Y-%m-%d"), runs))
        reporter.write_line("docs/campaigns.md is written")
    else:
        reporter.write_line(f"docs/campaigns.md stays: {len(missing) or 'some'} runs have not been green on {commit}")


def run_of(report: pytest.TestReport) -> Run:
    properties: dict[str, Any] = dict(report.user_properties)
    what = properties.pop("what", "")
    return Run(seconds=report.duration, what=what, counts=properties, printed=report.capstdout.strip())


def unchanged_commit() -> str | None:
    """The commit that runs here; None where sources or tests are not as it has them, or there is no repository."""
    changed = _git("status", "--porcelain", "--", "src", "tests")
    return _git("rev-parse", "--short=10", "HEAD") if changed == "" else None


def _git(*arguments: str) -> str | None:
    found = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return None if found.returncode else found.stdout.strip()


def page(commit: str, date: str, runs: Mapping[str, Run]) -> str:
    """docs/campaigns.md."""
    together: dict[str, list[Run]] = defaultdict(list)
    for nodeid, run in sorted(runs.items()):
        together[nodeid.partition("[")[0]].append(run)
    minutes = sum(run["seconds"] for run in runs.values()) / 60
    head = _HEAD.format(date=date, commit=commit, count=len(runs), minutes=minutes)
    return head + "".join(_row(name, pieces) for name, pieces in together.items())


def _row(name: str, pieces: Sequence[Run]) -> str:
    path, _, function = name.partition("::")
    words = function.removeprefix("test_").replace("_", " ")
    seconds = sum(run["seconds"] for run in pieces)
    return f"| `{path}` | {pieces[0]['what'] or words} | {len(pieces)} | {seconds:.0f} | {_figures(pieces)} |\n"


def _figures(pieces: Sequence[Run]) -> str:
    sums: dict[str, float] = defaultdict(int)
    for run in pieces:
        for name, count in run["counts"].items():
            sums[name] = max(sums[name], count) if name.startswith("at most") else sums[name] + count
    if sums:
        return ", ".join(f"{count:,} {name}" for name, count in sums.items())
    return "; ".join(run["printed"].replace("\n", "; ").replace("|", "/") for run in pieces if run["printed"])
