"""Read a topic as a member of a group, with two threads: python examples/consumer_group.py HOST:PORT TOPIC"""

import sys
import threading

from onceflow.client import ConsumerConnector
from onceflow.client.classic import ConsumerTimeout, StringDecoder
from onceflow.client.classic.streams import MessageStream

if len(sys.argv) != 3:
    print(f"usage: {str(__doc__).rpartition(': ')[2]}", file=sys.stderr)
    sys.exit(2)
bootstrap, topic = sys.argv[1:]
config = {
    "metadata.broker.list": bootstrap,
    "group.id": "example",
    "auto.offset.reset": "smallest",
    "consumer.timeout.ms": 3000,
}


def read(stream: MessageStream) -> None:
    """Print messages until none arrives for three seconds."""
    try:
        for message in stream:
            print(f"{message.partition}:{message.offset} {message.key} {message.message}")
    except ConsumerTimeout:
        return


with ConsumerConnector(config) as connector:
    streams = connector.create_message_streams({topic: 2}, StringDecoder(), StringDecoder())[topic]
    threads = [threading.Thread(target=read, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connector.commit_offsets()
print("committed")
