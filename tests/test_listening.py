"""Addresses that servers listen on."""

import errno
import socket
from typing import Any

import pytest

from onceflow.listening import CannotListen, is_loopback, listen, url
from onceflow.remedies import Remedy
from onceflow.services import free_port
from tests import remedies


@pytest.mark.remedy(Remedy.STOP_LISTENER, Remedy.OTHER_PAGE_PORT)
def test_port_in_use() -> None:
    with listen("127.0.0.1", 0) as used:
        port = used.getsockname()[1]
        with pytest.raises(CannotListen, match=rf"port {port} of 127\.0\.0\.1 is in use") as raised:
            listen("127.0.0.1", port)
        remedies.find(Remedy.OTHER_PAGE_PORT, raised.value)
        listen("127.0.0.1", 0).close()
    remedies.find(Remedy.STOP_LISTENER, raised.value)
    listen("127.0.0.1", port).close()


@pytest.mark.remedy(Remedy.HIGHER_PORT)
def test_privileged_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a user without permission, as these tests may run as root."""
    create = socket.create_server

    def not_allowed(address: tuple[str, int], **options: Any) -> socket.socket:
        if 0 < address[1] < 1024:
            raise PermissionError(errno.EACCES, "Permission denied")
        return create(address, **options)

    monkeypatch.setattr(socket, "create_server", not_allowed)
    with pytest.raises(CannotListen) as raised:
        listen("127.0.0.1", 80)
    remedies.find(Remedy.HIGHER_PORT, raised.value)
    listen("127.0.0.1", free_port()).close()


@pytest.mark.remedy(Remedy.THIS_MACHINE)
def test_invalid_host() -> None:
    with pytest.raises(CannotListen) as raised:
        listen("no host", 0)
    remedies.find(Remedy.THIS_MACHINE, raised.value)
    listen("127.0.0.1", 0).close()


@pytest.mark.remedy(Remedy.THIS_MACHINE, Remedy.FREE_PORT)
def test_address_of_another_machine() -> None:
    with pytest.raises(CannotListen) as raised:
        listen("203.0.113.7", 0)
    remedies.find(Remedy.THIS_MACHINE, raised.value)
    remedies.find(Remedy.FREE_PORT, raised.value)
    listen("127.0.0.1", 0).close()


def test_the_shown_address_can_be_opened() -> None:
    with listen("0.0.0.0", 0) as everywhere:
        assert url(everywhere) == f"http://127.0.0.1:{everywhere.getsockname()[1]}"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_bodies_do_not_wait_for_acknowledgements() -> None:
    """TCP_NODELAY holds for accepted connections too."""
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
