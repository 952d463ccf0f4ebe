"""JoinGroup requests without a member id: each makes the broker assign an id that is never used (KIP-394)."""

import argparse
import itertools

from onceflow.wire import apis
from tests.broker.attacks.neighbour import is_over, ready
from tests.broker.raw_client import RawClient, milliseconds

PIPELINED = 100
VERSION = 5
"""Second version that assigns member ids."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("--count", type=int, default=100_000, help="requests; 0: no limit")
    parser.add_argument("--groups", type=int, default=1, help="groups that they are spread over")
    parser.add_argument("--session-ms", type=int, default=1_800_000)
    parser.add_argument("--name-bytes", type=int, default=10, help="length of the group ids")
    options = parser.parse_args()
    client = RawClient(options.bootstrap)
    groups = itertools.cycle([f"{number:0{options.name_bytes}}" for number in range(options.groups)])
    ready()
    sent = 0
    while not is_over() and (sent < options.count or not options.count):
        for group_id in itertools.islice(groups, PIPELINED):
            send_join(client, group_id, options.session_ms)
        for _ in range(PIPELINED):
            assert client.receive_frame(), "the broker closed the connection"
        sent += PIPELINED


def send_join(client: RawClient, group_id: str, session_ms: int) -> None:
    client.send(
        apis.JOIN_GROUP,
        VERSION,
        group_id=group_id,
        session_timeout=milliseconds(session_ms),
        rebalance_timeout=milliseconds(session_ms),
        member_id="",
        group_instance_id=None,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )


if __name__ == "__main__":
    main()
