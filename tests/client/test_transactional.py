"""Our transactional producer: visibility, fencing, and completion by another process."""

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from onceflow.client.admin import Admin
from onceflow.client.cluster import LATEST, Cluster
from onceflow.client.errors import InvalidTransaction, ProducerFenced, RequestRefused
from onceflow.client.records import read_records
from onceflow.client.transactional import TransactionalProducer
from onceflow.testing import Broker, ManualClock
from onceflow.wire.codecs import Codec


def wait_for_markers(cluster: Cluster) -> None:
    """Wait for the markers: Kafka responds to EndTxn before they are written."""
    for _ in range(200):
        if not any(transaction.state.startswith("Prepare") for transaction in Admin(cluster).list_transactions()):
            return
    raise AssertionError("a transaction's markers were not written")


def visible(cluster: Cluster, topic: str, *, read_committed: bool = True) -> list[bytes | None]:
    """Return the values of partition 0 that a reader sees."""
    wait_for_markers(cluster)
    end = cluster.list_offsets(topic, {0: LATEST}, read_committed=read_committed)[0].offset
    return [record.value for record in read_records(cluster, topic, 0, 0, end, read_committed=read_committed)]


def test_only_committed_records_are_visible(bootstrap: str, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1)
    with TransactionalProducer(bootstrap, topic) as producer:
        producer.begin()
        producer.send(topic, b"one", partition=0)
        producer.flush()
        assert visible(cluster, topic) == []
        assert visible(cluster, topic, read_committed=False) == [b"one"]
        producer.commit()
        producer.begin()
        producer.send(topic, b"two", b"key")
        producer.flush()
        producer.abort()
        producer.begin()
        producer.send(topic, b"three", headers=(("name", b"value"),))
        producer.commit()
    assert visible(cluster, topic) == [b"one", b"three"]
    assert visible(cluster, topic, read_committed=False) == [b"one", b"two", b"three"]


def test_many_batches_keep_their_order(bootstrap: str, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 3)
    with TransactionalProducer(bootstrap, topic, batch_bytes=1000, codec=Codec.LZ4) as producer:
        for round_ in range(3):
            producer.begin()
            for number in range(300):
                producer.send(topic, b"%d-%d" % (round_, number), b"key-%d" % (number % 7))
            producer.commit()
    wait_for_markers(cluster)
    stored = [
        record.value
        for partition, end in cluster.list_offsets(topic, dict.fromkeys(range(3), LATEST)).items()
        for record in read_records(cluster, topic, partition, 0, end.offset)
    ]
    assert sorted(stored) == sorted(b"%d-%d" % (round_, number) for round_ in range(3) for number in range(300))  # type: ignore[type-var]


def test_offsets_come_with_the_commit_alone(bootstrap: str, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 2)
    with TransactionalProducer(bootstrap, topic) as producer:
        producer.begin()
        producer.send(topic, b"x", partition=0)
        producer.send_offsets(topic, topic, {0: 5, 1: 7})
        producer.abort()
        assert cluster.committed_offsets(topic, topic) == {}
        producer.begin()
        producer.send_offsets(topic, topic, {1: 8})
        producer.commit()
    assert cluster.committed_offsets(topic, topic) == {1: 8}


def test_second_producer_fences_the_first(bootstrap: str, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1)
    first = TransactionalProducer(bootstrap, topic)
    first.begin()
    first.send(topic, b"left behind", partition=0)
    first.flush()
    with TransactionalProducer(bootstrap, topic) as second:
        assert second.producer_id == first.producer_id
        assert second.epoch > first.epoch
        first.send(topic, b"late", partition=0)
        with pytest.raises(ProducerFenced, match=r"only one producer may use a transactional id"):
            first.commit()
        second.begin()
        second.send(topic, b"second", partition=0)
        second.commit()
    first.close()
    assert visible(cluster, topic) == [b"second"]


WRITES_AND_DIES = """
import os, sys
from onceflow.client.transactional import TransactionalProducer
bootstrap, topic = sys.argv[1:]
producer = TransactionalProducer(bootstrap, topic)
producer.begin()
producer.send(topic, b"flushed", partition=0)
producer.send_offsets(topic, topic, {0: 3})
producer.flush()
print(producer.producer_id, producer.epoch, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_other_process_finishes_the_transaction(bootstrap: str, cluster: Cluster, topic: str, end: str) -> None:
    cluster.create_topic(topic, 1)
    killed = subprocess.run(
        [sys.executable, "-c", WRITES_AND_DIES, bootstrap, topic],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert killed.returncode == -9, killed.stderr
    producer_id, epoch = map(int, killed.stdout.split())
    assert visible(cluster, topic) == []
    resumed = TransactionalProducer.resume(bootstrap, topic, producer_id, epoch)
    resumed.commit() if end == "commit" else resumed.abort()
    resumed.close()
    assert visible(cluster, topic) == ([b"flushed"] if end == "commit" else [])
    assert cluster.committed_offsets(topic, topic) == ({0: 3} if end == "commit" else {})


def test_fenced_resumed_transaction(bootstrap: str, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1)
    first = TransactionalProducer(bootstrap, topic)
    first.begin()
    first.send(topic, b"x", partition=0)
    first.flush()
    TransactionalProducer(bootstrap, topic).close()
    resumed = TransactionalProducer.resume(bootstrap, topic, first.producer_id, first.epoch)
    with pytest.raises(ProducerFenced):
        resumed.commit()
    resumed.close()
    first.close()
    assert visible(cluster, topic) == []


def test_timed_out_resumed_transaction() -> None:
    clock = ManualClock(time.time_ns() // 1_000_000)
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 20}
    with Broker(settings=settings, clock=clock) as broker:
        broker.create_topic("clicks")
        first = TransactionalProducer(broker.bootstrap_servers, "job", transaction_timeout_ms=50)
        first.begin()
        first.send("clicks", b"x", partition=0)
        first.flush()
        clock.advance_ms(100)
        with Cluster(broker.bootstrap_servers) as cluster:
            while Admin(cluster).describe_transaction("job").state != "CompleteAbort":
                time.sleep(0.01)
            resumed = TransactionalProducer.resume(broker.bootstrap_servers, "job", first.producer_id, first.epoch)
            with pytest.raises(ProducerFenced, match="its transaction timed out and was aborted"):
                resumed.commit()
            assert visible(cluster, "clicks") == []
        resumed.close()
        first.close()


def test_repeated_resume_ends_once(bootstrap: str, cluster: Cluster, topic: str) -> None:
    """The process that resumed it may be killed too, without knowing whether its commit arrived."""
    cluster.create_topic(topic, 1)
    first = TransactionalProducer(bootstrap, topic)
    first.begin()
    first.send(topic, b"x", partition=0)
    first.flush()
    for _ in range(2):
        with TransactionalProducer.resume(bootstrap, topic, first.producer_id, first.epoch) as resumed:
            resumed.commit()
            with pytest.raises(InvalidTransaction, match="the producer is closed"):
                resumed.commit()
    with (
        TransactionalProducer.resume(bootstrap, topic, first.producer_id, first.epoch) as resumed,
        pytest.raises(InvalidTransaction, match="it has already ended"),
    ):
        resumed.abort()
    with TransactionalProducer.resume(bootstrap, topic, first.producer_id, first.epoch):
        """Leaving without a commit or abort ends nothing: the decision belongs to another process."""
    first.close()
    with (
        TransactionalProducer(bootstrap, topic) as other,
        TransactionalProducer.resume(bootstrap, topic, other.producer_id, other.epoch) as resumed,
        pytest.raises(InvalidTransaction, match="it has already ended, or never began"),
    ):
        resumed.commit()
    assert visible(cluster, topic) == [b"x"]


def test_failed_transaction_can_only_abort(bootstrap: str, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1, configs={"max.message.bytes": "1000"})
    with TransactionalProducer(bootstrap, topic) as producer:
        producer.begin()
        producer.send(topic, b"small", partition=0)
        producer.flush()
        producer.send(topic, b"x" * 2000, partition=0)
        with pytest.raises(RequestRefused, match="MESSAGE_TOO_LARGE"):
            producer.commit()
        with pytest.raises(InvalidTransaction, match="in a transaction that failed"):
            producer.commit()
        epoch = producer.epoch
        producer.abort()
        assert producer.epoch > epoch
        producer.begin()
        producer.send(topic, b"again", partition=0)
        producer.commit()
    assert visible(cluster, topic) == [b"again"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda producer: producer.commit(), "the producer is ready, but must be in a transaction"),
        (lambda producer: producer.abort(), "the producer is ready"),
        (lambda producer: producer.send("topic", b"x"), "the producer is ready"),
        (lambda producer: (producer.begin(), producer.begin()), "the producer is in a transaction, but must be ready"),
        (lambda producer: (producer.close(), producer.begin()), "the producer is closed"),
    ],
)
def test_calls_out_of_turn_are_refused(
    bootstrap: str, topic: str, wrong: Callable[[TransactionalProducer], object], message: str
) -> None:
    with TransactionalProducer(bootstrap, topic) as producer, pytest.raises(InvalidTransaction, match=message):
        wrong(producer)


def test_an_empty_transaction_and_an_empty_id(bootstrap: str, topic: str) -> None:
    with TransactionalProducer(bootstrap, topic) as producer:
        producer.begin()
        producer.commit()
        producer.begin()
        producer.abort()
    with pytest.raises(InvalidTransaction, match="the transactional id is empty"):
        TransactionalProducer(bootstrap, "")
