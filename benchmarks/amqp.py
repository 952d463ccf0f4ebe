"""RabbitMQ, and the part of AMQP 0-9-1 that publishing and consuming need.

Requests are encoded beforehand, as in `benchmarks.raw_connection`: otherwise the client's encoding would be measured
instead of the broker.
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
"""Class, method, delivery tag, whether all earlier tags are included."""


def find_server() -> str | None:
    """Return Debian's script without the change of user, or the one on PATH; None without RabbitMQ."""
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
        # Erlang's node registry: RabbitMQ would start one that outlives it.
        for command in (["epmd"], [self._server]):
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            self._exits.callback(ended, process)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not services.is_listening(self.port):
            if time.monotonic() > deadline or process.poll() is not None:
                self._exits.close()
                raise RuntimeError(f"RabbitMQ did not start: {(self.directory / 'server.log').read_text()[-500:]}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()


def ended(process: subprocess.Popen[bytes]) -> None:
    """End a process and wait."""
    process.terminate()
    process.wait(timeout=60)


def short(text: str) -> bytes:
    """Return a short string."""
    return bytes([len(text)]) + text.encode()


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return a frame."""
    return FRAME_HEAD.pack(kind, channel, len(payload)) + payload + FRAME_END


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    """Return a frame with a method."""
    return frame(METHOD, channel, CLASS_AND_METHOD.pack(class_id, method_id) + arguments)


def publishing(queue: str, value: bytes, *, is_persistent: bool) -> bytes:
    """Return the three frames of a message to the default exchange."""
    delivery_mode = struct.pack(">HB", 1 << 12, 2 if is_persistent else 1)
    header = struct.pack(">HHQ", BASIC, 0, len(value)) + delivery_mode
    publish = method(1, BASIC, 40, struct.pack(">H", 0) + short("") + short(queue) + b"\0")
    return publish + frame(HEADER, 1, header) + frame(BODY, 1, value)


def chunk_of(size_bytes: int) -> int:
    """Return how many messages of that size are sent, or acknowledged, at once; twice as many may be in flight."""
    return max(1, min(CHUNK, CHUNK_BYTES // size_bytes))


class Channel:
    """Connection of user guest with one channel. Raises RuntimeError for an unexpected response."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._responses = self._socket.makefile("rb", 1 << 20)
        self._published = self._delivered = self._delivery_bytes = 0
        self.send(b"AMQP\0\0\x09\x01")
        version = re.search(rb"\x07versionS\0\0\0.([0-9.]+)", self.expect(CONNECTION, 10), re.DOTALL)
        self.version = version[1].decode() if version else "of an unknown version"
        credentials = b"\0guest\0guest"
        start_ok = struct.pack(">I", 0) + short("PLAIN") + struct.pack(">I", len(credentials)) + credentials
        self.send(method(0, CONNECTION, 11, start_ok + short("en_US")))
        self.expect(CONNECTION, 30)
        self.send(method(0, CONNECTION, 31, struct.pack(">HIH", 1, FRAME_BYTES_MAX, 0)))
        self.call(CONNECTION, 40, short("/") + b"\0\0", channel=0)
        self.call(CHANNEL, 10, b"\0")

    def call(self, class_id: int, method_id: int, arguments: bytes = b"", channel: int = 1) -> bytes:
        """Call a method whose response has the next number; return the response's arguments."""
        self.send(method(channel, class_id, method_id, arguments))
        return self.expect(class_id, method_id + 1)

    def send(self, data: bytes) -> None:
        """Send without waiting for a response."""
        self._socket.sendall(data)

    def read(self, size_bytes: int) -> bytes:
        """Read exactly `size_bytes` bytes."""
        data = self._responses.read(size_bytes)
        if len(data) < size_bytes:
            raise ConnectionError("RabbitMQ closed the connection")
        return data

    def receive(self) -> bytes:
        """Return the payload of the next frame."""
        _, _, size_bytes = FRAME_HEAD.unpack(self.read(FRAME_HEAD.size))
        return self.read(size_bytes + 1)[:-1]

    def expect(self, class_id: int, method_id: int) -> bytes:
        """Return the arguments of that method, which must be next."""
        payload = self.receive()
        if CLASS_AND_METHOD.unpack_from(payload) != (class_id, method_id):
            raise RuntimeError(f"RabbitMQ answered {payload[:200]!r} instead of method {class_id}.{method_id}")
        return payload[CLASS_AND_METHOD.size :]

    def declare(self, queue: str, *, is_durable: bool) -> None:
        """Declare a classic queue."""
        self.call(QUEUE, 10, b"\0\0" + short(queue) + (b"\2" if is_durable else b"\0") + NO_ARGUMENTS)

    def left(self, queue: str) -> int:
        """Return the number of messages in the queue."""
        declared = self.call(QUEUE, 10, b"\0\0" + short(queue) + b"\1" + NO_ARGUMENTS)
        return int(struct.unpack_from(">I", declared, 1 + len(queue))[0])

    def delete(self, queue: str) -> None:
        """Delete the queue and its messages."""
        self.call(QUEUE, 40, b"\0\0" + short(queue) + b"\0")

    def confirm(self) -> None:
        """Turn on confirmations of published messages."""
        self.call(CONFIRM, 10, b"\0")

    def publish(self, message: bytes, count: int) -> None:
        """Publish messages and wait for the last confirmation."""
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
        """Consume messages of the channel's only consumer, and acknowledge them; RabbitMQ does not confirm that."""
        chunk = chunk_of(len(value))
        taken = 0
        if not self._delivery_bytes:
            self.call(BASIC, 10, struct.pack(">IHB", 0, 2 * chunk, 0))
            self.call(BASIC, 20, b"\0\0" + short(queue) + short("benchmark") + b"\0" + NO_ARGUMENTS)
            # The frames of one message; those of the others have the same sizes.
            self._delivery_bytes = sum(FRAME_HEAD.size + len(self.receive()) + 1 for _ in range(3))
            taken = 1
        while taken < count:
            more = min(count - taken, chunk)
            if not self.read(more * self._delivery_bytes).endswith(value + FRAME_END):
                raise RuntimeError("RabbitMQ delivered something else than was published")
            taken += more
            self.send(frame(METHOD, 1, ACK.pack(BASIC, 80, self._delivered + taken, True)))
        self._delivered += taken

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *_: object) -> None:
        self._responses.close()
        self._socket.close()
