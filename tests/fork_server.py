"""Forks of one process for Spark's Python workers: 40 ms each, where a new Python imports their modules for 400 ms.

Spark starts a Python for each streaming source, and five others in each JVM. Only JVMs that are given the fixture
`spark_python` use forks, first of all the shared sessions; every other one starts its workers as a user's does.

    python -m tests.fork_server SOCKET      until its standard input is closed
"""

import contextlib
import gc
import importlib
import marshal
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

CLIENT = Path(__file__).with_name("fork_client.py")
IMPORTED = (
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
    "onceflow.spark.source",
    "onceflow.spark.reader.read_task",
    "onceflow.spark.reader.stream",
)

PYTHON = """#!/bin/sh
# A Python for Spark's workers: a module runs in a fork, anything else in a new process.
case "$1" in
    -m) exec {python} -I -S {client} {socket} "$@" ;;
    *) exec {python} "$@" ;;
esac
"""


@contextlib.contextmanager
def forking_python(directory: Path) -> Iterator[Path]:
    """Run a fork server, and give the path of a program that stands for Python in `PYSPARK_PYTHON`."""
    address, program = directory / "forks", directory / "python"
    names = {"python": sys.executable, "client": CLIENT, "socket": address}
    program.write_text(PYTHON.format(**{name: shlex.quote(str(value)) for name, value in names.items()}))
    program.chmod(0o755)
    # Spark starts its workers with this seed, which a fork cannot set.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", __name__, str(address)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as server:
        assert server.stdin is not None and server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield program
        server.stdin.close()


def serve(address: str) -> None:
    """Fork a worker for each connection, until standard input is closed."""
    for module in IMPORTED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # No process waits for a supervisor.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while sys.stdin.fileno() not in select.select([listener.fileno(), sys.stdin.fileno()], [], [])[0]:
            with listener.accept()[0] as connection:
                if not os.fork():
                    listener.close()
                    supervise(connection)


def supervise(connection: socket.socket) -> NoReturn:
    """Run the worker in a further fork; end it when the client has ended, and tell the client its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, files, _, _ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as stream:
        words, environment, directory = marshal.loads(stream.read(int.from_bytes(size, "big")))
    worker = os.fork()
    if not worker:
        connection.close()
        run(words, environment, directory, files)
    for number in (0, 1, *files):
        os.close(number)
    has_ended = os.pidfd_open(worker)
    if has_ended not in select.select([connection.fileno(), has_ended], [], [])[0]:
        os.kill(worker, signal.SIGTERM)
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    with contextlib.suppress(OSError):
        connection.send(bytes([status & 255]))
    os._exit(0)


def run(words: Sequence[str], environment: Mapping[str, str], directory: str, files: Sequence[int]) -> NoReturn:
    """Become the worker: `words` are the module and its arguments, `files` standard input, output and error."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry not in sys.path]
    sys.argv = list(words)
    sys.modules.pop(words[0], None)  # It runs as `__main__`.
    status: object = None
    try:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        status = ended.code or 0
    finally:
        if status is None:
            sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        sys.stderr.flush()
        # The usual end would free each imported object, and copy its page for that.
        os._exit(status if isinstance(status, int) else 1)


if __name__ == "__main__":
    serve(sys.argv[1])
