"""docs/campaigns.md: what the campaigns did in their last full run, written by a run that completes it.

Each green campaign is remembered in pytest's cache under the sources, tests and locked libraries that it ran with, so
that a full run may be made of pieces (`make campaign ONLY=simulation`), also over commits of the documents alone. The
page is written once every campaign of the tests has been green with those of one commit. A campaign tells its counts
with `record_property`, which are added up over its pieces, and its seeds as "0 to 99", which are put together, or it
prints its figures. What was red on that commit before it was green is told, too.
"""

import re
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import pytest

RecordProperty = Callable[[str, object], None]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "campaigns.md"
CACHE = "campaigns"
SOURCES = ("src", "tests", "requirements.lock")
"""What a campaign's outcome depends on."""
ALL = pytest.StashKey[list[str]]()
"""Every campaign's node id, whatever was selected; empty where only some of the tests were looked at."""

_HEAD = """\
# The campaigns' last full run

<!-- Written by `make campaign` when every campaign was green on one commit. -->

Long runs that `make test` leaves out: kills, power cuts, damage and hostile frames, from seeds that the tests name.
A campaign in several pieces is one row; `make campaign ONLY=word` runs those whose names have the word.

Last full run: {date}, commit `{commit}`, {count} runs in {minutes:.0f} minutes{pieces}{repeated}.

| campaign | what it does | runs | seconds | figures |
|---|---|---:|---:|---|
"""


class Run(TypedDict):
    """One green run of one campaign, or of a piece of it."""

    seconds: float
    what: str
    counts: Mapping[str, float | str]
    printed: str
    finished: float
    """When its session ended: the same for all runs of a session."""


class Known(TypedDict):
    """What there was on a commit: the latest green runs, and how often each name was red."""

    runs: dict[str, Run]
    reds: dict[str, int]


def note_all(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Before some are deselected."""
    are_all = config.args_source is not pytest.Config.ArgsSource.ARGS
    config.stash[ALL] = [item.nodeid for item in items if item.get_closest_marker("campaign")] if are_all else []
    for item in items:
        if item.get_closest_marker("campaign"):
            what = (getattr(item, "obj", None).__doc__ or "").strip().split("\n")[0]
            item.user_properties.append(("what", what))


def finish(reporter: pytest.TerminalReporter) -> None:
    """Remember what was green and what was red, and write the page if that was all that was missing."""
    config = reporter.config
    now = time.time()
    runs = {
        report.nodeid: run_of(report, now)
        for report in reporter.getreports("passed")
        if "campaign" in report.keywords and report.when == "call"
    }
    failed = {
        report.nodeid
        for outcome in ("failed", "error")  # A module that cannot be collected is an error without keywords.
        for report in reporter.getreports(outcome)
        if isinstance(report, pytest.TestReport) and "campaign" in report.keywords
    }
    cache = getattr(config, "cache", None)  # Not there with `-p no:cacheprovider`.
    if not (runs or failed) or cache is None:
        return
    sources = committed_sources(ROOT)
    if sources is None:
        reporter.write_line("docs/campaigns.md stays: sources or tests are not a commit's")
        return
    commit = _git(ROOT, "rev-parse", "--short=10", "HEAD") or ""
    key = f"{CACHE}/{sources}"
    known = added(cache.get(key, Known(runs={}, reds={})), runs, failed)
    cache.set(key, known)
    missing = set(config.stash.get(ALL, [])) - known["runs"].keys()
    if config.stash.get(ALL, []) and not missing:
        PAGE.write_text(page(commit, time.strftime("%Y-%m-%d"), known))
        reporter.write_line("docs/campaigns.md is written")
    else:
        reporter.write_line(f"docs/campaigns.md stays: {len(missing) or 'some'} runs have not been green on {commit}")


def added(known: Known, runs: Mapping[str, Run], failed: Collection[str]) -> Known:
    """After one more session: what is red is not green, and stays known as red once it is green again."""
    together = {name: run for name, run in {**known["runs"], **runs}.items() if name not in failed}
    return Known(runs=together, reds=dict(Counter(known["reds"]) + Counter(failed)))


def run_of(report: pytest.TestReport, finished: float) -> Run:
    properties: dict[str, Any] = dict(report.user_properties)
    what = properties.pop("what", "")
    printed = report.capstdout.strip()
    return Run(seconds=report.duration, what=what, counts=properties, printed=printed, finished=finished)


def committed_sources(root: Path) -> str | None:
    """Git's names of `SOURCES`; None where they are not as committed, or there is no repository."""
    changed = _git(root, "status", "--porcelain", "--", *SOURCES)
    names = _git(root, "rev-parse", *(f"HEAD:{path}" for path in SOURCES)) if changed == "" else None
    return "-".join(name[:10] for name in names.split()) if names is not None else None


def _git(root: Path, *arguments: str) -> str | None:
    found = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    return None if found.returncode else found.stdout.strip()


def page(commit: str, date: str, known: Known) -> str:
    """docs/campaigns.md."""
    runs = known["runs"]
    together: dict[str, list[Run]] = defaultdict(list)
    for nodeid, run in sorted(runs.items()):
        together[nodeid.partition("[")[0]].append(run)
    sessions = len({run["finished"] for run in runs.values()})
    head = _HEAD.format(
        date=date,
        commit=commit,
        count=len(runs),
        minutes=sum(run["seconds"] for run in runs.values()) / 60,
        pieces=f", in {sessions} pieces" if sessions > 1 else "",
        repeated=_repeated([name for name in sorted(runs) if name in known["reds"]]),
    )
    return head + "".join(_row(name, pieces) for name, pieces in together.items())


def _repeated(names: Sequence[str]) -> str:
    told = ", ".join(f"`{name}`" for name in names)
    return f"; {len(names)} repeated after a failure: {told}" if names else ""


def _row(name: str, pieces: Sequence[Run]) -> str:
    path, _, function = name.partition("::")
    words = function.removeprefix("test_").replace("_", " ")
    seconds = sum(run["seconds"] for run in pieces)
    return f"| `{path}` | {pieces[0]['what'] or words} | {len(pieces)} | {seconds:.0f} | {_figures(pieces)} |\n"


def _figures(pieces: Sequence[Run]) -> str:
    sums: dict[str, float] = defaultdict(int)
    seeds: list[str] = []
    for run in pieces:
        for name, count in run["counts"].items():
            if isinstance(count, str):
                seeds.append(count)
            else:
                sums[name] = max(sums[name], count) if name.startswith("at most") else sums[name] + count
    told = [f"seeds {joined(seeds)}"] if seeds else []
    told += [f"{count:,} {name}" for name, count in sums.items()]
    if told:
        return ", ".join(told)
    return "; ".join(run["printed"].replace("\n", "; ").replace("|", "/") for run in pieces if run["printed"])


def seeds_of(seeds: range) -> str:
    """As a campaign tells them: `record_property("seeds", seeds_of(range(100)))`."""
    return f"{seeds[0]} to {seeds[-1]}"


def tell(record_property: RecordProperty, seeds: range, counts: Mapping[str, int]) -> None:
    """A campaign's figures: its seeds, and what happened in them."""
    record_property("seeds", seeds_of(seeds))
    for name, count in counts.items():
        record_property(name, count)


def joined(told: Sequence[str]) -> str:
    """Those of several pieces, neighbours as one."""
    found: list[list[int]] = []
    for numbers in sorted([int(number) for number in re.findall(r"\d+", each)] for each in told):
        first, last = numbers[0], numbers[-1]
        if found and first <= found[-1][1] + 1:
            found[-1][1] = max(last, found[-1][1])
        else:
            found.append([first, last])
    return " and ".join(f"{first:,} to {last:,}" if first < last else f"{first:,}" for first, last in found)
