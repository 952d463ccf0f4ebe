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


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 is any free one. Raises `CannotListen`."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise CannotListen(
            f"'{host}' is not an address of this machine ({error.strerror}): {Remedy.THIS_MACHINE}"
        ) from error
    family, _, _, _, address = addresses[0]
    try:
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise CannotListen(_why_not(error, host, port)) from error


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: {Remedy.STOP_LISTENER}, or {Remedy.OTHER_PAGE_PORT}"
    if error.errno == errno.EACCES:
        return f"this user has no permission for port {port} of {host}: {Remedy.HIGHER_PORT}"
    return f"cannot listen on port {port} of {host} ({error.strerror}): {Remedy.THIS_MACHINE} {Remedy.FREE_PORT}"


def url(listening: socket.socket) -> str:
    """Return the server's URL; a wildcard address is shown as the loopback address."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
