"""A proxy between driver and broker that sends error responses itself, or drops requests and responses."""

import select
import socket
import struct
from datetime import timedelta
from typing import Any

from kio.index import load_response_schema

from onceflow.client.addresses import Address
from onceflow.wire import TopicPartition, apis, produce
from onceflow.wire.batch import read_header
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import RequestHeader, decode_request, encode_response, read_request_header
from onceflow.wire.messages import message_of
from tests.client.proxy import FaultyProxy, _receive_frame

LOST = -1
"""The broker handles the request, and the connection ends before its response arrives."""
DROPPED = -2
"""The connection ends before the request reaches the broker."""

HELD_S_MAX = 5.0
"""Longest wait for a second request; shorter than the driver's time-out."""


class ResponseProxy(FaultyProxy):
    """A proxy with faults, each used once, in order, by the next request of its API.

    A fault is an error code, which the proxy sends itself, LOST, DROPPED, or None, which lets the request pass.
    `produced` has the partition and first sequence of each produced batch. When `holds`, counted down by Produce
    requests, reaches 0, the proxy waits for the next request; `several_in_flight` is whether it arrived.
    """

    faults: list[tuple[int, int | None]]  # type: ignore[assignment]

    def __init__(self, upstream: Address) -> None:
        super().__init__(upstream)
        self.produced: list[tuple[TopicPartition, int]] = []
        self.holds = 0
        self.several_in_flight = False

    @property
    def bootstrap(self) -> str:
        return str(self.address)

    def _forward(self, client: socket.socket, broker: socket.socket) -> None:
        while (request := _receive_frame(client)) is not None:
            header = read_request_header(memoryview(request))
            if header.api.key == apis.PRODUCE:
                self._note(client, request, header)
            fault = self._take_fault(header.api.key)
            if fault == DROPPED:
                return
            if fault is not None and fault != LOST:
                client.sendall(refusal(header, request, int(fault)))
                continue
            broker.sendall(struct.pack(">i", len(request)) + request)
            response = _receive_frame(broker)
            if response is None or fault == LOST:
                return
            client.sendall(self._spoil(header, request, response, None))

    def _note(self, client: socket.socket, request: bytes, header: RequestHeader) -> None:
        for topic, partitions in produce.parse_request(memoryview(request), header).topics:
            for partition, records in partitions:
                assert records is not None
                self.produced.append(((topic, partition), read_header(records).base_sequence))
        self.holds -= 1
        if self.holds == 0:
            readable, _, _ = select.select([client], [], [], HELD_S_MAX)
            self.several_in_flight = bool(readable)


def refusal(header: RequestHeader, request: bytes, code: int) -> bytes:
    """Return the response of a broker that refuses the whole request."""
    key, version = header.api.key, header.version
    if key == apis.PRODUCE:
        asked = produce.parse_request(memoryview(request), header).topics
        refused = [
            (topic, [produce.PartitionResponse(partition, code, -1) for partition, _ in batches])
            for topic, batches in asked
        ]
        return produce.encode_response(version, header.correlation_id, refused)
    response = message_of(
        load_response_schema(key, version), _fields(key, decode_request(memoryview(request), header), code)
    )
    return encode_response(key, version, header.correlation_id, response)


def _fields(key: int, asked: Any, number: int) -> dict[str, Any]:
    code = ErrorCode(number)
    fields: dict[str, Any] = {"throttle_time": timedelta()}
    if key == apis.FIND_COORDINATOR:
        return fields | {"error_code": code, "error_message": None, "node_id": -1, "host": "", "port": -1}
    if key == apis.INIT_PRODUCER_ID:
        return fields | {"error_code": code, "producer_id": -1, "producer_epoch": -1}
    if key == apis.OFFSET_FETCH:
        return fields | {"error_code": code, "topics": []}
    if key == apis.ADD_PARTITIONS_TO_TXN:
        topics = [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": partition, "partition_error_code": code} for partition in topic.partitions
                ],
            }
            for topic in asked.v3_and_below_topics
        ]
        return fields | {"results_by_topic_v3_and_below": topics}
    if key == apis.TXN_OFFSET_COMMIT:
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": partition.partition_index, "error_code": code} for partition in topic.partitions
                ],
            }
            for topic in asked.topics
        ]
        return fields | {"topics": topics}
    return fields | {"error_code": code}
