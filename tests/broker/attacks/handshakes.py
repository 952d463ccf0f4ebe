"""Handshakes and logins that cost the broker more than their client: begun and left, repeated, or wrong.

ADDRESS is a listener with TLS (`half`, `whole`), or with SASL/PLAIN (`logins`).
"""

import argparse
import contextlib
import selectors
import socket
import ssl
import struct
from typing import Any

from onceflow.wire import apis
from onceflow.wire.frames import encode_request, request_class
from tests.broker.attacks.neighbour import is_over, ready
from tests.wire.messages import build

CONNECTIONS = 1000


def hello() -> bytes:
    """Return the first message of a handshake."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def wrong_login() -> bytes:
    """Return both requests of a login with a wrong password."""
    fields: dict[int, dict[str, Any]] = {
        apis.SASL_HANDSHAKE: {"mechanism": "PLAIN"},
        apis.SASL_AUTHENTICATE: {"auth_bytes": b"\0ada\0wrong"},
    }
    return b"".join(
        encode_request(key, 1, key, "attack", build(request_class(key, 1), value)) for key, value in fields.items()
    )


def flood(address: tuple[str, int], sent: bytes) -> None:
    """Keep CONNECTIONS open that have sent these bytes; one that has a response, or is closed, is replaced."""
    with selectors.DefaultSelector() as selector:

        def connect() -> None:
            client = socket.create_connection(address)
            client.sendall(sent)
            client.setblocking(False)
            selector.register(client, selectors.EVENT_READ)

        for _ in range(CONNECTIONS):
            connect()
        ready()
        while not is_over():
            for key, _events in selector.select(0.1):
                selector.unregister(key.fileobj)
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                key.fileobj.close()
                with contextlib.suppress(OSError):
                    connect()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("--address", required=True)
    parser.add_argument("--kind", choices=("half", "whole", "logins"), required=True)
    options = parser.parse_args()
    host, _, port = options.address.rpartition(":")
    sent = {"half": lambda: hello()[:50], "whole": hello, "logins": wrong_login}[options.kind]()
    flood((host, int(port)), sent)


if __name__ == "__main__":
    main()
