"""One raw connection to a broker: any API, any version, one request at a time or several in flight."""

import itertools
import socket
import ssl
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from onceflow.wire import apis, fetch, produce
from onceflow.wire.batch import BatchHeader, Record, batches, encode_batch
from onceflow.wire.fetch import FetchedPartition, FetchPartition, FetchRequest
from onceflow.wire.frames import decode_response, encode_request, request_class
from onceflow.wire.produce import PartitionResponse
from tests.wire.messages import build

TIMEOUT_SECONDS = 15
PRODUCE_VERSION = 9
FETCH_VERSION = 12


class RawClient:
    """A blocking client; `ask` builds a request from a mapping of its fields."""

    def __init__(self, bootstrap: str, tls: ssl.SSLContext | None = None, *, source: str = "") -> None:
        """Connect, from the address `source` if it is given."""
        host, _, port = bootstrap.rpartition(":")
        own = (source, 0) if source else None
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS, source_address=own)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self._correlation_ids = itertools.count(1)
        self.client_id = "raw"

    def close(self) -> None:
        self.socket.close()

    def send(self, api_key: int, version: int, **fields: Any) -> int:
        """Send without waiting; return the correlation id."""
        correlation_id = next(self._correlation_ids)
        payload = build(request_class(api_key, version), fields)
        self.socket.sendall(encode_request(api_key, version, correlation_id, self.client_id, payload))
        return correlation_id

    def receive_frame(self) -> bytes:
        """Return the next response without its size; b"" after the broker has closed the connection."""
        size = self._receive(4)
        return self._receive(struct.unpack(">i", size)[0]) if size else b""

    def _receive(self, size_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < size_bytes:
            chunk = self.socket.recv(size_bytes - len(data))
            if not chunk:
                return b""
            data += chunk
        return bytes(data)

    def receive(self, api_key: int, version: int) -> Any:
        return decode_response(api_key, version, self.receive_frame())[1]

    def ask(self, api_key: int, version: int, **fields: Any) -> Any:
        """Send one request and return its response."""
        correlation_id = self.send(api_key, version, **fields)
        received_id, payload = decode_response(api_key, version, self.receive_frame())
        assert received_id == correlation_id
        return payload

    def produce_request(
        self, topic: str, partition: int, batch: Any, *, acks: int = -1, timeout_ms: int = 10_000
    ) -> bytes:
        pieces = produce.encode_request(
            PRODUCE_VERSION,
            next(self._correlation_ids),
            self.client_id,
            transactional_id=None,
            acks=acks,
            timeout_ms=timeout_ms,
            topics=[(topic, [(partition, batch)])],
        )
        return b"".join(map(bytes, pieces))

    def send_batch(self, topic: str, partition: int, batch: Any, *, acks: int = -1, timeout_ms: int = 10_000) -> None:
        self.socket.sendall(self.produce_request(topic, partition, batch, acks=acks, timeout_ms=timeout_ms))

    def receive_produced(self) -> PartitionResponse:
        _correlation_id, topics, _throttle_ms = produce.parse_response(PRODUCE_VERSION, self.receive_frame())
        return topics[0][1][0]

    def produce(
        self, topic: str, partition: int, batch: Any, *, acks: int = -1, timeout_ms: int = 10_000
    ) -> PartitionResponse:
        """Produce one batch to one partition and return the response."""
        self.send_batch(topic, partition, batch, acks=acks, timeout_ms=timeout_ms)
        return self.receive_produced()

    def send_fetch(self, asked: Sequence[tuple[str, int, int]], **limits: int) -> None:
        """Fetch each (topic, partition, offset); limits as in `fetch_request`."""
        request = fetch_request(asked, **limits)
        self.socket.sendall(fetch.encode_request(FETCH_VERSION, next(self._correlation_ids), self.client_id, request))

    def fetch(self, asked: Sequence[tuple[str, int, int]], **limits: int) -> list[FetchedPartition]:
        self.send_fetch(asked, **limits)
        return self.receive_fetched()

    def receive_fetched(self) -> list[FetchedPartition]:
        return fetch.parse_response(FETCH_VERSION, self.receive_frame()).partitions

    def create_topic(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """Create a topic; names of `configs` have underscores for dots."""
        entries = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
        wanted = {
            "name": topic,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": (),
            "configs": entries,
        }
        response = self.ask(apis.CREATE_TOPICS, 7, topics=[wanted], timeout=milliseconds(10_000), validate_only=False)
        assert response.topics[0].error_code == 0, response.topics[0]
        # Here a created topic exists at once; Apache Kafka, against which some tests run too, responds a little too
        # early.
        for partition in range(partitions):
            while self.fetch([(topic, partition, 0)])[0].error_code:
                pass


def fetch_request(
    asked: Sequence[tuple[str, int, int]],
    *,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50_000_000,
    partition_max_bytes: int = 10_000_000,
    isolation_level: int = 0,
) -> FetchRequest:
    topics = [
        (topic, [FetchPartition(partition, -1, offset, -1, partition_max_bytes)]) for topic, partition, offset in asked
    ]
    return FetchRequest(-1, wait_ms, min_bytes, max_bytes, isolation_level, 0, -1, topics)


def milliseconds(value: int) -> Any:
    return timedelta(milliseconds=value)


def batch_of(*values: bytes, timestamp_ms: int = 1_700_000_000_000, **producer: int) -> bytearray:
    """Return a batch with these values; keyword arguments as in `encode_batch`."""
    records = [Record(offset, timestamp_ms + offset, None, value) for offset, value in enumerate(values)]
    return encode_batch(records, **producer)  # type: ignore[arg-type]


@contextmanager
def connected(bootstrap: str, tls: ssl.SSLContext | None = None) -> Iterator[RawClient]:
    client = RawClient(bootstrap, tls)
    try:
        yield client
    finally:
        client.close()


def stored_batches(bootstrap: str, topic: str, partition: int = 0) -> list[BatchHeader]:
    """Return a partition's first batches as the broker stores them; a client may have left them uncompressed."""
    with connected(bootstrap) as client:
        (fetched,) = client.fetch([(topic, partition, 0)])
        return [header for _, header in batches(fetched.records)]
