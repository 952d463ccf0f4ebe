"""Connections that each write batches of very many compressed records to a partition of a compacted topic.

Options: --bombs COUNT of connections and partitions, --records COUNT of each batch, --codec NAME.
"""

import argparse

from onceflow.wire.batch import Record, encode_batch
from onceflow.wire.codecs import Codec
from tests.broker.attacks.neighbour import is_over, ready
from tests.broker.raw_client import RawClient

TOPIC = "compacted"
TIME_MS = 1_700_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("--bombs", type=int, default=16)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--codec", choices=[codec.name.lower() for codec in Codec], default="zstd")
    options = parser.parse_args()
    clients = [RawClient(options.bootstrap) for _ in range(options.bombs)]
    clients[0].create_topic(TOPIC, options.bombs, cleanup_policy="compact")
    records = [Record(offset, TIME_MS, b"k", None) for offset in range(options.records)]
    bomb = encode_batch(records, codec=Codec[options.codec.upper()])
    for client in clients:
        client.socket.settimeout(120)
    ready()
    while not is_over():
        for partition, client in enumerate(clients):
            client.send_batch(TOPIC, partition, bomb)
        for client in clients:
            response = client.receive_produced()
            assert response.error_code == 0, response


if __name__ == "__main__":
    main()
