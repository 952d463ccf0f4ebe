"""The sink's transaction: each step's codes, each lost response, a death at each named point."""

import pytest

from tests.spark.kafka.test_transaction import *  # noqa: F403

# It kills and starts a process of Onceflow's broker.
del test_a_broker_that_is_killed_in_the_middle_comes_back_to_the_same_batch  # noqa: F821


@pytest.fixture
def impatient(bootstrap: str) -> str:
    return bootstrap
