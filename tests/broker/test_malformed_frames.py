"""Malformed frames: the broker lives, in bounded memory; each is a closed connection or an answer of the right kind.

In this process the frames go through a real `Connection` into the broker's own dispatch, over a socket that is a
buffer, to a broker that is stepped (`stepped_broker`); over TCP they go to a broker's process. Nothing that the broker
logs may be an error that it did not foresee.
"""

import os
import random
import re
import shutil
import socket
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.answer_memory import AnswerMemory
from onceflow.broker.config import BrokerConfig
from onceflow.broker.connection import Connection
from onceflow.broker.request_memory import RequestMemory
from onceflow.broker.turn import Turn
from onceflow.log.disk import RealDisk, RealFile
from onceflow.testing import BrokerProcess, ManualClock
from onceflow.wire import apis, fetch, produce
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import decode_response
from tests.broker.malformed import malformed, requests
from tests.broker.raw_client import batch_of, connected, fetch_request
from tests.broker.simulation.stepped_broker import SteppedBroker, Unexpected
from tests.broker.simulation.world import encoded, new_topic

FRAMES = 4_000
CAMPAIGN_FRAMES = 1_000_000
CAMPAIGN_PIECES = 5
CAMPAIGN_FRAMES_TCP = 50_000
FRAMES_PER_BROKER = 5_000
"""What well-formed requests leave behind is theirs, topics and groups: each broker gets so many frames."""
GROWTH_BYTES_MAX = 64 * 1024 * 1024
"""How much more memory a broker may take for frames of at most a few KB each, however large they say they are."""
IN_MEMORY = Path("/dev/shm")


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as name:
        yield Path(name)


class ReadFile(RealFile):
    """Has no descriptor for sendfile, as the socket has none: its bytes are read."""

    def fileno(self) -> int:
        raise OSError("no descriptor")


class NoDescriptors(RealDisk):
    def open(self, path: Path, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return ReadFile(os.open(path, flags, 0o644))


class BufferedSocket:
    """What a client sent and what it was sent."""

    def __init__(self) -> None:
        self.incoming = bytearray()
        self.outgoing = bytearray()

    def fileno(self) -> int:
        return 0

    def recv_into(self, view: memoryview) -> int:
        if not self.incoming:
            raise BlockingIOError
        count = min(len(view), len(self.incoming))
        view[:count] = self.incoming[:count]
        del self.incoming[:count]
        return count

    def send(self, data: Any, _flags: int = 0) -> int:
        self.outgoing += data
        return len(data)

    def close(self) -> None:
        """It has no descriptor."""


class Fuzzed:
    """A broker and the one connection at a time over which it is sent frames."""

    def __init__(self, root: Path, unexpected: Unexpected) -> None:
        self.clock = ManualClock()
        self.unexpected = unexpected
        self.outcomes: Counter[str] = Counter()
        self.broker = SteppedBroker(root, disk=NoDescriptors(), clock=self.clock, unexpected=unexpected)
        self._config = BrokerConfig(root)
        self._memory = RequestMemory(self._config.queued_request_bytes_max)
        self._answers = AnswerMemory(self._config.unsent_bytes_max, lambda: None)
        self.ask(encoded(apis.CREATE_TOPICS, 7, new_topic("t", "kept", 2)))
        self._connect()

    def _connect(self) -> None:
        self._socket = BufferedSocket()
        client: Any = self._socket
        with self.broker.loop.running():
            self._connection = Connection(
                client,
                ("127.0.0.1", 1),
                self._config,
                self._memory,
                self._answers,
                self.clock,
                Turn(),
                self.broker.handle,
                lambda _connection: None,
            )

    def ask(self, frame: bytes) -> bytes:
        """A request of a client that is well."""
        box: list[bytes] = []
        self.broker.send(frame, box.append)
        self.broker.settle()
        return box[0]

    def send(self, frame: bytes) -> None:
        """One frame, and what became of it."""
        self._socket.incoming += frame
        while self._socket.incoming and self._connection.is_open and 0 in self.broker.loop.readers:
            with self.broker.loop.running():
                self.broker.loop.readers[0]()
        self.turn()
        connection = self._connection
        if not connection.is_open:
            outcome = "closed"
        elif self._socket.outgoing:
            outcome = "answered"
            check_answers(frame, bytes(self._socket.outgoing))
        elif connection._pending:
            outcome = "waits"
        else:
            outcome = "incomplete"
        self.outcomes[outcome] += 1
        self._socket.outgoing.clear()
        if connection.is_open and (connection._pending or connection._begin != connection._end):
            # What is left of this frame must not become a part of the next one.
            with self.broker.loop.running():
                connection.close(None)
        if not connection.is_open:
            self._connect()

    def turn(self) -> None:
        self.broker.loop.turn()
        while self.broker.busy_threads():
            for thread in self.broker.busy_threads():
                thread.step()
            self.broker.loop.turn()
        # What a handler left for the turn after the threads', and the answer's way out.
        self.broker.loop.turn()

    def check_alive(self) -> None:
        """It serves a client that is well, and no memory is reserved for those who left."""
        answer = decode_response(
            apis.CREATE_TOPICS, 7, self.ask(encoded(apis.CREATE_TOPICS, 7, new_topic("w", "kept", 1)))
        )
        assert answer[1].topics[0].error_code in (ErrorCode.none, ErrorCode.topic_already_exists), answer
        pieces = produce.encode_request(
            9, 1, "well", transactional_id=None, acks=-1, timeout_ms=1000, topics=[("w", [(0, batch_of(b"value"))])]
        )
        produced = produce.parse_response(9, self.ask(b"".join(map(bytes, pieces))))[1][0][1][0]
        assert not produced.error_code, produced
        asked = fetch.encode_request(12, 1, "well", fetch_request([("w", 0, produced.base_offset)]))
        (fetched,) = fetch.parse_response(12, self.ask(asked)).partitions
        assert b"value" in bytes(fetched.records)
        assert self._memory.used_bytes == self._answers.used_bytes == 0
        assert not self.unexpected.found, self.unexpected.found


def headers(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(API key, version, correlation id) of each frame: a size that lies makes several of one."""
    while len(data) >= 12:
        size_bytes, api_key, version = struct.unpack_from(">ihh", data)
        yield api_key, version, data[8:12]
        data = data[4 + max(size_bytes, 0) :]


def check_answers(frame: bytes, answers: bytes) -> None:
    """Each is whole, and of the API, version and correlation id of its request."""
    asked = headers(frame)
    while answers:
        (size_bytes,) = struct.unpack_from(">i", answers)
        answer, answers = answers[4 : 4 + size_bytes], answers[4 + size_bytes :]
        assert len(answer) == size_bytes
        api_key, version, _id = next(each for each in asked if each[2] == answer[:4])
        if api_key == apis.PRODUCE:
            produce.parse_response(version, answer)
        elif api_key == apis.FETCH:
            fetch.parse_response(version, answer)
        else:
            api = apis.APIS[api_key]
            decode_response(api_key, version if 0 <= version <= api.version_max else 0, answer)


def fuzz(seed: int, count: int, directory: Path) -> Counter[str]:
    """Send `count` frames to brokers in this process; what became of them."""
    seeded = random.Random(seed)
    frames = malformed(requests(seeded, per_version=4), seeded)
    outcomes: Counter[str] = Counter()
    for begin in range(0, count, FRAMES_PER_BROKER):
        root = directory / str(begin)
        with Unexpected().listening() as unexpected:
            fuzzed = Fuzzed(root, unexpected)
            for number, frame in enumerate(islice(frames, min(FRAMES_PER_BROKER, count - begin)), begin):
                try:
                    fuzzed.send(frame)
                    assert not unexpected.found, unexpected.found
                except Exception as error:
                    raise AssertionError(f"seed {seed}, frame {number}, {frame.hex()}: {error!r}") from error
                if number % 100 == 0:
                    fuzzed.clock.advance_ms(1000)
            fuzzed.check_alive()
            fuzzed.broker.stop()
        outcomes += fuzzed.outcomes
        shutil.rmtree(root)
    return outcomes


def memory_bytes(pid: int | str = "self", what: str = "VmRSS") -> int:
    """Of a process, as Linux counts it; VmHWM is the most that it ever had."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def test_malformed_frames(directory: Path) -> None:
    outcomes = fuzz(1, FRAMES, directory)
    assert outcomes["closed"] > FRAMES // 10
    assert outcomes["answered"] > FRAMES // 10


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("piece", range(CAMPAIGN_PIECES))
def test_a_million_malformed_frames(
    piece: int, directory: Path, record_property: Callable[[str, object], None]
) -> None:
    """Malformed requests of every API and version through a connection in process: the broker lives, in its memory."""
    fuzz(piece, FRAMES_PER_BROKER, directory)
    before = memory_bytes()
    outcomes = fuzz(1000 + piece, CAMPAIGN_FRAMES // CAMPAIGN_PIECES, directory)
    growth_bytes = memory_bytes(what="VmHWM") - before
    assert growth_bytes < GROWTH_BYTES_MAX
    tell(record_property, outcomes, growth_bytes)


def tell(record_property: Callable[[str, object], None], outcomes: Counter[str], growth_bytes: int) -> None:
    record_property("frames", outcomes.total())
    for name, count in outcomes.items():
        record_property(name, count)
    record_property("at most MiB of memory more", growth_bytes // 2**20)


def send_over_tcp(broker: BrokerProcess, frames: Iterator[bytes]) -> Counter[str]:
    """Each frame on a connection whose client then says no more."""
    outcomes: Counter[str] = Counter()
    for frame in frames:
        with socket.create_connection(("127.0.0.1", broker.port), timeout=30) as client:
            # No waiting state after the close: there are not enough ports for them.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(frame)
            client.settimeout(0.02)
            try:
                outcomes["answered" if client.recv(65536) else "closed"] += 1
            except TimeoutError:
                outcomes["waits or incomplete"] += 1
            except ConnectionResetError:
                outcomes["closed"] += 1
    return outcomes


def check_over_tcp(count: int, directory: Path) -> tuple[Counter[str], int]:
    """(outcomes, by how much the broker's memory grew)."""
    seeded = random.Random(count)
    frames = malformed(requests(seeded, per_version=4), seeded)
    with BrokerProcess(directory / "data") as broker:
        with connected(broker.bootstrap) as client:
            client.create_topic("t", 2)
            client.create_topic("well")
        before = memory_bytes(broker.pid)
        outcomes = send_over_tcp(broker, islice(frames, count))
        growth_bytes = memory_bytes(broker.pid, "VmHWM") - before
        with connected(broker.bootstrap) as client:
            assert client.produce("well", 0, batch_of(b"value")).base_offset == 0
    log = broker.log_path.read_text()
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
    assert growth_bytes < GROWTH_BYTES_MAX
    return outcomes, growth_bytes


def test_malformed_frames_over_tcp(directory: Path) -> None:
    outcomes, _growth_bytes = check_over_tcp(400, directory)
    assert outcomes["closed"] > 40
    assert outcomes["answered"] > 40


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_many_malformed_frames_over_tcp(directory: Path, record_property: Callable[[str, object], None]) -> None:
    """The same to a broker's process, a connection for each: it lives, in its memory, and logs no error unforeseen."""
    outcomes, growth_bytes = check_over_tcp(CAMPAIGN_FRAMES_TCP, directory)
    tell(record_property, outcomes, growth_bytes)
