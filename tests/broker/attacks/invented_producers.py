"""One connection writes a batch from each of very many invented producer ids, and rolls the segments.

Options: --ids IDS, --partitions COUNT over which they are spread, --batches COUNT of each id.
"""

import argparse

from onceflow.wire.batch import patch_producer
from tests.broker.attacks.neighbour import is_over, ready
from tests.broker.raw_client import RawClient, batch_of

TOPIC = "invented"
PIPELINED = 50
"""Fewer than the limit of a connection's pending requests."""
FIRST_ID = 10_000_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("--ids", type=int, default=200_000)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--batches", type=int, default=1)
    options = parser.parse_args()
    client = RawClient(options.bootstrap)
    client.create_topic(TOPIC, options.partitions, segment_bytes=str(1024**2))
    batch = batch_of(b"x")
    ready()
    at = 0
    while not is_over():
        for _ in range(PIPELINED):
            producer_id, sequence = FIRST_ID + at // options.batches % options.ids, at % options.batches
            patch_producer(
                batch, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=False
            )
            client.send_batch(TOPIC, producer_id % options.partitions, batch)
            at += 1
        for _ in range(PIPELINED):
            client.receive_frame()


if __name__ == "__main__":
    main()
