"""One group of thousands of members that rebalances all the time."""

import argparse
from typing import Any

from onceflow.wire import apis
from tests.broker.attacks.neighbour import is_over, ready
from tests.broker.raw_client import RawClient, milliseconds

GROUP = "large"
JOIN_VERSION = 3
"""Last version in which a member need not request an id first."""
SYNC_VERSION = 2
PIPELINED = 100
"""Maximum number of pending requests of a connection."""
SESSION_MS = 300_000


class Members:
    """Members that share one connection; each knows its member id after its first JoinGroup response."""

    def __init__(self, bootstrap: str, count: int, metadata: bytes) -> None:
        self.client = RawClient(bootstrap)
        self.client.socket.settimeout(120)
        self.ids = [""] * count
        self._metadata = metadata

    def send_joins(self) -> None:
        for member_id in self.ids:
            self.client.send(
                apis.JOIN_GROUP,
                JOIN_VERSION,
                group_id=GROUP,
                session_timeout=milliseconds(SESSION_MS),
                rebalance_timeout=milliseconds(SESSION_MS),
                member_id=member_id,
                protocol_type="consumer",
                protocols=[{"name": "range", "metadata": self._metadata}],
            )

    def receive_joins(self) -> list[Any]:
        responses = [self.client.receive(apis.JOIN_GROUP, JOIN_VERSION) for _ in self.ids]
        self.ids = [response.member_id for response in responses]
        return responses

    def send_syncs(self, generation: int, leader: str, assignments: list[dict[str, Any]]) -> None:
        for member_id in self.ids:
            self.client.send(
                apis.SYNC_GROUP,
                SYNC_VERSION,
                group_id=GROUP,
                generation_id=generation,
                member_id=member_id,
                assignments=assignments if member_id == leader else (),
            )

    def receive_syncs(self) -> None:
        for _ in self.ids:
            self.client.receive(apis.SYNC_GROUP, SYNC_VERSION)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("--members", type=int, default=3000)
    parser.add_argument("--metadata-bytes", type=int, default=100)
    options = parser.parse_args()
    members = [
        Members(options.bootstrap, PIPELINED, bytes(options.metadata_bytes))
        for _ in range(options.members // PIPELINED)
    ]
    first = Members(options.bootstrap, 1, bytes(options.metadata_bytes))
    first.send_joins()
    first.receive_joins()
    members.append(first)
    ready()
    while not is_over():
        rebalance(members)


def rebalance(members: list[Members]) -> None:
    """Every member joins, the first one last; then every member syncs."""
    for some in members:
        some.send_joins()
    responses = [join for some in members for join in some.receive_joins()]
    leader, generation = responses[0].leader, responses[0].generation_id
    assignments = [{"member_id": response.member_id, "assignment": bytes(100)} for response in responses]
    for some in members:
        some.send_syncs(generation, leader, assignments)
    for some in members:
        some.receive_syncs()


if __name__ == "__main__":
    main()
