"""Errors of requests to a cluster: one class for each that a caller can react to."""

from onceflow.client.addresses import Address
from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.wire.errors import ErrorCode


class ClientError(OnceflowError):
    """Any failure of a request to a cluster."""


class BrokerUnreachable(ClientError):
    """No connection to `address` could be opened."""

    def __init__(self, message: str, address: Address) -> None:
        super().__init__(message)
        self.address = address


class ConnectionLost(ClientError):
    """The connection ended before the response arrived."""


class NotKafka(ClientError):
    """The data received is not Kafka's protocol, or not in plain text."""


class NotTrusted(ClientError):
    """A broker's certificate has no trusted issuer, or names another host."""


class InvalidSecurity(ClientError):
    """A setting of TLS or SASL is unknown, missing, or cannot be used."""


class ResponseTooLarge(ClientError):
    """A response, or the record batch in it, exceeds what this client reads into memory."""


class RequestTimedOut(ClientError):
    """The broker did not respond in time, or an expected change did not happen in time."""


class UnsupportedBroker(ClientError):
    """Broker and client have no version of a request in common."""


class UnknownTopic(ClientError):
    """The cluster has no such topic, or the topic no such partition."""


class TopicExists(ClientError):
    """A topic of that name already exists."""


class LeaderUnavailable(ClientError):
    """The partition has no leader, or its leader moved and was not found in time."""


class CoordinatorUnavailable(ClientError):
    """The group's coordinator is loading, has moved, or was not found in time."""


class ProduceFailed(ClientError):
    """An event was not acknowledged."""


class ProducerFenced(ClientError):
    """A newer producer with this transactional id has taken over, or the transaction timed out and was aborted."""


class InvalidTransaction(ClientError):
    """A call does not match the state of the transaction, here or at its coordinator."""


_NOT_ALLOWED = frozenset(
    {
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
    }
)


class RequestRefused(ClientError):
    """The broker returned an error code without a class of its own here, in `error_code`."""

    def __init__(self, message: str, error_code: ErrorCode) -> None:
        super().__init__(f"{message}; {Remedy.ALLOW_IT}" if error_code in _NOT_ALLOWED else message)
        self.error_code = error_code


class OffsetOutOfRange(ClientError):
    """The log does not contain `offset`: it starts at `log_start_offset` and ends at `offset_end`."""

    def __init__(self, topic: str, partition: int, offset: int, log_start_offset: int, offset_end: int) -> None:
        super().__init__(
            f"offset {offset} of {topic}-{partition} is out of range: the log starts at {log_start_offset} and "
            f"ends at {offset_end}; {Remedy.READ_WITHIN}"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.offset_end = offset_end
