"""Kafka's KRaft metadata records: the values of records in `__cluster_metadata-0`.

A value is: frame version 1, API key, record version (each an unsigned varint), then the record in the flexible
format of its schema (kafka-metadata, `common/metadata/*.json`; org.apache.kafka.metadata.MetadataRecordSerde).
Kafka's `DumpLogSegments --cluster-metadata-decoder` reads them. The key is null.
"""

import struct
import uuid
from dataclasses import dataclass

from onceflow.broker.security.client_quotas import Entity
from onceflow.broker.security.credentials import Credential, CredentialKey
from onceflow.errors import OnceflowError
from onceflow.log.checkpoint import LEADER_EPOCH
from onceflow.remedies import Remedy
from onceflow.wire.acls import AclBinding, AclOperation, AclPattern, AclPermission, PatternType, ResourceType

FRAME_VERSION = 1
RECORD_VERSION = 0
RESOURCE_TYPE_TOPIC = 2


class UnknownRecord(OnceflowError):
    """A record in an internal topic has a type or version that this release cannot replay."""


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic exists (API key 2)."""

    name: str
    topic_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A topic has this partition, led by `leader` (API key 3).

    `replicas` are the brokers of a cluster that have it; without a cluster the leader is the only one.
    """

    partition: int
    topic_id: uuid.UUID
    leader: int
    replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """A topic's configuration value; None removes it (API key 4)."""

    topic: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    """A topic and its partitions are deleted (API key 9)."""

    topic_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    """All producer ids below `next_producer_id` may have been assigned (API key 15)."""

    broker_id: int
    next_producer_id: int


@dataclass(frozen=True, slots=True)
class AclRecord:
    """An ACL exists (AccessControlEntryRecord, API key 18)."""

    acl_id: uuid.UUID
    binding: AclBinding


@dataclass(frozen=True, slots=True)
class RemoveAclRecord:
    """An ACL is deleted (RemoveAccessControlEntryRecord, API key 19)."""

    acl_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class UserScramRecord:
    """A user has this credential (UserScramCredentialRecord, API key 11)."""

    key: CredentialKey
    credential: Credential


@dataclass(frozen=True, slots=True)
class RemoveUserScramRecord:
    """A user's credential is deleted (RemoveUserScramCredentialRecord, API key 22)."""

    key: CredentialKey


@dataclass(frozen=True, slots=True)
class ClientQuotaRecord:
    """An entity has a quota; None removes it (API key 14)."""

    entity: Entity
    key: str
    value: float | None


MetadataRecord = (
    TopicRecord
    | PartitionRecord
    | ConfigRecord
    | RemoveTopicRecord
    | ProducerIdsRecord
    | UserScramRecord
    | RemoveUserScramRecord
    | AclRecord
    | RemoveAclRecord
    | ClientQuotaRecord
)


def encode(record: MetadataRecord) -> bytes:
    """Return the record as a record value."""
    match record:
        case TopicRecord(name, topic_id):
            return _framed(2, _string(name) + topic_id.bytes)
        case PartitionRecord(partition, topic_id, leader, _replicas):
            replicas = _unsigned_varint(2) + struct.pack(">i", leader)
            fields = struct.pack(">i", partition) + topic_id.bytes + replicas + replicas + b"\x01\x01"
            return _framed(3, fields + struct.pack(">iii", leader, LEADER_EPOCH, 0))
        case ConfigRecord(topic, name, value):
            fields = struct.pack(">b", RESOURCE_TYPE_TOPIC) + _string(topic) + _string(name)
            return _framed(4, fields + _nullable_string(value))
        case RemoveTopicRecord(topic_id):
            return _framed(9, topic_id.bytes)
        case ProducerIdsRecord(broker_id, next_producer_id):
            return _framed(15, struct.pack(">iqq", broker_id, -1, next_producer_id))
        case ClientQuotaRecord(entity, key, value):
            fields = _unsigned_varint(1 + len(entity))
            for entity_type, entity_name in sorted(entity, key=repr):
                fields += _string(entity_type) + _nullable_string(entity_name) + b"\x00"
            return _framed(14, fields + _string(key) + struct.pack(">d?", value or 0, value is None))
        case AclRecord(acl_id, (pattern, principal, host, operation, permission)):
            fields = acl_id.bytes + struct.pack(">b", pattern.resource_type) + _string(pattern.name)
            fields += struct.pack(">b", pattern.pattern_type) + _string(principal) + _string(host)
            return _framed(18, fields + struct.pack(">bb", operation, permission))
        case RemoveAclRecord(acl_id):
            return _framed(19, acl_id.bytes)
        case UserScramRecord((user, mechanism), credential):
            keys = b"".join(map(_bytes, (credential.salt, credential.stored_key, credential.server_key)))
            fields = _string(user) + struct.pack(">b", mechanism) + keys
            return _framed(11, fields + struct.pack(">i", credential.iterations))
        case RemoveUserScramRecord((user, mechanism)):
            return _framed(22, _string(user) + struct.pack(">b", mechanism))


def decode(value: bytes) -> MetadataRecord:
    """Return the record in a value of `encode`. Raises UnknownRecord for any other type or version."""
    reader = _Reader(value)
    frame_version, api_key, version = reader.varint(), reader.varint(), reader.varint()
    if (frame_version, version) != (FRAME_VERSION, RECORD_VERSION):
        raise UnknownRecord(
            f"metadata record with API key {api_key}: frame version {frame_version} and version {version},"
            f" but only {FRAME_VERSION} and {RECORD_VERSION} are supported; {Remedy.WRITER_RELEASE}"
        )
    match api_key:
        case 2:
            return TopicRecord(reader.string(), reader.uuid())
        case 3:
            (partition,) = reader.numbers(">i")
            topic_id = reader.uuid()
            for _array in ("replicas", "isr", "removing", "adding"):
                reader.skip(4 * (reader.varint() - 1))
            return PartitionRecord(partition, topic_id, reader.numbers(">iii")[0])
        case 4:
            reader.numbers(">b")
            return ConfigRecord(reader.string(), reader.string(), reader.nullable_string())
        case 9:
            return RemoveTopicRecord(reader.uuid())
        case 11:
            return UserScramRecord(_credential_key(reader), _credential(reader))
        case 22:
            return RemoveUserScramRecord(_credential_key(reader))
        case 15:
            broker_id, _broker_epoch, next_producer_id = reader.numbers(">iqq")
            return ProducerIdsRecord(broker_id, next_producer_id)
        case 14:
            return _client_quota(reader)
        case 18:
            return AclRecord(reader.uuid(), _binding(reader))
        case 19:
            return RemoveAclRecord(reader.uuid())
    raise UnknownRecord(f"metadata record with unknown API key {api_key}; {Remedy.WRITER_RELEASE}")


def _client_quota(reader: "_Reader") -> ClientQuotaRecord:
    entity = set()
    for _ in range(reader.varint() - 1):
        entity.add((reader.string(), reader.nullable_string()))
        reader.skip(1)
    key, value, is_removed = reader.string(), reader.double(), bool(reader.skip(1)[0])
    return ClientQuotaRecord(frozenset(entity), key, None if is_removed else value)


def _binding(reader: "_Reader") -> AclBinding:
    (resource_type,) = reader.numbers(">b")
    name = reader.string()
    (pattern_type,) = reader.numbers(">b")
    principal, host = reader.string(), reader.string()
    operation, permission = reader.numbers(">bb")
    pattern = AclPattern(ResourceType(resource_type), name, PatternType(pattern_type))
    return AclBinding(pattern, principal, host, AclOperation(operation), AclPermission(permission))


def _credential_key(reader: "_Reader") -> CredentialKey:
    user = reader.string()
    return CredentialKey(user, reader.numbers(">b")[0])


def _credential(reader: "_Reader") -> Credential:
    salt, stored_key, server_key = (reader.skip(reader.varint() - 1) for _ in range(3))
    return Credential(salt, stored_key, server_key, reader.numbers(">i")[0])


def _framed(api_key: int, fields: bytes) -> bytes:
    no_tagged_fields = b"\x00"
    return bytes((FRAME_VERSION, api_key, RECORD_VERSION)) + fields + no_tagged_fields


def _unsigned_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _string(text: str) -> bytes:
    return _bytes(text.encode())


def _bytes(data: bytes) -> bytes:
    return _unsigned_varint(len(data) + 1) + data


def _nullable_string(text: str | None) -> bytes:
    return b"\x00" if text is None else _string(text)


class _Reader:
    """Reader of the fields of one value."""

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.position = 0

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.value[self.position]
            self.position += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    def skip(self, size_bytes: int) -> bytes:
        start = self.position
        self.position += size_bytes
        return self.value[start : self.position]

    def numbers(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self.skip(struct.calcsize(layout)))

    def double(self) -> float:
        (value,) = struct.unpack(">d", self.skip(8))
        return float(value)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self.skip(16))

    def nullable_string(self) -> str | None:
        length = self.varint() - 1
        return None if length < 0 else self.skip(length).decode()

    def string(self) -> str:
        return self.nullable_string() or ""
