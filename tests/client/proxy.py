"""A faulty network between client and broker: forwards everything except configured faults.

It names itself as every broker's address, so that the client's later connections come through it too.
"""

import dataclasses
import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from onceflow.client.addresses import Address
from onceflow.wire import apis, fetch
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import RequestHeader, decode_request, decode_response, encode_response, read_request_header

NOT_LEADER = 6


class FaultyProxy:
    """Forwards between a client and `upstream`; `faults` are used up in order, each by the first request of its API.

    Faults: "close" the connection instead of responding, "silent": never respond, "not_leader": the partition's error,
    "not_coordinator": the error of a commit to a broker that was the group's coordinator once.
    With `cut_batches` a fetch gets exactly the bytes asked for, as from a broker older than KIP-74.
    """

    def __init__(self, upstream: Address, port: int = 0) -> None:
        self.upstream = upstream
        self.faults: list[tuple[int, str]] = []
        self.cut_batches = False
        self.asked_bytes: list[int] = []
        self.isolation_levels: list[int] = []
        self.coordinators_asked = 0
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", port))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._listener.listen()
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for opened in self._sockets:
            _hang_up(opened)
        for thread in self._threads:
            thread.join(timeout=10)
        for opened in [self._listener, *self._sockets]:
            opened.close()

    def hang_up(self) -> None:
        """End every connection, as a broker does with idle ones."""
        for opened in self._sockets:
            _hang_up(opened)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,))
            self._sockets.append(client)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(ConnectionError), socket.create_connection(self.upstream) as broker:  # A side may hang up.
            self._sockets.append(broker)
            self._forward(client, broker)
        _hang_up(client)

    def _forward(self, client: socket.socket, broker: socket.socket) -> None:
        while (request := _receive_frame(client)) is not None:
            header = read_request_header(memoryview(request))
            self._note_isolation_level(header, request)
            fault = self._take_fault(header.api.key)
            if fault == "close":
                return
            if fault == "silent":
                continue
            broker.sendall(struct.pack(">i", len(request)) + request)
            response = _receive_frame(broker)
            if response is None:
                return
            client.sendall(self._spoil(header, request, response, fault))

    def _note_isolation_level(self, header: RequestHeader, request: bytes) -> None:
        if header.api.key == apis.FETCH:
            self.isolation_levels.append(fetch.parse_request(memoryview(request), header).isolation_level)
        elif header.api.key == apis.LIST_OFFSETS:
            self.isolation_levels.append(decode_request(memoryview(request), header).isolation_level)

    def _take_fault(self, api_key: int) -> str | None:
        if self.faults and self.faults[0][0] == api_key:
            return self.faults.pop(0)[1]
        return None

    def _spoil(self, header: RequestHeader, request: bytes, response: bytes, fault: str | None) -> bytes:
        if header.api.key == apis.METADATA:
            return self._with_own_address(header, response)
        if header.api.key == apis.FETCH:
            return self._spoiled_fetch(header, request, response, fault)
        if header.api.key == apis.FIND_COORDINATOR:
            return self._as_coordinator(header, response)
        if fault == "not_coordinator":
            return _moved_away(header, response)
        return struct.pack(">i", len(response)) + response

    def _with_own_address(self, header: RequestHeader, response: bytes) -> bytes:
        correlation_id, payload = decode_response(apis.METADATA, header.version, response)
        brokers = tuple(
            dataclasses.replace(broker, host=self.address.host, port=self.address.port) for broker in payload.brokers
        )
        return encode_response(
            apis.METADATA, header.version, correlation_id, dataclasses.replace(payload, brokers=brokers)
        )

    def _as_coordinator(self, header: RequestHeader, response: bytes) -> bytes:
        self.coordinators_asked += 1
        correlation_id, payload = decode_response(header.api.key, header.version, response)
        own = {"host": self.address.host, "port": self.address.port}
        if hasattr(payload, "coordinators"):
            changed = dataclasses.replace(
                payload,
                coordinators=tuple(dataclasses.replace(coordinator, **own) for coordinator in payload.coordinators),
            )
        else:
            changed = dataclasses.replace(payload, **own)
        return encode_response(header.api.key, header.version, correlation_id, changed)

    def _spoiled_fetch(self, header: RequestHeader, request: bytes, frame: bytes, fault: str | None) -> bytes:
        wanted = fetch.parse_request(memoryview(request), header).topics[0][1][0]
        self.asked_bytes.append(wanted.max_bytes)
        response = fetch.parse_response(header.version, frame)
        got = response.partitions[0]
        records: Any = got.records[: wanted.max_bytes] if self.cut_batches else got.records
        if fault == "not_leader":
            records = b""
        spoiled = fetch.PartitionResponse(
            got.partition,
            NOT_LEADER if fault == "not_leader" else got.error_code,
            got.high_watermark,
            got.last_stable_offset,
            got.log_start_offset,
            len(records),
            got.aborted,
        )
        pieces = fetch.encode_response(header.version, response.correlation_id, [(got.topic, [spoiled])])
        return bytes(records).join(pieces) if len(records) else pieces[0]


def _moved_away(header: RequestHeader, response: bytes) -> bytes:
    """The response to an OffsetCommit with every partition refused."""
    correlation_id, payload = decode_response(header.api.key, header.version, response)
    topics = tuple(
        dataclasses.replace(
            topic,
            partitions=tuple(
                dataclasses.replace(partition, error_code=ErrorCode.not_coordinator) for partition in topic.partitions
            ),
        )
        for topic in payload.topics
    )
    spoiled = dataclasses.replace(payload, topics=topics)
    return encode_response(header.api.key, header.version, correlation_id, spoiled)


def _receive_frame(source: socket.socket) -> bytes | None:
    try:
        size = _receive(source, 4)
        return _receive(source, struct.unpack(">i", size)[0])
    except OSError:
        return None


def _receive(source: socket.socket, size_bytes: int) -> bytes:
    received = b""
    while len(received) < size_bytes:
        part = source.recv(size_bytes - len(received))
        if not part:
            raise ConnectionError("hung up")
        received += part
    return received


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # It was closed by the other side before.
