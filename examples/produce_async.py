"""Queue messages and filter them in a callback: python examples/produce_async.py HOST:PORT TOPIC"""

import sys

from onceflow.client import KeyedMessage, Producer
from onceflow.client.classic import CallbackHandler
from onceflow.client.classic.handlers import Messages

if len(sys.argv) != 3:
    print(f"usage: {str(__doc__).rpartition(': ')[2]}", file=sys.stderr)
    sys.exit(2)
bootstrap, topic = sys.argv[1:]


class Count(CallbackHandler):
    """Callback handler that drops empty messages and prints the size of each batch."""

    def before_sending_data(self, messages: Messages) -> Messages:
        kept = [message for message in messages if message.message]
        print(f"a batch of {len(messages)}, {len(kept)} of them sent")
        return kept


config = {
    "metadata.broker.list": bootstrap,
    "serializer.class": "StringEncoder",
    "producer.type": "async",
    "queue.time": 100,
    "batch.size": 5,
    "callback.handler": Count(),
}
with Producer(config) as producer:
    producer.send([KeyedMessage(topic, text, key="user-1") for text in ("a", "", "b", "c", "d", "e")])
