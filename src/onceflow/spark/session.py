"""A quiet Spark session, tuned for small micro-batches on one machine.

Measured effect of the settings, per micro-batch on two cores:

- The default checkpoint manager forks `readlink` and `chmod` for every file, some 20 processes a batch: 68 ms.
  `FileSystemBasedCheckpointFileManager` with `RawLocalFileSystem` (no `.crc` files) takes 11 ms. The raw file system
  does not work with the RocksDB state store: reset `spark.hadoop.fs.file.impl` with `extra_conf` there.
- Unix domain sockets between JVM and Python workers save 40 ms, the delay of a loopback TCP connection.
- 200 shuffle partitions, Spark's default, take 6 s a batch; two take 0.1 s.

Spark starts a Python for each query's source. Its imports take 1.1 s of CPU from pyspark.zip, and 0.4 s from files.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession, SQLContext

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

MASTER_WAIT_S = 60.0
SHUFFLE_PARTITIONS_MAX = 2
_CHECKPOINTING = "org.apache.spark.sql.execution.streaming.checkpointing"
_LOG4J = Path(__file__).with_name("log4j2.properties")
_WORKER_PYTHON = Path(__file__).with_name("worker_python.sh")

EVERYWHERE = {
    "spark.driver.extraJavaOptions": f'"-Dlog4j2.configurationFile={_LOG4J.as_uri()}"',
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}
ON_ONE_MACHINE = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": f"{_CHECKPOINTING}.FileSystemBasedCheckpointFileManager",
}


class MasterUnreachable(OnceflowError):
    """No Spark master that a driver can register with."""


def await_master(master: str, *, within_s: float = MASTER_WAIT_S) -> None:
    """Wait until a standalone master accepts connections. Raises MasterUnreachable.

    Spark waits as long, and then ends its session without a reason. Other kinds of masters are not checked.
    """
    kind, _, addresses = master.partition("://")
    if kind != "spark":
        return
    try:
        parts = [urlsplit(f"//{address}") for address in addresses.split(",")]
        places = [(part.hostname, part.port) for part in parts]
    except ValueError:
        return  # Spark refuses an address with an invalid port.
    if not all(host and port for host, port in places):
        return
    begun_s = time.monotonic()
    while not any(map(_accepts, places)):
        if time.monotonic() - begun_s >= within_s:
            raise MasterUnreachable(f"no Spark master responds at {master}: {Remedy.START_SPARK_MASTER}")
        time.sleep(0.5)


def _accepts(place: tuple[str | None, int | None]) -> bool:
    try:
        with socket.create_connection(place, timeout=2):
            return True
    except OSError:
        return False


def build_session(
    app_name: str,
    master: str = "local[2]",
    *,
    java_home: str | None = None,
    log_file: Path | None = None,
    ui_port: int | None = None,
    extra_conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the process's one Spark session; `extra_conf` overrides the other settings.

    `log_file` receives the output of Spark, its JVM and its Python workers; the default is standard error. `ui_port`
    enables Spark's own web UI, on 127.0.0.1 only; 0 picks a free port. `java_home` and the addresses are set in this
    process's environment, the only place where Spark's launcher reads them.
    """
    if is_jvm_lost():
        _forget_jvm()
    _choose_worker_python(master)
    if java_home is not None:
        os.environ["JAVA_HOME"] = java_home
    if on_one_machine(master):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = session_conf(master, ui_port=ui_port) | dict(extra_conf or {})
    conf = SparkConf(loadDefaults=False).setAll([("spark.app.name", app_name), *settings.items()])
    with _first_interrupt_held():
        if SparkContext._gateway is None:
            _launch(conf, log_file)
        SparkContext.getOrCreate(conf)
    # The context installs its own handler, which must not run inside a call to the JVM.
    with _first_interrupt_held():
        return SparkSession.builder.config(conf=conf).getOrCreate()


def _choose_worker_python(master: str) -> None:
    """Set the Python of Spark's workers, unless the user has; without pyspark.zip if pip has installed its modules.

    A JVM that someone else started lacks the variable, and a wheel that is imported as a zip file the script.
    """
    is_from_pip = Path(pyspark.__file__).parent == Path(_find_spark_home())
    is_ours = on_one_machine(master) and SparkContext._gateway is None
    if is_from_pip and is_ours and os.access(_WORKER_PYTHON, os.X_OK):
        os.environ["ONCEFLOW_WORKER_PYTHON"] = sys.executable
        os.environ.setdefault("PYSPARK_PYTHON", str(_WORKER_PYTHON))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def is_jvm_lost(*, within_s: float = 0) -> bool:
    """Return whether the JVM that this process started has ended, or ends `within_s` seconds."""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:  # There is no JVM, or spark-submit started it.
        return False
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _forget_jvm() -> None:
    """Drop pyspark's state of a JVM that has ended: `stop` of its session fails halfway."""
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    if context is not None and context._accumulatorServer is not None:
        context._accumulatorServer.shutdown()
    assert gateway is not None
    gateway.shutdown_callback_server()
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SQLContext._instantiatedContext = None


def session_conf(master: str, *, ui_port: int | None = None) -> dict[str, str]:
    """Return the settings, to start Spark in another way (spark-submit, spark-defaults.conf)."""
    conf = EVERYWHERE | {"spark.master": master, "spark.ui.enabled": str(ui_port is not None).lower()}
    if ui_port is not None:
        conf["spark.ui.port"] = str(ui_port)
    if on_one_machine(master):
        conf |= ON_ONE_MACHINE
        conf["spark.sql.shuffle.partitions"] = str(min(SHUFFLE_PARTITIONS_MAX, _threads(master)))
    return conf


def on_one_machine(master: str) -> bool:
    """Return True for `local`, `local[2]`, `local[*]`, `local[2,3]`; not for `local-cluster`, several processes."""
    return re.fullmatch(r"local(\[.+\])?", master) is not None


def _threads(master: str) -> int:
    count = re.fullmatch(r"local\[(\d+)(,.*)?\]", master)
    if count:
        return int(count[1])
    return 1 if master == "local" else os.cpu_count() or 1


def _launch(conf: SparkConf, log_file: Path | None) -> None:
    """Start the JVM with its output in `log_file`; it exits when this process ends."""
    with contextlib.ExitStack() as files:
        output = None
        if log_file is not None:
            log_file.parent.mkdir(parents=True, exist_ok=True)
            output = {"stdout": files.enter_context(log_file.open("ab")), "stderr": subprocess.STDOUT}
        gateway = launch_gateway(conf, output)  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)


@contextlib.contextmanager
def _first_interrupt_held() -> Iterator[None]:
    """Delay the first Ctrl-C until the block has ended; a second one takes effect at once.

    An interrupted `launch_gateway` deletes the directory in which the JVM is about to write its port. Such a JVM never
    starts to watch for this process's end, and runs indefinitely. An interrupted call to the JVM prints several
    tracebacks of py4j.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    is_held = False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal is_held
        is_held = True
        signal.signal(signal.SIGINT, handler)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is hold:
            signal.signal(signal.SIGINT, handler)
    if is_held:
        handler(signal.SIGINT, None)
