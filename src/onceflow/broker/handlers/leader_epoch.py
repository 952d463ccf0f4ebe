"""The leader epoch that a client believes in, held against the only one that a broker without replicas has."""

from onceflow.log.checkpoint import LEADER_EPOCH
from onceflow.wire.errors import ErrorCode

NO_LEADER_EPOCH = -1


def epoch_error(current_leader_epoch: int) -> ErrorCode:
    """What is wrong with a request's `current_leader_epoch` (Kafka's Partition.checkCurrentLeaderEpoch)."""
    if current_leader_epoch in (NO_LEADER_EPOCH, LEADER_EPOCH):
        return ErrorCode.none
    is_older = current_leader_epoch < LEADER_EPOCH
    return ErrorCode.fenced_leader_epoch if is_older else ErrorCode.unknown_leader_epoch
