"""Addresses that servers listen on."""

import errno
import ipaddress
import socket

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy

BACKLOG = 128


class CannotListen(OnceflowError):
    """Address that is in use, not this machine's, or not permitted."""


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def local_names(host: str) -> list[str]:
    """Return the names of this machine that a Host header may carry, IPv6 in brackets."""
    own = f"[{host}]" if ":" in host else host
    return ["127.0.0.1", "localhost", "[::1]", own]


def listen(host: str, port: int, *, option: str = "--") -> socket.socket:
    """Return a listening socket; port 0 is any free one. Raises `CannotListen`.

    `option` is the start of the options for host and port, for the message.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        this_machine = Remedy.THIS_MACHINE.format(option=option)
        raise CannotListen(f"'{host}' is not an address of this machine ({error.strerror}): {this_machine}") from error
    family, _, _, _, address = addresses[0]
    try:
        listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise CannotListen(_why_not(error, host, port, option)) from error
    # asyncio does this only for a socket whose protocol is named. Without it, the body of a response waits until the
    # client acknowledges the head: 40 ms. Accepted connections inherit it.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _why_not(error: OSError, host: str, port: int, option: str) -> str:
    if error.errno == errno.EADDRINUSE:
        other_port = Remedy.OTHER_PAGE_PORT.format(option=option)
        return f"port {port} of {host} is in use: {Remedy.STOP_LISTENER}, or {other_port}"
    if error.errno == errno.EACCES:
        return f"this user has no permission for port {port} of {host}: {Remedy.HIGHER_PORT.format(option=option)}"
    this_machine, free_port = (remedy.format(option=option) for remedy in (Remedy.THIS_MACHINE, Remedy.FREE_PORT))
    return f"cannot listen on port {port} of {host} ({error.strerror}): {this_machine} {free_port}"


def url(listening: socket.socket) -> str:
    """Return the server's URL; a wildcard address is shown as the loopback address."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
