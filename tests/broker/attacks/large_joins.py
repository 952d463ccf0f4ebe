"""JoinGroup requests with large subscriptions, which the broker keeps while the members are in their groups."""

import argparse
import time

from onceflow.wire import apis
from tests.broker.attacks.neighbour import is_over, ready
from tests.broker.raw_client import RawClient, milliseconds

SESSION_MS = 1_800_000
VERSION = 3
"""Last version in which a member need not request an id first."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("--count", type=int, default=30, help="members; 0: no limit")
    parser.add_argument("--size", type=int, default=15_000_000, help="bytes of a subscription")
    parser.add_argument("--protocols", type=int, default=1, help="protocols that the bytes are spread over")
    parser.add_argument("--one-group", action="store_true", help="all in one group, instead of one group each")
    options = parser.parse_args()
    share = options.size // options.protocols
    protocols = [{"name": f"p{number}", "metadata": bytes(share)} for number in range(options.protocols)]
    clients = []
    ready()
    number = 0
    while not is_over() and (number < options.count or not options.count):
        client = RawClient(options.bootstrap)
        clients.append(client)
        client.send(
            apis.JOIN_GROUP,
            VERSION,
            group_id="large" if options.one_group else f"large-{number}",
            session_timeout=milliseconds(SESSION_MS),
            rebalance_timeout=milliseconds(SESSION_MS),
            member_id="",
            protocol_type="consumer",
            protocols=protocols,
        )
        if not options.one_group:
            assert client.receive_frame(), "the broker closed the connection"
            clients.remove(client)
            client.close()
        number += 1
    while not is_over():
        time.sleep(0.1)


if __name__ == "__main__":
    main()
