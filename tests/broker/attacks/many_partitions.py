"""One connection writes a record to each of thousands of partitions with one Produce request, acks=all, repeatedly."""

import argparse
import time

from onceflow.wire import produce
from tests.broker.attacks.neighbour import is_over, ready
from tests.broker.raw_client import PRODUCE_VERSION, RawClient, batch_of

TOPIC = "wide"
TOPIC_PARTITIONS_MAX = 1000
"""Partitions of one topic, so that the limits of a topic's creation do not matter."""
TIMEOUT_SECONDS = 120
RECORD = b"y" * 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("--partitions", type=int, default=9000)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--timestamp-ms", type=int, default=round(time.time() * 1000), help="of every record")
    options = parser.parse_args()
    client = RawClient(options.bootstrap)
    client.socket.settimeout(TIMEOUT_SECONDS)
    counts = create(client, options.partitions)
    ready()
    for number in range(options.requests):
        if is_over():
            return
        write(client, counts, number, options.timestamp_ms)
    while not is_over():
        time.sleep(0.1)


def create(client: RawClient, partitions: int) -> dict[str, int]:
    """Create topics with this total of partitions; return the count of each."""
    counts = {}
    for begin in range(0, partitions, TOPIC_PARTITIONS_MAX):
        name = f"{TOPIC}-{begin}"
        counts[name] = min(TOPIC_PARTITIONS_MAX, partitions - begin)
        client.create_topic(name, counts[name])
    return counts


def write(client: RawClient, counts: dict[str, int], number: int, timestamp_ms: int) -> None:
    """Produce a record to every partition with one request; fail unless each is acknowledged."""
    batch = batch_of(RECORD, timestamp_ms=timestamp_ms)
    topics = [(name, [(index, batch) for index in range(count)]) for name, count in counts.items()]
    pieces = produce.encode_request(
        PRODUCE_VERSION, number, "raw", transactional_id=None, acks=-1, timeout_ms=10_000, topics=topics
    )
    client.socket.sendall(b"".join(map(bytes, pieces)))
    _correlation_id, responses, _throttle_ms = produce.parse_response(PRODUCE_VERSION, client.receive_frame())
    refused = [partition for _name, partitions in responses for partition in partitions if partition.error_code]
    assert not refused, refused[0]


if __name__ == "__main__":
    main()
