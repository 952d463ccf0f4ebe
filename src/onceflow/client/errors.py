"""What can go wrong between us and a cluster: one class per thing that a caller can react to."""

from onceflow.client.addresses import Address
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode


class ClientError(OnceflowError):
    """Any failure of a request to a cluster."""


class BrokerUnreachable(ClientError):
    """No connection could be opened to `address`."""

    def __init__(self, sentence: str, address: Address) -> None:
        super().__init__(sentence)
        self.address = address


class ConnectionLost(ClientError):
    """The connection ended before the answer was there."""


class NotKafka(ClientError):
    """What came over the connection is not Kafka's protocol, or not in plain text."""


class NotTrusted(ClientError):
    """A broker's certificate was not issued by whom we trust, or is that of another host."""


class ResponseTooLarge(ClientError):
    """An answer, or the record batch in it, is larger than the most that this client takes into memory."""


class RequestTimedOut(ClientError):
    """The broker did not answer in time, or what was waited for did not happen in time."""


class UnsupportedBroker(ClientError):
    """Broker and client have no version of a request in common."""


class UnknownTopic(ClientError):
    """The cluster has no such topic, or the topic no such partition."""


class TopicExists(ClientError):
    """A topic of that name is already there."""


class LeaderUnavailable(ClientError):
    """The partition has no leader, or its leader moved and was not found again in time."""


class CoordinatorUnavailable(ClientError):
    """The group's coordinator is loading, has moved, or was not found in time."""


class ProduceFailed(ClientError):
    """An event was not acknowledged."""


class ProducerFenced(ClientError):
    """A newer producer with this transactional id has taken over, or the transaction timed out and was aborted."""


class InvalidTransaction(ClientError):
    """A call does not fit the state that the transaction is in, here or at its coordinator."""


class RequestRefused(ClientError):
    """The broker answered with an error code that has no class of its own here; `error_code` is that code."""

    def __init__(self, sentence: str, error_code: ErrorCode) -> None:
        super().__init__(sentence)
        self.error_code = error_code


class OffsetOutOfRange(ClientError):
    """The log does not reach from `log_start_offset` to `offset`, or ends at `offset_end` before it."""

    def __init__(self, topic: str, partition: int, offset: int, log_start_offset: int, offset_end: int) -> None:
        super().__init__(
            f"offset {offset} of {topic}-{partition} is out of range: the log begins at {log_start_offset} and "
            f"ends at {offset_end}; {Remedy.READ_WITHIN}"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.offset_end = offset_end
