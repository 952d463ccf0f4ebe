"""Long polls of many partitions, pipelined on few or many connections, while records arrive at their topic.

By default one connection sends 100 requests that each name one partition 8,000 times. `min_bytes` is never reached, so
that each request waits for its whole `max_wait_ms`.
"""

import argparse
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from onceflow.wire import fetch
from onceflow.wire.fetch import FetchPartition, FetchRequest
from tests.broker.attacks.neighbour import is_over, ready
from tests.broker.raw_client import FETCH_VERSION, RawClient, batch_of

TOPIC = "parked"
MIN_BYTES = 2**31 - 1
WAIT_MS = 600_000
PAUSE_SECONDS = 0.01
SEND_SECONDS_MAX = 3.0
"""A broker that leaves requests in the socket blocks further ones."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--requests", type=int, default=100, help="long polls of each connection")
    parser.add_argument("--entries", type=int, default=8_000, help="partitions that each request names")
    parser.add_argument("--partitions", type=int, default=1, help="partitions of the topic; entries repeat them")
    parser.add_argument("--again", action="store_true", help="send a further long poll after each response")
    parser.add_argument("--leaving", action="store_true", help="close the connections and open others all the time")
    return parser.parse_args()


def long_poll(entries: int, partitions: int) -> bytes:
    named = [FetchPartition(number % partitions, -1, 0, -1, 1) for number in range(entries)]
    request = FetchRequest(-1, WAIT_MS, MIN_BYTES, MIN_BYTES, 0, 0, -1, [(TOPIC, named)])
    return fetch.encode_request(FETCH_VERSION, 1, "attack", request)


def opened(bootstrap: str, count: int, requests: bytes) -> Sequence[RawClient]:
    """Connections that have sent as many requests as the broker and the kernel accept."""
    clients = [RawClient(bootstrap) for _ in range(count)]
    for client in clients:
        client.socket.settimeout(SEND_SECONDS_MAX / count)
        try:
            client.socket.sendall(requests)
        except TimeoutError:
            continue
    return clients


def ask_again(client: RawClient, request: bytes) -> None:
    """Send a further request for each response, until the harness ends this process."""
    with suppress(ConnectionError):
        while client.receive_frame():
            client.socket.sendall(request)


def main() -> None:
    options = arguments()
    writer = RawClient(options.bootstrap)
    writer.socket.settimeout(120)
    writer.create_topic(TOPIC, options.partitions)
    request = long_poll(options.entries, options.partitions)
    requests = request * options.requests
    clients = opened(options.bootstrap, options.connections, requests)
    for client in clients if options.again else ():
        client.socket.settimeout(None)
        threading.Thread(target=ask_again, args=(client, request), daemon=True).start()
    ready()
    batch = batch_of(b"x")
    while not is_over():
        writer.produce(TOPIC, 0, batch)
        time.sleep(PAUSE_SECONDS)
        if options.leaving:
            for client in clients:
                client.close()
            clients = opened(options.bootstrap, options.connections, requests)


if __name__ == "__main__":
    main()
