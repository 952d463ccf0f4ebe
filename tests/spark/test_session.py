"""The session: settings, addresses, an interrupted start, and the message in Spark's errors."""

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from onceflow.remedies import Remedy
from onceflow.spark import session
from tests import remedies
from tests.processes import MARK, processes_of


def test_the_running_session_has_the_settings(spark: SparkSession) -> None:
    expected = session.session_conf("local[2]")
    assert {name: spark.conf.get(name) for name in expected} == expected
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.parametrize(
    ("master", "partitions"), [("local", "1"), ("local[1]", "1"), ("local[2]", "2"), ("local[8,3]", "2")]
)
def test_one_machine_is_tuned_by_its_threads(master: str, partitions: str) -> None:
    conf = session.session_conf(master)
    assert conf["spark.sql.shuffle.partitions"] == partitions
    assert conf["spark.driver.bindAddress"] == "127.0.0.1"


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local-cluster[2,1,1024]"])
def test_cluster_keeps_file_system_and_addresses(master: str) -> None:
    assert not session.session_conf(master).keys() & session.ON_ONE_MACHINE.keys()


@pytest.mark.remedy(Remedy.START_SPARK_MASTER)
def test_master_that_does_not_respond() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    unused = f"spark://127.0.0.1:{port}"
    with pytest.raises(session.MasterUnreachable, match=f"no Spark master responds at {unused}") as raised:
        session.await_master(unused, within_s=0)
    remedies.find(Remedy.START_SPARK_MASTER, raised.value)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        session.await_master(f"{unused},127.0.0.1:{listening.getsockname()[1]}", within_s=0)
    for other in ("local[2]", "yarn", "k8s://https://127.0.0.1:1"):
        session.await_master(other, within_s=0)


def test_masters_with_ipv6_addresses() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listening:
        port = listening.getsockname()[1]
        session.await_master(f"spark://[::1]:{port}", within_s=0)
    with pytest.raises(session.MasterUnreachable):
        session.await_master(f"spark://[::1]:{port}", within_s=0)


@pytest.mark.parametrize("address", ["localhost", "localhost:", "localhost:70777", "localhost:x", "localhost:-1", ""])
def test_spark_refuses_masters_without_a_port(address: str) -> None:
    session.await_master(f"spark://{address}", within_s=0)


def test_web_ui_is_off_by_default() -> None:
    assert session.session_conf("local")["spark.ui.enabled"] == "false"
    assert session.session_conf("local", ui_port=0)["spark.ui.port"] == "0"


def test_log_settings_file_exists() -> None:
    option = session.EVERYWHERE["spark.driver.extraJavaOptions"]
    assert Path(option.strip('"').partition("file://")[2]).is_file()


def test_worker_python_drops_only_sparks_files() -> None:
    kept = ["/own/modules", "", "/own/archive.zip"]
    dropped = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-1-src.zip", "/spark/jars/spark-core.jar"]
    environment = {
        "PYTHONPATH": ":".join([dropped[0], *kept, *dropped]),
        "SPARK_HOME": "/spark",
        "ONCEFLOW_WORKER_PYTHON": "/bin/sh",
    }
    script = [str(session._WORKER_PYTHON), "-c", 'printf %s "$PYTHONPATH|$1"', "sh", "an argument"]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == ":".join(kept) + "|an argument"


@pytest.mark.parametrize(
    ("given", "threads"), [({}, "1"), ({"OMP_NUM_THREADS": "4"}, "4"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")]
)
def test_worker_python_limits_numpys_threads(given: dict[str, str], threads: str) -> None:
    environment = {"SPARK_HOME": "/spark", "ONCEFLOW_WORKER_PYTHON": "/bin/sh", **given}
    script = [str(session._WORKER_PYTHON), "-c", 'printf %s "$OPENBLAS_NUM_THREADS"']
    assert subprocess.run(script, env=environment, capture_output=True, text=True, check=True).stdout == threads


def test_workers_import_installed_pyspark(spark: SparkSession) -> None:
    def origins(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark

        yield pa.RecordBatch.from_pydict({"file": [pyspark.__file__], "python": [sys.executable]})

    rows = spark.range(1).mapInArrow(origins, "file string, python string").collect()
    assert {(row["file"], row["python"]) for row in rows} == {(pyspark.__file__, sys.executable)}


@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077"])
def test_python_of_the_user_is_kept(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/own/python")
    session._choose_worker_python(master)
    assert os.environ["PYSPARK_PYTHON"] == "/own/python"


def test_workers_of_a_cluster_get_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script exists on this machine only."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    session._choose_worker_python("spark://host:7077")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_interrupted_start_leaves_no_jvm(java_home: str, tmp_path: Path) -> None:
    mark, log = f"session-{uuid.uuid4()}", tmp_path / "spark.log"
    program = f"""
import pathlib, time
from onceflow.spark.session import build_session
print("starting", flush=True)
build_session("interrupted", java_home={java_home!r}, log_file=pathlib.Path({str(log)!r}))
time.sleep(300)  # A late interrupt arrives here.
"""
    environment = {**os.environ, MARK: mark}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == b"starting\n"
        deadline = time.monotonic() + 60
        while not any("SparkSubmit" in command for command in processes_of(mark).values()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        driver.send_signal(signal.SIGINT)
        assert driver.wait(timeout=120) != 0
    while processes_of(mark):
        assert time.monotonic() < deadline + 60, log.read_text()
        time.sleep(0.1)


@pytest.mark.parametrize("moment", ["context", "session"])
def test_an_interrupt_waits_for_the_session(java_home: str, tmp_path: Path, moment: str) -> None:
    """An interrupt must not hit a call to the JVM: Spark's own handler calls the JVM too, and both calls fail."""
    program = f"""
import os, pathlib, signal, traceback
from py4j.clientserver import ClientServerConnection
from pyspark import SparkContext
from pyspark.sql import SparkSession
from onceflow.spark.session import build_session
send_command, sent = ClientServerConnection.send_command, []
def interrupted(connection, command):
    context = SparkContext._active_spark_context
    is_due = {moment == "context"} or any("sql/session.py" in frame.filename for frame in traceback.extract_stack())
    if not sent and context is not None and is_due:
        sent.append(command)
        os.kill(os.getpid(), signal.SIGINT)
    return send_command(connection, command)
ClientServerConnection.send_command = interrupted
try:
    build_session("interrupted", java_home={java_home!r}, log_file=pathlib.Path({str(tmp_path / "spark.log")!r}))
except KeyboardInterrupt:
    print("interrupted", len(sent), SparkSession._instantiatedSession is not None, flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert (done.stdout, done.stderr) == (f"interrupted 1 {moment == 'session'}\n", "")
