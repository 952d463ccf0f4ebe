"""One connection pipelines ListOffsets requests of as many entries as a request may have.

Options: --requests COUNT of one round, --entries COUNT of each, --version N, --timestamp MS.
"""

import argparse

from onceflow.wire import apis
from onceflow.wire.frames import encode_request, request_class
from tests.broker.attacks.neighbour import is_over, ready
from tests.broker.raw_client import RawClient
from tests.wire.messages import build

TOPIC = "listed"
PARTITIONS = 1000


def frame(options: argparse.Namespace) -> bytes:
    """One request, encoded once: the attacker must not be slower than the broker."""
    entry = {"current_leader_epoch": -1, "timestamp": options.timestamp, "max_num_offsets": 1}
    topics = [
        {"name": TOPIC, "partitions": [{**entry, "partition_index": index} for index in range(options.entries)]},
    ]
    fields = {"replica_id": -1, "isolation_level": 0, "topics": topics}
    payload = build(request_class(apis.LIST_OFFSETS, options.version), fields)
    return encode_request(apis.LIST_OFFSETS, options.version, 1, "attack", payload)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--entries", type=int, default=19_998)
    parser.add_argument("--version", type=int, default=5)
    parser.add_argument("--timestamp", type=int, default=-1)
    options = parser.parse_args()
    client = RawClient(options.bootstrap)
    client.socket.settimeout(60)
    client.create_topic(TOPIC, PARTITIONS)
    request = frame(options)
    ready()
    while not is_over():
        # The responses are read only now and then, as by a client that does little with them.
        for _ in range(options.requests // 4):
            client.socket.sendall(request * 4)
            for _ in range(4):
                assert client.receive_frame()


if __name__ == "__main__":
    main()
