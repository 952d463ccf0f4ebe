"""The dashboard: rates, health and feed."""

from tests.mutants.mutant import Mutant

_RATES = "dashboard/test_rates.py::"
_BOARD = "dashboard/test_board.py::"
_APP = "dashboard/test_app.py::"

MUTANTS = (
    Mutant(
        "dashboard/board.py",
        "        self.broker.failed(error, now_ms)\n        self.backlog = None",
        "        self.broker.failed(error, now_ms)",
        _BOARD + "test_a_lag_does_not_outlive_the_broker",
    ),
    Mutant(
        "dashboard/board.py",
        '            self.state, self.since_ms = "down", now_ms\n        self.error',
        '            self.state = "down"\n        self.since_ms = now_ms\n        self.error',
        _BOARD + "test_counts_while_redis_is_unreachable",
    ),
    Mutant(
        "dashboard/board.py",
        "    return count if count <= SAFE_INTEGER_MAX else str(count)",
        "    return count if count <= SAFE_INTEGER_MAX + 1 else str(count)",
        _BOARD + "test_large_counts_are_text",
    ),
    Mutant(
        "dashboard/board.py",
        "    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))",
        "    ordered = list(counts.items())",
        _BOARD + "test_many_names_become_eight_and_the_others",
    ),
    Mutant(
        "dashboard/feed.py",
        "            if self.listeners == 0:\n                self._stop()\n",
        "",
        _APP + "test_one_poller_serves_all_pages",
    ),
    Mutant(
        "dashboard/feed.py",
        "        return self.listeners >= PAGES_MAX",
        "        return self.listeners > PAGES_MAX",
        _APP + "test_too_many_pages_are_refused",
    ),
)
