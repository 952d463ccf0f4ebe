"""Errors of a partition's log: one class for each that a caller can react to, with Kafka's error code."""

from pathlib import Path
from typing import ClassVar

from onceflow.errors import OnceflowError
from onceflow.wire.errors import ErrorCode


class LogError(OnceflowError):
    """An error that a client receives as `error_code`."""

    error_code: ClassVar[ErrorCode]
    reports_log_start: ClassVar[bool] = True
    """Whether the producer also receives the log's start offset (Kafka's ReplicaManager.appendToLocalLog)."""


class CorruptBatch(LogError):
    """The batch does not match its header: magic, length, CRC-32C or record count."""

    error_code = ErrorCode.corrupt_message
    reports_log_start = False


class InvalidRecord(LogError):
    """The batch is intact, but a client may not send it."""

    error_code = ErrorCode.invalid_record


class NotOneBatch(InvalidRecord):
    """The data of one partition is not exactly one batch of format 2."""

    reports_log_start = False


class InvalidTransactionState(LogError):
    """The batch does not belong to its producer's open transaction."""

    error_code = ErrorCode.invalid_txn_state


class InvalidTimestamp(LogError):
    """The batch's timestamp is too far in the future (`message.timestamp.after.max.ms`)."""

    error_code = ErrorCode.invalid_timestamp


class MessageTooLarge(LogError):
    """The batch is larger than `max.message.bytes`."""

    error_code = ErrorCode.message_too_large
    reports_log_start = False


class RecordListTooLarge(LogError):
    """The batch is larger than a whole segment (`segment.bytes`)."""

    error_code = ErrorCode.record_list_too_large
    reports_log_start = False


class OutOfOrderSequence(LogError):
    """A producer's batch is neither the next one nor one of the last five."""

    error_code = ErrorCode.out_of_order_sequence_number


class EarlierBatchesAwaited(LogError):
    """The first batch of an unknown producer does not begin with sequence 0; earlier ones may be on their way.

    Kafka has no error code for this case. After this one clients send the batch again.
    """

    error_code = ErrorCode.not_enough_replicas


class InvalidProducerEpoch(LogError):
    """A newer producer with the same id has replaced this one."""

    error_code = ErrorCode.invalid_producer_epoch


class TooManyProducers(LogError):
    """The partition remembers as many producers as it may, and none of them can be forgotten yet."""

    error_code = ErrorCode.policy_violation


class TransactionCoordinatorFenced(LogError):
    """The marker has an older coordinator epoch than the producer's last marker."""

    error_code = ErrorCode.transaction_coordinator_fenced


class StorageFailed(LogError):
    """The disk failed; after a failed sync the partition accepts no writes until it is reopened."""

    error_code = ErrorCode.kafka_storage_error
    reports_log_start = False


class NoSpaceForNewLog(StorageFailed):
    """The disk is full, so the directory of a new log was not created."""

    def __init__(self, directory: Path) -> None:
        super().__init__(f"{directory} cannot be created: the disk is full")


class OffsetOutOfRange(LogError):
    """The read is below the log's start or beyond its end."""

    error_code = ErrorCode.offset_out_of_range

    def __init__(self, name: str, offset: int, offset_begin: int, offset_end: int) -> None:
        super().__init__(
            f"{name}: offset {offset} is out of range; the log holds {offset_begin} up to, not including, {offset_end}"
        )
        self.offset = offset
        self.offset_begin = offset_begin
        self.offset_end = offset_end


class DataDirectoryRefused(OnceflowError):
    """The data directory is in use, belongs to another cluster, or is damaged."""


class OtherTopicThere(DataDirectoryRefused):
    """The directory of a partition has the records of another topic, which had the same name."""
