"""Transactional producers that others wrote, with their usual settings."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onceflow.client.addresses import parse_address
from onceflow.testing import BrokerProcess
from onceflow.wire import apis
from tests.broker.raw_client import connected
from tests.broker.transactions.transactional_client import committed_values
from tests.spark.response_proxy import LOST, ResponseProxy

pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
"""kafka-python's imports."""

WAIT_SECONDS = 30


def create(bootstrap: str, *topics: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for topic in topics:
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(10)


SAME_BROKER: dict[str, Any] = {"metadata.recovery.strategy": "none", "reconnect.backoff.max.ms": 100}
"""Options for tests that kill the broker. By default librdkafka drops the only broker when it is down and then waits
indefinitely in send_offsets_to_transaction for the dropped coordinator (confluentinc/librdkafka issue 5511)."""


def transactional(bootstrap: str, transactional_id: str, logger: Any = None, **config: Any) -> Producer:
    """An initialised producer of librdkafka."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 1, **config},
        logger=logger or _Quiet(),
    )
    producer.init_transactions(WAIT_SECONDS)
    return producer


class _Quiet:
    """A logger: librdkafka logs each lost connection and each fenced producer."""

    def log(self, *_arguments: object) -> None:
        """Nothing."""


def seen(bootstrap: str, topic: str, count: int, *, committed: bool = True) -> list[bytes]:
    """The first `count` values that a consumer of librdkafka gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-of-{topic}-{committed}",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + WAIT_SECONDS
    while len(values) < count and time.monotonic() < deadline:
        values += [message.value() or b"" for message in consumer.consume(count - len(values), timeout=0.5)]
    consumer.close()
    return values


def test_librdkafka_commits_and_aborts(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    producer = transactional(bootstrap, f"id-of-{topic}")
    for number in range(6):
        producer.begin_transaction()
        for part in range(3):
            producer.produce(topic, b"%d.%d" % (number, part))
        if number % 2:
            producer.abort_transaction(WAIT_SECONDS)
        else:
            producer.commit_transaction(WAIT_SECONDS)
    wanted = [b"%d.%d" % (number, part) for number in (0, 2, 4) for part in range(3)]
    assert seen(bootstrap, topic, len(wanted)) == wanted
    with connected(bootstrap) as client:
        assert committed_values(client, topic) == wanted


def test_librdkafka_does_not_see_an_open_transaction(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    producer = transactional(bootstrap, f"id-of-{topic}")
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(WAIT_SECONDS) == 0
    assert seen(bootstrap, topic, 1, committed=False) == [b"open"]
    with connected(bootstrap) as client:
        assert committed_values(client, topic) == []
    producer.commit_transaction(WAIT_SECONDS)
    assert seen(bootstrap, topic, 1) == [b"open"]


def test_a_second_librdkafka_producer_fences_the_first(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    first = transactional(bootstrap, f"id-of-{topic}")
    first.begin_transaction()
    first.produce(topic, b"first")
    assert first.flush(WAIT_SECONDS) == 0
    second = transactional(bootstrap, f"id-of-{topic}")
    second.begin_transaction()
    second.produce(topic, b"second")
    second.commit_transaction(WAIT_SECONDS)
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(WAIT_SECONDS)
    error = refused.value.args[0]
    assert error.fatal()
    assert error.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED), error
    assert seen(bootstrap, topic, 1) == [b"second"]


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as broker:
        yield broker


def test_consume_transform_produce_survives_kills(own_broker: BrokerProcess) -> None:
    """librdkafka reads, doubles, writes and commits its offsets in one transaction; the broker dies in between."""
    count, kills = 300, (60, 150, 240)
    bootstrap = own_broker.bootstrap
    create(bootstrap, "in", "out")
    feeder = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        feeder.produce("in", b"%d" % number)
    assert feeder.flush(WAIT_SECONDS) == 0
    pending = list(kills)
    done = 0
    deadline = time.monotonic() + 2 * WAIT_SECONDS
    while done < count and time.monotonic() < deadline:
        done = transform_until_something_fails(own_broker, pending, count, deadline)
    with connected(bootstrap) as client:
        assert committed_values(client, "out") == [b"%d" % (2 * number) for number in range(count)]
    assert not pending


def transform_until_something_fails(broker: BrokerProcess, kills: list[int], count: int, deadline: float) -> int:
    """One life of the program; how far its group has got. Offsets come from the group alone."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "doubler",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "session.timeout.ms": 6000,
            **SAME_BROKER,
        },
        logger=_Quiet(),
    )
    producer = transactional(broker.bootstrap, "doubler", **SAME_BROKER, **{"transaction.timeout.ms": 10_000})
    place = TopicPartition("in", 0)
    try:
        (committed,) = consumer.committed([place], timeout=WAIT_SECONDS)
        done = max(committed.offset, 0)
        consumer.assign([TopicPartition("in", 0, done)])
        while done < count and time.monotonic() < deadline:
            messages = consumer.consume(10, timeout=1.0)
            if not messages or any(message.error() for message in messages):
                continue
            producer.begin_transaction()
            for message in messages:
                producer.produce("out", b"%d" % (2 * int(message.value() or 0)))
            if kills and done >= kills[0]:
                kills.pop(0)
                producer.flush(0.05)
                broker.kill()
                broker.start()
            after = (messages[-1].offset() or 0) + 1
            producer.send_offsets_to_transaction(
                [TopicPartition("in", 0, after)], consumer.consumer_group_metadata(), WAIT_SECONDS
            )
            producer.commit_transaction(WAIT_SECONDS)
            done = after
    except KafkaException:
        done = 0
    finally:
        consumer.close()
    return done


def test_a_transaction_outlives_a_killed_broker(own_broker: BrokerProcess) -> None:
    create(own_broker.bootstrap, "t")
    producer = transactional(own_broker.bootstrap, "x", **SAME_BROKER)
    producer.begin_transaction()
    producer.produce("t", b"before")
    assert producer.flush(WAIT_SECONDS) == 0
    own_broker.kill()
    own_broker.start()
    with connected(own_broker.bootstrap) as client:
        assert committed_values(client, "t") == []
    producer.produce("t", b"after")
    producer.commit_transaction(WAIT_SECONDS)
    with connected(own_broker.bootstrap) as client:
        assert committed_values(client, "t") == [b"before", b"after"]


def test_aiokafka_commits_aborts_and_sends_offsets(bootstrap: str, topic: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka import TopicPartition as Place

    create(bootstrap, topic)

    async def run() -> tuple[list[bytes], int]:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"id-of-{topic}")
        await producer.start()
        for number in range(4):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"%d" % number)
            if number % 2:
                await producer.abort_transaction()
            else:
                await producer.send_offsets_to_transaction({Place(topic, 0): number}, f"group-of-{topic}")
                await producer.commit_transaction()
        await producer.stop()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=f"group-of-{topic}",
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        await consumer.start()
        consumer.assign([Place(topic, 0)])
        consumer.seek(Place(topic, 0), 0)
        values = [(await asyncio.wait_for(consumer.getone(), WAIT_SECONDS)).value for _ in range(2)]
        offset = await consumer.committed(Place(topic, 0))
        await consumer.stop()
        return values, offset

    assert asyncio.run(run()) == ([b"0", b"2"], 2)


def test_kafka_python_commits_aborts_and_is_fenced(bootstrap: str, topic: str) -> None:
    from kafka import KafkaProducer
    from kafka.errors import KafkaError as Refused

    create(bootstrap, topic)

    def initialised() -> Any:
        producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"id-of-{topic}")
        producer.init_transactions()
        return producer

    first = initialised()
    for number in range(4):
        first.begin_transaction()
        first.send(topic, b"%d" % number).get(WAIT_SECONDS)
        if number % 2:
            first.abort_transaction()
        else:
            first.commit_transaction()
    second = initialised()
    first.begin_transaction()
    with pytest.raises(Refused):
        first.send(topic, b"late").get(WAIT_SECONDS)
    second.begin_transaction()
    second.send(topic, b"second").get(WAIT_SECONDS)
    second.commit_transaction()
    with connected(bootstrap) as client:
        assert committed_values(client, topic) == [b"0", b"2", b"second"]
    first.close(timeout=0)
    second.close(timeout=WAIT_SECONDS)


def test_kafka_python_sends_offsets_as_member(bootstrap: str, topic: str) -> None:
    """They move with each committed transaction, stay with an aborted one, and are refused when the member has left."""
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.errors import CommitFailedError
    from kafka.structs import OffsetAndMetadata
    from kafka.structs import TopicPartition as Place

    create(bootstrap, topic)
    place = Place(topic, 0)
    member = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=topic,
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    deadline = time.monotonic() + WAIT_SECONDS
    while not member.assignment():
        assert time.monotonic() < deadline
        member.poll(timeout_ms=1000)
    metadata = member.group_metadata()
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"id-of-{topic}")
    producer.init_transactions()
    offsets = []
    for number in range(4):
        producer.begin_transaction()
        producer.send(topic, b"%d" % number).get(WAIT_SECONDS)
        producer.send_offsets_to_transaction({place: OffsetAndMetadata(number, f"of {number}", -1)}, metadata)
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
        committed = member.committed(place, metadata=True)
        offsets.append((committed.offset, committed.metadata))
    assert offsets == [(0, "of 0"), (0, "of 0"), (2, "of 2"), (2, "of 2")]
    member.close()
    producer.begin_transaction()
    producer.send(topic, b"late").get(WAIT_SECONDS)
    with pytest.raises(CommitFailedError, match="UnknownMemberId"):
        producer.send_offsets_to_transaction({place: OffsetAndMetadata(9, "", -1)}, metadata)
    producer.abort_transaction()
    producer.close(timeout=WAIT_SECONDS)
    with connected(bootstrap) as client:
        assert committed_values(client, topic) == [b"0", b"2"]


class _Logged:
    """A logger that keeps everything."""

    text = ""

    def log(self, _level: int, form: str, *arguments: object) -> None:
        self.text += form % arguments + "\n"


def _abort(producer: Producer) -> None:
    """Abort; librdkafka may wait for a delivery report that only `poll` takes from its queue."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not _is_aborted(producer):
        assert time.monotonic() < deadline
        producer.poll(0.1)


def _is_aborted(producer: Producer) -> bool:
    try:
        producer.abort_transaction(1.0)
    except KafkaException as error:
        if not error.args[0].retriable():
            raise
        return False
    return True


def test_librdkafka_reuses_an_aborted_records_sequence(bootstrap: str, topic: str) -> None:
    """librdkafka 2.16 loses an acknowledged record, here and on Apache Kafka 4.1.1 (docs/compatibility.md).

    It drops the record whose response is missing, and gives its sequence to the next one of the epoch. The day this
    fails, the workers of tests/histories need no precaution.
    """
    create(bootstrap, topic)
    acknowledged: dict[bytes, int] = {}

    def delivered(error: KafkaError | None, message: Any) -> None:
        if error is None:
            acknowledged[message.value()] = message.offset()

    logged = _Logged()
    with ResponseProxy(parse_address(bootstrap)) as proxy:
        producer = transactional(proxy.bootstrap, topic, logged, **{"retry.backoff.ms": 1000, "debug": "msg"})
        producer.begin_transaction()
        proxy.faults = [(apis.PRODUCE, LOST)]
        producer.produce(topic, b"aborted", partition=0, on_delivery=delivered)
        deadline = time.monotonic() + WAIT_SECONDS
        while "MsgPossiblyPersisted" not in logged.text:
            assert time.monotonic() < deadline
            producer.poll(0.01)
        _abort(producer)
        producer.begin_transaction()
        producer.produce(topic, b"lost", partition=0, on_delivery=delivered)
        assert producer.flush(WAIT_SECONDS) == 0
        producer.commit_transaction(WAIT_SECONDS)
    assert acknowledged == {b"lost": 0}
    with connected(bootstrap) as client:
        assert committed_values(client, topic) == []
