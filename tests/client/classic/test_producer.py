"""The classic producer against a real broker: its messages are read from the log with its own client's records."""

import contextlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from onceflow import services
from onceflow.client.classic import (
    CallbackHandler,
    Encoder,
    KeyedMessage,
    Producer,
    QueueFull,
    SendFailed,
    StringEncoder,
)
from onceflow.client.classic import producer as producer_module
from onceflow.client.classic.connector import SETTINGS as CONSUMER_SETTINGS
from onceflow.client.classic.connector import ZOOKEEPER_SETTINGS
from onceflow.client.classic.encoders import EncodingFailed
from onceflow.client.classic.handlers import Messages, PartitionOutOfRange
from onceflow.client.classic.producer import SETTINGS as PRODUCER_SETTINGS
from onceflow.client.classic.sender import EncodedMessage, Sender
from onceflow.client.cluster import EARLIEST, LATEST, Cluster
from onceflow.client.errors import BrokerUnreachable, UnknownTopic
from onceflow.client.records import read_records
from onceflow.client.settings import InvalidSetting, Setting
from onceflow.remedies import Remedy
from onceflow.testing import Broker, BrokerProcess
from tests import remedies
from tests.broker.driven_broker import eventually


def written(bootstrap: str, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return (partition, key, value) of everything in the topic's log."""
    with Cluster(bootstrap) as cluster:
        partitions = list(cluster.require_topic(topic).partitions)
        begins = cluster.list_offsets(topic, dict.fromkeys(partitions, EARLIEST))
        ends = cluster.list_offsets(topic, dict.fromkeys(partitions, LATEST))
        return [
            (partition, record.key, record.value)
            for partition in partitions
            for record in read_records(cluster, topic, partition, begins[partition].offset, ends[partition].offset)
        ]


@pytest.fixture
def created(bootstrap: str, topic: str) -> str:
    """The test's topic with two partitions."""
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(topic, 2)
    return topic


def settings(bootstrap: str, **more: Any) -> dict[str, Any]:
    named = {name.replace("_", "."): value for name, value in more.items()}
    return {"metadata.broker.list": bootstrap, "serializer.class": "StringEncoder", **named}


def test_a_sync_send_returns_after_the_acknowledgement(bootstrap: str, created: str) -> None:
    with Producer(settings(bootstrap)) as producer:
        producer.send(KeyedMessage(created, "one", key="a"))
        assert [value for _, _, value in written(bootstrap, created)] == [b"one"]
        producer.send([KeyedMessage(created, "two", key="a"), KeyedMessage(created, "three", key="a")])
        assert [value for _, _, value in written(bootstrap, created)] == [b"one", b"two", b"three"]


def test_message_without_key_and_null_message(bootstrap: str, created: str) -> None:
    with Producer(settings(bootstrap)) as producer:
        producer.send([KeyedMessage(created, str(number)) for number in range(64)])
        producer.send(KeyedMessage(created, None, key="gone"))
    records = written(bootstrap, created)
    assert {partition for partition, key, _ in records if key is None} == {0, 1}
    assert [(key, value) for _, key, value in records if key] == [(b"gone", None)]


class KeyIsPartition:
    def partition(self, key: object, num_partitions: int) -> int:
        return int(str(key)) % num_partitions


def test_the_articles_integer_keys_are_their_partitions(bootstrap: str, topic: str) -> None:
    """Mission D2: keys 0 to 3, 20 messages, 4 partitions, key = partition."""
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(topic, 4)
    with Producer(settings(bootstrap, partitioner_class=KeyIsPartition)) as producer:
        producer.send([KeyedMessage(topic, f"message-{number}", key=number % 4) for number in range(20)])
    records = written(bootstrap, topic)
    assert len(records) == 20
    assert all(key == str(partition).encode() for partition, key, _ in records)


class ArticlePartitioner(KeyIsPartition):
    """A partitioner as in the articles: Kafka creates it with the producer's properties."""

    def __init__(self, props: Mapping[str, Any]) -> None:
        self.shift = int(props["client.id"])

    def partition(self, key: object, num_partitions: int) -> int:
        return super().partition(int(str(key)) + self.shift, num_partitions)


class ArticleEncoder:
    def __init__(self, props: Mapping[str, Any]) -> None:
        self.client_id = props["client.id"]

    def to_message(self, event: object) -> bytes:
        return f"{event} of {self.client_id}".encode()


@pytest.mark.parametrize("named", [True, False], ids=["by name", "by class"])
def test_constructors_get_the_producers_properties(bootstrap: str, topic: str, named: bool) -> None:
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(topic, 4)
    classes: list[Any] = [ArticlePartitioner, ArticleEncoder]
    if named:
        classes = [f"{kind.__module__}:{kind.__name__}" for kind in classes]
    more = {"partitioner_class": classes[0], "serializer_class": classes[1], "key_serializer_class": "StringEncoder"}
    with Producer(settings(bootstrap, client_id="2", **more)) as producer:
        producer.send([KeyedMessage(topic, "message", key=number) for number in range(4)])
    expected = [((key + 2) % 4, str(key).encode(), b"message of 2") for key in range(4)]
    assert sorted(written(bootstrap, topic)) == sorted(expected)


class EncoderWithDefault:
    """Its one parameter is its own."""

    def __init__(self, encoding: str = "utf-16") -> None:
        self.encoding = encoding

    def to_message(self, event: object) -> bytes:
        return str(event).encode(self.encoding)


class MappingEncoder(dict[str, str]):
    """A class without a signature."""

    def to_message(self, event: object) -> bytes:
        return str(event).encode()


@pytest.mark.parametrize(("kind", "sent"), [(EncoderWithDefault, "x".encode("utf-16")), (MappingEncoder, b"x")])
def test_other_constructors_get_no_properties(bootstrap: str, created: str, kind: type[Any], sent: bytes) -> None:
    with Producer(settings(bootstrap, serializer_class=kind)) as producer:
        producer.send([KeyedMessage(created, "x")])
    assert [value for _, _, value in written(bootstrap, created)] == [sent]


def test_partition_key_is_not_sent(bootstrap: str, created: str) -> None:
    with Producer(settings(bootstrap, partitioner_class=KeyIsPartition)) as producer:
        producer.send(
            [KeyedMessage(created, "x", partition_key=1), KeyedMessage(created, "y", key="7", partition_key=0)]
        )
    assert sorted(written(bootstrap, created)) == [(0, b"7", b"y"), (1, None, b"x")]


def test_partition_out_of_range_is_refused(bootstrap: str, created: str) -> None:
    class Beyond:
        def partition(self, key: object, num_partitions: int) -> int:
            return num_partitions

    with (
        Producer(settings(bootstrap, partitioner_class=Beyond())) as producer,
        pytest.raises(PartitionOutOfRange, match=r"Beyond returned partition 2 for key 'k' of .*, which has 2"),
    ):
        producer.send(KeyedMessage(created, "x", key="k"))
    assert not written(bootstrap, created)


class Recording(CallbackHandler):
    """Records every call in order; adds, replaces and drops messages."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def init(self, props: Mapping[str, Any]) -> None:
        self.calls.append(f"init {dict(props)}")

    def before_enqueue(self, message: KeyedMessage[Any, Any]) -> KeyedMessage[Any, Any]:
        self.calls.append(f"before {message.message}")
        return KeyedMessage(message.topic, message.message.upper(), message.key)

    def after_enqueue(self, message: KeyedMessage[Any, Any], added: bool) -> None:
        self.calls.append(f"after {message.message} {added}")

    def after_dequeuing_existing_data(self, message: KeyedMessage[Any, Any] | None) -> Messages:
        self.calls.append(f"dequeued {message and message.message}")
        return [] if message is None or message.message == "DROP" else [message]

    def before_sending_data(self, messages: Messages) -> Messages:
        self.calls.append(f"sending {[message.message for message in messages]}")
        return messages

    def last_batch_before_close(self) -> Messages:
        self.calls.append("last")
        return [KeyedMessage(self.topic, "LAST", "k")]

    def close(self) -> None:
        self.calls.append("close")

    topic = ""


def test_the_callbacks_come_in_their_order(bootstrap: str, created: str) -> None:
    recording = Recording()
    recording.topic = created
    config = settings(bootstrap, producer_type="async", batch_size=2, queue_time=60_000, callback_handler=recording)
    with Producer({**config, "callback.handler.props": {"name": "x"}}) as producer:
        producer.send([KeyedMessage(created, text, "k") for text in ("a", "drop", "b", "c")])
    callers = [call for call in recording.calls if call.startswith(("init", "before", "after"))]
    thread = [call for call in recording.calls if call not in callers]
    assert callers == ["init {'name': 'x'}"] + [
        call for text in ("a", "drop", "b", "c") for call in (f"before {text}", f"after {text.upper()} True")
    ]
    assert thread == [
        "dequeued A",
        "dequeued DROP",
        "dequeued B",
        "sending ['A', 'B']",
        "dequeued C",
        "sending ['C']",
        "last",
        "sending ['LAST']",
        "close",
    ]
    assert [value for _, _, value in written(bootstrap, created)] == [b"A", b"B", b"C", b"LAST"]


def test_async_producer_sends_after_queue_time(bootstrap: str, created: str) -> None:
    sent = threading.Event()
    stages: list[object] = []

    class Sent(CallbackHandler):
        def after_dequeuing_existing_data(self, message: KeyedMessage[Any, Any] | None) -> Messages:
            stages.append(message and message.message)
            return super().after_dequeuing_existing_data(message)

        def before_sending_data(self, messages: Messages) -> Messages:
            stages.append([message.message for message in messages])
            sent.set()
            return messages

    config = settings(bootstrap, producer_type="async", queue_time=20, callback_handler=Sent())
    with Producer(config) as producer:
        producer.send(KeyedMessage(created, "alone", "k"))
        assert sent.wait(10)
    first = stages.index("alone")
    assert stages[first : first + 3] == ["alone", None, ["alone"]]
    assert set(map(str, stages[:first])) <= {"None"}, "a wait that ends without a message sends nothing"
    assert [value for _, _, value in written(bootstrap, created)] == [b"alone"]


class Rerouting:
    """An event handler that drops one message and sends another to another topic."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.closed = False
        self.elsewhere = ""

    def init(self, props: Mapping[str, Any]) -> None:
        self.elsewhere = props["elsewhere"]

    def handle(self, events: Messages, sender: Sender, encoder: Encoder) -> None:
        self.batches.append([event.message for event in events])
        sender.send(
            [
                EncodedMessage(
                    self.elsewhere if event.message == "move" else event.topic,
                    0,
                    None,
                    encoder.to_message(event.message),
                )
                for event in events
                if event.message != "drop"
            ]
        )

    def _topic(self, event: KeyedMessage[Any, Any]) -> str:
        return self.elsewhere if event.message == "move" else event.topic

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_event_handler_drops_and_reroutes(bootstrap: str, created: str, kind: str) -> None:
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(f"{created}-2", 1)
    handler = Rerouting()
    config = settings(bootstrap, producer_type=kind, event_handler=handler)
    with Producer({**config, "event.handler.props": {"elsewhere": f"{created}-2"}}) as producer:
        producer.send([KeyedMessage(created, text) for text in ("stay", "drop", "move")])
    assert handler.batches == [["stay", "drop", "move"]]
    assert handler.closed
    assert [value for _, _, value in written(bootstrap, created)] == [b"stay"]
    assert [value for _, _, value in written(bootstrap, f"{created}-2")] == [b"move"]


class Refusing:
    """An event handler that blocks on its first batch, then fails."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def init(self, props: Mapping[str, Any]) -> None:
        """Do nothing."""

    def handle(self, events: Messages, sender: Sender, encoder: Encoder) -> None:
        self.entered.set()
        assert self.go_on.wait(30)
        raise SendFailed("the handler refused", list(events))

    def close(self) -> None:
        """Do nothing."""


def test_full_queue_and_refused_batch(bootstrap: str, created: str) -> None:
    refusing, recording = Refusing(), Recording()
    recording.topic = created
    config = settings(
        bootstrap, producer_type="async", event_handler=refusing, queue_size=1, batch_size=1, callback_handler=recording
    )
    producer = Producer({**config, "queue.enqueue.timeout.ms": 0})
    producer.send(KeyedMessage(created, "first"))
    assert refusing.entered.wait(30)
    producer.send(KeyedMessage(created, "second"))
    with pytest.raises(QueueFull, match="the queue of 1 messages was full for 0 ms"):
        producer.send(KeyedMessage(created, "third"))
    assert recording.calls[-1] == "after THIRD False"
    refusing.go_on.set()
    with pytest.raises(SendFailed, match="the handler refused"):
        producer.close()
    assert not written(bootstrap, created)


class Holding(Refusing):
    """Release the blocked batches."""

    def handle(self, events: Messages, sender: Sender, encoder: Encoder) -> None:
        self.entered.set()
        assert self.go_on.wait(30)


@pytest.mark.remedy(Remedy.SEND_LESS, Remedy.LARGER_QUEUE, Remedy.LONGER_ENQUEUE)
def test_remedies_of_a_full_queue(bootstrap: str, created: str) -> None:
    config = settings(bootstrap, producer_type="async", queue_size=1, batch_size=1)

    def send_behind_one(count: int, *, enqueue_timeout_ms: int = 0, **changed: int) -> None:
        holding = Holding()
        changes = {name.replace("_", "."): value for name, value in changed.items()}
        changes["queue.enqueue.timeout.ms"] = enqueue_timeout_ms
        producer = Producer({**config, "event.handler": holding, **changes})
        release = threading.Timer(0.1, holding.go_on.set)
        try:
            producer.send(KeyedMessage(created, "held"))
            assert holding.entered.wait(30)
            if enqueue_timeout_ms:
                release.start()
            for _ in range(count):
                producer.send(KeyedMessage(created, "queued"))
        finally:
            holding.go_on.set()
            producer.close()

    with pytest.raises(QueueFull) as raised:
        send_behind_one(2)
    remedies.find(Remedy.SEND_LESS, raised.value)
    send_behind_one(1)
    remedies.find(Remedy.LARGER_QUEUE, raised.value)
    send_behind_one(2, queue_size=2)
    remedies.find(Remedy.LONGER_ENQUEUE, raised.value)
    send_behind_one(2, enqueue_timeout_ms=30_000)


def send_until_refused(producer: Producer, message: KeyedMessage[Any, Any]) -> None:
    """Send until refused: the sender's thread may be slow to fail."""
    for _ in range(1000):
        producer.send(message)
        time.sleep(0.01)


def test_next_send_raises_earlier_failure(bootstrap: str, created: str) -> None:
    refusing = Refusing()
    refusing.go_on.set()
    producer = Producer(settings(bootstrap, producer_type="async", event_handler=refusing, batch_size=1))
    producer.send(KeyedMessage(created, "first"))
    with pytest.raises(SendFailed, match="the handler refused"):
        send_until_refused(producer, KeyedMessage(created, "again"))
    # It raises again if a message was sent before the first failure was known.
    with contextlib.suppress(SendFailed):
        producer.close()


def test_what_the_broker_refuses_is_named(bootstrap: str, topic: str) -> None:
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(topic, 2, configs={"max.message.bytes": "1000"})
    config = settings(bootstrap, partitioner_class=KeyIsPartition)
    with Producer(config) as producer, pytest.raises(SendFailed, match="1 of 2 messages") as failed:
        producer.send([KeyedMessage(topic, "x" * 2000, "0"), KeyedMessage(topic, "small", "1")])
    assert [len(message.message) for message in failed.value.messages] == [2000]


def test_the_default_encoder_takes_bytes_alone(bootstrap: str, created: str) -> None:
    with Producer({"metadata.broker.list": bootstrap}) as producer:
        producer.send(KeyedMessage(created, b"bytes", key=b"k"))
        with pytest.raises(EncodingFailed, match="DefaultEncoder requires bytes, not str"):
            producer.send(KeyedMessage(created, "text"))
    assert [value for _, _, value in written(bootstrap, created)] == [b"bytes"]


class PartitionerOfTwo(KeyIsPartition):
    def __init__(self, first: object, second: object) -> None:
        """Take more than the properties."""


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "metadata.broker.list is required"),
        ({"producer.tipe": "async"}, "did you mean producer.type?"),
        ({"producer.type": "later"}, "expected one of sync, async"),
        ({"queue.time": 5}, "has no effect with producer.type=sync"),
        ({"producer.type": "async", "queue.time": "soon"}, "queue.time='soon' cannot be used"),
        ({"batch.size": 5, "batch.num.messages": 6}, "is another name of batch.size"),
        ({"serializer.class": "kafka.serializer.AvroEncoder"}, "one of DefaultEncoder, StringEncoder"),
        ({"serializer.class": "no.such.module:Encoder"}, "cannot be imported"),
        ({"partitioner.class": StringEncoder}, "it has no method partition"),
        ({"partitioner.class": PartitionerOfTwo}, "missing 2 required positional arguments"),
        ({"callback.handler.props": {}}, "has no effect with producer.type=sync"),
        ({"producer.type": "async", "callback.handler.props": {}}, "has no effect without callback.handler"),
        ({"event.handler.props": {}}, "has no effect without event.handler"),
        ({"event.handler": "tests.client.classic.test_producer:Rerouting", "partitioner.class": object()}, "no method"),
        (
            {
                "event.handler": "tests.client.classic.test_producer:Rerouting",
                "key.serializer.class": "StringEncoder",
            },
            "has no effect with a custom event.handler",
        ),
        ({"ssl.nothing": "1"}, "librdkafka refused the producer's settings"),
        ({"acks": "1", "enable.idempotence": "true"}, "librdkafka refused the producer's settings"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(bootstrap: str, config: dict[str, Any], expected: str) -> None:
    given = {"metadata.broker.list": bootstrap, **config} if config else {}
    with pytest.raises(InvalidSetting) as refused:
        Producer(given)
    assert expected in str(refused.value)


def test_kafkas_own_class_names_are_understood(bootstrap: str, created: str) -> None:
    with Producer({"broker.list": bootstrap, "serializer.class": "kafka.serializer.StringEncoder"}) as producer:
        producer.send(KeyedMessage(created, "text"))
    assert [value for _, _, value in written(bootstrap, created)] == [b"text"]


@pytest.mark.timeout(60)
def test_wrong_address_is_reported_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "FIRST_CONTACT_S_MAX", 0.3)
    with (
        Producer({"metadata.broker.list": "127.0.0.1:1", "delivery.timeout.ms": 1_000_000}) as producer,
        pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"),
    ):
        producer.send(KeyedMessage("topic", b"x"))


def test_queued_messages_wait_for_the_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(producer_module, "FIRST_CONTACT_S_MAX", 0.0)
    address = f"127.0.0.1:{services.free_port()}"
    config = {"metadata.broker.list": address, "producer.type": "async", "queue.time": 1}
    with Producer(config) as producer:
        producer.send(KeyedMessage("clicks", b"early"))
        assert producer._queue is not None
        eventually(producer._queue._messages.empty, "the message is under way")
        with BrokerProcess(tmp_path / "data", int(address.rpartition(":")[2])) as broker:
            producer.close()
            assert [value for _, _, value in written(broker.bootstrap, "clicks")] == [b"early"]


def test_invalid_topic_name_is_reported(bootstrap: str) -> None:
    with Producer({"metadata.broker.list": bootstrap}) as producer, pytest.raises(UnknownTopic, match="a/b"):
        producer.send(KeyedMessage("a/b", b"x"))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_first_send_creates_the_topic(bootstrap: str, topic: str, kind: str) -> None:
    with Producer(settings(bootstrap, producer_type=kind)) as producer:
        producer.send(KeyedMessage(topic, "first", "k"))
    assert [value for _, _, value in written(bootstrap, topic)] == [b"first"]


def test_topic_that_cannot_be_created() -> None:
    with (
        Broker(settings={"auto.create.topics.enable": False}) as broker,
        Producer(settings(broker.bootstrap_servers, delivery_timeout_ms=1500)) as producer,
        pytest.raises(UnknownTopic, match=r"'visits' does not exist at .* 'onceflow topic create visits"),
    ):
        producer.send(KeyedMessage("visits", "x"))


@pytest.mark.parametrize("acks", ["0", "1", "-1"])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_acks_and_codec_arrives(bootstrap: str, created: str, acks: str, codec: str) -> None:
    config = {"request.required.acks": acks, "compression.codec": codec}
    with Producer({"metadata.broker.list": bootstrap, **config}) as producer:
        producer.send([KeyedMessage(created, b"x" * 500, key=b"k")] * 3)
    deadline = threading.Event()
    for _ in range(100):
        if len(written(bootstrap, created)) == 3:
            break
        deadline.wait(0.05)
    assert [value for _, _, value in written(bootstrap, created)] == [b"x" * 500] * 3


@pytest.mark.parametrize(
    "setting",
    {setting.name: setting for setting in (*PRODUCER_SETTINGS, *ZOOKEEPER_SETTINGS, *CONSUMER_SETTINGS)}.values(),
    ids=lambda setting: str(setting.name),
)
def test_every_setting_is_documented(setting: Setting) -> None:
    page = (Path(__file__).parents[3] / "docs" / "client.md").read_text()
    for name in (setting.name, *setting.aliases):
        assert f"`{name}`" in page
