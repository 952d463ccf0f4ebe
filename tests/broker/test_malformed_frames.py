"""Malformed frames: the broker survives in bounded memory; each gets a suitable response or a closed connection.

In this process the frames go through a real `Connection` into the broker's own dispatch, over a socket that is a
buffer, to a broker that is stepped (`stepped_broker`). Over TCP they go to a broker's process. The broker may log no
unexpected error.

A frame without its response yet, or half a request, stays while others come. In the end time passes until each has its
response or its connection is closed.
"""

import itertools
import os
import random
import re
import shutil
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.config import BrokerConfig
from onceflow.broker.network.connection import Connection
from onceflow.broker.network.reply import Reply
from onceflow.broker.network.request_memory import RequestMemory
from onceflow.broker.network.response_budget import ResponseBudget
from onceflow.log.disk import RealDisk, RealFile
from onceflow.testing import BrokerProcess, ManualClock
from onceflow.wire import apis, fetch, produce
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import decode_response
from tests.broker.malformed import malformed, requests
from tests.broker.malformed_responses import check_responses, due, split
from tests.broker.raw_client import batch_of, connected, fetch_request
from tests.broker.simulation.stepped_broker import SteppedBroker, Unexpected
from tests.broker.simulation.world import encoded, new_topic
from tests.campaigns import RecordProperty, tell

FRAMES = 4_000
CAMPAIGN_FRAMES = 1_000_000
CAMPAIGN_PIECES = 5
CAMPAIGN_FRAMES_TCP = 50_000
FRAMES_PER_BROKER = 5_000
"""Frames of each broker, since well-formed requests leave topics and groups behind."""
GROWTH_BYTES_MAX = 64 * 1024 * 1024
"""Growth limit of a broker's memory for frames of a few KB each, whatever size they announce."""
HALF_MS = 31_000
"""More than `request.stalled.max.ms`."""
WAITS_MS = (HALF_MS, *(1000 * 2**number for number in range(22)))
"""Together more than the 2^31 ms that a Fetch or a group's rebalance may wait."""
ENDS_SECONDS = 20.0
"""Timeout of the test for a response or a close over TCP."""
SILENT_AT_ONCE = 500
MAY_WAIT = frozenset((apis.FETCH, apis.JOIN_GROUP, apis.SYNC_GROUP))
TOPIC_MADE = encoded(apis.CREATE_TOPICS, 7, new_topic("t", "kept", 2))
"""Created again and again: some of the frames delete it."""


class ReadFile(RealFile):
    """A file without a descriptor for sendfile, like the socket: its bytes are read."""

    def fileno(self) -> int:
        raise OSError("no descriptor")


class NoDescriptors(RealDisk):
    def open(self, path: Path, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return ReadFile(os.open(path, flags, 0o644))


class BufferedSocket:
    """Bytes sent by a client and received by it."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self._number = next(self._numbers)

    def fileno(self) -> int:
        return self._number

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
        """Raise OSError: it has no descriptor."""


class Sent:
    """A frame on its connection, and the bytes received so far."""

    def __init__(self, frame: bytes, connection: Connection, client: BufferedSocket) -> None:
        self.frame = frame
        self.connection = connection
        self.client = client

    @property
    def is_half(self) -> bool:
        return self.connection._begin != self.connection._end

    def outcome(self) -> str | None:
        """Return the outcome; None while something is still to come."""
        is_closed = not self.connection.is_open
        if not is_closed and (self.connection._pending or self.is_half):
            return None
        check_responses(self.frame, bytes(self.client.outgoing), are_all=not is_closed)
        if is_closed:
            return "closed"
        return "with response" if self.client.outgoing else "no response expected"


class Fuzzed:
    """A broker, its present connection, and the frames that wait for their response."""

    def __init__(self, root: Path, unexpected: Unexpected) -> None:
        self.clock = ManualClock()
        self.unexpected = unexpected
        self.outcomes: Counter[str] = Counter()
        self.broker = SteppedBroker(root, disk=NoDescriptors(), clock=self.clock, unexpected=unexpected)
        self._config = BrokerConfig(root)
        self._memory = RequestMemory(
            self._config.queued_request_bytes_max, self._config.produce_request_bytes_max, lambda: None
        )
        self._response_budget = ResponseBudget(self._config.unsent_bytes_max, lambda: None)
        self._waiting: list[Sent] = []
        self.ask(TOPIC_MADE)
        self._connect()

    def _connect(self) -> None:
        self._socket = BufferedSocket()
        client: Any = self._socket
        with self.broker.loop.running():
            self._connection = Connection(
                client,
                ("127.0.0.1", 1),
                self._config.listeners[0],
                self._config,
                self._memory,
                self._response_budget,
                self.clock,
                self.broker.node.deferred,
                self.broker.handle,
                self.broker.decode,
                Reply,
                lambda _connection, _is_failed: None,
            )

    def ask(self, frame: bytes) -> bytes:
        """Send a request of a healthy client."""
        box: list[bytes] = []
        self.broker.send(frame, box.append)
        self.broker.settle()
        return box[0]

    def send(self, frame: bytes) -> None:
        """Send one frame and return its outcome."""
        client, readers = self._socket, self.broker.loop.readers
        client.incoming += frame
        while client.incoming and self._connection.is_open and client.fileno() in readers:
            with self.broker.loop.running():
                readers[client.fileno()]()
        self.turn()
        sent = Sent(frame, self._connection, client)
        if not self._note(sent):
            self._waiting.append(sent)
            self._connect()
        elif sent.connection.is_open:
            client.outgoing.clear()
        else:
            self._connect()

    def _note(self, sent: Sent, *, has_waited: bool = False) -> bool:
        """Return whether the frame has an outcome, and count it."""
        outcome = sent.outcome()
        if outcome is None:
            return False
        if has_waited:
            assert outcome == ("closed" if sent.is_half else "with response"), (
                f"{sent.frame.hex()}: {outcome} after a wait"
            )
            outcome = "closed as half a request" if sent.is_half else "with response after a wait"
            self._leave(sent.connection)
        self.outcomes[outcome] += 1
        return True

    def _leave(self, connection: Connection) -> None:
        """Disconnect as a client does."""
        with self.broker.loop.running():
            connection.close(None)

    def turn(self) -> None:
        self.broker.loop.turn()
        while self.broker.busy_threads():
            for thread in self.broker.busy_threads():
                thread.step()
            self.broker.loop.turn()
        # Runs the turn after the threads', and the sending of the response.
        self.broker.loop.turn()

    def let_wait(self) -> None:
        """Let time pass, as much as any request may wait: waiting ones get their response, half ones are closed."""
        for wait_ms in WAITS_MS:
            heard_bytes = {sent: len(sent.client.outgoing) for sent in self._waiting}
            self.clock.advance_ms(wait_ms)
            self.broker.settle()
            for sent in self._waiting:
                if sent.is_half and sent.connection.is_open:
                    with self.broker.loop.running():
                        sent.connection.check_activity(self.clock.monotonic())
            self._waiting = [sent for sent in self._waiting if not self._note(sent, has_waited=True)]
            # A request before the half one may wait, or have just got its response: then nothing has stalled yet.
            halves = [sent for sent in self._waiting if sent.is_half and not sent.connection._is_parked]
            quiet = [sent for sent in halves if len(sent.client.outgoing) == heard_bytes[sent]]
            stalled = [sent.frame.hex() for sent in quiet if wait_ms >= HALF_MS]
            assert not stalled, f"half a request is not closed: {stalled}"
        assert not self._waiting, f"neither response nor close: {[sent.frame.hex() for sent in self._waiting]}"
        self._leave(self._connection)

    def check_alive(self) -> None:
        """Check that it serves a healthy client, and holds no memory for closed connections."""
        response = decode_response(
            apis.CREATE_TOPICS, 7, self.ask(encoded(apis.CREATE_TOPICS, 7, new_topic("w", "kept", 1)))
        )
        assert response[1].topics[0].error_code in (ErrorCode.none, ErrorCode.topic_already_exists), response
        pieces = produce.encode_request(
            9, 1, "well", transactional_id=None, acks=-1, timeout_ms=1000, topics=[("w", [(0, batch_of(b"value"))])]
        )
        produced = produce.parse_response(9, self.ask(b"".join(map(bytes, pieces))))[1][0][1][0]
        assert not produced.error_code, produced
        asked = fetch.encode_request(12, 1, "well", fetch_request([("w", 0, produced.base_offset)]))
        (fetched,) = fetch.parse_response(12, self.ask(asked)).partitions
        assert b"value" in bytes(fetched.records)
        assert self._memory.used_bytes == self._response_budget.used_bytes == 0
        assert not self.unexpected.found, self.unexpected.found


def fuzz(seed: int, count: int, directory: Path) -> Counter[str]:
    """Send `count` frames to brokers in this process; return their outcomes."""
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
                    fuzzed.ask(TOPIC_MADE)
            fuzzed.let_wait()
            fuzzed.check_alive()
            fuzzed.broker.stop()
        outcomes += fuzzed.outcomes
        shutil.rmtree(root)
    return outcomes


def memory_bytes(pid: int | str = "self", what: str = "VmRSS") -> int:
    """Return a process's memory as Linux counts it; VmHWM is its peak."""
    match = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def test_malformed_frames(scratch: Path) -> None:
    outcomes = fuzz(1, FRAMES, scratch)
    assert outcomes["closed"] > FRAMES // 10
    assert outcomes["with response"] > FRAMES // 10
    assert outcomes["with response after a wait"] > FRAMES // 100
    assert outcomes["closed as half a request"] > FRAMES // 100


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("piece", range(CAMPAIGN_PIECES))
def test_a_million_malformed_frames(piece: int, scratch: Path, record_property: RecordProperty) -> None:
    """A million requests of every API and version over a connection in process: the broker survives in its memory."""
    fuzz(piece, FRAMES_PER_BROKER, scratch)
    before = memory_bytes()
    outcomes = fuzz(1000 + piece, CAMPAIGN_FRAMES // CAMPAIGN_PIECES, scratch)
    growth_bytes = memory_bytes(what="VmHWM") - before
    assert growth_bytes < GROWTH_BYTES_MAX
    counts = {"frames": outcomes.total(), **outcomes, "at most MiB of memory more": growth_bytes // 2**20}
    tell(record_property, range(1000 + piece, 1001 + piece), counts)


class SentOverTcp:
    """A frame of a client that sends nothing more."""

    def __init__(self, broker: BrokerProcess, frame: bytes) -> None:
        self.frame = frame
        self.due, self.is_half = due(frame)
        self._received = bytearray()
        self._is_closed = False
        self._socket = socket.create_connection(("127.0.0.1", broker.port), timeout=30)
        # No TIME_WAIT after the close: there are not enough ports.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.sendall(frame)

    def read(self, seconds: float) -> None:
        """Receive until the outcome is known, with a timeout after each part."""
        self._socket.settimeout(seconds)
        try:
            while not (self._is_closed or (self.due and self._is_whole())):
                data = self._socket.recv(65536)
                self._received += data
                self._is_closed = not data
        except TimeoutError:
            """Return without waiting for more."""
        except ConnectionResetError:
            self._is_closed = True

    def _is_whole(self) -> bool:
        return not self.is_half and len(self._responses()) == len(self.due)

    def _responses(self) -> list[bytes]:
        return split(bytes(self._received))[0]

    @property
    def may_wait(self) -> bool:
        """Return whether the next response may depend on other requests, or never come.

        Until it has come, the broker reads nothing behind its request: neither a half one nor an impossible size.
        """
        missing = self.due[len(self._responses()) :]
        return bool(missing) and struct.unpack_from(">h", missing[0])[0] in MAY_WAIT

    def outcome(self) -> str | None:
        """Return the outcome after a check of the received bytes; None while something is still to come."""
        if not (self._is_closed or self._is_whole()):
            return None
        self._socket.close()
        check_responses(self.frame, bytes(self._received), are_all=not self._is_closed)
        if self._is_closed:
            return "closed"
        return "with response" if self.due else "no response expected"


def send_over_tcp(broker: BrokerProcess, frames: Iterator[bytes], outcomes: Counter[str]) -> list[SentOverTcp]:
    """Count the outcomes of the frames; those that wait for others remain."""
    silent: list[SentOverTcp] = []
    waiting: list[SentOverTcp] = []
    for number, frame in enumerate(frames):
        if number % 100 == 0:
            with connected(broker.bootstrap) as client:
                client.socket.sendall(TOPIC_MADE)
                assert client.receive_frame()
        sent = SentOverTcp(broker, frame)
        sent.read(0.02)
        outcome = sent.outcome()
        if outcome is None:
            (waiting if sent.may_wait else silent).append(sent)
        else:
            outcomes[outcome] += 1
        if len(silent) == SILENT_AT_ONCE:
            end(silent, outcomes, "late")
    end(silent, outcomes, "late")
    return waiting


def end(silent: list[SentOverTcp], outcomes: Counter[str], how: str) -> None:
    """Check that each has its response or is closed, now or soon."""
    for sent in silent:
        sent.read(ENDS_SECONDS)
        outcome = sent.outcome()
        assert outcome is not None, f"neither response nor close: {sent.frame.hex()}"
        outcomes["closed as half a request" if sent.is_half and how == "late" else f"{outcome} {how}"] += 1
    silent.clear()


def check_over_tcp(count: int, directory: Path) -> tuple[Counter[str], int]:
    """Return the outcomes, and the growth of the broker's memory."""
    seeded = random.Random(count)
    frames = malformed(requests(seeded, per_version=4), seeded)
    outcomes: Counter[str] = Counter()
    with BrokerProcess(directory / "data", 0, "--request-stalled-max-ms", "1000") as broker:
        with connected(broker.bootstrap) as client:
            client.create_topic("well")
        before = memory_bytes(broker.pid)
        waiting = send_over_tcp(broker, islice(frames, count), outcomes)
        growth_bytes = memory_bytes(broker.pid, "VmHWM") - before
        with connected(broker.bootstrap) as client:
            assert client.produce("well", 0, batch_of(b"value")).base_offset == 0
        broker.stop()
        end(waiting, outcomes, "as the broker stopped")
    log = broker.log_path.read_text()
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
    assert growth_bytes < GROWTH_BYTES_MAX
    return outcomes, growth_bytes


def test_malformed_frames_over_tcp(scratch: Path) -> None:
    outcomes, _growth_bytes = check_over_tcp(400, scratch)
    assert outcomes["closed"] + outcomes["closed late"] > 40
    assert outcomes["with response"] + outcomes["with response late"] > 40
    assert outcomes["closed as half a request"] > 4


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_many_malformed_frames_over_tcp(scratch: Path, record_property: RecordProperty) -> None:
    """The same over TCP to a broker's process, a connection for each: it survives, and logs no unexpected error."""
    outcomes, growth_bytes = check_over_tcp(CAMPAIGN_FRAMES_TCP, scratch)
    counts = {"frames": outcomes.total(), **outcomes, "at most MiB of memory more": growth_bytes // 2**20}
    tell(record_property, range(CAMPAIGN_FRAMES_TCP, CAMPAIGN_FRAMES_TCP + 1), counts)
