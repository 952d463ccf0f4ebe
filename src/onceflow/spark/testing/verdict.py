"""Rules of an exactly-once sink, and the choice of the broken one from a reader's view."""

import enum
from dataclasses import dataclass

from onceflow.errors import OnceflowError
from onceflow.spark.testing.query import Seen

SHOWN_MAX = 3


class Rule(enum.StrEnum):
    """Names of the rules that a sink can break."""

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
    Rule.REMAINS: "data of an attempt that was never committed became visible later",
    Rule.ORDER: "a repeated batch was resumed by the position of its rows, which come in another order",
    Rule.UNDONE: "committed data was removed again",
    Rule.FORGOTTEN: "the next start does not find the proof of a batch that was committed",
    Rule.OTHER_BATCH: "the proof does not tell one batch from another",
    Rule.NOT_CONSUMED: "a skipped batch must still be read, or a stateful query cannot continue",
    Rule.TASK_KEPT: "rows of a dead task became visible in addition to those of its repetition",
    Rule.TASK_LOST: "rows that a dead task should have written are missing",
    Rule.STOPPED: "the sink stopped a query without reason",
    Rule.WRONG: "the sink fails even without failures",
}


class NotExactlyOnce(OnceflowError):
    """A sink breaks `rule`: readers of it can see a row twice, or never."""

    def __init__(self, rule: Rule, event: str, effect: str) -> None:
        super().__init__(f"not exactly once, {rule}: {event}, {effect}: {MEANING[rule]}")
        self.rule = rule
        self.event = event
        """Description of the failure: which driver died, and where."""


class KitMisused(OnceflowError):
    """The kit's arguments do not fit together, so it cannot judge the sink."""


class Kind(enum.Enum):
    """Kinds of failures of a batch."""

    ORDINARY = enum.auto()
    REPLAY = enum.auto()
    DEATH = enum.auto()
    OVERTAKEN = enum.auto()
    LOSS = enum.auto()
    TASK = enum.auto()


@dataclass(frozen=True, slots=True)
class Event:
    """Failure of batch `number`; `description` starts a message."""

    kind: Kind
    number: int
    description: str
    was_there: bool = False
    """Whether a reader saw the whole batch after the failure, before its repetition."""
    was_committing: bool = False
    """Whether a driver died in `commit`: the batch's proof may be pending, for any later start to commit."""


def refuse_before_commit(event: Event, step: str, seen: Seen) -> None:
    """Require nothing or the whole batch after a driver died in `step`. Raises NotExactlyOnce."""
    may_commit = event.was_committing if step == "recover" else step not in ("prepare", "write")
    may_be_there = event.was_there or not seen.of or may_commit
    if seen.is_absent and not event.was_there:
        return
    if seen.is_whole and may_be_there:
        return
    rule = Rule.VISIBLE
    if seen.before_missing or event.was_there:
        rule = Rule.UNDONE
    elif seen.twice or seen.before_twice:
        rule = Rule.REMAINS
    raise NotExactlyOnce(rule, event.description, _format_view(event.number, seen))


def refuse_unless_whole(event: Event, seen: Seen) -> None:
    """Require the whole batch once the sink has returned. Raises NotExactlyOnce."""
    if not seen.is_whole:
        raise NotExactlyOnce(_rule(event, seen), event.description, _format_view(event.number, seen))


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
    """Raise KitMisused if `read` returned values that the kit did not write."""
    if seen.foreign:
        raise KitMisused(
            f"read() returned {_shown(seen.foreign)}, which the kit did not write: start with an empty target, and "
            "let read() return the values of the rows' column as text"
        )


def _format_view(number: int, seen: Seen) -> str:
    parts = [
        f"{word} {len(values)} of {seen.of} values of batch {number} ({_shown(values)})"
        for word, values in (("twice", seen.twice), ("missing", seen.missing))
        if values
    ]
    parts += [
        f"{word} {len(values)} values of earlier batches ({_shown(values)})"
        for word, values in (("twice", seen.before_twice), ("missing", seen.before_missing))
        if values
    ]
    return " and ".join(parts) or f"all values of batch {number} were visible"


def _shown(values: tuple[str, ...]) -> str:
    return ", ".join(values[:SHOWN_MAX]) + (", …" if len(values) > SHOWN_MAX else "")
