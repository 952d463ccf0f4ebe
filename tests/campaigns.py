"""Writer of docs/campaigns.md, the results of the last full run of the campaigns.

pytest's cache keeps each passed campaign with the sources, tests and locked libraries of its run. So a full run can
consist of parts (`make campaign ONLY=simulation`), also over commits that change only documents. The page is written
when all campaigns have passed with those of one commit. A campaign reports its counts with `record_property`, which are
summed over its parts, and its seeds as "0 to 99", which are merged; or it prints its figures. Failures on the same
commit before a pass are listed.
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
"""Paths on which a campaign's outcome depends."""
ALL = pytest.StashKey[list[str]]()
"""Node ids of all campaigns, selected or not; empty if only some of the tests were collected."""

_HEAD = """\
# Campaigns

<!-- Written by `make campaign` when all campaigns have passed on one commit. -->

Long runs that `make test` does not include: kills, power cuts, damage and hostile frames, from seeds in the tests.
A campaign in several parts is one row; `make campaign ONLY=word` runs those whose names contain the word.

Last full run: {date}, commit `{commit}`, {count} runs in {minutes:.0f} minutes{pieces}{repeated}.

| campaign | description | runs | seconds | figures |
|---|---|---:|---:|---|
"""


class Run(TypedDict):
    """One passed run of a campaign, or of a part of it."""

    seconds: float
    what: str
    counts: Mapping[str, float | str]
    printed: str
    finished: float
    """End of its session: the same for all runs of a session."""


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
    """Store passes and failures, and write the page if no campaign is missing."""
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
    cache = getattr(config, "cache", None)  # Missing with `-p no:cacheprovider`.
    if not (runs or failed) or cache is None:
        return
    sources = committed_sources(ROOT)
    if sources is None:
        reporter.write_line("docs/campaigns.md is unchanged: sources or tests are not committed")
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
        reporter.write_line(f"docs/campaigns.md is unchanged: {len(missing) or 'some'} runs are missing on {commit}")


def added(known: Known, runs: Mapping[str, Run], failed: Collection[str]) -> Known:
    """Return the results after one more session. A failure removes the pass, and is still listed after a new pass."""
    together = {name: run for name, run in {**known["runs"], **runs}.items() if name not in failed}
    return Known(runs=together, reds=dict(Counter(known["reds"]) + Counter(failed)))


def run_of(report: pytest.TestReport, finished: float) -> Run:
    properties: dict[str, Any] = dict(report.user_properties)
    what = properties.pop("what", "")
    printed = report.capstdout.strip()
    return Run(seconds=report.duration, what=what, counts=properties, printed=printed, finished=finished)


def committed_sources(root: Path) -> str | None:
    """Return Git's hashes of `SOURCES`; None if they differ from the commit, or without a repository."""
    changed = _git(root, "status", "--porcelain", "--", *SOURCES)
    names = _git(root, "rev-parse", *(f"HEAD:{path}" for path in SOURCES)) if changed == "" else None
    return "-".join(name[:10] for name in names.split()) if names is not None else None


def _git(root: Path, *arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    return None if done.returncode else done.stdout.strip()


def page(commit: str, date: str, known: Known) -> str:
    """Return the text of docs/campaigns.md."""
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
        pieces=f", in {sessions} sessions" if sessions > 1 else "",
        repeated=_repeated([name for name in sorted(runs) if name in known["reds"]]),
    )
    return head + "".join(_row(name, pieces) for name, pieces in together.items())


def _repeated(names: Sequence[str]) -> str:
    listed = ", ".join(f"`{name}`" for name in names)
    return f"; {len(names)} repeated after a failure: {listed}" if names else ""


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
