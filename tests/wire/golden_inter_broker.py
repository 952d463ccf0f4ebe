"""Bodies of requests between brokers, written by the message classes of kafka-clients 3.9.1, with their values."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from onceflow.wire.errors import ErrorCode
from onceflow.wire.inter_broker import EPOCH_DURING_DELETE

TOPIC_ID = UUID("01234567-89ab-cdef-7edc-ba9876543210")
BROKER_EPOCH = 2**32 + 5

BODIES = {
    "LeaderAndIsrRequest": bytes.fromhex(
        "0000000100000000070000000100000005010207636c69636b730123456789abcdef7edcba98765432100300000000000000"
        "060000000200000003030000000200000003000000090400000002000000030000000101010100000000000100000007ffff"
        "ffff0000000402000000030000000a030000000300000001020000000102000000030001000002000000020c74776f2e6578"
        "616d706c65000023850000"
    ),
    "LeaderAndIsrResponse": bytes.fromhex("0000020123456789abcdef7edcba98765432100300000000000000000000010038000000"),
    "StopReplicaRequest": bytes.fromhex(
        "00000001000000000700000001000000050207636c69636b73030000000000000005000000000001fffffffe01000000"
    ),
    "StopReplicaResponse": bytes.fromhex("00000207636c69636b7300000001004a0000"),
    "UpdateMetadataRequest": bytes.fromhex(
        "00000001000000000700000001000000050207636c69636b730123456789abcdef7edcba9876543210020000000000000007"
        "0000000200000003030000000200000003000000090400000002000000030000000102000000010000030000000203000023"
        "840c74776f2e6578616d706c650a504c41494e54455854000000000023850c74776f2e6578616d706c650753454355524500"
        "0100037231000000000301000000"
    ),
    "TypedUpdateMetadataRequest": bytes.fromhex("0000000100000000070000000000000005010101000102"),
    "UpdateMetadataResponse": bytes.fromhex("000b00"),
    "ControlledShutdownRequest": bytes.fromhex("00000002000000010000000500"),
    "ControlledShutdownResponse": bytes.fromhex("00000207636c69636b73000000030000"),
    "AlterPartitionRequest": bytes.fromhex(
        "000000020000000100000005020123456789abcdef7edcba9876543210020000000000000003030000000200000001000000"
        "050000000003ffffffffffffffff000000000009000000"
    ),
    "AlterPartitionResponse": bytes.fromhex(
        "000000000000020123456789abcdef7edcba9876543210020000000000000000000200000003030000000200000003000000000a000000"
    ),
}

_SENDER = {"controller_id": 1, "controller_epoch": 7, "broker_epoch": BROKER_EPOCH}
_STATE = {"leader": 2, "leader_epoch": 3, "isr": (2, 3), "replicas": (2, 3, 1)}

VALUES: Mapping[str, Mapping[str, Any]] = {
    "LeaderAndIsrRequest": {
        **_SENDER,
        "type": 1,
        "topic_states": [
            {
                "topic_name": "clicks",
                "topic_id": TOPIC_ID,
                "partition_states": [
                    {**_STATE, "partition_index": 0, "controller_epoch": 6, "partition_epoch": 9, "is_new": True},
                    {
                        "partition_index": 1,
                        "controller_epoch": 7,
                        "leader": -1,
                        "leader_epoch": 4,
                        "isr": (3,),
                        "partition_epoch": 10,
                        "replicas": (3, 1),
                        "adding_replicas": (1,),
                        "removing_replicas": (3,),
                        "leader_recovery_state": 1,
                    },
                ],
            }
        ],
        "live_leaders": [{"broker_id": 2, "host_name": "two.example", "port": 9093}],
    },
    "LeaderAndIsrResponse": {
        "error_code": ErrorCode.none,
        "topics": [
            {
                "topic_id": TOPIC_ID,
                "partition_errors": [
                    {"partition_index": 0, "error_code": ErrorCode.none},
                    {"partition_index": 1, "error_code": ErrorCode.kafka_storage_error},
                ],
            }
        ],
    },
    "StopReplicaRequest": {
        **_SENDER,
        "topic_states": [
            {
                "topic_name": "clicks",
                "partition_states": [
                    {"partition_index": 0, "leader_epoch": 5, "delete_partition": False},
                    {"partition_index": 1, "leader_epoch": EPOCH_DURING_DELETE, "delete_partition": True},
                ],
            }
        ],
    },
    "StopReplicaResponse": {
        "error_code": ErrorCode.none,
        "partition_errors": [
            {"topic_name": "clicks", "partition_index": 1, "error_code": ErrorCode.fenced_leader_epoch}
        ],
    },
    "UpdateMetadataRequest": {
        **_SENDER,
        "topic_states": [
            {
                "topic_name": "clicks",
                "topic_id": TOPIC_ID,
                "partition_states": [
                    {
                        **_STATE,
                        "partition_index": 0,
                        "controller_epoch": 7,
                        "zk_version": 9,
                        "offline_replicas": (1,),
                    }
                ],
            }
        ],
        "live_brokers": [
            {
                "id": 2,
                "rack": "r1",
                "endpoints": [
                    {"port": 9092, "host": "two.example", "listener": "PLAINTEXT", "security_protocol": 0},
                    {"port": 9093, "host": "two.example", "listener": "SECURE", "security_protocol": 1},
                ],
            },
            {"id": 3, "rack": None, "endpoints": []},
        ],
    },
    "TypedUpdateMetadataRequest": {
        **_SENDER,
        "broker_epoch": 5,
        "type": 2,
        "topic_states": [],
        "live_brokers": [],
    },
    "UpdateMetadataResponse": {"error_code": ErrorCode.stale_controller_epoch},
    "ControlledShutdownRequest": {"broker_id": 2, "broker_epoch": BROKER_EPOCH},
    "ControlledShutdownResponse": {
        "error_code": ErrorCode.none,
        "remaining_partitions": [{"topic_name": "clicks", "partition_index": 3}],
    },
    "AlterPartitionRequest": {
        "broker_id": 2,
        "broker_epoch": BROKER_EPOCH,
        "topics": [
            {
                "topic_id": TOPIC_ID,
                "partitions": [
                    {
                        "partition_index": 0,
                        "leader_epoch": 3,
                        "new_isr_with_epochs": [
                            {"broker_id": 2, "broker_epoch": BROKER_EPOCH},
                            {"broker_id": 3, "broker_epoch": -1},
                        ],
                        "partition_epoch": 9,
                    }
                ],
            }
        ],
    },
    "AlterPartitionResponse": {
        "throttle_time": timedelta(),
        "error_code": ErrorCode.none,
        "topics": [
            {
                "topic_id": TOPIC_ID,
                "partitions": [
                    {
                        "partition_index": 0,
                        "error_code": ErrorCode.none,
                        "leader_id": 2,
                        "leader_epoch": 3,
                        "isr": (2, 3),
                        "partition_epoch": 10,
                    }
                ],
            }
        ],
    },
}
