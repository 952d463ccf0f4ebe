"""One connection: versions, and every way in which the peer can fail."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onceflow.client.addresses import parse_address
from onceflow.client.connection import Connection
from onceflow.client.errors import (
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    NotKafka,
    ResponseTooLarge,
    UnsupportedBroker,
)
from onceflow.remedies import Remedy
from onceflow.testing import BrokerProcess
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import encode_response, response_class
from tests import remedies


@contextmanager
def peer(*responses: bytes | None) -> Iterator[int]:
    """Listen on a port and send one response per request; None hangs up, and after the last one it is silent."""
    done = threading.Event()

    def serve() -> None:
        with listener.accept()[0] as client:
            for response in responses:
                client.recv(65536)
                if response is None:
                    return
                client.sendall(response)
            done.wait(10)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        done.set()
        thread.join(10)


def versions(correlation_id: int, *served: tuple[int, int, int]) -> bytes:
    """An ApiVersions response of version 0, with its size."""
    schema = response_class(apis.API_VERSIONS, 0)
    entry = schema.__annotations__["api_keys"].__args__[0]
    entries = tuple(entry(api_key=key, min_version=low, max_version=high) for key, low, high in served)
    return encode_response(apis.API_VERSIONS, 0, correlation_id, schema(error_code=ErrorCode.none, api_keys=entries))


HTTP = b"HTTP/1.1 400 Bad Request\r\n\r\n"
TLS_ALERT = bytes.fromhex("15030300020246")


@pytest.mark.parametrize(
    ("responses", "error", "message"),
    [
        ([None], BrokerUnreachable, "does not respond like a Kafka broker .*closed the connection"),
        ([b"\x00\x00"], BrokerUnreachable, "did not respond within 300 ms"),
        ([], BrokerUnreachable, "did not respond within 300 ms"),
        ([HTTP], NotKafka, "does not speak Kafka's protocol"),
        ([TLS_ALERT], NotKafka, "does not speak Kafka's protocol"),
        ([struct.pack(">i", -1)], NotKafka, "does not speak Kafka's protocol"),
        ([struct.pack(">ii", 4, 77)], NotKafka, "responded to request 77 instead of 1"),
        ([struct.pack(">iih", 6, 1, 0)], NotKafka, "violates Kafka's protocol: ApiVersions"),
    ],
)
def test_a_peer_that_is_no_broker(responses: list[bytes | None], error: type[ClientError], message: str) -> None:
    timeout_ms = 300 if "did not respond" in message else 30_000
    with peer(*responses) as port, pytest.raises(error, match=message):
        Connection("127.0.0.1", port, timeout_ms=timeout_ms)


@pytest.mark.remedy(Remedy.START_BROKER, Remedy.NAME_BROKER)
def test_no_listener(bootstrap: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(BrokerUnreachable, match=f"127.0.0.1:{port}: Connection refused; ") as raised:
        Connection("127.0.0.1", port)
    remedies.find(Remedy.NAME_BROKER, raised.value)
    Connection(*parse_address(bootstrap)).close()
    remedies.find(Remedy.START_BROKER, raised.value)
    with BrokerProcess(tmp_path / "data", port):
        Connection("127.0.0.1", port).close()
    with pytest.raises(BrokerUnreachable, match=r"no Kafka broker responds at no-such-host.invalid:9092: "):
        Connection("no-such-host.invalid", 9092)


@pytest.mark.remedy(Remedy.NEWER_BROKER)
@pytest.mark.parametrize(
    ("served", "says"),
    [
        ((apis.METADATA, 13, 15), "supports Metadata versions 13 to 15, this client requires 4 to 12"),
        ((apis.METADATA, 0, 3), "supports Metadata versions 0 to 3, this client requires 4 to 12"),
        ((apis.FETCH, 4, 12), "supports Metadata versions none"),
    ],
)
def test_no_version_in_common(served: tuple[int, int, int], says: str) -> None:
    with peer(versions(1, served)) as port:
        connection = Connection("127.0.0.1", port)
        with pytest.raises(UnsupportedBroker, match=says) as raised:
            connection.version_of(apis.METADATA, version_min=4)
        connection.close()
    remedies.find(Remedy.NEWER_BROKER, raised.value)
    with peer(versions(1, (apis.METADATA, 0, 9))) as port:  # As Apache Kafka 2.4 does.
        connection = Connection("127.0.0.1", port)
        assert connection.version_of(apis.METADATA, version_min=4) == 9
        connection.close()


def test_the_highest_version_that_both_have() -> None:
    with peer(versions(1, (apis.METADATA, 0, 99), (apis.FETCH, 4, 7))) as port:
        connection = Connection("127.0.0.1", port)
        assert connection.version_of(apis.METADATA) == apis.APIS[apis.METADATA].version_max
        assert connection.version_of(apis.FETCH) == 7
        connection.close()


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (None, ConnectionLost),
        (struct.pack(">i", 2_000_000), ResponseTooLarge),
        (struct.pack(">ii", 4, 1), NotKafka),
    ],
)
def test_a_failed_request_closes_the_connection(response: bytes | None, error: type[ClientError]) -> None:
    with peer(versions(1), response) as port:
        connection = Connection("127.0.0.1", port, response_bytes_max=1_000_000)
        assert connection.is_open()
        with pytest.raises(error):
            connection.exchange(lambda correlation_id: b"request", bytes)
        assert not connection.is_open()


def test_closed_idle_connection_is_detected() -> None:
    with peer(versions(1)) as port:
        connection = Connection("127.0.0.1", port)
        assert connection.is_open()
    _until(lambda: not connection.is_open())
    connection.close()


def test_a_real_broker_negotiates(bootstrap: str) -> None:
    connection = Connection(*parse_address(bootstrap))
    assert connection.version_of(apis.FETCH) >= 4
    assert connection.is_open()
    connection.close()
    assert not connection.is_open()


def _until(condition: Callable[[], bool]) -> None:
    ready = threading.Event()
    for _ in range(500):
        if condition():
            return
        ready.wait(0.01)
    raise AssertionError("the condition did not come true")
