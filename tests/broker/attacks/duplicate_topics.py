"""Connections that send CreateTopics, CreatePartitions or DeleteTopics with as many names as a request may have.

Options: --api create|partitions|delete, --names COUNT, --once: each name once, of an existing topic or not.
"""

import argparse
from typing import Any

from onceflow.wire import apis
from tests.broker.attacks.neighbour import is_over, ready
from tests.broker.raw_client import RawClient, milliseconds


def request(options: argparse.Namespace) -> tuple[int, int, dict[str, Any]]:
    """API key, version and fields."""
    names = [f"t{number if options.once else number // 2}" for number in range(options.names)]
    timeout = milliseconds(1000)
    if options.api == "delete":
        return apis.DELETE_TOPICS, 5, {"topic_names": names, "timeout": timeout}
    topics: list[dict[str, Any]]
    if options.api == "partitions":
        topics = [{"name": name, "count": 2, "assignments": None} for name in names]
        return apis.CREATE_PARTITIONS, 3, {"topics": topics, "timeout": timeout, "validate_only": True}
    topics = [
        {"name": name, "num_partitions": 0, "replication_factor": 1, "assignments": (), "configs": ()} for name in names
    ]
    return apis.CREATE_TOPICS, 7, {"topics": topics, "timeout": timeout, "validate_only": False}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("--api", choices=["create", "partitions", "delete"], default="create")
    parser.add_argument("--names", type=int, default=20_000)
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    client = RawClient(options.bootstrap)
    client.socket.settimeout(60)
    api_key, version, fields = request(options)
    ready()
    while not is_over():
        client.send(api_key, version, **fields)
        assert client.receive_frame()


if __name__ == "__main__":
    main()
