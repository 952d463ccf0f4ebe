"""The page of transactions is drawn from the table of their states."""

from pathlib import Path

from onceflow.broker.transactions import page


def test_page_is_generated_from_table() -> None:
    written = (Path(__file__).parents[3] / "docs" / "transactions.md").read_text()
    assert written == page.page(), "run: .venv/bin/python -m onceflow.broker.transactions.page > docs/transactions.md"
