"""Member of a storm's group: prints time, partition and offset of each message, until SIGTERM."""

import signal
import sys
import threading
import time

from onceflow.client.classic import ConsumerConnector


def main(connect: str, group: str, topic: str) -> None:
    settings = {
        "zookeeper.connect": connect,
        "group.id": group,
        "auto.offset.reset": "smallest",
        "zookeeper.session.timeout.ms": 3_000,
        "rebalance.max.retries": 1_000,
        "rebalance.backoff.ms": 10_000,
        "auto.commit.interval.ms": 1_000,
    }
    connector = ConsumerConnector(settings)
    (stream,) = connector.create_message_streams({topic: 1})[topic]
    # In a thread of its own: the signal may come while this one has a lock of the stream.
    signal.signal(signal.SIGTERM, lambda _number, _frame: threading.Thread(target=connector.shutdown).start())
    for message in stream:
        print(time.time_ns(), message.partition, message.offset, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
