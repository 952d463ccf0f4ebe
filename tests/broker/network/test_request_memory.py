"""Memory for incoming requests: no deadlock, a fair order, and reclaiming by closing slow connections."""

import asyncio
import random
import struct

import pytest

from onceflow.broker.network.connection import BUFFER_BYTES_FIRST
from onceflow.broker.network.request_memory import SMALL_REQUEST_BYTES_MAX, RequestMemory, Reservation
from onceflow.wire import apis
from tests.broker.network.test_listener import (
    MIB,
    Served,
    frame,
    is_closed,
    parking,
    receive,
    send,
    served,
    stays_open,
    turns,
    until,
)

STEP_BYTES = 64 * 1024
LARGEST_BYTES = 20 * MIB
MEMORY_BYTES = 64 * MIB
SECOND_MS = 1000
FAST_BYTES_PER_SECOND = 3 * MIB // 25
"""Pace at which a request of 3 MiB is whole within the time for which it may block others."""


class Receiving:
    """Requests that arrive step by step, as in the buffer of a connection: behind one may be another's beginning."""

    def __init__(self, memory: RequestMemory, *request_bytes: int) -> None:
        self._requests = list(request_bytes)
        self._held_bytes = min(BUFFER_BYTES_FIRST, request_bytes[0])
        self._buffer_bytes = BUFFER_BYTES_FIRST
        self.reservation = Reservation(memory, self._granted)
        self.is_waiting = False

    def _granted(self) -> None:
        self.is_waiting = False

    def step(self) -> bool:
        """Receive what the buffer takes, if it can grow when it must; return whether all requests are whole."""
        reservation, request_bytes = self.reservation, self._requests[0]
        if reservation.is_for_one and request_bytes > reservation.size_bytes:
            self._shrink()
        if self._held_bytes == self._buffer_bytes:
            step_bytes = max(STEP_BYTES, min(2 * self._held_bytes, request_bytes))
            if not reservation.grow(step_bytes, request_bytes):
                self.is_waiting = True
                return False
            self._buffer_bytes = min(step_bytes, reservation.size_bytes)
        self._held_bytes = min(self._buffer_bytes, request_bytes if reservation.is_for_one else sum(self._requests))
        while self._requests and self._held_bytes >= self._requests[0]:
            self._held_bytes -= self._requests.pop(0)
        if not self._held_bytes and not reservation.keep():
            self._shrink()
        return not self._requests

    def _shrink(self) -> None:
        self._buffer_bytes = BUFFER_BYTES_FIRST
        self.reservation.free()


async def receive_all(memory: RequestMemory, unfinished: list[Receiving], seeded: random.Random) -> None:
    """Let connections take their steps in any order until each has received everything."""
    while unfinished:
        ready = [connection for connection in unfinished if not connection.is_waiting]
        assert ready, f"{len(unfinished)} connections wait for each other"
        receiving = seeded.choice(ready)
        if receiving.step():
            receiving.reservation.free()
            unfinished.remove(receiving)
        assert memory.used_bytes <= memory.bytes_max
        await turns(2)
    assert memory.used_bytes == 0


@pytest.mark.parametrize("seed", range(20))
def test_every_request_completes_in_any_order(seed: int) -> None:
    """Start more requests than there is memory for, with steps in any order: none waits forever."""
    seeded = random.Random(seed)

    async def run() -> None:
        memory = RequestMemory(MEMORY_BYTES, LARGEST_BYTES, lambda: None)
        sizes = [
            seeded.choice((SMALL_REQUEST_BYTES_MAX, seeded.randrange(STEP_BYTES, LARGEST_BYTES))) for _ in range(150)
        ]
        await receive_all(memory, [Receiving(memory, size) for size in sizes], seeded)

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(4))
def test_pipelined_requests_complete(seed: int) -> None:
    """A connection whose buffer has a request's beginning behind another does not hold what others wait for."""
    seeded = random.Random(seed)

    async def scenario(server: Served) -> None:
        sizes = [int(5_000 * 200 ** seeded.random()) for _ in range(600)]
        clients = [await server.connect() for _ in range(30)]
        sent = [b"".join(frame(apis.PRODUCE, size) for size in sizes[number::30]) for number in range(30)]
        sending = [asyncio.ensure_future(send(*pair)) for pair in zip(clients, sent, strict=True)]
        await server.asked(len(sizes))
        await asyncio.gather(*sending)
        for connection in server.listener._connections:
            connection.shrink_if_unneeded()
        assert server.listener._memory.used_bytes == 0

    served(scenario, queued_request_bytes_max=4 * MIB)


def test_memory_for_one_request() -> None:
    """Memory stays for any request if the largest still finds enough, else for requests that fit, one at a time."""

    async def run() -> None:
        memory = RequestMemory(4 * MIB, LARGEST_BYTES, lambda: None)
        step, whole, side, waiting = (Reservation(memory, lambda: None) for _ in range(4))
        assert step.grow(STEP_BYTES, 500_000)
        assert whole.grow(1_000_000, 1_000_000)
        assert side.grow(MIB, MIB // 2)
        assert [step.size_bytes, whole.size_bytes, side.size_bytes] == [STEP_BYTES, 1_000_000, MIB // 2]
        assert [step.is_for_one, whole.is_for_one, side.is_for_one] == [False, True, True]
        assert whole.keep() and whole.is_for_one
        assert side.keep() and side.is_for_one
        whole.free()
        assert whole.grow(400_000, 400_000)
        assert not whole.is_for_one
        whole.free()
        assert whole.grow(MIB, MIB)
        assert not waiting.grow(MIB, MIB)
        assert whole.is_blocking and not step.is_blocking and not side.is_blocking
        assert not step.keep(), "another waits"
        waiting.free()
        step.free()
        assert whole.keep() and whole.is_for_one
        assert not waiting.grow(900_000, 900_000)
        small = Reservation(memory, lambda: None)
        assert not small.grow(MIB // 4, MIB // 4)
        assert side.is_blocking, "a quarter would fit into the side part"

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(200))
def test_frames_of_any_size_complete(seed: int) -> None:
    """Connections with several requests, up to the largest one, receive all of them in any order."""
    seeded = random.Random(seed)

    async def run() -> None:
        memory = RequestMemory(24 * MIB, 4 * MIB + 4, lambda: None)
        sizes = [[_size(seeded) for _ in range(4)] for _ in range(30)]
        await receive_all(memory, [Receiving(memory, *request_sizes) for request_sizes in sizes], seeded)

    asyncio.run(run())


def _size(seeded: random.Random) -> int:
    return seeded.choice((4 * MIB + 4, SMALL_REQUEST_BYTES_MAX, int(1_000 * 4_000 ** seeded.random())))


def test_requests_wait_in_order() -> None:
    async def run() -> None:
        memory = RequestMemory(64 * MIB // 3, 4 * MIB, lambda: None)
        assert memory.share_for(4 * MIB).main.bytes_max == 8 * MIB
        holders = [Receiving(memory, 4 * MIB) for _ in range(2)]
        for holder in holders:
            assert holder.reservation.grow(4 * MIB, 4 * MIB)
        large, later, last = (Receiving(memory, 4 * MIB) for _ in range(3))
        assert not large.step()
        assert not later.step()
        holders[0].reservation.free()
        assert not last.step(), "what is free now is for those that wait"
        await turns(3)
        assert not large.is_waiting
        assert later.is_waiting, "the first that waits took the memory"
        large.reservation.free()
        later.reservation.free()
        last.reservation.free()
        holders[1].reservation.free()
        assert memory.used_bytes == 0
        assert not memory.is_awaited

    asyncio.run(run())


def test_requests_that_fit_the_side_part_overtake() -> None:
    """They get what fits there, in order; the first that waits gets its memory as if nothing had overtaken it."""

    async def run() -> None:
        memory = RequestMemory(24 * MIB, 8 * MIB, lambda: None)
        slow, silent = Receiving(memory, 8 * MIB), Receiving(memory, 8 * MIB)
        silent.step()
        while slow.reservation.size_bytes < 8 * MIB:
            slow.step()
        while not silent.is_waiting:
            silent.step()
        assert silent.reservation.size_bytes, "it holds what arrived"
        too_large, *passing = (Receiving(memory, size) for size in (3 * MIB, MIB + 1, MIB - 1 - STEP_BYTES, MIB + 1))
        for receiving in (too_large, *passing):
            receiving.step()
        await turns(3)
        assert [request.is_waiting for request in (too_large, *passing)] == [True, False, False, True]
        passing[0].reservation.free()
        await turns(3)
        assert not passing[2].is_waiting
        slow.reservation.free()
        await turns(3)
        assert not silent.is_waiting
        assert not too_large.is_waiting

    asyncio.run(run())


def test_newcomers_lock_out_only_each_other() -> None:
    """Unfinished logins fill their own share; an authenticated client gets its memory from the others."""

    async def run() -> None:
        memory = RequestMemory(16 * MIB, 8 * MIB, lambda: None)
        logins = [Reservation(memory, lambda: None) for _ in range(100)]
        for login in logins:
            login.is_newcomers = True
        assert sum(login.grow(512 * 1024, 512 * 1024) for login in logins) == 32
        for size_bytes in (MIB, 8 * MIB):
            assert Reservation(memory, lambda: None).grow(size_bytes, size_bytes)
        admitted = logins[0]
        admitted.is_newcomers = False
        before = memory.newcomers.used_bytes
        assert admitted.grow(MIB, MIB)
        assert memory.newcomers.used_bytes == before - 512 * 1024

    asyncio.run(run())


def test_a_closed_waiter_unblocks_the_next() -> None:
    """It holds nothing to release, and the memory for the next one has been free all the time."""

    async def run() -> None:
        memory = RequestMemory(16 * MIB, 8 * MIB, lambda: None)
        holder, large, later = (Receiving(memory, size * MIB) for size in (4, 6, 2))
        assert holder.reservation.grow(4 * MIB, 4 * MIB)
        assert not large.step()
        assert not later.step()
        large.reservation.end()
        await turns(3)
        assert not later.is_waiting

    asyncio.run(run())


def test_a_request_larger_than_the_memory() -> None:
    async def run() -> None:
        memory = RequestMemory(2 * MIB, 4 * MIB, lambda: None)
        alone, second = Receiving(memory, 3 * MIB), Receiving(memory, 3 * MIB)
        assert not alone.step()
        assert alone.reservation.size_bytes == 3 * MIB
        assert not second.step()
        assert second.is_waiting

    asyncio.run(run())


async def half_sent(server: Served, count: int, size_bytes: int, sent_bytes: int) -> None:
    """Connections that announce requests of this size and send a part of them."""
    beginning = frame(apis.PRODUCE, size_bytes)[:sent_bytes]
    for _ in range(count):
        await send(await server.connect(), beginning)
    await turns(20)


async def produce(server: Served, size_bytes: int) -> None:
    """Serve a request of a new client."""
    client = await server.connect()
    before = len(server.frames)
    sending = asyncio.ensure_future(send(client, frame(apis.PRODUCE, size_bytes)))
    await server.asked(before + 1)
    await sending
    assert await receive(client, 8) == struct.pack(">ihh", 4, apis.PRODUCE, 0)


def test_announced_requests_lock_no_other_out() -> None:
    """They reserve what arrived, not what they announced."""

    async def scenario(server: Served) -> None:
        for announced_bytes in (100 * MIB, 1_000_000, 65_000):
            await half_sent(server, 38, announced_bytes, BUFFER_BYTES_FIRST + 1000)
        for size_bytes in (16 * 1024, 900 * 1024, 3 * MIB, 20 * MIB):
            await produce(server, size_bytes)
        assert len(server.listener._connections) == 3 * 38 + 4, "none was closed: there is memory enough"

    served(scenario)


@pytest.mark.parametrize("size_bytes", [SMALL_REQUEST_BYTES_MAX - 4, 2 * MIB])
def test_slow_requests_are_closed_while_another_waits(size_bytes: int) -> None:
    """They fill a share with received bytes; requests of the other share do not notice."""

    async def scenario(server: Served) -> None:
        memory = server.listener._memory
        share = memory.share_for(size_bytes + 4)
        await half_sent(server, 20, size_bytes, size_bytes - 100)
        await until(lambda: len(share.waiting) > 2, "the share to be full")
        other_bytes = 3 * MIB if size_bytes < MIB else 900 * 1024
        await produce(server, other_bytes)
        producing = asyncio.ensure_future(produce(server, size_bytes))
        await turns(100)
        assert not producing.done()
        for _ in range(10):
            server.advance_ms(SECOND_MS)
            server.listener._reclaim_request_memory()
            await turns(100)
        await producing
        assert share.used_bytes <= share.bytes_max

    served(scenario, queued_request_bytes_max=24 * MIB, produce_request_bytes_max=4 * MIB, group_request_bytes_max=MIB)


@pytest.mark.parametrize("name", ["produce_request_bytes_max", "group_request_bytes_max", "other_request_bytes_max"])
def test_steps_leave_enough_for_any_request(name: str) -> None:
    """The size of a request has four bytes of its own."""

    async def scenario(server: Served) -> None:
        assert server.listener._memory.share_for(3 * MIB).largest_bytes == 3 * MIB + 4

    smaller = dict.fromkeys(("produce_request_bytes_max", "group_request_bytes_max", "other_request_bytes_max"), MIB)
    served(scenario, **smaller | {name: 3 * MIB})


def test_slow_and_silent_requests_beside_small_ones() -> None:
    """The slow one holds the memory of its whole request; the silent one waits with what arrived."""

    async def scenario(server: Served) -> None:
        memory = server.listener._memory
        slow, silent = await server.connect(), await server.connect()
        request = frame(apis.PRODUCE, 8 * MIB - 4)
        await send(silent, request[:200_000])
        await until(lambda: memory.used_bytes > 200_000, "the silent one's beginning")
        await send(slow, request[: 3 * MIB])
        await until(lambda: memory.used_bytes > 8 * MIB, "the slow one to hold all of its request")
        await send(silent, request[200_000 : 2 * MIB])
        await until(lambda: memory.is_awaited, "the silent one to wait")
        for _ in range(3):
            await produce(server, 2 * MIB - 8)
        assert memory.is_awaited
        await send(slow, request[3 * MIB :])
        await server.asked(4)
        await until(lambda: not memory.is_awaited, "the silent one to be read on")

    served(scenario, queued_request_bytes_max=24 * MIB, produce_request_bytes_max=8 * MIB, group_request_bytes_max=MIB)


@pytest.mark.parametrize("is_whole", [False, True])
def test_disconnect_while_waiting_for_memory(is_whole: bool) -> None:
    """The broker notices it without memory to continue reading; a request that was sent whole is handled."""

    async def scenario(server: Served) -> None:
        memory = server.listener._memory
        holder, leaving = await server.connect(), await server.connect()
        request = frame(apis.PRODUCE, 1_000_000)
        await send(holder, request[:900_000])
        await until(lambda: memory.used_bytes > 900_000, "the first to hold the memory")
        await send(leaving, request[:20_000])
        await until(lambda: memory.is_awaited, "the second to wait")
        whole = frame(apis.PRODUCE, 20_000)
        if is_whole:
            second = await server.connect()
            await send(second, whole)
            await until(lambda: len(memory.share_for(MIB).waiting) == 2, "the third to wait")
            second.close()
        leaving.close()
        await turns(20)
        server.advance_ms(SECOND_MS)
        assert len(memory.share_for(MIB).waiting) == is_whole
        await send(holder, request[900_000:])
        await server.asked(1 + is_whole)

    served(scenario, queued_request_bytes_max=2 * MIB)


def test_fast_requests_stay_while_another_waits() -> None:
    async def scenario(server: Served) -> None:
        request = frame(apis.PRODUCE, 3 * MIB)
        fast, slow, waiting = [await server.connect() for _ in range(3)]
        await send(fast, request[:MIB])
        await until(lambda: server.listener._memory.used_bytes > MIB, "half of the fast one")
        for client in (slow, waiting):
            sending = asyncio.ensure_future(send(client, request))
            await turns(20)
        for number in range(4):
            server.advance_ms(SECOND_MS)
            received = 1 + number * FAST_BYTES_PER_SECOND
            await send(fast, request[MIB + received - 1 :][:FAST_BYTES_PER_SECOND])
            await turns(50)
        assert await stays_open(fast)
        sending.cancel()

    served(scenario, queued_request_bytes_max=8 * MIB, produce_request_bytes_max=4 * MIB)


def test_a_request_below_the_minimum_pace() -> None:
    """It closes even a connection that is never silent; a slow link is served while there is memory."""

    async def scenario(server: Served) -> None:
        dribbling, slow = await server.connect(), await server.connect()
        request = frame(apis.PRODUCE, 3 * MIB)
        for client in (dribbling, slow):
            await send(client, request[:5000])
        await turns(20)
        for second in range(32):
            server.advance_ms(SECOND_MS)
            await send(slow, request[5000 + 2000 * second :][:2000])
            if second < 25:
                await send(dribbling, b"\0")
            await turns(20)
        assert await is_closed(dribbling)
        assert await stays_open(slow)

    served(scenario)


def test_a_minimum_pace_of_0() -> None:
    async def scenario(server: Served) -> None:
        client = await server.connect()
        await send(client, frame(apis.PRODUCE, 1000)[:100])
        for _ in range(10):
            await send(client, b"\0")
            await turns(10)
            server.advance_ms(20 * SECOND_MS)
        assert await stays_open(client)

    served(scenario, request_bytes_per_second_min=0, request_stalled_max_ms=-1)


def test_requests_behind_a_parked_one_hold_nothing() -> None:
    """They stay in the first buffer and the socket, even if a larger buffer was kept."""

    async def scenario(server: Served) -> None:
        parking(server)
        client = await server.connect()
        large = frame(apis.PRODUCE, 1_000_000)
        behind = frame(apis.METADATA, 30_000) * 30
        await send(client, large + frame(apis.FETCH) + behind)
        await server.asked(2)
        await turns(50)
        assert server.listener._memory.used_bytes == 0
        waiting = await server.connect()
        await send(waiting, large)
        await server.asked(3)
        assert await receive(client, 8) == struct.pack(">ihh", 4, apis.PRODUCE, 0)
        server.replies[1].send([struct.pack(">ihh", 4, apis.FETCH, 0)])
        await server.asked(33)

    served(scenario, queued_request_bytes_max=3 * MIB, stop_timeout_ms=10)


def test_a_kept_buffer_is_released() -> None:
    """The buffer is released at once if its client sends nothing, otherwise after its request."""

    async def scenario(server: Served) -> None:
        request = frame(apis.PRODUCE, 1_000_000)
        for _ in range(3):
            await produce(server, len(request) - 4)
        busy, waiting = await server.connect(), await server.connect()
        await send(busy, request[:-1])
        memory = server.listener._memory
        await until(lambda: memory.used_bytes >= 1_000_000, "nearly all of one request")
        await send(waiting, request)
        await until(lambda: memory.is_awaited, "the other one to wait")
        await send(busy, b"\0")
        await server.asked(4)
        assert not any(
            connection.reservation.size_bytes and connection._begin == connection._end
            for connection in server.listener._connections
        )
        await server.asked(5)

    served(scenario, queued_request_bytes_max=3 * MIB)


def test_several_requests_get_a_larger_buffer() -> None:
    """Requests that a client sends without waiting for responses arrive many in a turn, while there is memory."""

    async def scenario(server: Served) -> None:
        pipelined = await server.connect()
        (connection,) = server.listener._connections
        sent = [frame(apis.PRODUCE, 1000)] * 20
        await send(pipelined, b"".join(sent)[:-1])
        await server.asked(len(sent) - 1)
        assert connection.reservation.size_bytes == len(connection._view) == STEP_BYTES
        await send(pipelined, b"\0")
        await server.asked(len(sent))
        connection.shrink_if_unneeded()
        assert server.listener._memory.used_bytes == 0

    served(scenario)


def test_several_requests_without_spare_memory() -> None:
    """The larger buffer is not taken from what the largest request needs, nor while another request waits."""

    async def run() -> None:
        memory = RequestMemory(MEMORY_BYTES, LARGEST_BYTES, lambda: None)
        share = memory.share_for(STEP_BYTES)
        waiting, pipelined = (Reservation(memory, lambda: None) for _ in range(2))
        share.main.used_bytes = share.main.bytes_max - SMALL_REQUEST_BYTES_MAX - STEP_BYTES + 1
        assert not pipelined.grow_if_free(STEP_BYTES)
        share.main.used_bytes -= 1
        share.wait(waiting)
        assert not pipelined.grow_if_free(STEP_BYTES)
        waiting.free()
        assert pipelined.grow_if_free(STEP_BYTES)
        assert pipelined.size_bytes == STEP_BYTES

    asyncio.run(run())
