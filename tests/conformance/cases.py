"""All invalid requests and edge cases, by name."""

from collections.abc import Callable

from tests.conformance import admin, fetch, frames, groups, metadata, offsets, produce, quotas, transactions
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
    **quotas.CASES,
}
