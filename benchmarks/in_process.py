"""Time from `Broker(path)` to the first acknowledged record, with the broker loaded in the process and without.

Warm: the second and later brokers of a process. Cold: the first of a fresh process, including the import of the broker;
the client library is imported before the clock runs, because tests have it loaded. CPU is that of the whole process,
which depends less on the machine's load. The peer is Kafka's start (`benchmarks.kafka`), from the start of the process
to its first acknowledged record.
"""

import compileall
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import onceflow
from benchmarks import kafka
from benchmarks.figures import Line, Table, row

RUNS = 15
GOAL_MS = 300

MEASURE = """
import json, sys
sys.path.insert(0, {root!r})
from benchmarks.in_process import first_acknowledged
from confluent_kafka import Producer
print(json.dumps([first_acknowledged() for _ in range(int(sys.argv[1]))]))
"""


def first_acknowledged() -> tuple[float, float, float]:
    """Return the seconds from `Broker(path)` to listening and to the first acknowledgement, and the CPU seconds."""
    from confluent_kafka import Producer

    from onceflow.testing import Broker

    with tempfile.TemporaryDirectory() as directory:
        started, started_cpu = time.perf_counter(), time.process_time()
        with Broker(directory) as broker:
            listening = time.perf_counter() - started
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
            acknowledged: list[float] = []
            producer.produce("visits", b"ann", callback=lambda *_: acknowledged.append(time.perf_counter() - started))
            while not acknowledged:
                producer.poll(1)
            return listening, acknowledged[0], time.process_time() - started_cpu


def in_a_process(count: int) -> list[tuple[float, ...]]:
    """Return the times of the first `count` brokers of a fresh process."""
    script = MEASURE.format(root=str(Path(__file__).parents[1]))
    command = [sys.executable, "-c", script, str(count)]
    return [tuple(run) for run in json.loads(subprocess.check_output(command, text=True))]


def cells(runs: list[tuple[float, ...]]) -> list[str]:
    """Return medians, and the worst acknowledgement."""
    listening, acknowledged, cpu = (statistics.median(column) * 1000 for column in zip(*runs, strict=True))
    worst = max(run[1] for run in runs) * 1000
    return [f"{milliseconds:.0f}" for milliseconds in (listening, acknowledged, worst, cpu)]


def kafkas_line() -> Iterator[Line]:
    """Yield Kafka's row; none without its jars."""
    classpath = kafka.jars()
    if classpath is None:
        return
    with tempfile.TemporaryDirectory() as directory:
        started = time.perf_counter()
        with kafka.KafkaProcess(Path(directory) / "kafka", classpath) as broker:
            listening = time.perf_counter() - started
            from confluent_kafka import Producer

            producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
            producer.produce("visits", b"ann")
            assert not producer.flush(60)
            acknowledged = time.perf_counter() - started
            name = f"Apache Kafka {kafka.VERSION}, its directory formatted and started, one run"
            yield row(name, f"{listening * 1000:.0f}", f"{acknowledged * 1000:.0f}", "", "")


def measured(_names: Sequence[str]) -> Iterator[Line]:
    """Yield the rows warm, cold and Kafka."""
    # As pip does at installation: a checkout may have no byte code, or outdated one.
    compileall.compile_dir(Path(onceflow.__file__).parent, quiet=1)
    cold = [in_a_process(1)[0] for _ in range(RUNS)]
    warm = in_a_process(RUNS + 1)[1:]
    yield row("a further broker of a process (warm)", *cells(warm))
    yield row("the first of a fresh process (cold)", *cells(cold))
    yield from kafkas_line()


TABLE = Table(
    "A broker in the test's process",
    ("what", "clients can connect", "first record acknowledged", "worst", "CPU"),
    ["all"],
    measured,
    says=f"From `Broker(path)`, ms, median of {RUNS}; the goal for the first acknowledged record is {GOAL_MS}.",
)
