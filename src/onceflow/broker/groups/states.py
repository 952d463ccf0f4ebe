"""The states of a classic group as a table, and the picture that is drawn from it.

`python -m onceflow.broker.groups.states > docs/groups.md` writes the page; a test compares.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class GroupState(Enum):
    """Where a group is between two generations; the values are the protocol's words."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


NEXT_STATES: Mapping[GroupState, Mapping[GroupState, str]] = MappingProxyType(
    {
        GroupState.EMPTY: {
            GroupState.PREPARING_REBALANCE: "the first member joins",
            GroupState.DEAD: "deleted, or its last offset expired",
        },
        GroupState.PREPARING_REBALANCE: {
            GroupState.COMPLETING_REBALANCE: "all have joined, or the rebalance time-out is over",
            GroupState.EMPTY: "nobody is left",
        },
        GroupState.COMPLETING_REBALANCE: {
            GroupState.STABLE: "the leader's assignments are recorded",
            GroupState.PREPARING_REBALANCE: "a member joins, leaves, falls silent, or does not sync in time",
        },
        GroupState.STABLE: {
            GroupState.PREPARING_REBALANCE: "a member joins, leaves, falls silent or subscribes otherwise",
            GroupState.STABLE: "a static member comes back",
        },
        GroupState.DEAD: {},
    }
)
"""Each state's next ones and what leads there. Replay at start-up sees only the recorded states, EMPTY, STABLE and
DEAD, in any order that compaction leaves."""

RECORDED_STATES = frozenset({GroupState.EMPTY, GroupState.STABLE, GroupState.DEAD})


def may_follow(state: GroupState, following: GroupState) -> bool:
    """Whether a group may go from one state to the other, at run time or in the replay of its records."""
    return following in NEXT_STATES[state] or {state, following} <= RECORDED_STATES


_PAGE = """\
# Consumer groups

<!-- Written by `python -m onceflow.broker.groups.states > docs/groups.md`; a test compares. -->

The broker is the coordinator of every group and speaks the classic protocol: clients elect a leader, the leader
assigns the partitions with whatever assignor the members have in common (range, roundrobin, sticky,
cooperative-sticky), and the broker records the result in `__consumer_offsets` before it tells anybody.

```mermaid
stateDiagram-v2
    [*] --> Empty: a member joins, or offsets are committed
{arrows}
    Dead --> [*]
```

| state | what a member's request gets meanwhile |
|---|---|
| Empty | there is no member; whoever commits offsets without being one may do so |
| PreparingRebalance | JoinGroup waits; Heartbeat and SyncGroup are told to join again (27); commits are still taken |
| CompletingRebalance | SyncGroup waits for the leader's; a commit is told to join again (27) |
| Stable | SyncGroup is answered at once; heartbeats and commits keep the session alive |
| Dead | the group is gone: describing it says `Dead`, a join begins a new one |

What is recorded, and so survives a crash, are stable generations with their members and assignments, the empty group,
and the offsets. After a restart the members of a stable group go on with heartbeats as if nothing had happened. While
the broker reads a long `__consumer_offsets`, requests about groups get COORDINATOR_LOAD_IN_PROGRESS (14).

- **Static members** (`group.instance.id`, KIP-345) come back under a new member id without a rebalance as long as their
  subscription leads to the same assignor, and whoever still uses the old id gets FENCED_INSTANCE_ID (82). They are
  gone when their session times out, or when they are removed by their instance id.
- **A new group's first rebalance** waits `group.initial.rebalance.delay.ms` for more members, 0 by default, and as
  long again while new ones come, up to the rebalance time-out.
- **Offsets** of an empty group expire `offsets.retention.minutes` after its last member left, those of a consumer that
  only commits after its last commit, those of a stable group in topics to which nobody there subscribes after their
  last commit; never while a transaction has an offset pending at that place. A group that has neither members nor
  offsets is deleted by the same round.
"""


def page() -> str:
    """docs/groups.md."""
    arrows = [
        f"    {state.value} --> {following.value}: {reason}"
        for state, nexts in NEXT_STATES.items()
        for following, reason in nexts.items()
    ]
    return _PAGE.format(arrows="\n".join(arrows))


if __name__ == "__main__":
    print(page(), end="")
