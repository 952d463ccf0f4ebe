"""The listener and its connections in one loop with a manual clock: limits, timeouts, work per turn."""

import asyncio
import errno
import logging
import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.config import BrokerConfig, Endpoint
from onceflow.broker.loop.deferred import HANDLED_BYTES_PER_WORK, LARGE_WORK_PER_TURN, DeferredCalls
from onceflow.broker.network import listener as listeners
from onceflow.broker.network.connection import Connection, Handle
from onceflow.broker.network.listener import Listener
from onceflow.broker.network.reply import JOINED_BYTES_MAX, SLICE_BYTES_SMALL, Reply
from onceflow.log.disk import RealDisk, RealFile
from onceflow.log.segment import Slice
from onceflow.testing import ManualClock
from onceflow.wire import apis
from onceflow.wire.errors import MalformedFrame

MIB = 1024 * 1024
IDLE_MS = 600_000
WAIT_SECONDS = 10.0


class Served:
    """A listener that keeps its requests, and echoes them as responses unless `is_silent`."""

    def __init__(self, **settings: Any) -> None:
        self.config = BrokerConfig(Path("unused"), listeners=(Endpoint(port=0),), **settings)
        self.clock = ManualClock()
        self.listener = Listener(self.config, self.clock)
        self.frames: list[bytes] = []
        self.frame_ends: list[bytes] = []
        self.replies: list[Reply] = []
        self.is_silent = False
        self.work_ms = 0
        """Time that each request takes, on the server's clock."""
        self.decode_turns = 0
        self.clients: list[socket.socket] = []

    def handle(self, frame: memoryview, reply: Reply, _connection: Connection) -> None:
        self.frames.append(bytes(frame[:16]))
        self.frame_ends.append(bytes(frame[-8:]))
        self.replies.append(reply)
        self.clock.advance_ms(self.work_ms)
        if not self.is_silent:
            reply.send([struct.pack(">i", 4) + bytes(frame[:4])])

    def decode(self, _frame: memoryview, _connection: Connection) -> Generator[int, None, Handle]:
        """Yield one step for each of `decode_turns`."""
        while self.decode_turns > 0:
            self.decode_turns -= 1
            yield LARGE_WORK_PER_TURN
        return self.handle

    async def connect(self, *, receive_buffer_bytes: int | None = None, is_taken: bool = True) -> socket.socket:
        """Return a connection that the listener has accepted or refused, unless it accepts none for now."""
        seen = self.seen_connections
        client = socket.socket()
        if receive_buffer_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        client.setblocking(False)
        self.clients.append(client)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self.listener.endpoints[0].port))
        if is_taken:
            await until(lambda: self.seen_connections > seen, "the connection to be seen")
        return client

    @property
    def seen_connections(self) -> int:
        return len(self.listener._connections) + self.listener._refused

    async def asked(self, count: int) -> None:
        """Wait until this total of requests has arrived."""
        await until(lambda: len(self.frames) >= count, f"{count} requests, {len(self.frames)} came")

    def advance_ms(self, duration_ms: int) -> None:
        self.clock.advance_ms(duration_ms)
        self.listener.check_connections()


def served(scenario: Callable[[Served], Awaitable[None]], **settings: Any) -> None:
    """Run the scenario in a loop of its own, and end what it began."""

    async def run() -> None:
        server = Served(**settings)
        server.listener.start(server.handle, server.decode, DeferredCalls())
        try:
            await asyncio.wait_for(scenario(server), 20)
        finally:
            await server.listener.stop()
            for client in server.clients:
                client.close()

    asyncio.run(run())


async def turns(count: int) -> None:
    """Let pending callbacks of the loop run; for events still on their way use `until`."""
    for _ in range(count):
        await asyncio.sleep(0)


async def count_turns(server: Served, per_turn: list[int]) -> None:
    """Append the number of requests between each two turns of the loop, until it is cancelled."""
    while True:
        before = len(server.frames)
        await asyncio.sleep(0)
        per_turn.append(len(server.frames) - before)


async def until(condition: Callable[[], object], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0)


def frame(api_key: int, size_bytes: int = 16) -> bytes:
    return struct.pack(">ihh", size_bytes, api_key, 0) + bytes(size_bytes - 4)


async def send(client: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(client, data)


async def is_closed(client: socket.socket, within_seconds: float = WAIT_SECONDS) -> bool:
    """Return whether the broker has closed the connection, or closes it soon."""
    try:
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1), within_seconds) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


async def stays_open(client: socket.socket) -> bool:
    return not await is_closed(client, 0.05)


async def receive(client: socket.socket, size_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < size_bytes:
        left = min(size_bytes - len(data), MIB)
        chunk = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, left), 5)
        assert chunk, f"closed after {len(data)} of {size_bytes} bytes"
        data += chunk
    return bytes(data)


def test_idle_connections_are_closed() -> None:
    async def scenario(server: Served) -> None:
        idle, used = await server.connect(), await server.connect()
        server.advance_ms(IDLE_MS - 1)
        await send(used, frame(apis.METADATA))
        await receive(used, 8)
        server.advance_ms(2)
        assert await is_closed(idle)
        assert await stays_open(used)

    served(scenario)


def test_a_client_that_reads_nothing_is_idle() -> None:
    async def scenario(server: Served) -> None:
        server.is_silent = True
        waiting, deaf = await server.connect(), await server.connect()
        await send(waiting, frame(apis.FETCH))
        await server.asked(1)
        await send(deaf, frame(apis.FETCH) * 2)
        await server.asked(3)
        server.replies[1].send([bytes(64 * MIB)])
        await turns(50)
        assert len(server.replies) == 3, "the deaf one awaits another response"
        server.advance_ms(IDLE_MS + 1)
        server.replies[0].send([b"\0\0\0\0"])
        assert await receive(waiting, 4) == b"\0\0\0\0"
        assert not server.replies[1].is_open

    served(scenario)


def test_disabled_idle_timeout() -> None:
    async def scenario(server: Served) -> None:
        idle = await server.connect()
        server.advance_ms(10 * IDLE_MS)
        assert await stays_open(idle)

    served(scenario, connections_idle_max_ms=-1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/net/tcp")
def test_the_kernel_probes_silent_clients() -> None:
    async def scenario(server: Served) -> None:
        client = await server.connect()
        ends = [f"0100007F:{port:04X}" for port in (server.listener.endpoints[0].port, client.getsockname()[1])]
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        (timer,) = [row[5] for row in rows if row[1:3] == ends]
        assert timer.startswith("02:"), "the keep-alive timer runs"

    served(scenario)


def test_stalled_requests_are_closed() -> None:
    async def scenario(server: Served) -> None:
        stalled, slow = await server.connect(), await server.connect()
        for client in (stalled, slow):
            await send(client, frame(apis.METADATA)[:7])
        connections = server.listener._connections
        await until(lambda: all(connection._end == 7 for connection in connections), "half of each request")
        server.advance_ms(20_000)
        await send(slow, b"\0")
        await until(lambda: any(connection._end == 8 for connection in connections), "one byte more")
        server.advance_ms(20_000)
        assert await is_closed(stalled)
        assert await stays_open(slow)

    served(scenario)


def test_excess_connections_are_refused_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: Served) -> None:
        first, second, third = [await server.connect() for _ in range(3)]
        assert await is_closed(third)
        assert await stays_open(first)
        second.close()
        await until(lambda: len(server.listener._connections) == 1, "the broker to see that one has left")
        again = await server.connect()
        assert await stays_open(again)
        server.advance_ms(1000)
        server.advance_ms(1000)

    served(scenario, connections_max=2)
    served(scenario, connections_per_address_max=2)
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(lines) == 2
    assert "max.connections=2" in lines[0]
    assert "max.connections.per.ip=2" in lines[1]


RATE = {"connection_rate_max": 5, "quota_samples": 2, "quota_window_seconds": 20}
"""A rate of 100 connections in a window; the first one more waits for 200 ms."""


def test_connections_beyond_the_rate_wait() -> None:
    """They are served later, in order; one waits accepted, the others in the kernel's queue."""

    async def scenario(server: Served) -> None:
        for _ in range(100):
            await server.connect()
        late = [await server.connect(is_taken=False) for _ in range(3)]
        await until(lambda: server.listener._throttled, "a connection to wait")
        assert (len(server.listener._throttled), server.seen_connections) == (1, 100)
        for client in late:
            await send(client, frame(apis.METADATA))
        for client in late:
            assert await receive(client, 8)
        assert (server.seen_connections, server.listener._throttled) == (103, {})

    served(scenario, **RATE)


def test_a_stop_closes_waiting_connections() -> None:
    async def scenario(server: Served) -> None:
        for _ in range(100):
            await server.connect()
        late = await server.connect(is_taken=False)
        await until(lambda: server.listener._throttled, "a connection to wait")
        server.listener.close()
        assert await is_closed(late)

    served(scenario, **RATE)


def test_refused_addresses_leave_the_rate_alone() -> None:
    async def scenario(server: Served) -> None:
        server.listener._take_connection = lambda _address: 1
        for _ in range(150):
            assert await is_closed(await server.connect(is_taken=False))
        assert server.listener._limits.wait_seconds("PLAINTEXT") == 0

    served(scenario, **RATE)


@pytest.mark.parametrize(
    ("api_key", "largest"),
    [
        (apis.PRODUCE, 100 * MIB),
        (apis.JOIN_GROUP, 16 * MIB),
        (apis.SYNC_GROUP, 16 * MIB),
        (apis.OFFSET_COMMIT, 16 * MIB),
        (apis.TXN_OFFSET_COMMIT, 16 * MIB),
        (apis.METADATA, MIB),
        (apis.FETCH, MIB),
    ],
)
def test_frame_size_limits_by_api(api_key: int, largest: int) -> None:
    async def scenario(server: Served) -> None:
        good, bad = await server.connect(), await server.connect()
        await send(good, struct.pack(">ih", largest, api_key))
        await send(bad, struct.pack(">ih", largest + 1, api_key))
        assert await is_closed(bad)
        assert await stays_open(good)

    served(scenario)


def test_request_memory_is_bounded_and_released() -> None:
    async def scenario(server: Served) -> None:
        holder, waiting = await server.connect(), await server.connect()
        request = frame(apis.PRODUCE, 3 * MIB)
        sending = [asyncio.ensure_future(send(client, request[:-MIB])) for client in (holder, waiting)]
        await asyncio.sleep(0.05)
        memory = server.listener._memory
        assert memory.used_bytes <= memory.bytes_max
        assert not server.frames
        await sending[0]
        await send(holder, request[-MIB:])
        await receive(holder, 8)
        await sending[1]
        await send(waiting, request[-MIB:])
        await receive(waiting, 8)
        server.advance_ms(2000)
        assert memory.used_bytes == 0, "unneeded buffers are released"
        await send(holder, request[:MIB])
        await until(lambda: memory.used_bytes > 0, "a buffer for the request")
        holder.close()
        await until(lambda: memory.used_bytes == 0, "the buffer of a closed connection")

    served(scenario, queued_request_bytes_max=4 * MIB)


def test_unsent_responses_leave_requests_in_the_socket() -> None:
    async def scenario(server: Served) -> None:
        server.is_silent = True
        client = await server.connect()
        await send(client, frame(apis.FETCH) * 30)
        await server.asked(10)
        await turns(20)
        assert len(server.frames) == 10
        for reply in server.replies[:10]:
            reply.send([b""])
        await server.asked(20)
        await turns(20)
        assert len(server.frames) == 20

    served(scenario, queued_requests_max=10, stop_timeout_ms=10)


def parking(server: Served) -> None:
    """Let Fetch requests park their connection; all others get their response at once."""

    def handle(frame: memoryview, reply: Reply, _connection: Connection) -> None:
        server.frames.append(bytes(frame[:16]))
        server.replies.append(reply)
        if frame[1] == apis.FETCH:
            reply.is_long_wait = True
        else:
            reply.send([struct.pack(">i", 4) + bytes(frame[:4])])

    server.listener._handle = handle


def test_requests_after_a_parked_one_stay_unparsed() -> None:
    """They stay in the first buffer and the socket, without reserved memory, and are handled in order."""

    async def scenario(server: Served) -> None:
        parking(server)
        client = await server.connect()
        behind = [frame(apis.METADATA, 1000), frame(apis.FETCH), frame(apis.PRODUCE, 3 * MIB)]
        sending = asyncio.ensure_future(send(client, frame(apis.FETCH) + b"".join(behind)))
        await server.asked(1)
        (connection,) = server.listener._connections
        await until(lambda: not connection._is_reading, "a full buffer")
        await turns(20)
        assert len(server.frames) == 1
        assert server.listener._memory.used_bytes == 0
        server.replies[0].send([b"parked"])
        await server.asked(3)
        await turns(20)
        assert [frame[1] for frame in server.frames] == [apis.FETCH, apis.METADATA, apis.FETCH]
        assert await receive(client, 6 + 8) == b"parked" + struct.pack(">ihh", 4, apis.METADATA, 0)
        server.replies[2].send([b"again"])
        await sending
        assert await receive(client, 5 + 8) == b"again" + struct.pack(">ihh", 4, apis.PRODUCE, 0)

    served(scenario, stop_timeout_ms=10)


def test_a_parked_reply_frees_its_connection_early() -> None:
    async def scenario(server: Served) -> None:
        server.is_silent = True
        client = await server.connect()
        await send(client, frame(apis.PRODUCE))
        await server.asked(1)
        parking(server)
        await send(client, frame(apis.FETCH) + frame(apis.METADATA))
        await server.asked(2)
        await turns(20)
        server.replies[1].send([b"parked"])
        await server.asked(3)
        server.replies[0].send([b"synced"])
        assert await receive(client, 12) == b"syncedparked"

    served(scenario, stop_timeout_ms=10)


@pytest.mark.parametrize("behind_bytes", [0, 100, 100_000])
def test_disconnect_while_parked(behind_bytes: int) -> None:
    async def scenario(server: Served) -> None:
        parking(server)
        client = await server.connect()
        behind = frame(apis.METADATA, behind_bytes) if behind_bytes else b""
        await send(client, frame(apis.FETCH) + behind)
        await server.asked(1)
        (connection,) = server.listener._connections
        await until(lambda: connection.is_blind or connection._end - connection._begin == len(behind), "what fits")
        server.advance_ms(1000)
        assert server.listener._connections
        client.shutdown(socket.SHUT_WR)
        await turns(20)
        server.advance_ms(1000)
        await until(lambda: not server.listener._connections, "the connection to be closed")

    served(scenario, stop_timeout_ms=10)


def test_a_connection_has_a_turns_share() -> None:
    """Count requests and bytes between two turns of the loop: the cost of one connection to the others."""
    per_turn: list[int] = []

    async def scenario(server: Served) -> None:
        client = await server.connect()
        await send(client, frame(apis.PRODUCE, 1_900_000))
        await receive(client, 8)
        counting = asyncio.ensure_future(count_turns(server, per_turn))
        await send(client, frame(apis.PRODUCE, 200_000) * 50)
        await receive(client, 50 * 8)
        counting.cancel()
        assert len(server.frames) == 51

    served(scenario, turn_request_bytes_max=400_000)
    assert max(per_turn) <= 4, "two from the buffer, and two more where new ones arrive in the same turn"


def test_large_requests_leave_turns_to_small_ones() -> None:
    """They are handled one after the other though all have arrived, with another client's small request in between."""
    size_bytes = LARGE_WORK_PER_TURN * HANDLED_BYTES_PER_WORK
    count = 12

    async def scenario(server: Served) -> None:
        clients = [await server.connect() for _ in range(count)]
        small = await server.connect()
        for client in clients:
            await send(client, frame(apis.METADATA, size_bytes)[:-1])
        connections = server.listener._connections
        await until(
            lambda: sum(connection._end == 4 + size_bytes - 1 for connection in connections) == count,
            "all but the ends",
        )
        for client in clients:
            client.send(b"\0" + frame(apis.METADATA))
        await server.asked(1)
        small.send(frame(apis.PRODUCE))
        await server.asked(2 * count + 1)
        assert [frame[1] for frame in server.frames].index(apis.PRODUCE) <= 6, (
            "a large one in a turn, and what is behind it"
        )
        for client in clients:
            assert await receive(client, 16) == 2 * struct.pack(">ihh", 4, apis.METADATA, 0)

    served(scenario)


def test_a_request_in_decoding_keeps_its_buffer() -> None:
    """Later requests stay in the socket meanwhile; a pause for unread responses changes nothing."""
    unsent_bytes_max = 100_000
    behind = 5000

    async def scenario(server: Served) -> None:
        server.decode_turns = sys.maxsize
        server.is_silent = True
        client = await server.connect()
        await send(client, frame(apis.PRODUCE) + frame(apis.METADATA, 10_000)[:-8] + b"the end!")
        await server.asked(1)
        sending = asyncio.ensure_future(send(client, frame(apis.FETCH) * behind))
        await turns(20)
        server.is_silent = False
        server.replies[0].send([bytes(unsent_bytes_max)])
        assert await receive(client, unsent_bytes_max)
        await turns(20)
        assert len(server.frames) == 1, "the large one is being decoded"
        server.decode_turns = 0
        assert await receive(client, (1 + behind) * 8)
        await sending
        assert [frame[1] for frame in server.frames] == [apis.PRODUCE, apis.METADATA] + [apis.FETCH] * behind
        assert server.frame_ends[1] == b"the end!"

    served(scenario, unsent_bytes_per_connection_max=unsent_bytes_max)


def test_disconnect_during_decoding() -> None:
    async def scenario(server: Served) -> None:
        server.decode_turns = 10
        client, other = await server.connect(), await server.connect()
        await send(client, frame(apis.METADATA, 10_000))
        connections = server.listener._connections
        await until(lambda: any(connection._is_handling_scheduled for connection in connections), "the request")
        next(connection for connection in connections if connection._is_handling_scheduled).close("a test closes it")
        await send(other, frame(apis.METADATA, 10_000))
        assert await receive(other, 8)
        assert len(server.frames) == 1

    served(scenario)


def test_disconnect_before_decoding() -> None:
    """The connection is not read while its large request waits behind another's, so a disconnect goes unnoticed."""

    async def scenario(server: Served) -> None:
        server.decode_turns = sys.maxsize
        other, client = await server.connect(), await server.connect()
        connections = server.listener._connections
        for number, value in enumerate((other, client), 1):
            await send(value, frame(apis.FETCH, 10_000))
            await until(
                lambda number=number: sum(connection._is_handling_scheduled for connection in connections) == number,  # type: ignore[misc]
                "it",
            )
        client.close()
        await turns(20)
        server.decode_turns = 0
        assert await receive(other, 8)
        await until(lambda: len(connections) == 1, "the connection of the client that left to be closed")
        assert len(server.frames) == 1

    served(scenario)


@pytest.mark.parametrize(
    ("large", "handled"), [(apis.METADATA, (apis.METADATA, apis.PRODUCE)), (apis.FETCH, (apis.PRODUCE,))]
)
def test_requests_after_a_large_one_are_handled(large: int, handled: Sequence[int]) -> None:
    """A Produce with acks=0 waits for no response; only the client's Fetch is useless after its disconnect."""

    async def scenario(server: Served) -> None:
        server.decode_turns = sys.maxsize
        other, client = await server.connect(), await server.connect()
        connections = server.listener._connections
        await send(other, frame(apis.METADATA, 10_000))
        await until(lambda: sum(connection._is_handling_scheduled for connection in connections) == 1, "its turn")
        await send(client, frame(large, 10_000))
        await until(
            lambda: sum(connection._is_handling_scheduled for connection in connections) == 2, "the wait for a turn"
        )
        await send(client, frame(apis.PRODUCE, 50))
        client.close()
        await turns(20)
        server.decode_turns = 0
        await until(lambda: len(connections) == 1, "the connection of the client that left to be closed")
        assert [int.from_bytes(frame[:2], "big") for frame in server.frames[1:]] == list(handled)

    served(scenario)


def test_a_stopping_broker_handles_no_large_request() -> None:
    async def scenario(server: Served) -> None:
        server.decode_turns = 10
        server.is_silent = True
        client = await server.connect()
        await send(client, frame(apis.PRODUCE) + frame(apis.METADATA, 10_000))
        (connection,) = server.listener._connections
        await until(lambda: connection._is_handling_scheduled, "the large request")
        stopping = asyncio.ensure_future(server.listener.stop())
        await turns(30)
        assert len(server.frames) == 1
        server.replies[0].send([bytes(8)])
        await stopping
        assert await receive(client, 8)

    served(scenario)


@pytest.mark.parametrize("error", [MalformedFrame("no such bytes"), ValueError("a mistake")])
def test_undecodable_large_request(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_served: Served, _frame: memoryview, _connection: Connection) -> Generator[int, None, Handle]:
        yield 1
        raise error

    monkeypatch.setattr(Served, "decode", fails)

    async def scenario(server: Served) -> None:
        client = await server.connect()
        await send(client, frame(apis.METADATA, 10_000))
        assert await is_closed(client)
        assert not server.frames

    served(scenario)


def test_a_waiting_request_has_not_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(server: Served) -> None:
        monkeypatch.setattr(DeferredCalls, "add_large", lambda *_arguments, **_options: None)
        client = await server.connect()
        await send(client, frame(apis.METADATA, 10_000))
        (connection,) = server.listener._connections
        await until(lambda: connection._end == 10_004, "the whole request")
        for _ in range(3):
            server.advance_ms(20_000)
        assert await stays_open(client)
        assert not server.frames

    served(scenario)


def test_immediate_responses_are_sent_together() -> None:
    arrived: list[bytes] = []

    async def scenario(server: Served) -> None:
        response = server.listener._handle

        def handle(frame: memoryview, reply: Reply, connection: Connection) -> None:
            if not server.frames:
                asyncio.get_running_loop().call_soon(lambda: arrived.append(client.recv(100)))
            assert response is not None
            response(frame, reply, connection)

        server.listener._handle = handle
        client = await server.connect()
        await send(client, frame(apis.PRODUCE) * 2)
        await until(lambda: arrived, "the responses")

    served(scenario)
    assert [len(value) for value in arrived] == [16]


def test_large_slices_are_sent_by_sendfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(24 * MIB)
    (tmp_path / "file").write_bytes(content)
    file = RealDisk().open(tmp_path / "file")
    sent: list[int] = []
    turn: list[int] = [0]
    by_turn: dict[int, int] = {}
    real_sendfile = os.sendfile

    def counted(out: int, source: int, offset: int, count: int) -> int:
        done = real_sendfile(out, source, offset, count)
        sent.append(done)
        by_turn[turn[0]] = by_turn.get(turn[0], 0) + done
        return done

    read: list[int] = []
    real_read = type(file).read

    def read_small(file: RealFile, size_bytes: int, position: int) -> bytes:
        read.append(size_bytes)
        return real_read(file, size_bytes, position)

    async def scenario(server: Served) -> None:
        async def count() -> None:
            while True:
                await asyncio.sleep(0)
                turn[0] += 1

        server.is_silent = True
        client = await server.connect()
        counting = asyncio.ensure_future(count())
        await send(client, frame(apis.FETCH))
        await server.asked(1)
        server.replies[0].send([b"head", Slice(file, 0, len(content)), b"tail"])
        await asyncio.sleep(0.05)
        assert sum(sent) < len(content), "the reader is slow: the response waits"
        assert await receive(client, len(content) + 8) == b"head" + content + b"tail"
        counting.cancel()

    with monkeypatch.context() as patched:
        patched.setattr(os, "sendfile", counted)
        patched.setattr(type(file), "read", read_small)
        served(scenario, turn_sent_bytes_max=300_000)
    file.close()
    assert sum(sent) + sum(read) == len(content)
    assert sum(read) <= SLICE_BYTES_SMALL
    assert len(sent) > 1
    assert max(by_turn.values()) <= 300_000


def test_small_slices_are_read_as_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(600_000)
    (tmp_path / "file").write_bytes(content)
    file = RealDisk().open(tmp_path / "file")
    slices = [Slice(file, position, 3_000) for position in range(0, 600_000, 3_000)]
    response = [piece for piece_of_file in slices for piece in (b"between", piece_of_file)]

    def not_sent(*_arguments: object) -> int:
        raise AssertionError("a small slice is one call with what stands around it")

    async def scenario(server: Served) -> None:
        server.is_silent = True
        client = await server.connect(receive_buffer_bytes=4096)
        await send(client, frame(apis.FETCH))
        await server.asked(1)
        server.replies[0].send(response)
        await turns(5)
        (connection,) = server.listener._connections
        assert 0 < connection.unsent_bytes < 200 * 7 + 2 * JOINED_BYTES_MAX
        expected = b"".join(piece if isinstance(piece, bytes) else piece.read() for piece in response)
        assert await receive(client, len(expected)) == expected
        assert connection.unsent_bytes == server.listener._response_budget.used_bytes == 0

    monkeypatch.setattr(os, "sendfile", not_sent)
    served(scenario)
    file.close()


def test_a_missing_slice_closes_the_connection(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"half")
    file = RealDisk().open(tmp_path / "file")

    async def scenario(server: Served) -> None:
        server.is_silent = True
        client = await server.connect()
        await send(client, frame(apis.FETCH))
        await server.asked(1)
        server.replies[0].send([b"head", Slice(file, 0, 8), b"tail"])
        assert await is_closed(client)

    served(scenario)
    file.close()


def test_accepting_pauses_without_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    class Exhausted:
        """A listening socket without a free descriptor."""

        def __init__(self, real: socket.socket) -> None:
            self._real = real

        def accept(self) -> Any:
            tries.append(1)
            if len(tries) == 1:
                raise OSError(errno.EMFILE, "Too many open files")
            return self._real.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    async def scenario(server: Served) -> None:
        (listening,) = server.listener._sockets
        listening.socket = Exhausted(listening.socket)  # type: ignore[assignment]
        time = asyncio.get_running_loop().time
        begin = time()
        client = await server.connect(is_taken=False)
        await until(lambda: tries, "a try to accept")
        await turns(20)
        assert len(tries) == 1 or time() - begin >= listeners.ACCEPT_PAUSE_SECONDS, "it does not spin"
        await send(client, frame(apis.METADATA))
        await receive(client, 8)

    monkeypatch.setattr(listeners, "ACCEPT_PAUSE_SECONDS", 0.05)
    served(scenario)


def test_a_stop_sends_the_possible_responses() -> None:
    async def scenario(server: Served) -> None:
        server.is_silent = True
        produces, fetches, joins, idles = [await server.connect() for _ in range(4)]
        for number, client in enumerate((produces, fetches, joins), 1):
            await send(client, frame(apis.FETCH))
            await server.asked(number)
        produce, fetch, join = server.replies
        fetch.on_stop = lambda: fetch.send([b"fetched"])
        join.is_long_wait = True
        abandoned: list[int] = []
        join.on_abandoned = lambda: abandoned.append(1)
        stopping = asyncio.ensure_future(server.listener.stop())
        await turns(5)
        with pytest.raises(ConnectionRefusedError):
            await server.connect()
        await send(produces, frame(apis.FETCH))
        produce.send([b"produced"])
        assert await receive(produces, 8) == b"produced"
        assert await receive(fetches, 7) == b"fetched"
        await asyncio.wait_for(stopping, 5)
        for client in (produces, fetches, joins, idles):
            assert await is_closed(client)
        assert abandoned
        assert len(server.frames) == 3, "no request is taken any more"

    served(scenario)


def test_a_stop_does_not_discard_sent_responses() -> None:
    async def scenario(server: Served) -> None:
        server.is_silent = True
        client = await server.connect(receive_buffer_bytes=4096)
        await send(client, frame(apis.FETCH))
        await server.asked(1)
        stopping = asyncio.ensure_future(server.listener.stop())
        await turns(5)
        await send(client, frame(apis.FETCH))
        server.replies[0].send([bytes(60_000)])
        await asyncio.wait_for(stopping, 5)
        assert await receive(client, 60_000) == bytes(60_000)

    served(scenario)


def test_a_stop_times_out(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: Served) -> None:
        server.is_silent = True
        client = await server.connect()
        await send(client, frame(apis.PRODUCE))
        await server.asked(1)
        await server.listener.stop()
        assert await is_closed(client)

    with caplog.at_level(logging.WARNING):
        served(scenario, stop_timeout_ms=50)
    assert "1 connections did not end within stop.timeout.ms=50" in caplog.text


def test_a_failed_large_request_releases_its_memory() -> None:
    async def scenario(server: Served) -> None:
        def refuse(_frame: memoryview, reply: Reply, _connection: Connection) -> None:
            reply.close_connection("refused")

        server.listener._handle = refuse
        client = await server.connect()
        with suppress(ConnectionError):
            await send(client, frame(apis.PRODUCE, 3 * MIB))
        assert await is_closed(client)
        assert server.listener._memory.used_bytes == 0

    served(scenario)


def test_responses_after_an_awaited_one_count() -> None:
    async def scenario(server: Served) -> None:
        server.is_silent = True
        client = await server.connect()
        await send(client, frame(apis.FETCH))
        for number in (1, 2):
            await send(client, frame(apis.METADATA))
            await server.asked(1 + number)
            server.replies[number].send([bytes(MIB)])
        await send(client, frame(apis.METADATA) * 2)
        await turns(10)
        assert len(server.frames) == 3, "two responses of 1 MiB wait after the first: no further request is handled"
        server.replies[0].send([b"head"])
        assert await receive(client, 4 + 2 * MIB) == b"head" + bytes(2 * MIB)
        await server.asked(5)

    served(scenario, unsent_bytes_per_connection_max=2 * MIB, stop_timeout_ms=10)


def test_unread_response_memory_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: Served) -> None:
        server.is_silent = True
        deaf = [await server.connect(receive_buffer_bytes=4096) for _ in range(6)]
        for number, client in enumerate(deaf):
            await send(client, frame(apis.METADATA))
            await server.asked(1 + number)
            server.replies[number].send([bytes(3 * MIB + number)])
            await turns(5)
        reader = await server.connect()
        await send(reader, frame(apis.METADATA))
        await server.asked(7)
        server.replies[6].send([bytes(2 * MIB)])
        assert await receive(reader, 2 * MIB) == bytes(2 * MIB)
        open_ones = [reply.is_open for reply in server.replies]
        assert open_ones[6]
        assert sum(open_ones[:6]) == 2, "the largest are closed until three quarters of the limit are left"

    with caplog.at_level(logging.WARNING):
        served(scenario, unsent_bytes_max=12 * MIB, socket_send_buffer_bytes=4096, stop_timeout_ms=10)
    assert "unsent.max.bytes" in caplog.text


def test_a_stop_drains_the_socket() -> None:
    async def scenario(server: Served) -> None:
        client = await server.connect(receive_buffer_bytes=4096)
        await send(client, frame(apis.PRODUCE, 3 * MIB // 2))
        await receive(client, 8)
        server.is_silent = True
        await send(client, frame(apis.FETCH))
        await server.asked(2)
        stopping = asyncio.ensure_future(server.listener.stop())
        await turns(5)
        await send(client, frame(apis.FETCH))
        server.replies[1].send([bytes(60_000)])
        await asyncio.wait_for(stopping, 5)
        assert await receive(client, 60_000) == bytes(60_000)

    served(scenario)


@pytest.mark.parametrize("is_parked", [False, True])
def test_slow_requests_of_one_client_take_turns(is_parked: bool) -> None:
    """However many are in its buffer, others are served after each, also where they waited behind a parked one."""
    per_turn: list[int] = []

    async def scenario(server: Served) -> None:
        client = await server.connect()
        server.is_silent = is_parked
        await send(client, frame(apis.JOIN_GROUP) if is_parked else frame(apis.METADATA))
        await server.asked(1)
        server.replies[0].is_long_wait = is_parked
        server.is_silent, server.work_ms = False, 1
        counting = asyncio.ensure_future(count_turns(server, per_turn))
        await send(client, frame(apis.METADATA) * 50)
        await turns(5)
        server.replies[0].send([bytes(8)])
        await receive(client, 51 * 8)
        counting.cancel()

    served(scenario)
    assert max(per_turn) <= 2
