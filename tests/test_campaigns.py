"""The campaigns' page: sums of the runs' figures."""

import subprocess
from pathlib import Path

from tests.campaigns import Known, Run, added, committed_sources, page, seeds_of

NOTHING = Known(runs={}, reds={})
KILLS, CUTS = "tests/a.py::test_kills[0]", "tests/b.py::test_cuts_lose_nothing"


DAY_S = 86_400
FIRST_S = 1_767_312_000.0
"""2026-01-02T00:00Z."""


def run(seconds: float, printed: str = "", *, commit: str = "0123456789", days: int = 0, **counts: float | str) -> Run:
    finished = FIRST_S + days * DAY_S
    return Run(seconds=seconds, what="", counts=counts, printed=printed, commit=commit, finished=finished)


def written(known: Known, before: str = "", *more: str) -> str:
    return page(before, [*known["runs"], *more], known)


def rows(text: str) -> list[str]:
    return text.partition("|---|---|---|---|---:|---:|---|\n")[2].splitlines()


def test_parts_are_one_row() -> None:
    runs = {
        KILLS: run(60, kills=100, records=1000),
        "tests/a.py::test_kills[1]": run(62, kills=100, records=2500),
        CUTS: run(4, "3 cuts | none lost\n5 s"),
    }
    assert rows(written(added(NOTHING, runs, []))) == [
        "| `tests/a.py::test_kills` | kills | `0123456789` | 2026-01-02 | 2 | 122 | 200 kills, 3,500 records |",
        (
            "| `tests/b.py::test_cuts_lose_nothing` | cuts lose nothing | `0123456789` | 2026-01-02 | 1 | 4 "
            "| 3 cuts / none lost; 5 s |"
        ),
    ]


def test_seeds_of_parts_are_merged() -> None:
    pieces = (range(1050, 1100), range(1000, 1050), range(7, 8), range(9, 11))
    runs = {
        f"tests/a.py::test_kills[{number}]": run(1, seeds=seeds_of(seeds), kills=2)
        for number, seeds in enumerate(pieces)
    }
    (row,) = rows(written(added(NOTHING, runs, [])))
    assert row.endswith("| 4 | 4 | seeds 7 and 9 to 10 and 1,000 to 1,099, 8 kills |")


def test_failures_before_a_pass_are_listed() -> None:
    known = added(NOTHING, {CUTS: run(4)}, [KILLS])
    assert known["runs"].keys() == {CUTS}
    kills, cuts = rows(written(added(known, {KILLS: run(60, kills=3)}, [])))
    assert kills.endswith("| 3 kills; 1 repeated after a failure |")
    assert "repeated" not in cuts


def test_failures_remove_earlier_passes() -> None:
    known = added(NOTHING, {KILLS: run(60), CUTS: run(4)}, [])
    assert added(known, {}, [KILLS])["runs"].keys() == {CUTS}


def test_rows_stay_until_all_parts_passed() -> None:
    before = written(added(NOTHING, {KILLS: run(60), CUTS: run(4)}, []))
    later = added(NOTHING, {KILLS: run(9), CUTS: run(9)}, [])
    kills, cuts = rows(written(later, before, "tests/a.py::test_kills[1]"))
    assert (kills, "| 9 |" in cuts) == (rows(before)[0], True)


def test_campaigns_without_a_pass_are_listed() -> None:
    assert rows(written(NOTHING, "", CUTS)) == [f"| `{CUTS}` | - | - | - | - | - | - |"]


def test_rows_keep_the_commit_of_their_pass() -> None:
    known = added(NOTHING, {KILLS: run(60), CUTS: run(4)}, [])
    kills, cuts = rows(written(added(known, {CUTS: run(4, commit="abcdef0123", days=5)}, [])))
    assert "| `0123456789` | 2026-01-02 |" in kills
    assert "| `abcdef0123` | 2026-01-07 |" in cuts


def test_rows_of_former_campaigns_are_removed() -> None:
    before = written(added(NOTHING, {KILLS: run(60), CUTS: run(4)}, []))
    assert rows(page(before, [CUTS], NOTHING)) == rows(before)[1:]


def commit(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text(text)
    author = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for arguments in (("add", "."), (*author, "commit", "--quiet", "--message", text)):
        subprocess.run(["git", *arguments], cwd=root, check=True)


def test_runs_count_until_sources_change(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    for name in ("src/a.py", "tests/a.py", "requirements.lock"):
        commit(tmp_path, name, name)
    first = committed_sources(tmp_path)
    assert first is not None
    commit(tmp_path, "README.md", "three")
    assert committed_sources(tmp_path) == first
    (tmp_path / "src" / "a.py").write_text("changed")
    assert committed_sources(tmp_path) is None
    commit(tmp_path, "src/a.py", "changed")
    assert committed_sources(tmp_path) not in (first, None)
