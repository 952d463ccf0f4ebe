"""Rules for the start of a partition, without clusters."""

import pytest

from onceflow.mirror.adoption import Adoption, Ends
from onceflow.mirror.errors import MirrorStopped
from onceflow.mirror.offset_map import Ids
from onceflow.mirror.positions import NO_TARGET_OFFSET, Position

IDS = Ids("s", "t")
AT_5 = Position(IDS, 5, 3)


def start(
    position: Position | None,
    source: tuple[int, int],
    target: tuple[int, int],
    *,
    ids: Ids = IDS,
    accepts: bool = False,
) -> Position:
    return Adoption("m", accepts_loss=accepts).start("visits-0", position, ids, Ends(*source), Ends(*target))


def test_a_new_partition_begins_at_its_start() -> None:
    assert start(None, (2, 9), (0, 0)) == Position(IDS, 2, NO_TARGET_OFFSET)


def test_a_position_within_both_logs_stays() -> None:
    assert start(AT_5, (5, 5), (0, 3)) == AT_5


def test_missing_ids_are_not_compared() -> None:
    """Kafka before 2.8 has none; those of a newer version are kept."""
    assert start(Position(Ids(None, None), 5, 3), (0, 9), (0, 4)) == AT_5


@pytest.mark.parametrize(
    ("position", "source", "target", "ids", "reason", "accepted"),
    [
        (AT_5, (6, 9), (0, 4), IDS, "starts at offset 6", Position(IDS, 6, 3)),
        (AT_5, (0, 4), (0, 4), IDS, "source ends at offset 4", Position(IDS, 4, 3)),
        (AT_5, (0, 9), (0, 2), IDS, "target ends at offset 2", Position(IDS, 5, NO_TARGET_OFFSET)),
        (AT_5, (1, 9), (0, 4), Ids("s2", "t"), "source has topic id s2", Position(Ids("s2", "t"), 1)),
        (AT_5, (1, 9), (0, 0), Ids("s", "t2"), "target has topic id t2", Position(Ids("s", "t2"), 1)),
    ],
)
def test_losses_stop_it_or_are_accepted(
    position: Position, source: tuple[int, int], target: tuple[int, int], ids: Ids, reason: str, accepted: Position
) -> None:
    with pytest.raises(MirrorStopped, match=reason):
        start(position, source, target, ids=ids)
    assert start(position, source, target, ids=ids, accepts=True) == accepted
