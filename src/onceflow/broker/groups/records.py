"""Kafka's records in `__consumer_offsets`: committed offsets and the state of classic groups.

Key and value each start with an int16 version, followed by the non-flexible format of their schemas
(kafka-group-coordinator, `common/message/OffsetCommit{Key,Value}.json`, `GroupMetadata{Key,Value}.json`). They are
written with key versions 1 and 2 and value version 3, or 1 for an offset with an expiry time, and read in every
non-flexible version. Kafka 4.1 differs only in the value of an offset: it writes the flexible version 4, with the same
fields. A null value deletes the key. Kafka's `DumpLogSegments --offsets-decoder` reads them.
"""

import struct
from dataclasses import dataclass, field

from onceflow.broker.topics.records import UnknownRecord
from onceflow.remedies import Remedy

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
VALUE_VERSION = 3
EXPIRING_VALUE_VERSION = 1
"""Version of an offset's value with an expiry time; it has no leader epoch."""


@dataclass(slots=True)
class OffsetCommit:
    """A group's offset in one partition; `offset` None deletes the commit.

    Not frozen: that would triple the time to create one, and a request may commit very many.

    `expire_timestamp_ms` is -1 if the broker's retention applies. `record_offset` is the record's own offset in
    `__consumer_offsets`: of a plain and a transactional commit, the later record wins.
    """

    group: str
    topic: str
    partition: int
    offset: int | None
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = -1
    record_offset: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """A member of a group when its generation became stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """One generation of a classic group; `timestamp_ms` is when it entered its state."""

    group: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    timestamp_ms: int
    members: tuple[MemberMetadata, ...]


@dataclass(frozen=True, slots=True)
class GroupRemoval:
    """The deletion of a group; its offsets have records of their own."""

    group: str


GroupRecord = OffsetCommit | GroupMetadata | GroupRemoval


def encode(record: GroupRecord) -> tuple[bytes, bytes | None]:
    """Return key and value of the record."""
    if isinstance(record, OffsetCommit):
        key = struct.pack(">h", OFFSET_KEY_VERSION) + _string(record.group) + _string(record.topic)
        return key + struct.pack(">i", record.partition), _offset_value(record)
    key = struct.pack(">h", GROUP_KEY_VERSION) + _string(record.group)
    return key, None if isinstance(record, GroupRemoval) else _group_value(record)


def decode(key: bytes, value: bytes | None, record_offset: int = -1) -> GroupRecord:
    """Return the record of `encode`. Raises UnknownRecord for any other type or version."""
    reader = _Reader(key)
    key_version = reader.int16()
    if key_version not in (0, OFFSET_KEY_VERSION, GROUP_KEY_VERSION):
        raise UnknownRecord(f"group record with unknown key version {key_version}; {Remedy.WRITER_RELEASE}")
    if key_version == GROUP_KEY_VERSION:
        group = reader.string()
        return GroupRemoval(group) if value is None else _read_group(group, value)
    return _read_offset(reader, value, record_offset)


def _offset_value(record: OffsetCommit) -> bytes | None:
    if record.offset is None:
        return None
    metadata, committed_at = _string(record.metadata), struct.pack(">q", record.commit_timestamp_ms)
    if record.expire_timestamp_ms >= 0:
        head = struct.pack(">hq", EXPIRING_VALUE_VERSION, record.offset)
        return head + metadata + committed_at + struct.pack(">q", record.expire_timestamp_ms)
    return struct.pack(">hqi", VALUE_VERSION, record.offset, record.leader_epoch) + metadata + committed_at


def _group_value(record: GroupMetadata) -> bytes:
    parts = [
        struct.pack(">h", VALUE_VERSION),
        _string(record.protocol_type),
        struct.pack(">i", record.generation),
        _string(record.protocol),
        _string(record.leader),
        struct.pack(">qi", record.timestamp_ms, len(record.members)),
    ]
    for member in record.members:
        parts += [
            _string(member.member_id),
            _string(member.group_instance_id),
            _string(member.client_id),
            _string(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        ]
    return b"".join(parts)


def _read_offset(key: "_Reader", value: bytes | None, record_offset: int) -> OffsetCommit:
    group, topic, partition = key.string(), key.string(), key.int32()
    if value is None:
        return OffsetCommit(group, topic, partition, None, record_offset=record_offset)
    reader = _Reader(value)
    version = _value_version(reader)
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata, committed_at_ms = reader.string(), reader.int64()
    expires_at_ms = reader.int64() if version == EXPIRING_VALUE_VERSION else -1
    return OffsetCommit(
        group, topic, partition, offset, leader_epoch, metadata, committed_at_ms, expires_at_ms, record_offset
    )


def _read_group(group: str, value: bytes) -> GroupMetadata:
    reader = _Reader(value)
    version = _value_version(reader)
    protocol_type, generation = reader.string(), reader.int32()
    protocol, leader = reader.nullable_string(), reader.nullable_string()
    timestamp_ms = reader.int64() if version >= 2 else -1
    members = tuple(_read_member(reader, version) for _ in range(reader.int32()))
    return GroupMetadata(group, protocol_type, generation, protocol, leader, timestamp_ms, members)


def _read_member(reader: "_Reader", version: int) -> MemberMetadata:
    member_id = reader.string()
    group_instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    return MemberMetadata(
        member_id,
        group_instance_id,
        client_id,
        client_host,
        session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        session_timeout_ms,
        reader.bytes(),
        reader.bytes(),
    )


def _value_version(reader: "_Reader") -> int:
    version = reader.int16()
    if not 0 <= version <= VALUE_VERSION:
        raise UnknownRecord(
            f"group record with value version {version}, but only 0 to {VALUE_VERSION} are supported;"
            f" {Remedy.WRITER_RELEASE}"
        )
    return version


def _string(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", -1)
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


class _Reader:
    """Reader of the fields of one key or value."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def _number(self, layout: str) -> int:
        (number,) = struct.unpack_from(layout, self.data, self.position)
        self.position += struct.calcsize(layout)
        return int(number)

    def int16(self) -> int:
        return self._number(">h")

    def int32(self) -> int:
        return self._number(">i")

    def int64(self) -> int:
        return self._number(">q")

    def _take(self, size_bytes: int) -> bytes:
        start = self.position
        self.position += size_bytes
        return self.data[start : self.position]

    def nullable_string(self) -> str | None:
        length = self.int16()
        return None if length < 0 else self._take(length).decode()

    def string(self) -> str:
        return self.nullable_string() or ""

    def bytes(self) -> bytes:
        return self._take(max(self.int32(), 0))
