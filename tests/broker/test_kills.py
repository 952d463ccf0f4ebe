"""A real broker is killed -9 a thousand times under load; every acknowledged record exists once.

In each round one idempotent librdkafka producer continues on two partitions of small segments. A raw client has
committed the group's next offset and ended a transaction or left one open. The kill follows some milliseconds later or
earlier. The next broker must first show offset and transaction as they were acknowledged. At the end every record
exists once, in order.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from onceflow.testing import BrokerProcess
from onceflow.wire.errors import ErrorCode
from tests.broker.raw_client import RawClient, connected
from tests.broker.test_durability import WAIT_SECONDS, Quiet, commit, committed
from tests.broker.transactions.transactional_client import TransactionalClient, committed_values, patiently

KILLS_AT_ONCE = 50
PIECES = 20
PARTITIONS = 2
ACKNOWLEDGED_PER_ROUND = 60


class Load:
    """Records sent without a pause while brokers come and go, with those acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        config = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 20,
        }
        self.producer = Producer(config, logger=Quiet())
        self.acknowledged = 0
        self.sent = [0] * PARTITIONS

    def _delivered(self, error: Any, _message: Any) -> None:
        assert error is None, error
        self.acknowledged += 1

    def send(self) -> None:
        for partition in range(PARTITIONS):
            for _ in range(10):
                value = b"%d" % self.sent[partition]
                self.producer.produce("load", value, partition=partition, callback=self._delivered)
                self.sent[partition] += 1
        self.producer.poll(0.002)

    def send_until_acknowledged(self, count: int) -> None:
        goal = self.acknowledged + count
        deadline = time.monotonic() + WAIT_SECONDS
        while self.acknowledged < goal:
            assert time.monotonic() < deadline, "nothing is acknowledged any more"
            self.send()


class Rounds:
    """One broker's deaths; `acknowledged` is the raw client's state before each."""

    def __init__(self, broker: BrokerProcess, seed: random.Random) -> None:
        self.broker = broker
        self.seed = seed
        self.offset = -1
        self.transactions: list[bytes] = []

    def run(self, kills: int) -> Load:
        load = Load(self.broker.bootstrap)
        for number in range(kills):
            with connected(self.broker.bootstrap) as client:
                self.check(client)
                load.send_until_acknowledged(self.seed.randrange(1, ACKNOWLEDGED_PER_ROUND))
                self.commit_and_transact(client, number)
                for _ in range(self.seed.randrange(5)):
                    load.send()
                self.broker.kill()
            self.broker.start()
        assert load.producer.flush(WAIT_SECONDS) == 0
        return load

    def check(self, client: RawClient) -> None:
        assert committed(client, "group", "load") == self.offset

    def commit_and_transact(self, client: RawClient, number: int) -> None:
        assert commit(client, "group", "load", number) == 0
        self.offset = number
        transactional = TransactionalClient(client, "transactions")
        transactional.init_until_done()
        assert patiently(lambda: transactional.add(("transactions", 0))) == ErrorCode.none
        value = b"%d" % number
        assert transactional.produce("transactions", value) == ErrorCode.none
        if self.seed.random() < 0.7:
            is_commit = self.seed.random() < 0.7
            assert transactional.end(commit=is_commit) == ErrorCode.none
            self.transactions += [value] * is_commit


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize("piece", range(PIECES))
def test_a_killed_broker_keeps_acknowledged_data(
    piece: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A real broker is killed -9 under load; every acknowledged record, offset and transaction exists once."""
    with BrokerProcess(tmp_path / "data") as broker:
        with connected(broker.bootstrap) as client:
            client.create_topic("load", PARTITIONS, segment_ms="200")
            client.create_topic("transactions")
        rounds = Rounds(broker, random.Random(piece))
        load = rounds.run(KILLS_AT_ONCE)
        with connected(broker.bootstrap) as client:
            # The next producer of the id ends the transaction that was left open.
            TransactionalClient(client, "transactions").init_until_done()
            assert committed_values(client, "transactions") == rounds.transactions
            for partition, count in enumerate(load.sent):
                assert committed_values(client, "load", partition) == [b"%d" % number for number in range(count)]
    assert load.acknowledged == sum(load.sent), "librdkafka repeats what was not acknowledged"
    record_property("seeds", str(piece))
    record_property("kills", KILLS_AT_ONCE)
    record_property("records acknowledged, in order and once", load.acknowledged)
    record_property("transactions committed", len(rounds.transactions))
