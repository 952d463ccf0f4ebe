"""The remedies in messages of the Kafka sink, carried out: each message stops the query, its remedy restarts it.

Our broker has no access control, so a proxy sends its authorization errors.
"""

import json
import random
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from onceflow.cli import onceflow
from onceflow.client.admin import Admin
from onceflow.client.cluster import LATEST, Cluster
from onceflow.client.connection import Connection
from onceflow.client.transactional import TransactionalProducer
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark.errors import MarkerRefused, SinkStopped
from onceflow.spark.exactly_once import proof
from onceflow.spark.kafka import marker as kafka_marker
from onceflow.spark.kafka.plain import AtLeastOnce
from onceflow.spark.kafka.transaction import Settings
from onceflow.spark.kafka_sink import KafkaSink, kafka_sink
from onceflow.spark.offsets import LossKind
from onceflow.testing import Broker, BrokerProcess
from onceflow.wire import apis
from onceflow.wire.codecs import Codec
from tests import remedies
from tests.spark.kafka.test_transaction import NewDriver, new_driver, proxy
from tests.spark.kafka_driver import (
    MARKER_TOPIC,
    Driver,
    Rows,
    batch,
    eventually,
    expect,
    make_topics,
    quick_sleep,
    values_of,
    visible,
)
from tests.spark.reader.test_accepted_losses import loss
from tests.spark.response_proxy import ResponseProxy
from tests.spark.simulated_query import Query, Services, Started, places, row_of
from tests.spark.test_hard_cases import chance, running

__all__ = ["chance", "new_driver", "proxy", "running"]


def call(*words: str) -> str:
    done = CliRunner().invoke(onceflow, words)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def topic() -> str:
    """Return a topic named like a sink's marker: query id and sink name."""
    return f"{uuid.uuid4()}-kafka"


def batch_shown(bootstrap: str, topic: str) -> int:
    """Return the batch that `onceflow sink show kafka` shows."""
    query = topic.removesuffix("-kafka")
    where = ["--bootstrap", bootstrap, "--marker-topic", MARKER_TOPIC, "--query", query]
    (sink,) = json.loads(call("sink", "show", "kafka", *where, "--json"))["sinks"]
    return int(sink["in_record"]["batch"])


# One query at a time


@pytest.mark.remedy(Remedy.END_OTHER_DRIVER, Remedy.START_AGAIN)
def test_two_drivers(new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    first = new_driver()
    first.write(0)
    second = new_driver(owner="owner-2")

    def overtaken(number: int) -> None:
        if number == 1:
            second.write(1)
            expect(bootstrap, topic, 2)

    with pytest.raises(SinkStopped, match="was fenced") as fenced:
        first.write(1, Rows(topic, values_of(1), between=overtaken))
    with pytest.raises(SinkStopped, match="was written by another driver") as other:
        first.write(2)
    for message in (fenced.value, other.value):
        remedies.find(Remedy.END_OTHER_DRIVER, message)
    remedies.find(Remedy.START_AGAIN, fenced.value)
    assert batch_shown(bootstrap, topic) == 1
    first.close()
    second.write(2)
    expect(bootstrap, topic, 3)


@pytest.mark.remedy(Remedy.ABORT_TRANSACTION)
def test_open_transaction_of_another_sink(new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    new_driver().write(0)
    other = TransactionalProducer(bootstrap, f"{topic}-other")
    other.begin()
    other.send(MARKER_TOPIC, b"open", b"other key", partition=0)
    other.flush()
    new_driver(owner="owner-2").write(1)
    with Cluster(bootstrap) as cluster:
        Admin(cluster).delete_group(f"onceflow-{topic}")
    with pytest.raises(SinkStopped) as raised:
        new_driver(owner="owner-3", settings={"retry_timeout_ms": 100}).write(2)
    remedies.find(Remedy.ABORT_TRANSACTION, raised.value)
    assert f"{topic}-other" in call("transaction", "list", "--state", "Ongoing", "--bootstrap", bootstrap)
    call("transaction", "abort", f"{topic}-other", "--yes", "--bootstrap", bootstrap)
    new_driver(owner="owner-4").write(2)
    expect(bootstrap, topic, 3)
    other.close()


# The output's topics and the marker


@pytest.mark.remedy(Remedy.ACCEPT_PARTITIONS, Remedy.OTHER_TOPIC)
def test_output_with_more_partitions(new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    driver = new_driver()
    driver.write(0)
    driver.write(1)
    with pytest.raises(SinkStopped) as raised:
        driver.write(2, Rows(topic, values_of(2), partition_count=8))
    remedies.find(Remedy.OTHER_TOPIC, raised.value)
    other = f"{topic}-other"
    make_topics(bootstrap, other)
    new_driver(owner="owner-2").write(2, Rows(other, values_of(2)))
    assert remedies.find(Remedy.ACCEPT_PARTITIONS, raised.value) == {"partitions": f"'{topic}': 8"}
    new_driver(owner="owner-3", accepted={topic: 8}).write(3, Rows(topic, values_of(3), partition_count=8))


@pytest.mark.remedy(Remedy.COMPACT_MARKERS)
def test_marker_topic_without_compaction(cluster: Cluster, bootstrap: str, topic: str) -> None:
    cluster.create_topic(topic, 1)
    with pytest.raises(SinkStopped) as raised:
        kafka_marker._marker_partitions(cluster, topic)
    remedies.find(Remedy.COMPACT_MARKERS, raised.value)
    call("topic", "alter", topic, "--config", "cleanup.policy=compact", "--bootstrap", bootstrap)
    assert kafka_marker._marker_partitions(cluster, topic) == 1


@pytest.mark.remedy(Remedy.SHORTER_MARKER)
def test_marker_too_long(new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    class ManyTopics(Rows):
        def partition_counts(self) -> dict[str, int]:
            return {f"{self.topic}-{number}": 1 for number in range(200)}

    with pytest.raises(SinkStopped) as raised:
        new_driver().write(0, of=batch(0, plan="plan" * 1024))
    assert remedies.find(Remedy.SHORTER_MARKER, raised.value) == {"count": "1"}
    with pytest.raises(SinkStopped) as raised:
        new_driver().write(0, ManyTopics(topic, values_of(0)))
    assert remedies.find(Remedy.SHORTER_MARKER, raised.value) == {"count": "200"}
    new_driver().write(0)
    expect(bootstrap, topic, 1)


@pytest.mark.remedy(Remedy.PUT_BACK_TOGETHER)
def test_overwritten_marker_record(new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    driver = new_driver()
    driver.write(0)
    place = driver.location

    def put(value: bytes) -> None:
        with TransactionalProducer(bootstrap, f"{topic}-other") as producer:
            producer.begin()
            producer.send(MARKER_TOPIC, value, place.name.encode(), partition=0)
            producer.commit()
        eventually(lambda: getattr(place.read_record(driver.cluster), "value", bytes)() == value)

    older = place.read_record(driver.cluster)
    driver.write(1)
    newer = place.read_record(driver.cluster)
    assert older is not None and newer is not None
    put(older.value())
    with pytest.raises(SinkStopped, match="the two copies") as raised:
        new_driver(owner="owner-2").write(2)
    remedies.find(Remedy.PUT_BACK_TOGETHER, raised.value)
    put(newer.value())
    new_driver(owner="owner-3").write(2)
    expect(bootstrap, topic, 3)


@pytest.mark.remedy(Remedy.NAME_MARKER_TOPIC)
def test_another_marker_topic(new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    new_driver().write(0)
    words = ["sink", "show", "kafka", "--bootstrap", bootstrap, "--marker-topic"]
    done = CliRunner().invoke(onceflow, [*words, topic + "-none"], standalone_mode=False)
    remedies.find(Remedy.NAME_MARKER_TOPIC, done.exception)
    assert batch_shown(bootstrap, topic) == 0


# A lost or an older checkpoint


def refusal(query: Query) -> str:
    with pytest.raises(OnceflowError) as raised:
        query.start_once(query.committed + 1)
    return str(raised.value)


def lose_checkpoint(query: Query) -> None:
    shutil.rmtree(query.checkpoint, ignore_errors=True)
    query.checkpoint.mkdir()
    query.query_id = f"00000000-0000-4000-8000-{random.randrange(16**12):012x}"


@pytest.mark.remedy(Remedy.PUT_BACK, Remedy.FORGET_AND_EMPTY, Remedy.OTHER_SINK_NAME)
@pytest.mark.parametrize("remedy", ["put back", "forget", "other name"])
def test_lost_checkpoint(
    running: Services, chance: random.Random, new_query: Started, tmp_path: Path, remedy: str
) -> None:
    query = new_query(running, chance, batches=3, with_redis=False)
    shutil.copytree(query.checkpoint, tmp_path / "copy")
    query_id, before = query.query_id, query.written()
    lose_checkpoint(query)
    message = refusal(query)
    remedies.find(Remedy.PUT_BACK, message)
    remedies.find(Remedy.OTHER_SINK_NAME, message)
    words = remedies.command(Remedy.FORGET_AND_EMPTY, message, "reset")
    if remedy == "put back":
        shutil.rmtree(query.checkpoint)
        shutil.copytree(tmp_path / "copy", query.checkpoint)
        query.query_id = query_id
    elif remedy == "forget":
        call(*words[1:])
        empty(query)
        lose_checkpoint(query)
    else:
        query.kafka_sink = lambda: sink_of_another_name(query)  # type: ignore[method-assign]
    query.run(3)
    if remedy == "other name":  # The topic has the rows of both.
        rows = {partition: (0, end) for partition, end in query.ends(query.committed).items()}
        assert sorted(query.written()) == sorted([*before, *(row_of(*place) for place in places(rows))])
    else:
        query.check()


def sink_of_another_name(query: Query) -> KafkaSink:
    where: dict[str, Any] = {"topic": query.target, "checkpoint": str(query.checkpoint)}
    sink = kafka_sink(query.services.broker.bootstrap, plan="copy", name="second", **where)
    sink.settings = replace(sink.settings, at=query.watch_requests, sleep=quick_sleep, retry_timeout_ms=20_000)
    return sink  # type: ignore[return-value]


def empty(query: Query) -> None:
    """Delete and recreate the query's output topic."""
    with Cluster(query.services.broker.bootstrap) as cluster:
        partitions = len(cluster.require_topic(query.target).partitions)
        cluster.delete_topic(query.target)
        cluster.create_topic(query.target, partitions)


@pytest.mark.remedy(Remedy.WRITE_AGAIN)
@pytest.mark.parametrize("is_other", [False, True], ids=["emptied topic", "another topic"])
def test_writing_again(
    running: Services, chance: random.Random, new_query: Started, tmp_path: Path, is_other: bool
) -> None:
    query = new_query(running, chance, batches=2, with_redis=False, arrivals=(5,))
    shutil.copytree(query.checkpoint, tmp_path / "older")
    query.run(2)
    shutil.rmtree(query.checkpoint)
    shutil.copytree(tmp_path / "older", query.checkpoint)
    query.arrivals = (7,)
    message = refusal(query)
    call(*remedies.command(Remedy.WRITE_AGAIN, message, "reset")[1:])
    if is_other:
        query.target += "-other"
        with Cluster(running.broker.bootstrap) as cluster:
            cluster.create_topic(query.target, 3)
    else:
        empty(query)
    lose_checkpoint(query)
    query.run(3)
    query.check()


# The broker and its settings


@pytest.mark.remedy(Remedy.FIX_CAUSE, Remedy.START_AGAIN)
def test_failure_in_every_attempt(new_driver: NewDriver, proxy: ResponseProxy, bootstrap: str, topic: str) -> None:
    driver = new_driver(proxy.bootstrap)
    driver.write(0)
    proxy.faults = [(apis.PRODUCE, 48)] * 5
    with pytest.raises(SinkStopped, match="in 5 attempts") as raised:
        driver.write(1)
    remedies.find(Remedy.FIX_CAUSE, raised.value)
    remedies.find(Remedy.START_AGAIN, raised.value)
    assert proxy.faults == []
    new_driver(owner="owner-2").write(1)
    expect(bootstrap, topic, 2)


@pytest.mark.remedy(Remedy.LOOK_AT_BROKER_LOG)
def test_unreachable_broker(tmp_path: Path, topic: str) -> None:
    with BrokerProcess(tmp_path / "broker") as running:
        make_topics(running.bootstrap, topic)
        driver = Driver(running.bootstrap, topic, settings={"retry_timeout_ms": 100}, timeout_ms=500)
        driver.write(0)
        running.stop()
        with pytest.raises(OnceflowError) as raised:
            driver.write(1)
        remedies.find(Remedy.LOOK_AT_BROKER_LOG, raised.value)
        assert "Traceback" not in running.log_path.read_text()
        driver.close()
        running.start()
        again = Driver(running.bootstrap, topic, owner="owner-2")
        again.write(1)
        expect(running.bootstrap, topic, 2)
        again.close()


@pytest.mark.remedy(Remedy.TRY_AGAIN)
def test_producer_ids_temporarily_unavailable(proxy: ResponseProxy, bootstrap: str, topic: str) -> None:
    make_topics(bootstrap, topic)
    with Cluster(proxy.bootstrap, timeout_ms=200) as through:
        proxy.faults = [(apis.INIT_PRODUCER_ID, 14)] * 100
        sink = AtLeastOnce(through, Settings(retry_timeout_ms=100, sleep=quick_sleep))
        with pytest.raises(OnceflowError) as raised:
            sink.write(Rows(topic, values_of(1)))
        remedies.find(Remedy.TRY_AGAIN, raised.value)
    proxy.faults = []
    with Cluster(proxy.bootstrap) as through:
        AtLeastOnce(through, Settings(retry_timeout_ms=2000, sleep=quick_sleep)).write(Rows(topic, values_of(1)))
    expect_values(bootstrap, topic)


def expect_values(bootstrap: str, topic: str) -> None:
    with Cluster(bootstrap) as cluster:
        assert sum(end.offset for end in cluster.list_offsets(topic, dict.fromkeys(range(3), LATEST)).values()) == 30


@pytest.mark.remedy(Remedy.NEWER_KAFKA)
def test_broker_too_old(new_driver: NewDriver, bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our broker serves the needed versions; the patched client reports that it does not."""
    with monkeypatch.context() as old:
        old.setattr(Connection, "serves", lambda *_arguments: False)
        with pytest.raises(SinkStopped) as raised:
            new_driver().write(0)
    remedies.find(Remedy.NEWER_KAFKA, raised.value)
    new_driver().write(0)
    expect(bootstrap, topic, 1)


@pytest.mark.parametrize(
    ("code", "api_key", "remedy"),
    [
        pytest.param(29, apis.PRODUCE, Remedy.GRANT_WRITE, marks=pytest.mark.remedy(Remedy.GRANT_WRITE)),
        pytest.param(30, apis.TXN_OFFSET_COMMIT, Remedy.GRANT_READ, marks=pytest.mark.remedy(Remedy.GRANT_READ)),
        pytest.param(53, apis.INIT_PRODUCER_ID, Remedy.GRANT_WRITE, marks=pytest.mark.remedy(Remedy.GRANT_WRITE)),
    ],
    ids=["topic", "group", "transactional id"],
)
def test_user_without_a_right(
    new_driver: NewDriver, proxy: ResponseProxy, bootstrap: str, topic: str, code: int, api_key: int, remedy: Remedy
) -> None:
    proxy.faults = [(api_key, code)]
    with pytest.raises(SinkStopped) as raised:
        new_driver(proxy.bootstrap).write(0)
    remedies.find(remedy, raised.value)
    new_driver(proxy.bootstrap).write(0)
    expect(bootstrap, topic, 1)


@pytest.fixture
def broker_with(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Return a function that starts a broker with these settings, or restarts it on the same data."""
    made: list[Broker] = []

    def start(**settings: Any) -> str:
        for broker in made:
            broker.stop()
        made[:] = [
            Broker(tmp_path / "broker", settings={name.replace("_", "."): value for name, value in settings.items()})
        ]
        return made[0].start().bootstrap_servers

    yield start
    for broker in made:
        broker.stop()


def write_at(bootstrap: str, topic: str, number: int, rows: Rows | None = None, **settings: Any) -> None:
    driver = Driver(bootstrap, topic, owner=f"owner-{time.monotonic()}", settings=settings)
    try:
        driver.write(number, rows)
    finally:
        driver.close()


@pytest.mark.remedy(Remedy.LOWER_TIMEOUT, Remedy.RAISE_MAX_TIMEOUT)
@pytest.mark.parametrize("is_raised", [False, True], ids=["lower", "raise"])
def test_timeout_above_the_brokers_maximum(broker_with: Callable[..., str], topic: str, is_raised: bool) -> None:
    bootstrap = broker_with(transaction_max_timeout_ms=20_000)
    make_topics(bootstrap, topic)
    with pytest.raises(SinkStopped) as raised:
        write_at(bootstrap, topic, 0, transaction_timeout_ms=60_000)
    remedies.find(Remedy.LOWER_TIMEOUT, raised.value)
    remedies.find(Remedy.RAISE_MAX_TIMEOUT, raised.value)
    if is_raised:
        bootstrap = broker_with(transaction_max_timeout_ms=60_000)
    write_at(bootstrap, topic, 0, transaction_timeout_ms=60_000 if is_raised else 20_000)
    expect(bootstrap, topic, 1)


@pytest.mark.remedy(Remedy.RAISE_SETTING)
def test_offset_metadata_limit_too_small(broker_with: Callable[..., str], topic: str) -> None:
    bootstrap = broker_with(offset_metadata_max_bytes=100)
    make_topics(bootstrap, topic)
    with pytest.raises(SinkStopped) as raised:
        write_at(bootstrap, topic, 0)
    remedies.find(Remedy.RAISE_SETTING, raised.value)
    bootstrap = broker_with(offset_metadata_max_bytes=4096)
    write_at(bootstrap, topic, 0)
    expect(bootstrap, topic, 1)


@pytest.mark.remedy(Remedy.RAISE_SETTING, Remedy.LOWER_BATCH_BYTES)
@pytest.mark.parametrize("is_raised", [False, True], ids=["smaller batches", "larger segments"])
def test_segments_smaller_than_a_batch(new_driver: NewDriver, bootstrap: str, topic: str, is_raised: bool) -> None:
    sizes = ["--config", "segment.bytes=1048576", "--config", "max.message.bytes=4000000"]
    call("topic", "alter", topic, *sizes, "--bootstrap", bootstrap)
    new_driver().write(0)
    values = {0: [bytes([number]) * 100_000 for number in range(15)]}

    def rows(batch_bytes: int) -> Rows:
        return Rows(topic, values, codec=Codec.NONE, batch_bytes=batch_bytes)

    with pytest.raises(SinkStopped, match=r"\(18\)") as raised:
        new_driver(owner="owner-2").write(1, rows(2_000_000))
    remedies.find(Remedy.RAISE_SETTING, raised.value)
    remedies.find(Remedy.LOWER_BATCH_BYTES, raised.value)
    if is_raised:
        call("topic", "alter", topic, "--config", "segment.bytes=8000000", "--bootstrap", bootstrap)
    new_driver(owner="owner-3").write(1, rows(2_000_000 if is_raised else 500_000))
    eventually(lambda: len(visible(bootstrap, topic)[0]) == 15)
    assert visible(bootstrap, topic)[0] == values[0]


@pytest.mark.remedy(Remedy.LONGER_TRANSACTION)
def test_transaction_longer_than_its_timeout(tmp_path: Path, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    option = "--transaction-abort-timed-out-transaction-cleanup-interval-ms"
    with BrokerProcess(tmp_path / "broker", 0, option, "50") as running:
        make_topics(running.bootstrap, topic)

        def written(number: int, timeout_ms: int) -> int:
            """Write a batch that waits until a short transaction has timed out; return the number of pulls."""
            settings = {"transaction_timeout_ms": timeout_ms}
            driver = Driver(running.bootstrap, topic, owner=f"owner-{number}", settings=settings)
            admin = Admin(driver.cluster)

            def wait(_pull: int) -> None:
                if rows.pulls == 2:
                    eventually(lambda: admin.describe_transaction(driver.location.name).state != "Ongoing", 1)

            rows = Rows(topic, values_of(number), between=wait)
            driver.write(number, rows)
            driver.close()
            return rows.pulls

        written(0, 300)
        assert written(1, 300) >= 4
        remedies.find(Remedy.LONGER_TRANSACTION, caplog.text)
        assert written(2, 60_000) < 4
        expect(running.bootstrap, topic, 3)


@pytest.mark.remedy(Remedy.BEGIN_NEW_CHECKPOINT, Remedy.LONGER_RETENTION)
def test_too_many_losses(cluster: Cluster, bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "LOSSES_MAX", 2)
    lost = tuple(loss(LossKind.TRIMMED, "in", number, number + 1) for number in range(3))
    with pytest.raises(MarkerRefused) as raised:
        proof.losses_after(None, replace(batch(1), accepted=lost))
    remedies.find(Remedy.BEGIN_NEW_CHECKPOINT, raised.value)
    remedies.find(Remedy.LONGER_RETENTION, raised.value)
    cluster.create_topic(topic, 1)
    call("topic", "alter", topic, "--config", "retention.ms=-1", "--bootstrap", bootstrap)
    assert proof.losses_after(None, batch(0)) == ()
