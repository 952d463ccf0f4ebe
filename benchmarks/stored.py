"""The cost of stored data: recovery after kill -9, reads at random offsets, many partitions.

Recovery: from the start of the process until it reports the log's last offset, on both brokers, after 1 GB of real
batches and SIGKILL. Reads: one Fetch of 64 KiB at a time, at random offsets, of a log of 1 GB and of a larger one on
the same broker, in turns: 8 GB from the page cache, which surely fit here, and 20 GB after evicting both logs from it,
because a partly cached log would measure the cache and not the broker. The control, in the same turns, reads 64 KiB at
random positions of the same files by sendfile over a socket, without a broker: its growth is the machine's.

Up to 1 TB: logs of sparse segments (`benchmarks.sparse`), a broker for each size, started in turns; the time from the
start of the process until it listens, and of a produced record.
"""

import contextlib
import os
import random
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import kafka, sparse
from benchmarks.comparison import Goal, in_turns, ratios, spread
from benchmarks.figures import Line, Table, row
from benchmarks.peers import NEVER, Peer, fresh_topic, touch_memory, wait_for_leader
from benchmarks.raw_connection import FETCH_VERSION, RawConnection, one_at_a_time, produce_request, stream
from onceflow.testing import BrokerProcess
from onceflow.wire import fetch
from onceflow.wire.fetch import FetchPartition, FetchRequest

GB = 10**9
BATCH_RECORDS, VALUE_BYTES = 64, 1000
READ_BYTES = 64 << 10
READS = 4_000
READS_EVICTED = 1_000
READS_BETWEEN_EVICTIONS = 50
READ_ROUNDS = 6
LARGER = 20
LARGER_CACHED = 8
PARTITIONS = 10_000
START_SECONDS_MAX = 2
RECOVERIES = STARTS = 5
SPARSE_TURNS = 15
SPARSE_GB = {"1 GB": 1, "100 GB": 100, "1 TB": 1000}
SPARSE_APPENDS = 2_000
TOPIC = "stored"
SECONDS_MAX = 120
QUICK = {"socket.timeout.ms": 1000, "log_level": 0}
NO_GROWTH = Goal(1.1, 0, is_cost=True)
RECOVERY_GOAL = Goal(0.33, 0.08, is_cost=True)


def fill(bootstrap: str, topic: str, size_bytes: int) -> int:
    """Write `size_bytes` and return the number of records."""
    request = produce_request(topic, BATCH_RECORDS, VALUE_BYTES)
    count = size_bytes // len(request)
    stream(bootstrap, request, count)
    return count * BATCH_RECORDS


def end_offset(bootstrap: str, topic: str) -> int:
    """Return the end offset; -1 while the broker does not respond."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "benchmark", **QUICK})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=1)[1]
    except KafkaException:
        return -1
    finally:
        consumer.close()


def seconds_to_recover(bootstrap: str, records: int, start: Callable[[], object]) -> float:
    """Return the seconds from the start of the process until the end of the log is known."""
    begin = time.perf_counter()
    start()
    while end_offset(bootstrap, TOPIC) != records:
        if time.perf_counter() - begin > SECONDS_MAX:
            raise SystemExit(f"the broker at {bootstrap} did not recover its {records} records")
    return time.perf_counter() - begin


def our_recovery(directory: Path) -> float:
    """Return the seconds of one recovery of ours."""
    with BrokerProcess(directory) as broker:
        create(broker.bootstrap, 1)
        records = fill(broker.bootstrap, TOPIC, GB)
        broker.kill()
        return seconds_to_recover(broker.bootstrap, records, broker.start)


def kafkas_recovery(directory: Path, classpath: Path) -> float:
    """Return the seconds of one recovery of Kafka."""
    with kafka.KafkaProcess(directory, classpath) as broker:
        create(broker.bootstrap, 1)
        records = fill(broker.bootstrap, TOPIC, GB)
        killed: subprocess.Popen[bytes] = broker.process
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        return seconds_to_recover(broker.bootstrap, records, broker.launch)


def create(bootstrap: str, partitions: int) -> float:
    """Create the topic and return the seconds."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    begin = time.perf_counter()
    topic = NewTopic(TOPIC, partitions, 1, config={"flush.messages": NEVER})
    admin.create_topics([topic], operation_timeout=SECONDS_MAX, request_timeout=SECONDS_MAX)[TOPIC].result(SECONDS_MAX)
    seconds = time.perf_counter() - begin
    wait_for_leader(admin, TOPIC)
    return seconds


def evict(directory: Path) -> None:
    """Evict the logs of a topic from the page cache, after a sync."""
    for path in directory.glob("*.log"):
        with path.open("rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_times_ms(
    connection: RawConnection, topic: str, records: int, seed: int, reads: int, evicted: Path | None = None
) -> list[float]:
    """Return the times of fetches at random offsets; if `evicted` is given, that log is evicted repeatedly."""
    chance = random.Random(seed)
    taken = []
    for number in range(reads):
        if evicted is not None and number % READS_BETWEEN_EVICTIONS == 0:
            evict(evicted)
        asked = FetchPartition(0, -1, chance.randrange(records), -1, READ_BYTES)
        request = FetchRequest(-1, 0, 1, READ_BYTES, 0, 0, -1, [(topic, [asked])])
        encoded = fetch.encode_request(FETCH_VERSION, 1, "raw", request)
        begin = time.perf_counter()
        connection.send(encoded)
        connection.respond()
        taken.append(1000 * (time.perf_counter() - begin))
    return taken


def sent_between(sending: socket.socket, receiving: socket.socket, file: int, position: int) -> None:
    """Send READ_BYTES of a file by sendfile from one end of a non-blocking connection to the other."""
    sent = received = 0
    while received < READ_BYTES:
        with contextlib.suppress(BlockingIOError):
            sent += os.sendfile(sending.fileno(), file, position + sent, READ_BYTES - sent) if sent < READ_BYTES else 0
        with contextlib.suppress(BlockingIOError):
            received += len(receiving.recv(READ_BYTES))


def plain_times_us(directory: Path, seed: int, reads: int, *, is_evicted: bool) -> list[float]:
    """Return the control: as `read_times_ms`, in microseconds, from the same files without a broker."""
    chance = random.Random(seed)
    taken = []
    with ExitStack() as exits:
        files = [exits.enter_context(path.open("rb")) for path in directory.glob("*.log")]
        sizes = [os.fstat(file.fileno()).st_size for file in files]
        listening = exits.enter_context(socket.create_server(("127.0.0.1", 0)))
        sending = exits.enter_context(socket.create_connection(listening.getsockname()))
        receiving = exits.enter_context(listening.accept()[0])
        for end in (sending, receiving):
            end.setblocking(False)
        for number in range(reads):
            if is_evicted and number % READS_BETWEEN_EVICTIONS == 0:
                evict(directory)
            (chosen,) = chance.choices(range(len(files)), sizes)
            position = chance.randrange(sizes[chosen] - READ_BYTES)
            begin = time.perf_counter()
            sent_between(sending, receiving, files[chosen].fileno(), position)
            taken.append(1e6 * (time.perf_counter() - begin))
    return taken


Medians = list[list[float]]


def read_medians(broker: BrokerProcess, records: dict[str, int], *, is_evicted: bool) -> tuple[Medians, Medians]:
    """Return the medians of each round for each topic, in ms, and those of the control, in µs; the topics take turns.

    `records` has the number of records of each topic.
    """
    medians: dict[str, list[float]] = {topic: [] for topic in records}
    control: dict[str, list[float]] = {topic: [] for topic in records}
    reads = READS_EVICTED if is_evicted else READS
    with RawConnection(broker.bootstrap) as connection:
        for seed in range(READ_ROUNDS):
            for topic in sorted(records, reverse=seed % 2 == 0):
                directory = broker.data / f"{topic}-0"
                evicted = directory if is_evicted else None
                times = read_times_ms(connection, topic, records[topic], seed, reads, evicted)
                medians[topic].append(statistics.median(times))
                times = plain_times_us(directory, seed, reads, is_evicted=is_evicted)
                control[topic].append(statistics.median(times))
    return list(medians.values()), list(control.values())


def grown(name: str, unit: str, times: dict[str, list[float]], *, is_judged: bool = True) -> Iterator[Line]:
    """Yield a line for each size; the later ones are compared with the first."""
    (first, smallest), *others = times.items()
    yield row(f"{name}, {first} stored", f"{spread(smallest)} {unit}", "", "", "")
    for size, runs in others:
        ratio = ratios(runs, smallest)
        beside = f"{spread(ratio)} of the time with {first}"
        asked, verdict = "", ""
        if is_judged:
            asked, verdict = f"at most {NO_GROWTH.at_least:g}", NO_GROWTH.verdict(statistics.median(ratio))
        yield row(f"{name}, {size} stored", f"{spread(runs)} {unit}", beside, asked, verdict)


def random_reads() -> Iterator[Line]:
    """Yield the rows of reads of a small and a large log, from the page cache and after eviction."""
    settings = {"flush.messages": NEVER}
    with tempfile.TemporaryDirectory() as directory, BrokerProcess(Path(directory) / "data") as broker:
        peer = Peer("onceflow", broker.bootstrap, broker.pid)
        touch_memory()
        with fresh_topic(peer, "small", settings), fresh_topic(peer, "large", settings):
            records = {"small": fill(peer.bootstrap, "small", GB)}
            for name, size, is_evicted in (
                ("from the page cache", LARGER_CACHED, False),
                ("page cache emptied", LARGER, True),
            ):
                more = size * GB - (LARGER_CACHED * GB if is_evicted else 0)
                records["large"] = records.get("large", 0) + fill(peer.bootstrap, "large", more)
                medians, control = read_medians(broker, records, is_evicted=is_evicted)
                sizes = ("1 GB", f"{size} GB")
                title = f"read 64 KiB at random offsets, p50, {name}"
                yield from grown(title, "ms", dict(zip(sizes, medians, strict=True)))
                beside = dict(zip(sizes, control, strict=True))
                yield from grown(f"{title}, sendfile without a broker", "µs", beside, is_judged=False)


def many_partitions() -> Iterator[Line]:
    """Yield the rows of creation and start of many partitions: empty, and with a record in each."""
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        broker = BrokerProcess(data)
        broker.start()
        created = create(broker.bootstrap, PARTITIONS)
        yield row(f"create a topic of {PARTITIONS:,} partitions", f"{created:.1f} s", "", "", "")
        broker.stop()
        name = f"start with {PARTITIONS:,} partitions after a clean stop"
        yield judged_start(name, clean_starts(broker, data, 0))
        broker.start()
        write_to_each(broker.bootstrap)
        stopped = f"{seconds_to_stop(broker):.1f} s"
        yield row(f"stop with {PARTITIONS:,} partitions, a record in each since the start", stopped, "", "", "")
        yield judged_start(f"{name}, a record in each", clean_starts(broker, data, 1))


def write_to_each(bootstrap: str) -> None:
    """Write one record to each partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5})
    for partition in range(PARTITIONS):
        producer.produce(TOPIC, b"one", partition=partition)
        producer.poll(0)
    left = producer.flush(SECONDS_MAX)
    assert left == 0, f"{left} records were not acknowledged"


def seconds_to_stop(broker: BrokerProcess) -> float:
    """Return the seconds of a clean stop, which syncs each written log."""
    begin = time.perf_counter()
    os.kill(broker.pid, signal.SIGTERM)
    os.waitid(os.P_PID, broker.pid, os.WEXITED | os.WNOWAIT)
    broker.stop()
    return time.perf_counter() - begin


def clean_starts(broker: BrokerProcess, data: Path, records: int) -> list[float]:
    """Return the seconds of each start until a partition's end is known; the broker is stopped before and after.

    Its files are read into the page cache first: this machine evicts unread files within seconds, and its disk would be
    measured. A sync waits for the writes of the previous stop.
    """
    started = []
    for _ in range(STARTS):
        os.sync()
        for path in data.rglob("*"):
            if path.is_file():
                path.read_bytes()
        begin = time.perf_counter()
        broker.start()
        assert end_offset(broker.bootstrap, TOPIC) == records
        started.append(time.perf_counter() - begin)
        broker.stop()
    return started


def judged_start(name: str, started: Sequence[float]) -> Line:
    """Return a line with the goal of a start."""
    verdict = "yes" if statistics.median(started) <= START_SECONDS_MAX else "**no**"
    return row(name, f"{spread(started)} s", "", f"at most {START_SECONDS_MAX} s", verdict)


def recoveries() -> Iterator[Line]:
    """Yield the row of the recovery of 1 GB after kill -9."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        classpath = kafka.jars()

        def after_touching(recovered: Callable[[int], float]) -> Callable[[int], float]:
            def run(number: int) -> float:
                touch_memory()
                return recovered(number)

            return run

        contenders = {"ours": after_touching(lambda number: our_recovery(root / f"ours-{number}" / "data"))}
        if classpath is not None:
            contenders["theirs"] = after_touching(lambda number: kafkas_recovery(root / f"kafka-{number}", classpath))
        results = in_turns(contenders, RECOVERIES)
    ours, theirs = results["ours"], results.get("theirs")
    name = "recovery of 1 GB after kill -9"
    if theirs:
        ratio = ratios(ours, theirs)
        beside = f"{spread(ratio)} of Kafka's {spread(theirs)} s"
        verdict = RECOVERY_GOAL.verdict(statistics.median(ratio))
        yield row(name, f"{spread(ours)} s", beside, f"at most, aim: {RECOVERY_GOAL}", verdict)
    else:
        yield row(name, f"{spread(ours)} s", "", "", "")


def sparse_broker(directory: Path, segments: int) -> BrokerProcess:
    """Return a stopped broker with that many segments of 1 GB."""
    broker = BrokerProcess(directory)
    with broker:
        create(broker.bootstrap, 1)
    sparse.fill(directory / f"{TOPIC}-0", segments)
    return broker


def append_ms(broker: BrokerProcess, segments: int) -> float:
    """Return the median time of appends, after checking that no stored record is lost."""
    end = end_offset(broker.bootstrap, TOPIC)
    assert end >= segments * sparse.SEGMENT_BATCHES, f"the log ends at {end}: a part was lost"
    return one_at_a_time(Peer("onceflow", broker.bootstrap, broker.pid), TOPIC, SPARSE_APPENDS)[0]


def seconds_to_listen(broker: BrokerProcess) -> float:
    """Return the seconds of one start."""
    begin = time.perf_counter()
    broker.start()
    return time.perf_counter() - begin


def up_to_a_terabyte() -> Iterator[Line]:
    """Yield the rows of starts after a clean stop and after kill -9, and of appends, on logs of growing size."""
    clean, killed, append = results = [{size: list[float]() for size in SPARSE_GB} for _ in range(3)]
    with tempfile.TemporaryDirectory() as directory, ExitStack() as exits:
        sizes = {size: sparse_broker(Path(directory) / size, segments) for size, segments in SPARSE_GB.items()}
        for broker in sizes.values():
            exits.callback(broker.stop)
        touch_memory()
        for turn in range(SPARSE_TURNS):
            for size, broker in sorted(sizes.items(), reverse=turn % 2 == 0):
                clean[size].append(seconds_to_listen(broker))
                append[size].append(append_ms(broker, SPARSE_GB[size]))
                broker.kill()
                killed[size].append(seconds_to_listen(broker))
                broker.stop()
    names = ("start after a clean stop", "start after kill -9", "append one record, p50")
    for name, unit, times in zip(names, ("s", "s", "ms"), results, strict=True):
        yield from grown(f"{name}, sparse segments", unit, times)


PARTS = {
    "recovery": recoveries,
    "random reads": random_reads,
    "up to 1 TB": up_to_a_terabyte,
    "many partitions": many_partitions,
}


def measure(names: Sequence[str]) -> Iterator[Line]:
    """Yield the lines of these parts."""
    for name in names:
        yield from PARTS[name]()


TABLE = Table("What is stored", ("what", "onceflow", "beside", "asked", "reached"), list(PARTS), measure)
