"""Read a partition from any offset: python examples/simple_consumer.py HOST:PORT TOPIC"""

import sys

from onceflow.client import FetchRequest, SimpleConsumer

if len(sys.argv) != 3:
    print(f"usage: {str(__doc__).rpartition(': ')[2]}", file=sys.stderr)
    sys.exit(2)
bootstrap, topic = sys.argv[1:]
host, _, port = bootstrap.rpartition(":")
with SimpleConsumer(host, int(port), on_out_of_range="earliest") as consumer:
    messages = consumer.fetch(FetchRequest(topic, partition=0, offset=0))
    for message in messages:
        print(message.offset, message.key, message.message)
    print(f"read on at {messages.next_offset}, the partition ends at {messages.high_watermark}")
