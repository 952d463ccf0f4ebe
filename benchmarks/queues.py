"""A queue, filled and emptied: ours, Redis and RabbitMQ, each at its durabilities.

As in the article on Kafka: enqueue and dequeue separately, 1,000,000 messages of one size, in seconds per 100,000, one
producer and then one consumer. Each has the fastest available client: librdkafka for ours, pipelined and pre-encoded
requests for the others. A message is dequeued when the program has it and the queue has dropped it: an offset committed
at most every 10,000 records; RPOP; an acknowledgement every 500 messages.

Each size has a fresh queue, which is filled in ten parts and emptied in ten: their spread shows whether a queue becomes
slower as it grows.
"""

import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

import onceflow
from benchmarks import amqp, librdkafka
from benchmarks.comparison import spread
from benchmarks.figures import HERE, Line, Table
from benchmarks.grouped_bars import Group, picture
from benchmarks.peers import NEVER, OURS, Peer, fresh_topic, touch_memory
from onceflow import services
from onceflow.testing import BrokerProcess

PARTS = 10
WARM_UP = 50
"""A size's messages by this is the number of messages before the measured ones."""
PER = 100_000
PICTURE_TITLE = f"Seconds per {PER:,} messages (each step of the scale is ten times the one before)"
PICTURE = HERE.parent / "docs" / "images" / "queues.svg"
ENQUEUE, DEQUEUE = OPERATIONS = ("enqueue", "dequeue")
LARGE_BYTES = 10 << 10
FAR = 0.5
"""Maximum part of RabbitMQ's time that Redis may take if RabbitMQ is "far" behind."""


@dataclass(frozen=True)
class Size:
    """Size of a message, and number of messages."""

    name: str
    value_bytes: int
    count: int

    @property
    def value(self) -> bytes:
        """Value of a message."""
        return librdkafka.value_of(self.value_bytes)

    @property
    def part(self) -> int:
        """Messages of which the time is taken at once."""
        return self.count // PARTS

    @property
    def column(self) -> str:
        """Column heading with the number of measured messages."""
        return f"{self.name} ({self.count:,} messages)"


SIZES = (
    Size("128 B", 128, 1_000_000),
    Size("512 B", 512, 1_000_000),
    Size("1 KB", 1 << 10, 1_000_000),
    Size("10 KB", 10 << 10, 1_000_000),
    Size("100 KB", 100 << 10, 10_000),
)
"""The last size is not in the article, whose first finding is also about messages larger than 10 KB."""

Parts = list[float]
"""Seconds of each part."""
Work = Callable[[Size, str], tuple[Parts, Parts]]
"""Function that fills and empties a fresh queue of that name, and returns the seconds of both."""


@dataclass(frozen=True)
class Kind:
    """Queue with one durability: the state of an acknowledged message."""

    name: str
    version: str
    durability: str
    is_synced: bool
    work: Work
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """(operation, size) → seconds of each part, per 100,000."""

    def measure(self, size: Size) -> None:
        """Measure one size, after a few messages of it and a sync of others' data."""
        self.work(replace(size, count=size.count // WARM_UP), f"warm-up-{size.value_bytes}")
        os.sync()
        for operation, seconds in zip(OPERATIONS, self.work(size, f"queue-{size.value_bytes}"), strict=True):
            self.seconds[operation, size.name] = [part * PER / size.part for part in seconds]

    def median(self, operation: str, size: Size) -> float:
        """Return seconds per 100,000."""
        return statistics.median(self.seconds[operation, size.name])


def timed(work: Callable[[], None]) -> Parts:
    """Return the seconds of each call: one for each part."""
    seconds = []
    for _ in range(PARTS):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return seconds


def ours(peer: Peer, config: Mapping[str, str], size: Size, name: str) -> tuple[Parts, Parts]:
    """Measure through librdkafka, which finds leader and coordinator before the clock starts."""
    settings = {"bootstrap.servers": peer.bootstrap, "log_level": 0}
    with fresh_topic(peer, name, config) as topic:
        producer = Producer({**settings, "acks": "all", "linger.ms": 5, "queue.buffering.max.messages": 2 * PER})
        producer.list_topics(topic, 30)
        consumer = Consumer({**settings, "group.id": name, "enable.auto.commit": False, **librdkafka.NO_PAUSE})
        try:
            consumer.list_topics(topic, 30)
            consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
            enqueued = timed(partial(put, producer, topic, size))
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            return enqueued, timed(partial(take, consumer, size.part))
        finally:
            consumer.close()


def put(producer: Producer, topic: str, size: Size) -> None:
    """Produce a part's messages until the last acknowledgement."""
    value = size.value
    for number in range(size.part):
        producer.produce(topic, value, partition=0)
        if number % 1000 == 0:
            producer.poll(0)
    left = producer.flush(120)
    assert left == 0, f"{left} records were not acknowledged"


def take(consumer: Consumer, count: int) -> None:
    """Consume `count` records and commit the offset after them."""
    while count:
        messages = consumer.consume(min(count, 10_000), timeout=30)
        assert messages, f"{count} records did not come"
        consumer.commit(asynchronous=False)
        count -= len(messages)


def redis(directory: Path, policy: str, size: Size, name: str) -> tuple[Parts, Parts]:
    """Measure one list through one connection to a server of its own: Redis keeps the memory of an emptied list."""
    key, value = name.encode(), size.value
    popped = encoded(value).partition(b"\r\n")[2]
    with ExitStack() as exits:
        place = Path(exits.enter_context(tempfile.TemporaryDirectory(dir=directory)))
        port = redis_server(place / "redis", policy, exits)
        connection = exits.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        replies = exits.enter_context(connection.makefile("rb", 1 << 20))

        def was_pushed(count: int) -> None:
            for _ in range(count):
                assert replies.readline().startswith(b":"), "Redis did not take a message"

        def was_popped(count: int) -> None:
            assert replies.read(count * len(popped)) == popped * count, "Redis gave something else than was put in"

        push = partial(pipelined, connection, encoded(b"LPUSH", key, value), was_pushed, size)
        pop = partial(pipelined, connection, encoded(b"RPOP", key), was_popped, size)
        return timed(push), timed(pop)


def pipelined(connection: socket.socket, command: bytes, take_replies: Callable[[int], None], size: Size) -> None:
    """Send a command per message of a part until the last reply; a chunk is sent while the one before is replied to."""
    chunk = amqp.chunk_of(size.value_bytes)
    unsent, under_way = size.part, 0
    while unsent or under_way:
        sent = min(unsent, chunk)
        connection.sendall(command * sent)
        unsent -= sent
        under_way += sent
        while under_way > (chunk if unsent else 0):
            more = min(under_way, chunk)
            take_replies(more)
            under_way -= more


def encoded(*words: bytes) -> bytes:
    """Return a request to Redis."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def rabbit(port: int, is_persistent: bool, size: Size, name: str) -> tuple[Parts, Parts]:
    """Measure one classic queue through one channel with confirmations."""
    message = amqp.publishing(name, size.value, is_persistent=is_persistent)
    with amqp.Channel(port) as channel:
        channel.declare(name, is_durable=is_persistent)
        channel.confirm()
        enqueued = timed(partial(channel.publish, message, size.part))
        dequeued = timed(partial(channel.consume, name, size.value, size.part))
        left = channel.left(name)
        assert not left, f"{left} messages are still in RabbitMQ's queue"
        channel.delete(name)
        return enqueued, dequeued


def kinds(directory: Path, exits: ExitStack) -> list[Kind]:
    """Start all queues that are installed."""
    broker = exits.enter_context(BrokerProcess(directory / "onceflow"))
    peer = Peer(OURS, broker.bootstrap, broker.pid)
    version = f"onceflow {onceflow.__version__}"
    queues = [
        Kind(OURS, version, "fsync before each acknowledgement", True, partial(ours, peer, {})),
        Kind(OURS, version, "page cache", False, partial(ours, peer, {"flush.messages": NEVER})),
    ]
    for policy, durability in (("always", "fsync before each acknowledgement"), ("everysec", "fsync once a second")):
        durability += f" (`appendfsync {policy}`)"
        work = partial(redis, directory, policy)
        queues.append(Kind("Redis", redis_version(), durability, policy == "always", work))
    server = amqp.find_server()
    if server is None:
        print("no rabbitmq-server here: without its rows")
        return queues
    port = exits.enter_context(amqp.RabbitProcess(directory / "rabbit", server)).port
    with amqp.Channel(port) as channel:
        version = f"RabbitMQ {channel.version} with classic queues"
    for is_persistent, durability in (
        (True, "fsync before each acknowledgement (persistent)"),
        (False, "memory (transient)"),
    ):
        queues.append(Kind("RabbitMQ", version, durability, is_persistent, partial(rabbit, port, is_persistent)))
    return queues


def redis_version() -> str:
    """Return name and version of the Redis server."""
    command = [services.find_redis_server(), "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return f"{printed.partition(' sha=')[0]} as Redis"


def redis_server(directory: Path, policy: str, exits: ExitStack) -> int:
    """Start a Redis server and return its port."""
    directory.mkdir()
    port = services.free_port()
    command = services.redis_arguments(services.find_redis_server(), directory, port, appendfsync=policy)
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    exits.callback(amqp.ended, process)
    deadline = time.monotonic() + 30
    while not services.redis_is_ready(port):
        assert time.monotonic() < deadline, f"Redis did not start: {directory / 'server.log'}"
        time.sleep(0.05)
    return port


def lines(queues: Sequence[Kind]) -> Iterator[Line]:
    """Yield two rows for each kind."""
    for operation in OPERATIONS:
        for kind in queues:
            cells = [operation, kind.name, kind.durability]
            cells += [spread(kind.seconds[operation, size.name]) for size in SIZES]
            yield Line(", ".join(cells[:3]), f"| {' | '.join(cells)} |")


def findings(queues: Sequence[Kind]) -> Iterator[Line]:
    """Yield the article's two findings for Redis and RabbitMQ, with syncs and without."""
    for is_synced, label in ((True, "with fsync before each acknowledgement"), (False, "without")):
        ratios = {operation: redis_of_rabbit(queues, operation, is_synced) for operation in OPERATIONS}
        small = [ratio for size, ratio in ratios[ENQUEUE].items() if size.value_bytes < LARGE_BYTES]
        large = [ratio for size, ratio in ratios[ENQUEUE].items() if size.value_bytes >= LARGE_BYTES]
        taken_out = [ratio for size, ratio in ratios[DEQUEUE].items() if size.value_bytes <= LARGE_BYTES]
        yield Line(
            f"first finding, {label}",
            f"Finding 1, {label}. Small messages go into Redis faster than into RabbitMQ: {holds(max(small) < 1)}; "
            f"large ones, from 10 KB on, unbearably slowly, slower than into RabbitMQ: {holds(min(large) > 1)}. "
            f"Redis's time of RabbitMQ's, by size: {as_text(ratios[ENQUEUE])}.",
        )
        yield Line(
            f"second finding, {label}",
            f"Finding 2, {label}. Taking out is fast with Redis at every size of the article's, and RabbitMQ far "
            f"behind (Redis needs at most {FAR:g} of its time): {holds(max(taken_out) <= FAR)}. "
            f"Redis's time of RabbitMQ's, by size: {as_text(ratios[DEQUEUE])}.",
        )


def redis_of_rabbit(queues: Sequence[Kind], operation: str, is_synced: bool) -> dict[Size, float]:
    """Return the ratio of Redis's time to RabbitMQ's."""
    (redis_kind, rabbit_kind) = (
        next(kind for kind in queues if kind.name == name and kind.is_synced == is_synced)
        for name in ("Redis", "RabbitMQ")
    )
    return {size: redis_kind.median(operation, size) / rabbit_kind.median(operation, size) for size in SIZES}


def as_text(ratios: Mapping[Size, float]) -> str:
    """Return ratios as text."""
    return ", ".join(f"{size.name} {ratio:.2f}" for size, ratio in ratios.items())


def holds(is_so: bool) -> str:
    """Return whether a finding still holds."""
    return "**still so**" if is_so else "**not so here**"


def measure(_names: Sequence[str]) -> Iterator[Line]:
    """Yield all lines: rows, findings and picture belong together."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as exits:
        queues = kinds(Path(directory), exits)
        touch_memory()
        for size in SIZES:
            for kind in queues:
                kind.measure(size)
    yield from lines(queues)
    yield Line("versions", f"Measured here: {', '.join(dict.fromkeys(kind.version for kind in queues))}.")
    if any(kind.name == "RabbitMQ" for kind in queues):
        yield from findings(queues)
    PICTURE.write_text(picture(PICTURE_TITLE, groups(queues)))


def groups(queues: Sequence[Kind]) -> list[Group]:
    """Return the groups of the picture."""
    names = {f"{kind.name}, {kind.durability}".replace("`", ""): kind for kind in queues}
    return [
        Group(f"{operation}, {size.name}", {name: kind.median(operation, size) for name, kind in names.items()})
        for operation in OPERATIONS
        for size in SIZES
    ]


TABLE = Table(
    "A queue, beside Redis and RabbitMQ",
    ("operation", "queue", "an acknowledged message is safe by", *(size.column for size in SIZES)),
    ["queues"],
    measure,
    says=(
        f"Seconds per {PER:,} messages, median of {PARTS} parts (least to most): a queue is filled with as many "
        "messages as its column says, as in the article, and then emptied.\n\n"
        "![the medians of this table as bars](../docs/images/queues.svg)"
    ),
)
