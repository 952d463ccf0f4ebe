"""Clients of other projects with idle connections that the broker closes, and records sent by sendfile only."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from onceflow import testing
from onceflow.broker import server
from onceflow.broker.network.reply import SLICE_BYTES_SMALL
from tests.broker.raw_client import batch_of, connected

WAIT_SECONDS = 20


class Quiet:
    """A silent logger: librdkafka logs each lost connection."""

    def log(self, *_arguments: object) -> None:
        """Do nothing."""


def close_idle_connections(broker: testing.Broker, clock: testing.ManualClock) -> None:
    """Let ten minutes pass, and again if a connection was in use; clients reopen connections by themselves."""
    run = broker._run
    assert run is not None
    assert run._server is not None
    listener = run._server._listener
    assert listener is not None
    seen = set(listener._connections)
    assert len(seen) >= 3
    deadline = time.monotonic() + WAIT_SECONDS
    while any(connection.is_open for connection in seen):
        assert time.monotonic() < deadline
        clock.advance_ms(600_001)
        time.sleep(0.2)


@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
def test_clients_survive_closed_idle_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TICK_SECONDS", 0.02)
    clock = testing.ManualClock(time.time_ns() // 1_000_000)
    with testing.Broker(tmp_path / "data", clock=clock) as broker:
        broker.create_topic("t")
        produce_before_and_after_a_pause(broker, clock)


def produce_before_and_after_a_pause(broker: testing.Broker, clock: testing.ManualClock) -> None:
    from kafka import KafkaProducer

    bootstrap = broker.bootstrap_servers

    async def produce_twice() -> list[int]:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as aio:
            first = await aio.send_and_wait("t", b"aiokafka")
            await asyncio.to_thread(close_idle_connections, broker, clock)
            second = await aio.send_and_wait("t", b"aiokafka")
        return [first.offset, second.offset]

    rdkafka = Producer({"bootstrap.servers": bootstrap}, logger=Quiet())
    python = KafkaProducer(bootstrap_servers=bootstrap)
    rdkafka.produce("t", b"librdkafka")
    assert rdkafka.flush(WAIT_SECONDS) == 0
    assert python.send("t", b"kafka-python").get(WAIT_SECONDS).offset == 1
    assert asyncio.run(produce_twice()) == [2, 3]
    rdkafka.produce("t", b"librdkafka")
    assert rdkafka.flush(WAIT_SECONDS) == 0
    assert python.send("t", b"kafka-python").get(WAIT_SECONDS).offset == 5
    python.close()


def test_records_leave_the_broker_by_sendfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    real_sendfile = os.sendfile

    def counted(out: int, source: int, offset: int, count: int) -> int:
        sent.append(real_sendfile(out, source, offset, count))
        return sent[-1]

    batch = batch_of(b"x" * 1_000_000)
    with testing.Broker(tmp_path / "data") as broker:
        broker.create_topic("t")
        with connected(broker.bootstrap_servers) as client:
            for _ in range(5):
                client.produce("t", 0, batch)
        monkeypatch.setattr(os, "sendfile", counted)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"}, logger=Quiet())
        consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
        values = [message.value() for message in consumer.consume(5, timeout=WAIT_SECONDS)]
        consumer.close()
    assert values == [b"x" * 1_000_000] * 5
    assert sum(sent) >= 5 * (len(batch) - SLICE_BYTES_SMALL), "only the end of a response may be read"
