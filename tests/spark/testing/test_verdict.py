"""Verdicts on views of a reader after a driver's death, without a query."""

import pytest

from onceflow.spark.testing.query import Seen
from onceflow.spark.testing.verdict import Event, Kind, NotExactlyOnce, Rule, refuse_before_commit

WHOLE = Seen(of=2, twice=(), missing=(), before_twice=(), before_missing=(), foreign=())


def test_recovery_may_commit_a_pending_batch() -> None:
    died_in_commit = Event(Kind.DEATH, 1, "the driver died", was_committing=True)
    refuse_before_commit(died_in_commit, "recover", WHOLE)


@pytest.mark.parametrize(
    ("was_committing", "step"), [(False, "recover"), (False, "prepare"), (True, "prepare"), (True, "write")]
)
def test_other_steps_may_not_commit(was_committing: bool, step: str) -> None:
    event = Event(Kind.DEATH, 1, "the driver died", was_committing=was_committing)
    with pytest.raises(NotExactlyOnce) as raised:
        refuse_before_commit(event, step, WHOLE)
    assert raised.value.rule == Rule.VISIBLE
