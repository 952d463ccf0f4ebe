"""A data directory written by a later release: this one refuses it and leaves it unchanged."""

from pathlib import Path
from typing import Any, cast

import pytest

from onceflow.broker.groups import records as group_records
from onceflow.broker.topics import configs as topic_configs
from onceflow.broker.topics import records as metadata_records
from onceflow.broker.topics.configs import TOPIC_CONFIGS, InvalidConfig
from onceflow.broker.topics.records import UnknownRecord
from onceflow.broker.transactions import records as transaction_records
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from tests import remedies
from tests.broker.driven_broker import DrivenBroker, eventually
from tests.broker.raw_client import connected
from tests.broker.test_durability import commit, committed
from tests.broker.transactions.transactional_client import TransactionalClient


def later_metadata(later: pytest.MonkeyPatch) -> type[OnceflowError]:
    later.setattr(metadata_records, "RECORD_VERSION", 1)
    return UnknownRecord


def later_config(later: pytest.MonkeyPatch) -> type[OnceflowError]:
    later.setitem(topic_configs.TOPIC_CONFIGS, "from.the.future", TOPIC_CONFIGS["flush.ms"])
    return InvalidConfig


def later_transactions(later: pytest.MonkeyPatch) -> type[OnceflowError]:
    later.setattr(transaction_records, "VALUE_VERSION", 2)
    return UnknownRecord


def later_groups(later: pytest.MonkeyPatch) -> type[OnceflowError]:
    later.setattr(group_records, "VALUE_VERSION", 4)
    return UnknownRecord


def write(broker: DrivenBroker) -> None:
    """Write something into each of the broker's own logs."""
    with connected(broker.bootstrap) as client:
        is_known = "from.the.future" in TOPIC_CONFIGS
        client.create_topic("t", **cast(Any, {"from_the_future": "7"} if is_known else {}))
        assert commit(client, "g", "t", 5) == 0
        producer = TransactionalClient(client, "x")
        producer.init_until_done()


@pytest.mark.remedy(Remedy.WRITER_RELEASE)
@pytest.mark.parametrize("change", [later_metadata, later_config, later_transactions, later_groups])
def test_data_of_a_later_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: object) -> None:
    assert callable(change)
    broker = DrivenBroker(tmp_path / "data")
    with monkeypatch.context() as later:
        refusal = change(later)
        with broker:
            write(broker)
    with pytest.raises(refusal) as raised:
        broker.start()
    remedies.find(Remedy.WRITER_RELEASE, raised.value)
    with monkeypatch.context() as later:
        change(later)
        with broker, connected(broker.bootstrap) as client:
            assert eventually(lambda: committed(client, "g", "t") == 5, "the groups are replayed")
