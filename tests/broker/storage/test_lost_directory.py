"""Files deleted under the running broker: it acknowledges nothing that is not stored, and its exit status shows it."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from onceflow.broker.storage import group_commit
from onceflow.remedies import Remedy
from onceflow.testing import BrokerProcess
from onceflow.wire.errors import ErrorCode
from tests import remedies
from tests.broker.driven_broker import InnerBroker, eventually
from tests.broker.raw_client import RawClient, batch_of, connected
from tests.broker.test_durability import stored_values

EXIT_SECONDS_MAX = 30


def delete(data: Path) -> None:
    shutil.rmtree(data)


def rename(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))


def replace(data: Path) -> None:
    rename(data)
    data.mkdir()


LOSSES = pytest.mark.parametrize("lose", [delete, rename, replace], ids=lambda lose: lose.__name__)


def exit_code(broker: BrokerProcess) -> int:
    """Return the exit status of a broker that ends by itself."""
    assert broker._process is not None
    return broker._process.wait(EXIT_SECONDS_MAX)


@pytest.mark.remedy(Remedy.RESTORE_DIRECTORY, Remedy.START_BROKER_AGAIN)
@LOSSES
def test_a_lost_directory_ends_the_broker(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    """Also without writing clients: one line in the log, and an exit status other than 0."""
    with BrokerProcess(tmp_path / "data") as broker:
        with connected(broker.bootstrap) as client:
            client.create_topic("t")
            assert not client.produce("t", 0, batch_of(b"stored")).error_code
        copy = shutil.copytree(broker.data, tmp_path / "copy")
        lose(broker.data)
        assert exit_code(broker) == 1
        lines = broker.log_path.read_text().splitlines()
        (line,) = (line for line in lines if "was deleted, renamed or replaced while the broker ran" in line)
        remedies.find(Remedy.RESTORE_DIRECTORY, line)
        shutil.copytree(copy, broker.data, dirs_exist_ok=True)
        remedies.find(Remedy.START_BROKER_AGAIN, line)
        broker.stop()
        broker.start()
        with connected(broker.bootstrap) as client:
            assert stored_values(client, "t") == [b"stored"]
            assert not client.produce("t", 0, batch_of(b"more")).error_code


@LOSSES
def test_a_lost_directory_acknowledges_nothing(
    tmp_path: Path, lose: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first acks=all after the next check of the directory is an error, though nothing else noticed the loss."""
    monkeypatch.setattr(group_commit, "DIRECTORY_CHECK_S", 0)
    broker = InnerBroker(tmp_path / "data", disk=None)
    with broker, connected(broker.bootstrap) as client:
        client.create_topic("t", partitions=2)
        assert not client.produce("t", 0, batch_of(b"stored")).error_code
        broker.call(lambda node: setattr(node, "check_directory", lambda: None))
        lose(broker.data)
        for partition in (0, 1, 0):
            assert client.produce("t", partition, batch_of(b"lost")).error_code == ErrorCode.kafka_storage_error
        assert broker.call(lambda node: node.is_lost)
        assert broker.log("t").high_watermark == 1


def test_rounds_check_the_directory_regularly(tmp_path: Path) -> None:
    """Without the check of each tick, and though no log of the round is missing."""
    broker = InnerBroker(tmp_path / "data", disk=None)
    with broker, connected(broker.bootstrap) as client:
        client.create_topic("t")
        broker.call(lambda node: setattr(node, "check_directory", lambda: None))
        rename(broker.data)
        eventually(lambda: client.produce("t", 0, batch_of(b"lost")).error_code != 0, "a refusal")


def test_a_loss_responds_to_every_waiter(tmp_path: Path) -> None:
    """The check of the directory fails all partitions without any sync."""
    broker = InnerBroker(tmp_path / "data", disk=None)
    with broker, connected(broker.bootstrap) as client:
        client.create_topic("t")
        client.send_fetch([("t", 0, 0)], wait_ms=60_000)
        rename(broker.data)
        eventually(lambda: broker.call(lambda node: node.is_lost), "the loss is noticed")
        assert broker.log("t").durability.failure is not None
        assert broker.call(lambda node: node.group_shards.at(0).error_code) == ErrorCode.coordinator_not_available


@pytest.mark.parametrize("lost", ["t-0", "t-0/00000000000000000000.log"])
def test_a_deleted_log_fails_its_partition(tmp_path: Path, lost: str, caplog: pytest.LogCaptureFixture) -> None:
    """The others are served, and a restart says that some logs could not be closed."""
    broker = InnerBroker(tmp_path / "data", disk=None)
    with broker, connected(broker.bootstrap) as client, caplog.at_level(logging.ERROR):
        client.create_topic("t")
        client.create_topic("other")
        assert not client.produce("t", 0, batch_of(b"stored")).error_code
        path = broker.data / lost
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        for _ in range(3):
            assert client.produce("t", 0, batch_of(b"lost")).error_code == ErrorCode.kafka_storage_error
        assert not client.produce("other", 0, batch_of(b"stored")).error_code
        assert sum("t-0" in record.getMessage() for record in caplog.records) == 1
        assert broker.log("t").high_watermark == 1


def test_an_unclosable_log_sets_the_exit_status(tmp_path: Path) -> None:
    """Nothing is acknowledged after the deletion, so only the stop notices it."""
    with BrokerProcess(tmp_path / "data") as broker:
        client = RawClient(broker.bootstrap)
        client.create_topic("t")
        assert not client.produce("t", 0, batch_of(b"stored")).error_code
        client.close()
        shutil.rmtree(broker.data / "t-0")
        assert broker.stop() == 1
        assert "some logs could not be closed" in broker.log_path.read_text()
        assert not (broker.data / ".kafka_cleanshutdown").exists()


def test_a_clean_stop_is_exit_status_0(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with connected(broker.bootstrap) as client:
            client.create_topic("t")
        assert broker.stop() == 0
