"""A group's requests over raw connections, one connection for each member, in any version."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from onceflow.wire import apis
from tests.broker.raw_client import RawClient, milliseconds

Where = Sequence[tuple[str, Sequence[int]]]
"""Topics with partitions."""


def subscription(*topics: str) -> bytes:
    """Return a consumer's metadata in JoinGroup (ConsumerProtocolSubscription, version 0)."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


class RawGroup:
    """One group at one broker; `on` names the connection, by default the member's instance or `main`."""

    def __init__(self, bootstrap: str, group_id: str) -> None:
        self.bootstrap = bootstrap
        self.group_id = group_id
        self._clients: dict[str, RawClient] = {}

    def client(self, name: str = "main") -> RawClient:
        if name not in self._clients:
            self._clients[name] = RawClient(self.bootstrap)
        return self._clients[name]

    def __enter__(self) -> "RawGroup":
        return self

    def __exit__(self, *_exception: object) -> None:
        for client in self._clients.values():
            client.close()

    def send_join(
        self,
        member_id: str = "",
        *,
        on: str = "main",
        version: int = 9,
        instance: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = (("range", b"m"),),
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
    ) -> None:
        fields: dict[str, Any] = {
            "group_id": self.group_id,
            "session_timeout": milliseconds(session_ms),
            "rebalance_timeout": milliseconds(60_000),
            "member_id": member_id,
            "protocol_type": protocol_type,
            "protocols": [{"name": name, "metadata": metadata} for name, metadata in protocols],
            "group_instance_id": instance,
        }
        if version >= 8:
            fields["reason"] = "the test wants it"
        self.client(on).send(apis.JOIN_GROUP, version, **fields)

    def joined(self, *, on: str = "main", version: int = 9) -> Any:
        return self.client(on).receive(apis.JOIN_GROUP, version)

    def join(self, member_id: str = "", *, on: str = "main", version: int = 9, **fields: Any) -> Any:
        self.send_join(member_id, on=on, version=version, **fields)
        return self.joined(on=on, version=version)

    def enter(self, *, on: str = "main", **fields: Any) -> str:
        """Ask for a member id first, as version 4 and later do, and send the real JoinGroup; the id."""
        required = self.join(on=on, **fields)
        self.send_join(required.member_id, on=on, **fields)
        return str(required.member_id)

    def send_sync(
        self,
        generation: int,
        member_id: str,
        *,
        on: str = "main",
        instance: str | None = None,
        protocol: str | None = "range",
        protocol_type: str | None = "consumer",
        assignments: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        """`assignments` has the member ids as keys."""
        self.client(on).send(
            apis.SYNC_GROUP,
            5,
            group_id=self.group_id,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol,
            assignments=[{"member_id": assignment, "assignment": data} for assignment, data in assignments.items()],
        )

    def synced(self, *, on: str = "main") -> Any:
        return self.client(on).receive(apis.SYNC_GROUP, 5)

    def sync(self, generation: int, member_id: str, *, on: str = "main", **fields: Any) -> Any:
        self.send_sync(generation, member_id, on=on, **fields)
        return self.synced(on=on)

    def beat(self, generation: int, member_id: str, instance: str | None = None) -> int:
        response = self.client().ask(
            apis.HEARTBEAT,
            4,
            group_id=self.group_id,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
        )
        return int(response.error_code)

    def leave(self, *members: tuple[str, str | None]) -> list[tuple[str, str | None, int]]:
        """Each of (member id, instance id) with its error; that of the whole request alone if it has one."""
        leaving = [{"member_id": item, "group_instance_id": instance, "reason": "test"} for item, instance in members]
        response = self.client().ask(apis.LEAVE_GROUP, 5, group_id=self.group_id, members=leaving)
        if response.error_code:
            return [("", None, int(response.error_code))]
        return [(member.member_id, member.group_instance_id, int(member.error_code)) for member in response.members]

    def commit(
        self,
        topic: str,
        offset: int = 1,
        *,
        generation: int = -1,
        member_id: str = "",
        instance: str | None = None,
        partition: int = 0,
        metadata: str | None = "",
        version: int = 8,
        retention_ms: int | None = None,
    ) -> int:
        place = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
        fields: dict[str, Any] = {}
        if version >= 7:
            fields["group_instance_id"] = instance
        if retention_ms is not None:
            fields["retention_time"] = milliseconds(retention_ms)
        response = self.client().ask(
            apis.OFFSET_COMMIT,
            version,
            group_id=self.group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[{"name": topic, "partitions": [place]}],
            **fields,
        )
        return int(response.topics[0].partitions[0].error_code)

    def offsets(self, where: Where | None = None, *, stable: bool = False) -> dict[tuple[str, int], tuple[int, int]]:
        """(topic, partition) → (offset, error code); of all offsets without `where`."""
        topics = None if where is None else [{"name": name, "partition_indexes": indexes} for name, indexes in where]
        response = self.client().ask(
            apis.OFFSET_FETCH, 8, groups=[{"group_id": self.group_id, "topics": topics}], require_stable=stable
        )
        (group,) = response.groups
        assert group.error_code == 0
        return {
            (topic.name, partition.partition_index): (partition.committed_offset, int(partition.error_code))
            for topic in group.topics
            for partition in topic.partitions
        }

    def describe(self) -> Any:
        response = self.client().ask(
            apis.DESCRIBE_GROUPS, 5, groups=[self.group_id], include_authorized_operations=False
        )
        return response.groups[0]

    def listed(self, *states: str) -> list[tuple[str, str]]:
        """(protocol type, state) of this group, if it is listed among the groups in those states."""
        response = self.client().ask(apis.LIST_GROUPS, 4, states_filter=states)
        assert response.error_code == 0
        return [
            (group.protocol_type, group.group_state) for group in response.groups if group.group_id == self.group_id
        ]

    def delete(self, *others: str) -> dict[str, int]:
        response = self.client().ask(apis.DELETE_GROUPS, 2, groups_names=[self.group_id, *others])
        return {result.group_id: int(result.error_code) for result in response.results}

    def delete_offsets(self, where: Where) -> tuple[int, dict[tuple[str, int], int]]:
        """The request's error, and those of each partition."""
        topics = [
            {"name": name, "partitions": [{"partition_index": index} for index in indexes]} for name, indexes in where
        ]
        response = self.client().ask(apis.OFFSET_DELETE, 0, group_id=self.group_id, topics=topics)
        offsets = {
            (topic.name, partition.partition_index): int(partition.error_code)
            for topic in response.topics
            for partition in topic.partitions
        }
        return int(response.error_code), offsets
