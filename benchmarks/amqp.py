"""RabbitMQ, and as much of AMQP 0-9-1 as putting into a queue and taking out of it needs.

Requests are encoded beforehand, as those of `benchmarks.raw_connection`: a client in Python that builds each frame
would be measured instead of the broker.
"""

import os
import re
import shutil
import socket
import struct
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from onceflow import services

SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
START_SECONDS_MAX = 60
METHOD, HEADER, BODY = 1, 2, 3
FRAME_HEAD = struct.Struct(">BHI")
FRAME_END = b"\xce"
CLASS_AND_METHOD = struct.Struct(">HH")
CONNECTION, CHANNEL, QUEUE, BASIC, CONFIRM = 10, 20, 50, 60, 85
FRAME_BYTES_MAX = 128 << 10
"""Bodies are smaller."""
NO_ARGUMENTS = struct.pack(">I", 0)
CHUNK, CHUNK_BYTES = 500, 1 << 20
ACK = struct.Struct(">HHQ?")
"""Class, method, delivery tag, whether all before it are meant."""


def find_server() -> str | None:
    """Debian's script without the change of user, or the one on PATH; None where there is no RabbitMQ."""
    return SERVER if Path(SERVER).exists() else shutil.which("rabbitmq-server")


class RabbitProcess:
    """A running RabbitMQ with its defaults; use as a context."""

    def __init__(self, directory: Path, server: str) -> None:
        self.directory = directory
        self.port = services.free_port()
        self._server = server
        self._exits = ExitStack()

    def __enter__(self) -> "RabbitProcess":
        self.directory.mkdir(parents=True)
        environment = {
            **os.environ,
            "HOME": str(self.directory),
            "RABBITMQ_NODENAME": f"benchmark{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(services.free_port()),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "data"),
            "RABBITMQ_LOG_BASE": str(self.directory / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "plugins"),
            "RABBITMQ_PID_FILE": str(self.directory / "pid"),
            "ERL_EPMD_PORT": str(services.free_port()),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        log = self._exits.enter_context((self.directory / "server.log").open("wb"))
        # Erlang's directory of nodes: RabbitMQ would start one that stays when it ends.
        for command in (["epmd"], [self._server]):
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            self._exits.callback(ended, process)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not services.answers(self.port):
            if time.monotonic() > deadline or process.poll() is not None:
                self._exits.close()
                raise RuntimeError(f"RabbitMQ did not start: {(self.directory / 'server.log').read_text()[-500:]}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()


def ended(process: subprocess.Popen[bytes]) -> None:
    """End it and wait."""
    process.terminate()
    process.wait(timeout=60)


def short(text: str) -> bytes:
    """A short string."""
    return bytes([len(text)]) + text.encode()


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame."""
    return FRAME_HEAD.pack(kind, channel, len(payload)) + payload + FRAME_END


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    """A frame with a method."""
    return frame(METHOD, channel, CLASS_AND_METHOD.pack(class_id, method_id) + arguments)


def publishing(queue: str, value: bytes, *, is_persistent: bool) -> bytes:
    """The three frames of one message to the default exchange."""
    delivery_mode = struct.pack(">HB", 1 << 12, 2 if is_persistent else 1)
    header = struct.pack(">HHQ", BASIC, 0, len(value)) + delivery_mode
    publish = method(1, BASIC, 40, struct.pack(">H", 0) + short("") + short(queue) + b"\0")
    return publish + frame(HEADER, 1, header) + frame(BODY, 1, value)


def chunk_of(size_bytes: int) -> int:
    """How many messages of that size are sent, or acknowledged, at once; twice as many may be under way."""
    return max(1, min(CHUNK, CHUNK_BYTES // size_bytes))


class Channel:
    """A connection of user guest with one channel. Raises RuntimeError for any answer that was not expected."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb", 1 << 20)
        self._published = self._delivered = 0
        self.send(b"AMQP\0\0\x09\x01")
        told = re.search(rb"\x07versionS\0\0\0.([0-9.]+)", self.expect(CONNECTION, 10), re.DOTALL)
        self.version = told[1].decode() if told else "of an unknown version"
        credentials = b"\0guest\0guest"
        start_ok = struct.pack(">I", 0) + short("PLAIN") + struct.pack(">I", len(credentials)) + credentials
        self.send(method(0, CONNECTION, 11, start_ok + short("en_US")))
        self.expect(CONNECTION, 30)
        self.send(method(0, CONNECTION, 31, struct.pack(">HIH", 1, FRAME_BYTES_MAX, 0)))
        self.call(CONNECTION, 40, short("/") + b"\0\0", channel=0)
        self.call(CHANNEL, 10, b"\0")

    def call(self, class_id: int, method_id: int, arguments: bytes = b"", channel: int = 1) -> bytes:
        """A method whose answer has the next number; the answer's arguments."""
        self.send(method(channel, class_id, method_id, arguments))
        return self.expect(class_id, method_id + 1)

    def send(self, data: bytes) -> None:
        """Without waiting for an answer."""
        self._socket.sendall(data)

    def read(self, size_bytes: int) -> bytes:
        """Exactly so many bytes."""
        data = self._answers.read(size_bytes)
        if len(data) < size_bytes:
            raise ConnectionError("RabbitMQ closed the connection")
        return data

    def receive(self) -> bytes:
        """The payload of the next frame."""
        _, _, size_bytes = FRAME_HEAD.unpack(self.read(FRAME_HEAD.size))
        return self.read(size_bytes + 1)[:-1]

    def expect(self, class_id: int, method_id: int) -> bytes:
        """The arguments of that method, which has to come next."""
        payload = self.receive()
        if CLASS_AND_METHOD.unpack_from(payload) != (class_id, method_id):
            raise RuntimeError(f"RabbitMQ answered {payload[:200]!r} instead of method {class_id}.{method_id}")
        return payload[CLASS_AND_METHOD.size :]

    def declare(self, queue: str, *, is_durable: bool) -> None:
        """A classic queue."""
        self.call(QUEUE, 10, b"\0\0" + short(queue) + (b"\2" if is_durable else b"\0") + NO_ARGUMENTS)

    def left(self, queue: str) -> int:
        """Messages that wait in the queue."""
        declared = self.call(QUEUE, 10, b"\0\0" + short(queue) + b"\1" + NO_ARGUMENTS)
        return int(struct.unpack_from(">I", declared, 1 + len(queue))[0])

    def delete(self, queue: str) -> None:
        """With what is in it."""
        self.call(QUEUE, 40, b"\0\0" + short(queue) + b"\0")

    def confirm(self) -> None:
        """From now on RabbitMQ confirms what is published."""
        self.call(CONFIRM, 10, b"\0")

    def publish(self, message: bytes, count: int) -> None:
        """Until the last one is confirmed."""
        chunk = chunk_of(len(message))
        waiting: dict[int, None] = {}
        while count or waiting:
            sent = min(count, chunk)
            waiting.update(dict.fromkeys(range(self._published + 1, self._published + sent + 1)))
            self._published += sent
            count -= sent
            self.send(message * sent)
            while len(waiting) > (chunk if count else 0):
                self._take_confirmation(waiting)

    def _take_confirmation(self, waiting: dict[int, None]) -> None:
        class_id, method_id, tag, is_multiple = ACK.unpack(self.receive())
        if (class_id, method_id) != (BASIC, 80):
            raise RuntimeError(f"RabbitMQ answered method {class_id}.{method_id} instead of a confirmation")
        if not is_multiple:
            del waiting[tag]
            return
        while waiting and (first := next(iter(waiting))) <= tag:
            del waiting[first]

    def consume(self, queue: str, value: bytes, count: int) -> None:
        """Until the last one is here and all are acknowledged, which RabbitMQ does not answer."""
        chunk = chunk_of(len(value))
        self.call(BASIC, 10, struct.pack(">IHB", 0, 2 * chunk, 0))
        self.call(BASIC, 20, b"\0\0" + short(queue) + short("benchmark") + b"\0" + NO_ARGUMENTS)
        # The frames of one message; of all others they have the same sizes.
        size_bytes = sum(FRAME_HEAD.size + len(self.receive()) + 1 for _ in range(3))
        taken = 1
        while taken < count:
            more = min(count - taken, chunk)
            if not self.read(more * size_bytes).endswith(value + FRAME_END):
                raise RuntimeError("RabbitMQ delivered something else than was published")
            taken += more
            self.send(frame(METHOD, 1, ACK.pack(BASIC, 80, self._delivered + taken, True)))
        self._delivered += taken
        self.call(BASIC, 30, short("benchmark") + b"\0")

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._socket.close()
