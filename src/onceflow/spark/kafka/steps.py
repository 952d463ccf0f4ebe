"""The eight steps of a transaction: which version each request has and what each error code means there.

`python -m onceflow.spark.kafka.steps` draws the table of docs/kafka-sink.md from `STEPS`. A code that a step does not
name stops the query: nobody has thought about what it would mean to go on.
"""

from enum import Enum
from typing import NamedTuple

from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.sink_errors import AttemptEnded
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode


class Refused(AttemptEnded):
    """An answer whose error code ends the attempt."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


class Verdict(Enum):
    """What an answer's error code means at one step."""

    DONE = "done"
    AGAIN = "the same request again"
    ENDS = "the attempt has ended"
    STOPS = "the query stops"


class Step(NamedTuple):
    """One step; `version` is the highest that is asked for, `version_min` the lowest that will do."""

    number: int
    name: str
    api_key: int
    version_min: int
    version: int
    again: frozenset[int]
    ends: frozenset[int]

    def verdict(self, code: int) -> Verdict:
        """What to do about an error code."""
        if code == 0:
            return Verdict.DONE
        if code in self.again:
            return Verdict.AGAIN
        return Verdict.ENDS if code in self.ends else Verdict.STOPS


def _step(
    number: int, api_key: int, versions: tuple[int, int], again: tuple[int, ...], ends: tuple[int, ...] = ()
) -> Step:
    return Step(number, apis.APIS[api_key].name, api_key, *versions, frozenset(again), frozenset(ends))


FIND_COORDINATOR = _step(1, apis.FIND_COORDINATOR, (2, 2), (14, 15))
INIT_PRODUCER_ID = _step(2, apis.INIT_PRODUCER_ID, (4, 4), (51, 14, 15, 16))
OFFSET_FETCH = _step(3, apis.OFFSET_FETCH, (7, 7), (88, 51, 14, 15, 16))
ADD_PARTITIONS = _step(4, apis.ADD_PARTITIONS_TO_TXN, (3, 3), (51, 14, 15, 16, 3), (90,))
ADD_OFFSETS = _step(5, apis.ADD_OFFSETS_TO_TXN, (3, 3), (51, 14, 15, 16), (90,))
PRODUCE = _step(6, apis.PRODUCE, (9, 11), (3, 5, 6, 7, 13, 19, 20, 51), (45, 47, 48, 49, 59, 90, 120))
TXN_OFFSET_COMMIT = _step(7, apis.TXN_OFFSET_COMMIT, (3, 3), (51, 14, 15, 16, 3), (47, 48, 90))
END_TXN = _step(8, apis.END_TXN, (3, 3), (51, 14, 15, 16), (48, 90))

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

COORDINATOR_MOVED = frozenset({14, 15, 16})
"""After these the coordinator is looked for anew."""
FENCED = frozenset({47, 90})
"""A newer epoch exists: another driver took it, or the coordinator did when the transaction timed out."""

_HINTS = {
    10: f"the topic's max.message.bytes was lowered while the batch was written: {Remedy.START_AGAIN}",
    12: f"the broker's offset.metadata.max.bytes is below 4096: {Remedy.RAISE_SETTING}",
    18: f"the topic's segment.bytes is smaller than a batch: {Remedy.RAISE_SETTING}, or {Remedy.LOWER_BATCH_BYTES}",
    29: f"the sink's user may not write to the topic: {Remedy.GRANT_WRITE}",
    30: f"the sink's user may not use the marker's group: {Remedy.GRANT_READ}",
    35: f"the broker is too old: {Remedy.NEWER_KAFKA}",
    50: f"{Remedy.LOWER_TIMEOUT}, or {Remedy.RAISE_MAX_TIMEOUT}",
    53: f"the sink's user may not use the transactional id: {Remedy.GRANT_WRITE}",
    87: "the topic takes no such records (a compacted one needs keys, timestamps must be near the broker's clock)",
}


def code_name(code: int) -> str:
    """Kafka's name of a code with its number."""
    try:
        return f"{ErrorCode(code).name} ({code})"
    except ValueError:
        return f"error {code}"


def remedy(code: int) -> str:
    """What a user can do about a code that stopped the query."""
    return _HINTS.get(code, f"nothing of the batch is visible; {Remedy.LOOK_AT_BROKER_LOG}, then {Remedy.START_AGAIN}")


def table() -> str:
    """The steps as docs/kafka-sink.md shows them."""
    lines = ["| # | step | version | again | ends |", "|---|---|---|---|---|"]
    for step in STEPS:
        versions = str(step.version) if step.version == step.version_min else f"{step.version_min} to {step.version}"
        again, ends = (", ".join(map(str, sorted(codes))) or "none" for codes in (step.again, step.ends))
        lines.append(f"| {step.number} | {step.name} | {versions} | {again} | {ends} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
