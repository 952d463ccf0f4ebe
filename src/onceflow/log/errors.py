"""What a partition's log can refuse, one class per thing that a caller can react to, each with Kafka's error code."""

from pathlib import Path
from typing import ClassVar

from onceflow.errors import OnceflowError
from onceflow.wire.errors import ErrorCode


class LogError(OnceflowError):
    """A refusal that a client is told by `error_code`."""

    error_code: ClassVar[ErrorCode]
    tells_log_start: ClassVar[bool] = True
    """Whether a producer is told with it where the log begins (Kafka's ReplicaManager.appendToLocalLog)."""


class CorruptBatch(LogError):
    """The batch is not what its header says: magic, length, CRC-32C or record count."""

    error_code = ErrorCode.corrupt_message
    tells_log_start = False


class InvalidRecord(LogError):
    """The batch is whole, but a client may not send it so."""

    error_code = ErrorCode.invalid_record


class NotOneBatch(InvalidRecord):
    """Bytes that are not the one whole batch of format 2 that a client may send to a partition."""

    tells_log_start = False


class InvalidTransactionState(LogError):
    """A batch of a producer that is not of the transaction which the producer has open."""

    error_code = ErrorCode.invalid_txn_state


class InvalidTimestamp(LogError):
    """The batch is dated too far in the future (`message.timestamp.after.max.ms`)."""

    error_code = ErrorCode.invalid_timestamp


class MessageTooLarge(LogError):
    """The batch is larger than `max.message.bytes`."""

    error_code = ErrorCode.message_too_large
    tells_log_start = False


class RecordListTooLarge(LogError):
    """The batch is larger than a whole segment (`segment.bytes`)."""

    error_code = ErrorCode.record_list_too_large
    tells_log_start = False


class OutOfOrderSequence(LogError):
    """A producer's batch is neither the next one nor one of its last five."""

    error_code = ErrorCode.out_of_order_sequence_number


class InvalidProducerEpoch(LogError):
    """A producer that a newer one with the same id has replaced."""

    error_code = ErrorCode.invalid_producer_epoch


class TooManyProducers(LogError):
    """A partition that remembers as many producers as it may, and can forget none yet."""

    error_code = ErrorCode.policy_violation


class TransactionCoordinatorFenced(LogError):
    """A marker of an older coordinator epoch than the producer's last one."""

    error_code = ErrorCode.transaction_coordinator_fenced


class StorageFailed(LogError):
    """The disk refused; after a failed sync the partition takes no more writes until it is opened again."""

    error_code = ErrorCode.kafka_storage_error
    tells_log_start = False


class NoRoomForNewLog(StorageFailed):
    """The disk is full, and the directory of a new log was not created."""

    def __init__(self, directory: Path) -> None:
        super().__init__(f"{directory} cannot be created: the disk is full")


class OffsetOutOfRange(LogError):
    """A read below the log's start or above its end."""

    error_code = ErrorCode.offset_out_of_range

    def __init__(self, name: str, offset: int, offset_begin: int, offset_end: int) -> None:
        super().__init__(
            f"{name}: offset {offset} was asked for, the log holds {offset_begin} up to, not including, {offset_end}"
        )
        self.offset = offset
        self.offset_begin = offset_begin
        self.offset_end = offset_end


class DataDirectoryRefused(OnceflowError):
    """The data directory is in use, belongs to another cluster, or is not one."""
