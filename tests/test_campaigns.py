"""The campaigns' page adds up what their runs told."""

from tests.campaigns import Run, page


def run(seconds: float, printed: str = "", **counts: float) -> Run:
    return Run(seconds=seconds, what="", counts=counts, printed=printed)


def test_pieces_are_one_row() -> None:
    runs = {
        "tests/a.py::test_kills[0]": run(60, kills=100, records=1000),
        "tests/a.py::test_kills[1]": run(62, kills=100, records=2500),
        "tests/b.py::test_cuts_hurt_nobody": run(4, "3 cuts | none lost\n5 s"),
    }
    written = page("0123456789", "2026-01-02", runs)
    assert "2026-01-02, commit `0123456789`, 3 runs in 2 minutes." in written
    assert written.splitlines()[-2:] == [
        "| `tests/a.py` | kills | 2 | 122 | 200 kills, 3,500 records |",
        "| `tests/b.py` | cuts hurt nobody | 1 | 4 | 3 cuts / none lost; 5 s |",
    ]
