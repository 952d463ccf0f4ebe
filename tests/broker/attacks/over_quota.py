"""Producers of one client id that ignore its quota: each has several large requests in flight, and sends the next.

The quota is a megabyte a second for all of them; each connection sends as much at once.
"""

import selectors
import socket
import sys

from onceflow.wire import apis
from tests.broker.attacks.neighbour import TIME_MS, is_over, ready
from tests.broker.raw_client import RawClient, batch_of

CLIENT_ID = "greedy"
TOPIC = "flood"
CONNECTIONS = 100
BYTES_PER_SECOND = 1_000_000
IN_FLIGHT = 16
VALUE_BYTES = 64_000


def limit(client: RawClient) -> None:
    """Set the quota."""
    quota = {"key": "producer_byte_rate", "value": BYTES_PER_SECOND, "remove": False}
    entry = {"entity": [{"entity_type": "client-id", "entity_name": CLIENT_ID}], "ops": [quota]}
    response = client.ask(apis.ALTER_CLIENT_QUOTAS, 1, entries=[entry], validate_only=False)
    assert response.entries[0].error_code == 0, response


def main() -> None:
    clients = [RawClient(sys.argv[1]) for _ in range(CONNECTIONS)]
    limit(clients[0])
    clients[0].create_topic(TOPIC)
    batch = batch_of(bytes(VALUE_BYTES), timestamp_ms=TIME_MS)
    with selectors.DefaultSelector() as selector:
        for client in clients:
            client.client_id = CLIENT_ID
            request = client.produce_request(TOPIC, 0, batch) * IN_FLIGHT
            client.socket.setblocking(False)
            selector.register(client.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, (request, len(request)))
        ready()
        while not is_over():
            for key, events in selector.select(0.1):
                flood(selector, key, events)


def flood(selector: selectors.DefaultSelector, key: selectors.SelectorKey, events: int) -> None:
    """Read the responses that have come, and send the rest of the requests, then all of them again."""
    client = key.fileobj
    assert isinstance(client, socket.socket)
    if events & selectors.EVENT_READ:
        assert client.recv(1 << 16), "the broker closed the connection"
    if events & selectors.EVENT_WRITE:
        request, left = key.data
        left -= client.send(request[-left:])
        selector.modify(client, selectors.EVENT_READ | selectors.EVENT_WRITE, (request, left or len(request)))


if __name__ == "__main__":
    main()
