"""Output of `make bench`: new rows replace old ones, and text written by hand is kept."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import figures
from benchmarks.__main__ import run
from benchmarks.comparison import CPU_GOAL, Goal, in_turns, spread
from benchmarks.figures import BEGIN, END, Figures, Line, Table, row
from benchmarks.grouped_bars import Group, picture

WRITTEN_BY_HAND = f"# Ours\n\nBefore.\n\n{BEGIN}\nold figures\n{END}\n\nAfter.\n"


@pytest.fixture
def readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(figures, "README", tmp_path / "README.md")
    monkeypatch.setattr(figures, "STORE", tmp_path / "figures.json")
    monkeypatch.setattr("benchmarks.__main__.TABLES", (table(), table("Sizes")))
    (tmp_path / "README.md").write_text(WRITTEN_BY_HAND)
    return tmp_path / "README.md"


def table(title: str = "Speed", figure: str = "1", fails_at: str = "") -> Table:
    def measure(names: Sequence[str]) -> Iterator[Line]:
        for name in names:
            if name == fails_at:
                raise OSError("no more room")
            yield row(name, figure)
        yield Line("summary", f"All are {figure}.")

    return Table(title, ("what", "onceflow"), ["in", "out"], measure)


def at(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    monkeypatch.setattr(figures, "day_and_commit", lambda: when)


def test_rows_are_measured_again_by_name(readme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, "Monday")
    assert run(table("Sizes"), ["in", "out"], Figures())
    assert run(table(), ["in", "out"], Figures())
    at(monkeypatch, "Tuesday")
    assert run(table(figure="2"), ["out"], Figures())
    text = readme.read_text()
    assert text.startswith("# Ours\n\nBefore.\n\n" + BEGIN) and text.endswith(END + "\n\nAfter.\n")
    assert "old figures" not in text
    assert text.index("## Speed") < text.index("## Sizes"), "in the order of the tables, not of the runs"
    speed = text[text.index("## Speed") : text.index("## Sizes")]
    assert "| what | onceflow |\n|---|---|\n| in | 1 |\n| out | 2 |\n\nAll are 2.\n" in speed
    assert "Measured Tuesday, in 0 s; Monday: in." in speed


def test_interrupted_runs_keep_measured_rows(readme: Path) -> None:
    assert run(table(), ["in", "out"], Figures())
    assert not run(table(figure="2", fails_at="out"), ["in", "out"], Figures())
    assert "| in | 2 |\n| out | 1 |\n" in readme.read_text()
    assert not run(table("Sizes", fails_at="in"), ["in", "out"], Figures())
    assert run(Table("Speed", ("what", "onceflow"), ["in"], table(figure="3").measure), ["in"], Figures())
    assert "| in | 3 |\n\n" in readme.read_text(), "a removed row is deleted by the next full run"
    assert "## Sizes" not in readme.read_text(), "a table without rows is not written"


def test_words_choose_tables_and_rows() -> None:
    assert table().chosen([]) == table().chosen(["Speed"]) == ["in", "out"]
    assert table().chosen(["ou"]) == ["out"]
    assert table().chosen(["Sizes"]) == []


def test_goals_of_rates_and_of_costs() -> None:
    rate = Goal(0.9, 1.1)
    assert [rate.verdict(ratio) for ratio in (0.89, 0.9, 1.1)] == ["**no**", "yes", "aim"]
    assert [CPU_GOAL.verdict(ratio) for ratio in (1.01, 1.0, 0.6)] == ["**no**", "yes", "aim"]
    assert spread([3, 1, 200]) == "3.00 (1.00 to 200.00)"


def test_the_picture_has_all_bars() -> None:
    groups = [
        Group(f"enqueue, {size}", {"ours": 0.1, "a < b": value}) for size, value in (("1 KB", 2.0), ("10 KB", 90))
    ]
    svg = ElementTree.fromstring(picture("Seconds", groups))
    texts = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[:3] == ["Seconds", "ours", "a < b"]
    assert [text for text in texts if text in ("0.10", "2.00", "90")] == ["0.10", "2.00", "0.10", "90"]
    assert {"0.1 s", "100 s", "enqueue, 10 KB"} <= set(texts)


def test_every_second_round_begins_with_the_peer() -> None:
    turns: list[str] = []

    def run(name: str, number: int) -> float:
        turns.append(f"{name}{number}")
        return number

    both = {name: partial(run, name) for name in ("ours", "its")}
    results = in_turns(both, 3)
    assert turns == ["ours0", "its0", "its1", "ours1", "ours2", "its2"]
    assert results == {"ours": [0, 1, 2], "its": [0, 1, 2]}
    assert in_turns({"ours": both["ours"]}, 2) == {"ours": [0, 1]}
    turns.clear()
    assert in_turns(both, 1, uncounted=1) == {"ours": [0], "its": [0]}
    assert turns == ["its-1", "ours-1", "ours0", "its0"]
