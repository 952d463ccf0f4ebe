"""The classic client API: producer, simple consumer and consumer connector, as in Kafka's first clients.

`Producer` and `ConsumerConnector` use librdkafka, `SimpleConsumer` sends its own requests. Settings have the classic
names (`metadata.broker.list`, `producer.type`, `queue.time` …) and each one takes effect; an unknown name is refused
with the nearest known one.
"""

from onceflow.client.classic.connector import ConsumerConnector, ConsumerTimeout
from onceflow.client.classic.encoders import (
    Decoder,
    DefaultDecoder,
    DefaultEncoder,
    Encoder,
    StringDecoder,
    StringEncoder,
)
from onceflow.client.classic.handlers import CallbackHandler, DefaultEventHandler, EventHandler
from onceflow.client.classic.messages import KeyedMessage, MessageAndMetadata, MessageAndOffset
from onceflow.client.classic.partitioners import DefaultPartitioner, Partitioner
from onceflow.client.classic.producer import Producer
from onceflow.client.classic.send_queue import QueueFull
from onceflow.client.classic.sender import SendFailed
from onceflow.client.classic.simple_consumer import FetchRequest, MessageSet, SimpleConsumer
from onceflow.client.cluster import EARLIEST, LATEST
from onceflow.client.topic_filter import Blacklist, TopicFilter, Whitelist

__all__ = [
    "EARLIEST",
    "LATEST",
    "Blacklist",
    "CallbackHandler",
    "ConsumerConnector",
    "ConsumerTimeout",
    "Decoder",
    "DefaultDecoder",
    "DefaultEncoder",
    "DefaultEventHandler",
    "DefaultPartitioner",
    "Encoder",
    "EventHandler",
    "FetchRequest",
    "KeyedMessage",
    "MessageAndMetadata",
    "MessageAndOffset",
    "MessageSet",
    "Partitioner",
    "Producer",
    "QueueFull",
    "SendFailed",
    "SimpleConsumer",
    "StringDecoder",
    "StringEncoder",
    "TopicFilter",
    "Whitelist",
]
