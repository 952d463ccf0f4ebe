"""The eight steps of a transaction: the version of each request and the meaning of each error code.

`python -m onceflow.spark.kafka.steps` prints the table of docs/kafka-sink.md from `STEPS`. A code that a step does not
list stops the query: continuing after it would be unsafe.
"""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from onceflow.remedies import Remedy
from onceflow.spark.errors import AttemptEnded
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode, error_name


class Refused(AttemptEnded):
    """A response whose error code ends the attempt."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Verdict(Enum):
    """Consequence of a response's error code at one step."""

    DONE = "done"
    RETRY = "send the same request again"
    END_ATTEMPT = "end the attempt"
    FAIL_QUERY = "stop the query"


class Step(NamedTuple):
    """One step; `version` is the highest that is requested, `version_min` the lowest that is accepted."""

    number: int
    name: str
    api_key: int
    version_min: int
    version: int
    retry: frozenset[ErrorCode]
    end_attempt: frozenset[ErrorCode]

    def verdict(self, code: int) -> Verdict:
        """Return the consequence of an error code."""
        if code == ErrorCode.none:
            return Verdict.DONE
        if code in self.retry:
            return Verdict.RETRY
        return Verdict.END_ATTEMPT if code in self.end_attempt else Verdict.FAIL_QUERY


def _step(
    number: int,
    api_key: int,
    versions: tuple[int, int],
    retry: Iterable[ErrorCode],
    end_attempt: Iterable[ErrorCode] = (),
) -> Step:
    return Step(number, apis.APIS[api_key].name, api_key, *versions, frozenset(retry), frozenset(end_attempt))


COORDINATOR_MOVED = frozenset(
    {ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available, ErrorCode.not_coordinator}
)
"""Codes after which the coordinator is looked up again."""
_RETRIABLE = COORDINATOR_MOVED | {ErrorCode.concurrent_transactions}
FENCED = frozenset({ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced})
"""Codes of a newer epoch: another driver took it, or the coordinator did when the transaction timed out."""
_LEADER_MOVED = (
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.leader_not_available,
    ErrorCode.not_leader_or_follower,
    ErrorCode.request_timed_out,
    ErrorCode.network_exception,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
)
_LOST_PRODUCER_STATE = (
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.invalid_txn_state,
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.unknown_producer_id,
    ErrorCode.transaction_abortable,
)

FIND_COORDINATOR = _step(
    1,
    apis.FIND_COORDINATOR,
    (2, 2),
    (ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available),
)
INIT_PRODUCER_ID = _step(2, apis.INIT_PRODUCER_ID, (4, 4), _RETRIABLE)
OFFSET_FETCH = _step(3, apis.OFFSET_FETCH, (7, 7), _RETRIABLE | {ErrorCode.unstable_offset_commit})
ADD_PARTITIONS = _step(
    4,
    apis.ADD_PARTITIONS_TO_TXN,
    (3, 3),
    _RETRIABLE | {ErrorCode.unknown_topic_or_partition},
    (ErrorCode.producer_fenced,),
)
ADD_OFFSETS = _step(5, apis.ADD_OFFSETS_TO_TXN, (3, 3), _RETRIABLE, (ErrorCode.producer_fenced,))
PRODUCE = _step(
    6,
    apis.PRODUCE,
    (9, 11),
    (*_LEADER_MOVED, ErrorCode.concurrent_transactions),
    FENCED.union(_LOST_PRODUCER_STATE),
)
TXN_OFFSET_COMMIT = _step(
    7,
    apis.TXN_OFFSET_COMMIT,
    (3, 3),
    _RETRIABLE | {ErrorCode.unknown_topic_or_partition},
    FENCED | {ErrorCode.invalid_txn_state},
)
END_TXN = _step(8, apis.END_TXN, (3, 3), _RETRIABLE, (ErrorCode.invalid_txn_state, ErrorCode.producer_fenced))

STEPS = (
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    OFFSET_FETCH,
    ADD_PARTITIONS,
    ADD_OFFSETS,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    END_TXN,
)

_HINTS: dict[int, str] = {
    ErrorCode.message_too_large: (
        f"the topic's max.message.bytes was lowered while the batch was written: {Remedy.START_AGAIN}"
    ),
    ErrorCode.offset_metadata_too_large: (
        f"the broker's offset.metadata.max.bytes is below 4096: {Remedy.RAISE_SETTING}"
    ),
    ErrorCode.record_list_too_large: (
        f"the topic's segment.bytes is smaller than a batch: {Remedy.RAISE_SETTING}, or {Remedy.LOWER_BATCH_BYTES}"
    ),
    ErrorCode.topic_authorization_failed: f"the sink's user may not write to the topic: {Remedy.GRANT_WRITE}",
    ErrorCode.group_authorization_failed: f"the sink's user may not use the marker's group: {Remedy.GRANT_READ}",
    ErrorCode.unsupported_version: f"the broker is too old: {Remedy.NEWER_KAFKA}",
    ErrorCode.invalid_transaction_timeout: f"{Remedy.LOWER_TIMEOUT}, or {Remedy.RAISE_MAX_TIMEOUT}",
    ErrorCode.transactional_id_authorization_failed: (
        f"the sink's user may not use the transactional id: {Remedy.GRANT_WRITE}"
    ),
    ErrorCode.invalid_record: (
        "the topic refuses such records (a compacted one needs keys; timestamps must be near the broker's clock)"
    ),
}


def code_name(code: int) -> str:
    """Return Kafka's name of a code with its number, as in the table of steps."""
    name = error_name(code)
    return name if str(code) in name else f"{name} ({code})"


def remedy(code: int) -> str:
    """Return the remedy for a code that stopped the query."""
    return _HINTS.get(code, f"the batch was not written; {Remedy.LOOK_AT_BROKER_LOG}, then {Remedy.START_AGAIN}")


def table() -> str:
    """Return the table of steps in docs/kafka-sink.md."""
    lines = ["| # | step | version | retry | end attempt |", "|---|---|---|---|---|"]
    for step in STEPS:
        versions = str(step.version) if step.version == step.version_min else f"{step.version_min} to {step.version}"
        retry, end_attempt = (
            ", ".join(str(int(code)) for code in sorted(codes)) or "none" for codes in (step.retry, step.end_attempt)
        )
        lines.append(f"| {step.number} | {step.name} | {versions} | {retry} | {end_attempt} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
