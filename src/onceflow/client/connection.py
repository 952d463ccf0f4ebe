"""Blocking connection to one broker: negotiates versions, sends a request, waits for its response.

A connection is closed at the first error, because a late response would be read as that of the next request. The
cluster reconnects and retries.
"""

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from onceflow.client.addresses import Address
from onceflow.client.authentication import authenticate
from onceflow.client.errors import (
    BrokerUnreachable,
    ConnectionLost,
    NotKafka,
    NotTrusted,
    RequestTimedOut,
    ResponseTooLarge,
    UnsupportedBroker,
)
from onceflow.client.requests import Build, message
from onceflow.client.security import PLAINTEXT, Security, Tls
from onceflow.remedies import Remedy
from onceflow.wire.apis import API_VERSIONS, APIS
from onceflow.wire.errors import MalformedFrame
from onceflow.wire.frames import decode_response, encode_request

CONNECT_MS_MAX = 10_000
"""A listening broker accepts within milliseconds; a longer timeout only delays the report of a wrong address."""
HANDSHAKE_MS_MAX = 5_000
"""A broker returns its versions at once, even during its start; other servers wait for more data or send nothing."""
RESPONSE_BYTES_MAX = 128 * 1024 * 1024
_SIZE = struct.Struct(">i")

_T = TypeVar("_T")


class Connection:
    """One socket to `host:port`, one request at a time. Created connected and with versions negotiated.

    Raises BrokerUnreachable if nothing accepts or responds, NotKafka if something else does. Every request may raise
    ConnectionLost or RequestTimedOut and then closes the connection.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str = "onceflow",
        timeout_ms: int = 30_000,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
        security: Security = PLAINTEXT,
    ) -> None:
        self.address = Address(host, port)
        self.client_id = client_id
        self.security = security
        self.timeout_ms = timeout_ms
        self.response_bytes_max = response_bytes_max
        self.has_served = True
        """Whether the broker has responded to a request after the handshake; during the handshake it counts as one."""
        self._correlation_id = 0
        self._socket = self._connect()
        try:
            self.timeout_ms = min(timeout_ms, HANDSHAKE_MS_MAX)
            if security.tls is not None:
                self._socket = self._encrypted(security.tls)
            self._broker_versions = self._ask_versions()
            if security.sasl is not None:
                authenticate(self.request_version, self.address, security.sasl)
            self.timeout_ms = timeout_ms
            self.has_served = False
        except (ConnectionLost, RequestTimedOut) as error:
            raise BrokerUnreachable(
                f"the server at {self.address} does not respond like a Kafka broker ({error}); {self._listener_port()}",
                self.address,
            ) from error
        except ResponseTooLarge as error:
            raise NotKafka(
                f"the server at {self.address} does not speak Kafka's protocol"
                f"{'' if security.tls else ' in plain text'}; {self._listener_port()}"
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the socket; a second call has no effect."""
        self._socket.close()

    def is_open(self) -> bool:
        """Return whether the next request can be sent: that a broker closed an idle connection shows only here."""
        try:
            self._socket.setblocking(False)
            # TLS cannot peek. It reads its own messages and then reports that nothing else is there.
            self._socket.recv(1, 0 if self.security.tls else socket.MSG_PEEK)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False  # The end of the stream, or unexpected bytes.

    def version_of(self, api_key: int, *, version_min: int = 0) -> int:
        """Return the highest version of a request that both sides support. Raises UnsupportedBroker below
        `version_min`."""
        ours = APIS[api_key]
        low = max(ours.version_min, version_min)
        theirs_low, theirs_high = self._broker_versions.get(api_key, (0, -1))
        version = min(ours.version_max, theirs_high)
        if version < max(low, theirs_low):
            offered = f"{theirs_low} to {theirs_high}" if theirs_high >= 0 else "none"
            raise UnsupportedBroker(
                f"{self.address} supports {ours.name} versions {offered}, this client requires {low} to "
                f"{ours.version_max}; {Remedy.NEWER_BROKER}"
            )
        return version

    def request(self, api_key: int, build: Build, *, version_min: int = 0) -> Any:
        """Send the request that `build(version)` returns; return the decoded response."""
        version = self.version_of(api_key, version_min=version_min)
        return self.request_version(api_key, version, build)

    def serves(self, api_key: int, version: int) -> bool:
        """Return whether the broker supports this version of a request."""
        low, high = self._broker_versions.get(api_key, (0, -1))
        return low <= version <= high

    def exchange(
        self, encode: Callable[[int], bytes], parse: Callable[[memoryview], _T], *, extra_wait_ms: int = 0
    ) -> _T:
        """Send the frame that `encode(correlation id)` returns, size included, and `parse` the response without its
        size.

        The frame given to `parse` belongs to this response alone; views of it may be kept.
        """
        deadline = time.monotonic() + (self.timeout_ms + extra_wait_ms) / 1000
        with self._closing(extra_wait_ms):
            response = parse(self._receive_frame(self._send(encode, deadline), deadline))
        self.has_served = True
        return response

    def send(self, encode: Callable[[int], bytes]) -> int:
        """Send the frame that `encode(correlation id)` returns without waiting for its response; return that id.

        `receive` must follow, in the same order, before any other request on this connection.
        """
        with self._closing(0):
            return self._send(encode, time.monotonic() + self.timeout_ms / 1000)

    def receive(self, correlation_id: int, parse: Callable[[memoryview], _T]) -> _T:
        """Return the response to an earlier `send`; waits up to the connection's timeout from now."""
        with self._closing(0):
            response = parse(self._receive_frame(correlation_id, time.monotonic() + self.timeout_ms / 1000))
        self.has_served = True
        return response

    @contextlib.contextmanager
    def _closing(self, extra_wait_ms: int) -> Iterator[None]:
        """Close the connection on any error, and raise one with a clear message."""
        try:
            yield
        except TimeoutError as error:
            self.close()
            raise RequestTimedOut(
                f"{self.address} did not respond within {self.timeout_ms + extra_wait_ms} ms; "
                f"{Remedy.LOOK_AT_BROKER_LOG}, or {Remedy.MORE_TIME}"
            ) from error
        except OSError as error:
            self.close()
            raise ConnectionLost(f"the connection to {self.address} broke: {error}; {self._after_loss()}") from error
        except MalformedFrame as error:
            self.close()
            raise NotKafka(f"{self.address} sent a response that violates Kafka's protocol: {error}") from error
        except BaseException:
            self.close()
            raise

    def _send(self, encode: Callable[[int], bytes], deadline: float) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        self._socket.settimeout(_left_s(deadline))
        self._socket.sendall(encode(self._correlation_id))
        return self._correlation_id

    def _connect(self) -> socket.socket:
        timeout_s = min(self.timeout_ms, CONNECT_MS_MAX) / 1000
        try:
            connected = socket.create_connection(self.address, timeout=timeout_s)
        except (OSError, UnicodeError) as error:
            raise BrokerUnreachable(
                f"no Kafka broker responds at {self.address}: {_reason(error)}; "
                f"{Remedy.START_BROKER}, or {Remedy.NAME_BROKER}",
                self.address,
            ) from error
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    def _encrypted(self, tls: Tls) -> ssl.SSLSocket:
        self._socket.settimeout(self.timeout_ms / 1000)
        try:
            return tls.wrap(self._socket, self.address.host)
        except ssl.SSLCertVerificationError as error:
            raise NotTrusted(
                f"the certificate of {self.address} is not trusted: {error.verify_message}; {Remedy.TRUSTED_FILE}"
            ) from error
        except ssl.SSLError as error:
            raise NotKafka(
                f"the server at {self.address} does not accept our TLS handshake ({error.reason or error}); "
                f"{self._listener_port()}"
            ) from error
        except OSError as error:
            raise BrokerUnreachable(
                f"{self.address} ended the TLS handshake: {_reason(error)}; does it require a client certificate?",
                self.address,
            ) from error

    def _listener_port(self) -> str:
        words = ("TLS" if self.security.tls else "plain", " with SASL" if self.security.sasl else "")
        return f"{Remedy.SECURITY_PROTOCOL}, or {Remedy.LISTENER_PORT.format(kind=words[0])}{words[1]}"

    def _after_loss(self) -> str:
        """Return the remedies of a lost connection: a broker closes it at the first request without a SASL login."""
        needs_login = self.security.sasl is None and not self.has_served
        return f"{Remedy.SECURITY_PROTOCOL}, or {Remedy.TRY_AGAIN}" if needs_login else Remedy.TRY_AGAIN

    def _ask_versions(self) -> dict[int, tuple[int, int]]:
        # Every broker supports version 0, old or new; later ones return nothing that is used here.
        response = self.request_version(API_VERSIONS, 0, message(API_VERSIONS))
        return {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}

    def request_version(self, api_key: int, version: int, build: Build) -> Any:
        """Send a request in exactly that version, which the broker must support."""
        payload = build(version)
        return self.exchange(
            lambda correlation_id: encode_request(api_key, version, correlation_id, self.client_id, payload),
            lambda frame: decode_response(api_key, version, frame)[1],
        )

    def _receive_frame(self, correlation_id: int, deadline: float) -> memoryview:
        (size_bytes,) = _SIZE.unpack(self._receive(4, deadline))
        if not 4 <= size_bytes <= self.response_bytes_max:
            raise ResponseTooLarge(
                f"{self.address} announced a response of {size_bytes} bytes, more than the limit of "
                f"{self.response_bytes_max}; {Remedy.LARGER_BATCHES}"
            )
        frame = self._receive(size_bytes, deadline)
        (responded_id,) = _SIZE.unpack_from(frame)
        if responded_id != correlation_id:
            raise NotKafka(
                f"{self.address} responded to request {responded_id} instead of {correlation_id}; "
                "a broker responds in the order of the requests"
            )
        return frame

    def _receive(self, size_bytes: int, deadline: float) -> memoryview:
        whole = memoryview(bytearray(size_bytes))
        rest = whole
        while rest:
            self._socket.settimeout(_left_s(deadline))
            received = self._socket.recv_into(rest)
            if received == 0:
                raise ConnectionLost(f"{self.address} closed the connection before it responded; {self._after_loss()}")
            rest = rest[received:]
        return whole


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
