"""The sink's transaction: each step's codes, each lost answer, a death at each named point."""

import pytest

from tests.spark.kafka.test_transaction import *  # noqa: F403

# It kills and starts a broker process of ours.
del test_a_broker_that_is_killed_in_the_middle_comes_back_to_the_same_batch  # noqa: F821


@pytest.fixture
def impatient(bootstrap: str) -> str:
    return bootstrap
