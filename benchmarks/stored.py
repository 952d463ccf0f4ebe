"""What does it cost that much is stored: recovery after kill -9, reads at random offsets, many partitions?

Recovery: from the start of the process until the log's last offset is told again, on both brokers, after 1 GB of real
batches and SIGKILL. Reads: one Fetch of 64 KiB at a time, at random offsets, of a log of 1 GB and of one twenty times
as large on the same broker, in turns; what the page cache holds is part of the answer, so the sizes are said.
"""

import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import kafka
from benchmarks.peers import NEVER, Peer, fresh_topic, touch_memory
from benchmarks.raw_connection import FETCH_VERSION, RawConnection, produce_request, stream
from onceflow.testing import BrokerProcess
from onceflow.wire import fetch
from onceflow.wire.fetch import FetchPartition, FetchRequest

GB = 10**9
BATCH_RECORDS, VALUE_BYTES = 64, 1000
READ_BYTES = 64 << 10
READS = 4_000
LARGER = 20
PARTITIONS = 10_000
TOPIC = "stored"
SECONDS_MAX = 120
QUICK = {"socket.timeout.ms": 1000, "log_level": 0}


def fill(bootstrap: str, topic: str, size_bytes: int) -> int:
    """Write that much; the number of records."""
    request = produce_request(topic, BATCH_RECORDS, VALUE_BYTES)
    count = size_bytes // len(request)
    stream(bootstrap, request, count)
    return count * BATCH_RECORDS


def end_offset(bootstrap: str, topic: str) -> int:
    """-1 while the broker does not tell."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "benchmark", **QUICK})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=1)[1]
    except KafkaException:
        return -1
    finally:
        consumer.close()


def seconds_to_recover(bootstrap: str, records: int, start: Callable[[], object]) -> float:
    """From the start of the process until the end of the log is told."""
    begin = time.perf_counter()
    start()
    while end_offset(bootstrap, TOPIC) != records:
        if time.perf_counter() - begin > SECONDS_MAX:
            raise SystemExit(f"the broker at {bootstrap} does not know its {records} records again")
    return time.perf_counter() - begin


def our_recovery(directory: Path) -> float:
    """One kill and one start of ours."""
    with BrokerProcess(directory) as broker:
        create(broker.bootstrap, 1)
        records = fill(broker.bootstrap, TOPIC, GB)
        broker.kill()
        return seconds_to_recover(broker.bootstrap, records, broker.start)


def kafkas_recovery(directory: Path, classpath: Path) -> float:
    """One kill and one start of Kafka's."""
    with kafka.KafkaProcess(directory, classpath) as broker:
        create(broker.bootstrap, 1)
        records = fill(broker.bootstrap, TOPIC, GB)
        killed: subprocess.Popen[bytes] = broker.process
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        return seconds_to_recover(broker.bootstrap, records, broker.launch)


def create(bootstrap: str, partitions: int) -> float:
    """Make the topic; seconds."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    begin = time.perf_counter()
    topic = NewTopic(TOPIC, partitions, 1, config={"flush.messages": NEVER})
    admin.create_topics([topic], operation_timeout=SECONDS_MAX, request_timeout=SECONDS_MAX)[TOPIC].result(SECONDS_MAX)
    return time.perf_counter() - begin


def read_times_ms(connection: RawConnection, topic: str, records: int, seed: int) -> list[float]:
    """Each of `READS` fetches at random offsets."""
    chance = random.Random(seed)
    taken = []
    for _ in range(READS):
        asked = FetchPartition(0, -1, chance.randrange(records), -1, READ_BYTES)
        request = FetchRequest(-1, 0, 1, READ_BYTES, 0, 0, -1, [(topic, [asked])])
        encoded = fetch.encode_request(FETCH_VERSION, 1, "raw", request)
        begin = time.perf_counter()
        connection.send(encoded)
        connection.answer()
        taken.append(1000 * (time.perf_counter() - begin))
    return taken


def random_reads() -> list[str]:
    """Lines for a small and a large log, and how the medians compare."""
    with tempfile.TemporaryDirectory() as directory, BrokerProcess(Path(directory) / "data") as broker:
        peer = Peer("onceflow", broker.bootstrap, broker.pid)
        touch_memory()
        with (
            fresh_topic(peer, "small", {"flush.messages": NEVER}),
            fresh_topic(peer, "large", {"flush.messages": NEVER}),
        ):
            records = {"small": fill(peer.bootstrap, "small", GB), "large": fill(peer.bootstrap, "large", LARGER * GB)}
            medians: dict[str, list[float]] = {topic: [] for topic in records}
            with RawConnection(peer.bootstrap) as connection:
                for seed in range(6):
                    for topic in sorted(records, reverse=seed % 2 == 0):
                        medians[topic].append(statistics.median(read_times_ms(connection, topic, records[topic], seed)))
    ratio = statistics.median(large / small for large, small in zip(medians["large"], medians["small"], strict=True))
    small, large = (statistics.median(medians[topic]) for topic in ("small", "large"))
    return [
        f"| read 64 KiB at random offsets, 1 GB stored, p50 | {small:.3f} ms | | |",
        f"| the same, {LARGER} GB stored | {large:.3f} ms | {ratio:.2f} of the time with 1 GB | at most 1.10 |",
    ]


def many_partitions() -> list[str]:
    """Lines for creation and start with many partitions."""
    with tempfile.TemporaryDirectory() as directory:
        broker = BrokerProcess(Path(directory) / "data")
        broker.start()
        created = create(broker.bootstrap, PARTITIONS)
        broker.stop()
        started = []
        for _ in range(3):
            begin = time.perf_counter()
            broker.start()
            assert end_offset(broker.bootstrap, TOPIC) == 0
            started.append(time.perf_counter() - begin)
            broker.stop()
    start = statistics.median(started)
    return [
        f"| create a topic of {PARTITIONS:,} partitions | {created:.1f} s | | |",
        f"| start with {PARTITIONS:,} partitions after a clean stop | {start:.2f} s | | at most 2 s |",
    ]


def recoveries() -> list[str]:
    """The line for 1 GB after kill -9."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        classpath = kafka.jars()
        ours, theirs = [], []
        for number in range(3):
            touch_memory()
            ours.append(our_recovery(root / f"ours-{number}" / "data"))
            if classpath is not None:
                theirs.append(kafkas_recovery(root / f"kafka-{number}", classpath))
    cell = f"| recovery of 1 GB after kill -9 | {statistics.median(ours):.2f} s "
    if not theirs:
        return [cell + "| | |"]
    ratio = statistics.median(mine / its for mine, its in zip(ours, theirs, strict=True))
    return [cell + f"| {ratio:.2f} of Kafka's {statistics.median(theirs):.2f} s | at most 0.33, aim 0.08 |"]


def table() -> str:
    """Measure and give the table as Markdown."""
    lines = ["| what | onceflow | beside | asked |", "|---|---|---|---|"]
    for part in (recoveries, random_reads, many_partitions):
        lines += part()
    return "\n".join(lines)


if __name__ == "__main__":
    parts = {part.__name__: part for part in (recoveries, random_reads, many_partitions)}
    for name in sys.argv[1:] or parts:
        print(*parts[name](), sep="\n", flush=True)
