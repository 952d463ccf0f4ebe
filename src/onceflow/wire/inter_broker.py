"""The requests between brokers of a cluster on ZooKeeper, in the versions of Apache Kafka 3.9.

The controller sends LeaderAndIsr, UpdateMetadata and StopReplica; brokers send ControlledShutdown to it. Apache Kafka 4
removed them with ZooKeeper, so kio has no classes for them; these are like kio's, from the schemas of Kafka 3.9
(clients/src/main/resources/common/message). AlterPartition is kio's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16

from onceflow.wire.apis import CONTROLLED_SHUTDOWN, LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA

NO_LEADER = -1
LEADER_DURING_DELETE = -2
"""Leader of a partition whose topic is being deleted, in UpdateMetadata (LeaderAndIsr.LeaderDuringDelete)."""
EPOCH_DURING_DELETE = -2
"""Leader epoch in StopReplica for a topic that is being deleted (LeaderAndIsr.EpochDuringDelete)."""

_BOOL = {"kafka_type": "bool"}
_INT8 = {"kafka_type": "int8"}
_INT16 = {"kafka_type": "int16"}
_INT32 = {"kafka_type": "int32"}
_INT64 = {"kafka_type": "int64"}
_STRING = {"kafka_type": "string"}
_UUID = {"kafka_type": "uuid"}
_ERROR_CODE = {"kafka_type": "error_code"}


class _Request:
    """Class variables of a request."""

    __slots__ = ()
    __type__: ClassVar = EntityType.request
    __flexible__: ClassVar[bool] = True
    __header_schema__: ClassVar[Any] = RequestHeader


class _Response:
    """Class variables of a response."""

    __slots__ = ()
    __type__: ClassVar = EntityType.response
    __flexible__: ClassVar[bool] = True
    __header_schema__: ClassVar[Any] = ResponseHeader


class _Nested:
    """Class variables of an entity in a message."""

    __slots__ = ()
    __type__: ClassVar = EntityType.nested
    __flexible__: ClassVar[bool] = True


class _LeaderAndIsr:
    __slots__ = ()
    __api_key__: ClassVar[i16] = i16(LEADER_AND_ISR)
    __version__: ClassVar[i16] = i16(7)


class _StopReplica:
    __slots__ = ()
    __api_key__: ClassVar[i16] = i16(STOP_REPLICA)
    __version__: ClassVar[i16] = i16(4)


class _UpdateMetadata:
    __slots__ = ()
    __api_key__: ClassVar[i16] = i16(UPDATE_METADATA)
    __version__: ClassVar[i16] = i16(8)


class _ControlledShutdown:
    __slots__ = ()
    __api_key__: ClassVar[i16] = i16(CONTROLLED_SHUTDOWN)
    __version__: ClassVar[i16] = i16(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrPartition(_LeaderAndIsr, _Nested):
    """State of one partition; `partition_epoch` is the version of its node in ZooKeeper."""

    partition_index: int = field(metadata=_INT32)
    controller_epoch: int = field(metadata=_INT32)
    leader: int = field(metadata=_INT32)
    leader_epoch: int = field(metadata=_INT32)
    isr: tuple[int, ...] = field(metadata=_INT32)
    partition_epoch: int = field(metadata=_INT32)
    replicas: tuple[int, ...] = field(metadata=_INT32)
    adding_replicas: tuple[int, ...] = field(metadata=_INT32, default=())
    removing_replicas: tuple[int, ...] = field(metadata=_INT32, default=())
    is_new: bool = field(metadata=_BOOL, default=False)
    leader_recovery_state: int = field(metadata=_INT8, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrTopic(_LeaderAndIsr, _Nested):
    """Partitions of one topic."""

    topic_name: str = field(metadata=_STRING)
    topic_id: UUID | None = field(metadata=_UUID)
    partition_states: tuple[LeaderAndIsrPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLeader(_LeaderAndIsr, _Nested):
    """Address of a leader, on the listener between brokers."""

    broker_id: int = field(metadata=_INT32)
    host_name: str = field(metadata=_STRING)
    port: int = field(metadata=_INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrRequest(_LeaderAndIsr, _Request):
    """Leaders and in-sync replicas of partitions of the receiver."""

    controller_id: int = field(metadata=_INT32)
    is_kraft_controller: bool = field(metadata=_BOOL, default=False)
    controller_epoch: int = field(metadata=_INT32)
    broker_epoch: int = field(metadata=_INT64)
    type: int = field(metadata=_INT8)
    topic_states: tuple[LeaderAndIsrTopic, ...]
    live_leaders: tuple[LiveLeader, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrPartitionError(_LeaderAndIsr, _Nested):
    """Result of one partition."""

    partition_index: int = field(metadata=_INT32)
    error_code: ErrorCode = field(metadata=_ERROR_CODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrTopicError(_LeaderAndIsr, _Nested):
    """Results of one topic."""

    topic_id: UUID | None = field(metadata=_UUID)
    partition_errors: tuple[LeaderAndIsrPartitionError, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrResponse(_LeaderAndIsr, _Response):
    """The response."""

    error_code: ErrorCode = field(metadata=_ERROR_CODE)
    topics: tuple[LeaderAndIsrTopicError, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplicaPartition(_StopReplica, _Nested):
    """One partition to stop, and whether its log is deleted."""

    partition_index: int = field(metadata=_INT32)
    leader_epoch: int = field(metadata=_INT32, default=-1)
    delete_partition: bool = field(metadata=_BOOL)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplicaTopic(_StopReplica, _Nested):
    """Partitions of one topic."""

    topic_name: str = field(metadata=_STRING)
    partition_states: tuple[StopReplicaPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplicaRequest(_StopReplica, _Request):
    """Partitions that the receiver neither leads nor follows any more."""

    controller_id: int = field(metadata=_INT32)
    is_kraft_controller: bool = field(metadata=_BOOL, default=False)
    controller_epoch: int = field(metadata=_INT32)
    broker_epoch: int = field(metadata=_INT64)
    topic_states: tuple[StopReplicaTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplicaPartitionError(_StopReplica, _Nested):
    """Result of one partition."""

    topic_name: str = field(metadata=_STRING)
    partition_index: int = field(metadata=_INT32)
    error_code: ErrorCode = field(metadata=_ERROR_CODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplicaResponse(_StopReplica, _Response):
    """The response."""

    error_code: ErrorCode = field(metadata=_ERROR_CODE)
    partition_errors: tuple[StopReplicaPartitionError, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataPartition(_UpdateMetadata, _Nested):
    """State of one partition; `zk_version` is the version of its node in ZooKeeper."""

    partition_index: int = field(metadata=_INT32)
    controller_epoch: int = field(metadata=_INT32)
    leader: int = field(metadata=_INT32)
    leader_epoch: int = field(metadata=_INT32)
    isr: tuple[int, ...] = field(metadata=_INT32)
    zk_version: int = field(metadata=_INT32)
    replicas: tuple[int, ...] = field(metadata=_INT32)
    offline_replicas: tuple[int, ...] = field(metadata=_INT32, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataTopic(_UpdateMetadata, _Nested):
    """Partitions of one topic."""

    topic_name: str = field(metadata=_STRING)
    topic_id: UUID | None = field(metadata=_UUID)
    partition_states: tuple[UpdateMetadataPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataEndpoint(_UpdateMetadata, _Nested):
    """Address of one listener; `security_protocol` is org.apache.kafka.common.security.auth.SecurityProtocol.id."""

    port: int = field(metadata=_INT32)
    host: str = field(metadata=_STRING)
    listener: str = field(metadata=_STRING)
    security_protocol: int = field(metadata=_INT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataBroker(_UpdateMetadata, _Nested):
    """A live broker."""

    id: int = field(metadata=_INT32)
    endpoints: tuple[UpdateMetadataEndpoint, ...]
    rack: str | None = field(metadata=_STRING, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataRequest(_UpdateMetadata, _Request):
    """All live brokers, and the partitions that changed."""

    controller_id: int = field(metadata=_INT32)
    is_kraft_controller: bool = field(metadata=_BOOL, default=False)
    type: int = field(metadata={**_INT8, "tag": 0}, default=0)
    controller_epoch: int = field(metadata=_INT32)
    broker_epoch: int = field(metadata=_INT64)
    topic_states: tuple[UpdateMetadataTopic, ...]
    live_brokers: tuple[UpdateMetadataBroker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataResponse(_UpdateMetadata, _Response):
    """The response."""

    error_code: ErrorCode = field(metadata=_ERROR_CODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlledShutdownRequest(_ControlledShutdown, _Request):
    """The sender will stop, and other brokers are to lead its partitions."""

    broker_id: int = field(metadata=_INT32)
    broker_epoch: int = field(metadata=_INT64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingPartition(_ControlledShutdown, _Nested):
    """A partition that the broker still leads."""

    topic_name: str = field(metadata=_STRING)
    partition_index: int = field(metadata=_INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlledShutdownResponse(_ControlledShutdown, _Response):
    """The response."""

    error_code: ErrorCode = field(metadata=_ERROR_CODE)
    remaining_partitions: tuple[RemainingPartition, ...]


REQUESTS: Mapping[tuple[int, int], type[Any]] = MappingProxyType(
    {
        (LEADER_AND_ISR, 7): LeaderAndIsrRequest,
        (STOP_REPLICA, 4): StopReplicaRequest,
        (UPDATE_METADATA, 8): UpdateMetadataRequest,
        (CONTROLLED_SHUTDOWN, 3): ControlledShutdownRequest,
    }
)
"""API key and version → class of the request's body."""

RESPONSES: Mapping[tuple[int, int], type[Any]] = MappingProxyType(
    {
        (LEADER_AND_ISR, 7): LeaderAndIsrResponse,
        (STOP_REPLICA, 4): StopReplicaResponse,
        (UPDATE_METADATA, 8): UpdateMetadataResponse,
        (CONTROLLED_SHUTDOWN, 3): ControlledShutdownResponse,
    }
)
