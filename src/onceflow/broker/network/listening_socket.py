"""A socket that listens on one endpoint, with the certificates of its listener."""

import errno
import socket
from dataclasses import dataclass

from onceflow.broker.config import BrokerConfig, Endpoint
from onceflow.broker.security.tls import ListenerTls
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy


class CannotListen(OnceflowError):
    """The broker cannot listen on its address."""


@dataclass(slots=True)
class ListeningSocket:
    """A socket that listens, with its address and the one that its clients connect to."""

    socket: socket.socket
    endpoint: Endpoint
    advertised: Endpoint
    tls: ListenerTls | None
    """None without encryption."""
    has_sasl: bool
    """Whether clients authenticate with SASL."""

    @classmethod
    def open(cls, endpoint: Endpoint, config: BrokerConfig) -> "ListeningSocket":
        """Listen on an endpoint; port 0 is any free one. Raises CannotListen, InvalidTls."""
        name = endpoint.listener
        protocol = config.listener_protocols[name]
        has_sasl = protocol.startswith("SASL_")
        tls = None
        if protocol.endswith("SSL"):
            tls = ListenerTls(name, config.security_of(name), is_authentication=not has_sasl)
        listening = _listen(endpoint, config)
        bound = endpoint._replace(port=listening.getsockname()[1])
        return cls(listening, bound, config.advertised_for(bound), tls, has_sasl)


def _listen(endpoint: Endpoint, config: BrokerConfig) -> socket.socket:
    host, port = endpoint.host, endpoint.port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=config.listen_backlog)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = f"port {port} of {host} is taken; {Remedy.OTHER_BROKER_PORT}"
        else:
            reason = f"{host}:{port}: {error}"
        raise CannotListen(f"the broker cannot listen: {reason}") from error
    # The connections inherit these; set later, the receive buffer would not change the window's scale.
    if config.socket_send_buffer_bytes != -1:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.socket_send_buffer_bytes)
    if config.socket_receive_buffer_bytes != -1:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.socket_receive_buffer_bytes)
    listener.setblocking(False)
    return listener
