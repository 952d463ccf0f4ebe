"""The network that a test can cut: held traffic arrives later, one way or both; refused hosts have no connections."""

import gc
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.histories.network import Flow, Network

SERVER, NEAR, FAR = "server", "near", "far"
ADDRESSES = {"127.0.0.9": NEAR}
REQUEST, RESPONSE = Flow(NEAR, SERVER), Flow(SERVER, NEAR)
WITHIN_S = 60
ROUNDS = 20


class Wires:
    """A server behind a network, and its connections to two hosts."""

    def __init__(self, network: Network) -> None:
        self._opened = ExitStack()
        self._listener = self._opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._listener.settimeout(WITHIN_S)
        upstream_port = self._listener.getsockname()[1]
        self._port = network.listen(SERVER, upstream_port, ADDRESSES, FAR)

    def close(self) -> None:
        self._opened.close()

    def connect(self, address: str = "127.0.0.9") -> socket.socket:
        client = self._opened.enter_context(
            socket.create_connection(("127.0.0.1", self._port), WITHIN_S, source_address=(address, 0))
        )
        client.settimeout(WITHIN_S)
        return client

    def accept(self) -> socket.socket:
        server = self._opened.enter_context(self._listener.accept()[0])
        server.settimeout(WITHIN_S)
        return server


def ends(connection: socket.socket) -> bool:
    """Return whether the connection is closed or reset, and not by more data."""
    try:
        return not connection.recv(1)
    except ConnectionResetError:
        return True


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as running:
        yield running


@pytest.fixture
def wires(network: Network) -> Iterator[Wires]:
    made = Wires(network)
    yield made
    made.close()


def arrives(source: socket.socket, target: socket.socket, data: bytes = b"x") -> None:
    source.sendall(data)
    assert target.recv(100) == data


def nothing_arrives(target: socket.socket) -> None:
    target.settimeout(0.05)
    with pytest.raises(TimeoutError):
        target.recv(1)
    target.settimeout(WITHIN_S)


def test_held_flows_arrive_when_released(network: Network, wires: Wires) -> None:
    client, server = wires.connect(), wires.accept()
    arrives(client, server)
    network.hold([REQUEST])
    client.sendall(b"late")
    arrives(server, client, b"other way")
    nothing_arrives(server)
    network.release()
    assert server.recv(100) == b"late"


def test_responses_are_held_alone(network: Network, wires: Wires) -> None:
    client, server = wires.connect(), wires.accept()
    network.hold([RESPONSE])
    arrives(client, server)
    server.sendall(b"late")
    nothing_arrives(client)
    network.release()
    assert client.recv(100) == b"late"


def test_new_connections_are_held(network: Network, wires: Wires) -> None:
    network.hold([REQUEST])
    client = wires.connect()
    client.sendall(b"late")
    server = wires.accept()
    nothing_arrives(server)
    network.release()
    assert server.recv(100) == b"late"


def test_another_host_is_not_held(network: Network, wires: Wires) -> None:
    network.hold([REQUEST, RESPONSE])
    client, server = wires.connect("127.0.0.8"), wires.accept()
    arrives(client, server)
    arrives(server, client)


def test_refused_hosts_are_disconnected(network: Network, wires: Wires) -> None:
    client, server = wires.connect(), wires.accept()
    arrives(client, server)
    network.refuse([RESPONSE])
    assert all(ends(end) for end in (client, server, wires.connect()))
    network.release()
    arrives(wires.connect(), wires.accept())


def test_ends_are_passed_on(network: Network, wires: Wires) -> None:
    client, server = wires.connect(), wires.accept()
    server.close()
    assert client.recv(1) == b""


def test_slow_receivers_stop_the_sender(network: Network, wires: Wires) -> None:
    """Held and slow connections keep no more than socket buffers."""
    client, server = wires.connect(), wires.accept()
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.sendall(bytes(256 * 1024 * 1024))
    client.shutdown(socket.SHUT_WR)
    received = 0
    while data := server.recv(1 << 20):
        received += len(data)
    assert 0 < received < 64 * 1024 * 1024


def test_a_closed_network_leaves_no_connection() -> None:
    """Connections accepted while it closes are closed too; a socket that is collected open is a warning, and fails."""
    for _ in range(ROUNDS):
        with ExitStack() as opened, Network() as network:
            wires = Wires(network)
            opened.callback(wires.close)
            for _ in range(3):
                wires.connect()
        gc.collect()
