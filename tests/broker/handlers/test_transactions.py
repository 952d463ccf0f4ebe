"""Responses to each request in each state of a transaction, those of Apache Kafka 4.1.1.

Kafka ran with `transaction.version=0`, the protocol of the versions supported here, as a single broker:

    ONCEFLOW_TEST_BOOTSTRAP=127.0.0.1:9092 pytest tests/broker/handlers/test_transactions.py

In one case this broker differs on purpose; see OUR_RESPONSES.
"""

import os
from typing import Any

import pytest

from onceflow.testing import BrokerProcess
from onceflow.wire.errors import ErrorCode
from tests.broker.raw_client import connected
from tests.broker.transactions import responses as scenarios
from tests.broker.transactions.responses import Scenario
from tests.broker.transactions.transactional_client import TransactionalClient

CONCURRENT_TRANSACTIONS = ErrorCode.concurrent_transactions
INVALID_PRODUCER_EPOCH = ErrorCode.invalid_producer_epoch
INVALID_PRODUCER_ID_MAPPING = ErrorCode.invalid_producer_id_mapping
INVALID_REQUEST = ErrorCode.invalid_request
INVALID_TRANSACTION_TIMEOUT = ErrorCode.invalid_transaction_timeout
INVALID_TXN_STATE = ErrorCode.invalid_txn_state
NONE = ErrorCode.none
OFFSET_METADATA_TOO_LARGE = ErrorCode.offset_metadata_too_large
OPERATION_NOT_ATTEMPTED = ErrorCode.operation_not_attempted
PRODUCER_FENCED = ErrorCode.producer_fenced
TOPIC_AUTHORIZATION_FAILED = ErrorCode.topic_authorization_failed
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = ErrorCode.transactional_id_authorization_failed
TRANSACTIONAL_ID_NOT_FOUND = ErrorCode.transactional_id_not_found
TRANSACTION_COORDINATOR_FENCED = ErrorCode.transaction_coordinator_fenced
UNKNOWN_MEMBER_ID = ErrorCode.unknown_member_id
UNKNOWN_TOPIC_OR_PARTITION = ErrorCode.unknown_topic_or_partition
UNSTABLE_OFFSET_COMMIT = ErrorCode.unstable_offset_commit

KAFKAS_RESPONSES: dict[Scenario, list[Any]] = {
    scenarios.init_bad_requests: [
        INVALID_TRANSACTION_TIMEOUT,
        INVALID_TRANSACTION_TIMEOUT,
        ("same id", 1),
        INVALID_TRANSACTION_TIMEOUT,
        INVALID_REQUEST,
        INVALID_REQUEST,
        INVALID_REQUEST,
    ],
    scenarios.init_first: [NONE, 0, "Empty", ("same id", 1), ("same id", 2)],
    scenarios.init_of_an_unknown_id_that_names_an_epoch: [("new id", 0)],
    scenarios.init_with_epoch: [
        ("same id", 1),
        ("same id", 1),
        ("same id", 2),
        PRODUCER_FENCED,
        INVALID_PRODUCER_EPOCH,
        PRODUCER_FENCED,
        PRODUCER_FENCED,
        ("same id", 3),
        PRODUCER_FENCED,
        PRODUCER_FENCED,
    ],
    scenarios.init_with_epoch_after_a_transaction: [PRODUCER_FENCED, ("same id", 1), "Empty"],
    scenarios.init_while_ongoing: [
        CONCURRENT_TRANSACTIONS,
        ("same id", 2),
        PRODUCER_FENCED,
        INVALID_PRODUCER_EPOCH,
        PRODUCER_FENCED,
        INVALID_PRODUCER_EPOCH,
        PRODUCER_FENCED,
        INVALID_PRODUCER_EPOCH,
        INVALID_PRODUCER_EPOCH,
    ],
    scenarios.init_with_epoch_while_ongoing: [
        PRODUCER_FENCED,
        CONCURRENT_TRANSACTIONS,
        PRODUCER_FENCED,
        ("same id", 2),
    ],
    scenarios.add_bad_requests: [
        INVALID_PRODUCER_ID_MAPPING,
        {OPERATION_NOT_ATTEMPTED, UNKNOWN_TOPIC_OR_PARTITION},
        {OPERATION_NOT_ATTEMPTED, UNKNOWN_TOPIC_OR_PARTITION},
        {OPERATION_NOT_ATTEMPTED, TOPIC_AUTHORIZATION_FAILED},
        "Empty",
        INVALID_PRODUCER_ID_MAPPING,
        PRODUCER_FENCED,
        INVALID_PRODUCER_EPOCH,
        NONE,
        "Ongoing",
        NONE,
        NONE,
        INVALID_REQUEST,
    ],
    scenarios.add_offsets_to_the_groups_own_topic: [[TOPIC_AUTHORIZATION_FAILED], NONE, NONE, "Ongoing"],
    scenarios.end_when_empty: [INVALID_PRODUCER_ID_MAPPING, INVALID_TXN_STATE, INVALID_TXN_STATE],
    scenarios.end_repeated: [
        NONE,
        INVALID_TXN_STATE,
        NONE,
        INVALID_TXN_STATE,
        PRODUCER_FENCED,
        INVALID_PRODUCER_EPOCH,
        PRODUCER_FENCED,
        INVALID_PRODUCER_ID_MAPPING,
        INVALID_REQUEST,
    ],
    scenarios.produce_outside_a_transaction: [
        INVALID_TXN_STATE,
        INVALID_TXN_STATE,
        NONE,
        INVALID_TXN_STATE,
        INVALID_TXN_STATE,
    ],
    scenarios.produce_as_another_producer: [
        INVALID_PRODUCER_EPOCH,
        INVALID_PRODUCER_EPOCH,
        INVALID_PRODUCER_EPOCH,
        INVALID_PRODUCER_EPOCH,
        INVALID_PRODUCER_ID_MAPPING,
        INVALID_PRODUCER_ID_MAPPING,
        INVALID_PRODUCER_ID_MAPPING,
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ],
    scenarios.produce_plainly_in_a_transaction: [INVALID_TXN_STATE, INVALID_TXN_STATE, NONE],
    scenarios.produce_after_another_took_over: [
        INVALID_PRODUCER_EPOCH,
        INVALID_PRODUCER_EPOCH,
        INVALID_PRODUCER_EPOCH,
        NONE,
        INVALID_PRODUCER_EPOCH,
        NONE,
    ],
    scenarios.timed_out: [
        INVALID_PRODUCER_EPOCH,
        INVALID_PRODUCER_EPOCH,
        PRODUCER_FENCED,
        PRODUCER_FENCED,
        INVALID_PRODUCER_EPOCH,
        PRODUCER_FENCED,
        PRODUCER_FENCED,
        ("same id", 2),
    ],
    scenarios.commit_offsets: [
        INVALID_TXN_STATE,
        INVALID_TXN_STATE,
        NONE,
        NONE,
        NONE,
        UNKNOWN_TOPIC_OR_PARTITION,
        UNKNOWN_TOPIC_OR_PARTITION,
        NONE,
        OFFSET_METADATA_TOO_LARGE,
        UNKNOWN_MEMBER_ID,
        NONE,
        UNKNOWN_MEMBER_ID,
        INVALID_PRODUCER_EPOCH,
        INVALID_PRODUCER_EPOCH,
        INVALID_PRODUCER_EPOCH,
        INVALID_PRODUCER_EPOCH,
        INVALID_PRODUCER_ID_MAPPING,
        INVALID_PRODUCER_ID_MAPPING,
        (UNSTABLE_OFFSET_COMMIT, -1),
        (NONE, -1),
        NONE,
        (NONE, 5),
        INVALID_TXN_STATE,
    ],
    scenarios.describe: [
        TRANSACTIONAL_ID_NOT_FOUND,
        ("Ongoing", 60000, 0),
        [(True, (0,))],
        (0, 0, -1, 0),
        UNKNOWN_TOPIC_OR_PARTITION,
        (True, ()),
        (False, ("Nonsense",)),
        (True, ()),
        (False, ()),
        INVALID_REQUEST,
    ],
    scenarios.write_markers: [
        NONE,
        INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED,
        UNKNOWN_TOPIC_OR_PARTITION,
        INVALID_PRODUCER_EPOCH,
        NONE,
    ],
    scenarios.init_with_an_old_epoch_while_ongoing: [CONCURRENT_TRANSACTIONS, PRODUCER_FENCED, PRODUCER_FENCED],
}

OUR_RESPONSES: dict[Scenario, list[Any]] = {
    # Kafka lets a fenced producer abort the transaction of the one that fenced it; here the live one continues.
    scenarios.init_with_an_old_epoch_while_ongoing: [PRODUCER_FENCED, PRODUCER_FENCED, NONE],
}


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return Kafka's address from ONCEFLOW_TEST_BOOTSTRAP, or start a broker that notices timeouts quickly."""
    kafka = os.environ.get("ONCEFLOW_TEST_BOOTSTRAP")
    if kafka:
        yield kafka
        return
    quick = ("--transaction-abort-timed-out-transaction-cleanup-interval-ms", "50")
    with BrokerProcess(tmp_path_factory.mktemp("responses") / "data", 0, *quick) as broker:
        yield broker.bootstrap


@pytest.mark.parametrize("scenario", KAFKAS_RESPONSES, ids=lambda scenario: str(scenario.__name__))
def test_responses_in_each_state_match_kafka(scenario: Scenario, bootstrap: str, topic: str) -> None:
    wanted = KAFKAS_RESPONSES[scenario]
    if "ONCEFLOW_TEST_BOOTSTRAP" not in os.environ:
        wanted = OUR_RESPONSES.get(scenario, wanted)
    with connected(bootstrap) as client:
        client.create_topic(topic, 2)
        assert list(scenario(TransactionalClient(client, f"id-of-{topic}"), topic)) == wanted
