"""Time from the start of the process to the first Metadata response, with an empty data directory.

Apache Kafka's directory is formatted before the clock starts. Both get a raw request every few milliseconds.
"""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import kafka
from benchmarks.comparison import Goal, in_turns, judged, ratios, spread
from benchmarks.figures import Line, Table, row
from onceflow import services
from onceflow.wire import apis
from onceflow.wire.frames import encode_request, request_class

RUNS = 5
GOAL = Goal(0.25, 0.05, is_cost=True)
METADATA_VERSION = 5
ASK_AGAIN_SECONDS = 0.002
SECONDS_MAX = 60


def responds(port: int) -> bool:
    """Whether a Metadata request gets a response."""
    asked = request_class(apis.METADATA, METADATA_VERSION)(topics=(), allow_auto_topic_creation=False)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            client.sendall(encode_request(apis.METADATA, METADATA_VERSION, 1, "start", asked))
            return len(client.recv(4)) == 4
    except OSError:
        return False


def seconds_until_it_responds(start: Callable[[], subprocess.Popen[bytes]], port: int) -> float:
    """Start a broker, wait for its response, end it, and return the seconds."""
    begin = time.perf_counter()
    process = start()
    try:
        while not responds(port):
            if time.perf_counter() - begin > SECONDS_MAX or process.poll() is not None:
                raise SystemExit(f"the broker on port {port} did not start")
            time.sleep(ASK_AGAIN_SECONDS)
        return time.perf_counter() - begin
    finally:
        process.terminate()
        process.wait(timeout=SECONDS_MAX)


def our_start(directory: Path) -> float:
    """Return the seconds of one start of `onceflow broker`."""
    port = services.free_port()
    command = [sys.executable, "-m", "onceflow", "broker", "--data", str(directory), "--listen", f"127.0.0.1:{port}"]
    with (directory.parent / "ours.log").open("ab") as log:
        return seconds_until_it_responds(lambda: subprocess.Popen(command, stdout=log, stderr=log), port)


def kafkas_start(directory: Path, classpath: Path) -> float:
    """Return the seconds of one start of Apache Kafka."""
    broker = kafka.KafkaProcess(directory, classpath)
    broker.format()
    return seconds_until_it_responds(broker.launch, broker.port)


def measured(_names: Sequence[str]) -> Iterator[Line]:
    """Yield the row of runs in turns, on new directories."""
    classpath = kafka.jars()
    with tempfile.TemporaryDirectory() as directory:
        contenders = {"ours": lambda number: our_start(Path(directory) / f"ours-{number}")}
        if classpath is not None:
            contenders["theirs"] = lambda number: kafkas_start(Path(directory) / f"kafka-{number}", classpath)
        results = in_turns(contenders, RUNS)
    ours, theirs = results["ours"], results.get("theirs")
    beside = (f"{spread(theirs)} s", *judged(ratios(ours, theirs), GOAL)) if theirs else ("", "", "", "")
    yield row("start", f"{spread(ours)} s", *beside)


TABLE = Table(
    "Start to the first Metadata response",
    ("what", "onceflow", "Apache Kafka", "ours / its", "at most, aim", "reached"),
    ["start"],
    measured,
)
