"""All wrong requests and edges, by their names."""

from collections.abc import Callable

from tests.conformance import admin, fetch, frames, groups, metadata, offsets, produce, transactions
from tests.conformance.side import Side

CASES: dict[str, Callable[[Side], None]] = {
    **produce.CASES,
    **fetch.CASES,
    **offsets.CASES,
    **groups.CASES,
    **transactions.CASES,
    **admin.CASES,
    **metadata.CASES,
    **frames.CASES,
}
