"""Send messages and wait for each acknowledgement: python examples/produce.py HOST:PORT TOPIC"""

import sys

from onceflow.client import KeyedMessage, Producer

if len(sys.argv) != 3:
    print(f"usage: {str(__doc__).rpartition(': ')[2]}", file=sys.stderr)
    sys.exit(2)
bootstrap, topic = sys.argv[1:]
with Producer({"metadata.broker.list": bootstrap, "serializer.class": "StringEncoder"}) as producer:
    producer.send(KeyedMessage(topic, "the first message", key="user-1"))
    producer.send([KeyedMessage(topic, f"message {number}", key=f"user-{number % 3}") for number in range(9)])
print("10 messages acknowledged")
