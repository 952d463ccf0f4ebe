"""A group coordinator alone: requests in, records and responses out, time moved by hand."""

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from onceflow.broker.config import BrokerConfig
from onceflow.broker.groups import records as group_records
from onceflow.broker.groups.coordinator import GroupCoordinator
from onceflow.broker.groups.group import Group
from onceflow.broker.groups.members import JoinResponse, SyncResponse
from onceflow.broker.groups.outcome import JoinRequest, Leaving, Outcome, SyncRequest
from onceflow.testing import ManualClock
from onceflow.wire.errors import ErrorCode

SESSION_MS = 10_000
REBALANCE_MS = 60_000
CONFIG = BrokerConfig(Path("not used"))


class Scene:
    """A coordinator whose outcomes are carried out at once; `responses` by the name that a request was given.

    The group is always `g`; the name of a member is its client id.
    """

    def __init__(self, **settings: int) -> None:
        self.clock = ManualClock()
        self.config = replace(CONFIG, **settings)  # type: ignore[arg-type]
        numbers = itertools.count(1)
        self.groups = GroupCoordinator(self.clock, self.config, make_uuid=lambda: uuid.UUID(int=next(numbers)))
        self.log: list[tuple[bytes, bytes | None]] = []
        self.responses: dict[str, JoinResponse | SyncResponse] = {}

    @property
    def group(self) -> Group:
        return self.groups.groups["g"]

    def execute(self, outcome: Outcome) -> None:
        for record in outcome.records:
            self.log.append(group_records.encode(record))
            self.groups.replay(record)
        for response in outcome.responses:
            response()

    def join(
        self,
        name: str,
        member_id: str = "",
        *,
        protocols: Sequence[str] = ("range",),
        known: bool = False,
        instance: str | None = None,
        skip: bool = False,
        note: str = "",
        rebalance_ms: int = REBALANCE_MS,
    ) -> JoinResponse | None:
        """`note` makes the member's metadata another."""
        request = JoinRequest(
            "g", member_id, name, "/host", SESSION_MS, rebalance_ms, "consumer",
            tuple((protocol, f"{name} {protocol}{note}".encode()) for protocol in protocols), known, instance, skip,
        )  # fmt: skip
        self.responses.pop(name, None)
        self.execute(self.groups.join(request, lambda response: self.responses.__setitem__(name, response)))
        response = self.responses.get(name)
        assert response is None or isinstance(response, JoinResponse)
        return response

    def joined(self, name: str) -> JoinResponse:
        """The response that the last JoinGroup has got by now."""
        response = self.responses[name]
        assert isinstance(response, JoinResponse)
        return response

    def sync(
        self, name: str, member_id: str, generation: int, instance: str | None = None, **assignments: bytes
    ) -> SyncResponse | None:
        by_member = {self.member_id(item): assignment for item, assignment in assignments.items()}
        request = SyncRequest("g", generation, member_id, "consumer", None, by_member, instance)
        self.responses.pop(name, None)
        self.execute(self.groups.sync(request, lambda response: self.responses.__setitem__(name, response)))
        response = self.responses.get(name)
        assert response is None or isinstance(response, SyncResponse)
        return response

    def synced(self, name: str) -> SyncResponse:
        """The response that the last SyncGroup has got by now."""
        response = self.responses[name]
        assert isinstance(response, SyncResponse)
        return response

    def leave(self, *leaving: Leaving) -> list[ErrorCode]:
        error_codes, outcome = self.groups.leave("g", leaving)
        self.execute(outcome)
        return error_codes

    def member_id(self, name: str) -> str:
        return next(member.member_id for member in self.group.members.values() if member.client_id == name)

    def advance(self, duration_ms: int) -> None:
        self.clock.advance_ms(duration_ms)
        for outcome in self.groups.expire():
            self.execute(outcome)

    def beat(self, *names: str) -> list[ErrorCode]:
        return [self.groups.heartbeat("g", self.member_id(name), self.group.generation) for name in names]

    def two_members(self, instance: str | None = None) -> tuple[str, str]:
        """A stable group of `a`, the leader, and `b`, in generation 2; their member ids. `instance` is that of `a`."""
        self.join("a", instance=instance)
        first = self.member_id("a")
        assert self.join("b") is None
        second = self.member_id("b")
        self.join("a", first, instance=instance)
        assert self.sync("b", second, 2) is None
        self.sync("a", first, 2, a=b"for a", b=b"for b")
        return first, second

    def replayed(self) -> GroupCoordinator:
        """Return the coordinator after a restart, replayed from the log."""
        fresh = GroupCoordinator(self.clock, self.config)
        for key, value in self.log:
            fresh.replay(group_records.decode(key, value))
        fresh.begin()
        return fresh
