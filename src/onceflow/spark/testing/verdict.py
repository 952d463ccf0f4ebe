"""The rules that an exactly-once sink keeps, and which of them is broken, told from what a reader sees."""

import enum
from dataclasses import dataclass

from onceflow.errors import OnceflowError
from onceflow.spark.testing.query import Seen

SHOWN_MAX = 3


class Rule(enum.StrEnum):
    """The names of what can be wrong with a sink."""

    MARKER_OUTSIDE = "marker outside the transaction"
    MARKER_FIRST = "marker before data"
    NO_FENCE = "retry outside the fence"
    VISIBLE = "uncommitted data visible"
    REMAINS = "remains of a dead attempt kept"
    ORDER = "row order trusted"
    UNDONE = "committed batch undone"
    FORGOTTEN = "proof forgotten"
    OTHER_BATCH = "another batch taken for this one"
    NOT_CONSUMED = "skipped rows not consumed"
    TASK_KEPT = "rows of a failed task kept"
    TASK_LOST = "rows of a failed task lost"
    STOPPED = "stopped without cause"
    WRONG = "wrong without any failure"


MEANING = {
    Rule.MARKER_OUTSIDE: "the data became visible in one step and the proof in a later one",
    Rule.MARKER_FIRST: "the proof became visible before the data did",
    Rule.NO_FENCE: "a driver that was overtaken still changed the target",
    Rule.VISIBLE: "readers saw data before it was committed together with its proof",
    Rule.REMAINS: "what an attempt left that was never committed became visible later",
    Rule.ORDER: "a repeated batch was continued by the place of its rows, and those come in another order",
    Rule.UNDONE: "data that was committed was taken away again",
    Rule.FORGOTTEN: "the next start does not find the proof of a batch that was committed",
    Rule.OTHER_BATCH: "the proof does not tell one batch from another",
    Rule.NOT_CONSUMED: "a batch that is skipped must still be read, or a stateful query cannot go on",
    Rule.TASK_KEPT: "what a task wrote before it died became visible beside what its repetition wrote",
    Rule.TASK_LOST: "what a task was to write before it died is missing",
    Rule.STOPPED: "the sink ended a query that nothing was wrong with",
    Rule.WRONG: "the plain case already goes wrong",
}


class NotExactlyOnce(OnceflowError):
    """A sink breaks `rule`: readers of it can see a row twice, or never."""

    def __init__(self, rule: Rule, event: str, found: str) -> None:
        super().__init__(f"not exactly once, {rule}: {event}, {found}: {MEANING[rule]}")
        self.rule = rule
        self.event = event
        """What had happened, in words: where which driver died."""


class KitMisused(OnceflowError):
    """What the kit was given does not fit together, so that it cannot judge the sink."""


class Kind(enum.Enum):
    """What happens to a batch."""

    ORDINARY = enum.auto()
    REPLAY = enum.auto()
    DEATH = enum.auto()
    OVERTAKEN = enum.auto()
    LOSS = enum.auto()
    TASK = enum.auto()


@dataclass(frozen=True, slots=True)
class Event:
    """What has happened to batch `number`; `said` is the beginning of a sentence."""

    kind: Kind
    number: int
    said: str
    was_there: bool = False
    """Whether a reader saw the whole batch after that, before it was repeated."""


def refuse_before_commit(event: Event, step: str, seen: Seen) -> None:
    """Judges what is there after a driver died in `step`: nothing, or the whole batch. Raises NotExactlyOnce."""
    may_be_there = event.was_there or not seen.of or step not in ("recover", "prepare", "write")
    if seen.is_absent and not event.was_there:
        return
    if seen.is_whole and may_be_there:
        return
    rule = Rule.VISIBLE
    if seen.before_missing or event.was_there:
        rule = Rule.UNDONE
    elif seen.twice or seen.before_twice:
        rule = Rule.REMAINS
    raise NotExactlyOnce(rule, event.said, _told(event.number, seen))


def refuse_unless_whole(event: Event, seen: Seen) -> None:
    """Judges what is there once the sink has said that the batch is written. Raises NotExactlyOnce."""
    if not seen.is_whole:
        raise NotExactlyOnce(_rule(event, seen), event.said, _told(event.number, seen))


def _rule(event: Event, seen: Seen) -> Rule:
    twice, missing = seen.twice or seen.before_twice, seen.missing or seen.before_missing
    match event.kind:
        case Kind.ORDINARY:
            return Rule.WRONG
        case Kind.OVERTAKEN:
            return Rule.NO_FENCE
        case Kind.TASK:
            return Rule.TASK_KEPT if twice else Rule.TASK_LOST
        case Kind.REPLAY:
            return Rule.FORGOTTEN if twice else Rule.UNDONE
    if twice and missing:
        return Rule.ORDER
    if twice:
        return Rule.MARKER_OUTSIDE if event.was_there else Rule.REMAINS
    return Rule.UNDONE if event.was_there or seen.before_missing else Rule.MARKER_FIRST


def refuse_foreign(seen: Seen) -> None:
    """Raises KitMisused where `read` returned what the kit did not write."""
    if seen.foreign:
        raise KitMisused(
            f"read() returned {_shown(seen.foreign)}, which the kit did not write: begin with an empty target, and "
            "let read() return the values of the column that the rows had, as text"
        )


def _told(number: int, seen: Seen) -> str:
    told = [
        f"{word} {len(values)} of {seen.of} values of batch {number} ({_shown(values)})"
        for word, values in (("twice", seen.twice), ("missing", seen.missing))
        if values
    ]
    told += [
        f"{word} {len(values)} values of earlier batches ({_shown(values)})"
        for word, values in (("twice", seen.before_twice), ("missing", seen.before_missing))
        if values
    ]
    return " and ".join(told) or f"all values of batch {number} were there"


def _shown(values: tuple[str, ...]) -> str:
    return ", ".join(values[:SHOWN_MAX]) + (", …" if len(values) > SHOWN_MAX else "")
