"""The sink's transaction: each step's codes, each lost response, a death at each named point."""

import pytest

from tests.spark.kafka.test_transaction import *  # noqa: F403

# It kills and starts a process of Onceflow's broker.
del test_batch_continues_after_broker_kill  # noqa: F821


@pytest.fixture  # type: ignore[no-redef]
def impatient(bootstrap: str) -> str:
    return bootstrap
