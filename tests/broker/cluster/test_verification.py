"""Batches that wait until another broker confirms their transaction: order, guards and errors."""

from collections.abc import Callable
from pathlib import Path

import pytest

from onceflow.broker.cluster.verification import Claim, Verifications
from onceflow.broker.cluster.view import ClusterView
from onceflow.broker.storage.partitions import Partition
from onceflow.wire.errors import ErrorCode
from onceflow.wire.inter_broker import NO_LEADER
from tests.broker.raw_client import batch_of
from tests.log.partition_logs import open_log

NONE = ErrorCode.none
CLAIM = Claim("visitors", 7, 0, "visits", 0)


class Network:
    """Holds the responses of the coordinator back."""

    def __init__(self, verifications: Verifications, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Callable[[ErrorCode], None]] = []
        monkeypatch.setattr(verifications, "ask", lambda _claim, respond: self.asked.append(respond))


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition("visits", 0, open_log(tmp_path / "visits-0"))


@pytest.fixture
def verifications() -> Verifications:
    return Verifications(1, ClusterView(), lambda _transactional_id: NO_LEADER)


@pytest.fixture
def network(verifications: Verifications, monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(verifications, monkeypatch)


def append(partition: Partition, *, sequence: int = 0) -> None:
    batch = batch_of(b"v", producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True)
    partition.log.append(batch)


def test_waiting_batches_keep_their_order(verifications: Verifications, network: Network, partition: Partition) -> None:
    got: list[str] = []
    verifications.verify(partition, CLAIM, lambda code: got.append(f"first {code.name}"))
    assert verifications.is_needed(partition, 7, is_coordinated_here=True), "it must not overtake the first"
    verifications.verify(partition, CLAIM, lambda code: got.append(f"second {code.name}"))
    (respond,) = network.asked
    respond(NONE)
    assert got == ["first none", "second none"]
    append(partition)
    assert not verifications.is_needed(partition, 7, is_coordinated_here=False)


@pytest.mark.parametrize("commit", [True, False])
def test_marker_voids_a_verification(
    verifications: Verifications, network: Network, partition: Partition, commit: bool
) -> None:
    got: list[ErrorCode] = []
    verifications.verify(partition, CLAIM, got.append)
    partition.log.append_marker(7, 0, commit=commit, coordinator_epoch=3)
    network.asked[0](NONE)
    assert got == [ErrorCode.invalid_txn_state]
    verifications.verify(partition, CLAIM, got.append)
    partition.log.append_marker(8, 0, commit=commit, coordinator_epoch=3)
    network.asked[1](NONE)
    assert got == [ErrorCode.invalid_txn_state, NONE]


def test_other_epoch_does_not_wait(verifications: Verifications, network: Network, partition: Partition) -> None:
    got: list[ErrorCode] = []
    verifications.verify(partition, CLAIM, got.append)
    verifications.verify(partition, CLAIM._replace(producer_epoch=1), got.append)
    assert got == [ErrorCode.not_enough_replicas]
    assert len(network.asked) == 1


@pytest.mark.parametrize(
    ("response", "shown"),
    [
        (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch),
        (ErrorCode.transaction_abortable, ErrorCode.invalid_txn_state),
        (ErrorCode.network_exception, ErrorCode.not_enough_replicas),
        (ErrorCode.not_coordinator, ErrorCode.not_enough_replicas),
        (ErrorCode.invalid_producer_id_mapping, ErrorCode.invalid_producer_id_mapping),
    ],
)
def test_errors_of_the_coordinator(
    verifications: Verifications, network: Network, partition: Partition, response: ErrorCode, shown: ErrorCode
) -> None:
    got: list[ErrorCode] = []
    verifications.verify(partition, CLAIM, got.append)
    network.asked[0](response)
    assert got == [shown]


def test_unknown_coordinator_is_retriable(verifications: Verifications, partition: Partition) -> None:
    got: list[ErrorCode] = []
    verifications.verify(partition, CLAIM, got.append)
    assert got == [ErrorCode.not_enough_replicas]
