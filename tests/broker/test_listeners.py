"""Several listeners at once: each shows its clients its own address."""

import socket
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.config import BrokerConfig, Endpoint
from onceflow.broker.network.listener import Listener
from onceflow.broker.network.listening_socket import CannotListen
from onceflow.log.clock import SystemClock
from onceflow.testing import BrokerProcess
from onceflow.wire import apis
from tests.broker.driven_broker import InnerBroker
from tests.broker.raw_client import connected

INSIDE_AND_OUTSIDE = (Endpoint(port=0, listener="INSIDE"), Endpoint(port=0, listener="OUTSIDE"))
PROTOCOLS = {"INSIDE": "PLAINTEXT", "OUTSIDE": "PLAINTEXT"}


def shown_to_clients(address: str) -> set[str]:
    """Return the addresses in the responses that tell a client where to connect."""
    with connected(address) as client:
        brokers = [
            *client.ask(apis.METADATA, 12, topics=(), allow_auto_topic_creation=False, **NO_OPERATIONS).brokers,
            *client.ask(apis.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=False).brokers,
            *client.ask(apis.FIND_COORDINATOR, 4, coordinator_keys=["g"], key_type=0).coordinators,
        ]
    return {f"{broker.host}:{broker.port}" for broker in brokers}


NO_OPERATIONS = {"include_topic_authorized_operations": False}


def test_each_listener_shows_its_address(tmp_path: Path) -> None:
    outside = Endpoint("example.org", 9, "OUTSIDE")
    listeners: dict[str, Any] = {"listeners": INSIDE_AND_OUTSIDE, "listener_protocols": PROTOCOLS}
    with InnerBroker(tmp_path / "data", advertised=(outside,), **listeners) as broker:
        assert shown_to_clients(broker.addresses["INSIDE"]) == {broker.addresses["INSIDE"]}
        assert shown_to_clients(broker.addresses["OUTSIDE"]) == {"example.org:9"}


def test_a_taken_port_frees_the_others(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        ports = [listening.getsockname()[1] for listening in (free, taken)]
        free.close()
        names = ("INSIDE", "OUTSIDE")
        listeners = tuple(Endpoint("127.0.0.1", port, name) for port, name in zip(ports, names, strict=True))
        config = BrokerConfig(tmp_path, listeners=listeners, listener_protocols=PROTOCOLS)
        with pytest.raises(CannotListen, match=f"port {ports[1]} of 127.0.0.1 is taken"):
            Listener(config, SystemClock())
        socket.create_server(("127.0.0.1", ports[0])).close()


def test_the_command_prints_every_listener(tmp_path: Path) -> None:
    options = ("--listeners", "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0")
    protocols = ("--listener-security-protocol-map", "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT")
    with BrokerProcess(tmp_path / "data", 0, *options, *protocols) as broker:
        assert broker._process is not None
        assert broker._process.stdout is not None
        address, name = broker._process.stdout.readline().decode().removeprefix("listening on ").split(" as ")
        assert name == "OUTSIDE, PLAINTEXT\n"
        assert shown_to_clients(address) == {address}
