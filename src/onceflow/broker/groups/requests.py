"""Between the group coordinator and its log: records are appended and replayed, then answers wait for their sync."""

import logging
from collections.abc import Callable, Sequence

from onceflow.broker.groups import records as group_records
from onceflow.broker.groups.coordinator import GroupCoordinator, Outcome
from onceflow.broker.groups.records import GroupRecord
from onceflow.broker.state_log import StateLog
from onceflow.log.errors import LogError
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

RECORDS_IN_A_BATCH = 1000
"""Of those that take offsets away: at most some 1.3 KB each, so a batch stays far below the log's bound."""


class GroupRequests:
    """Carries out what the coordinator decided. After a failed sync every answer is an error until restart."""

    def __init__(self, groups: GroupCoordinator, state_log: StateLog) -> None:
        self._groups = groups
        self._state_log = state_log
        for record in state_log.records():
            assert record.key is not None
            groups.replay(group_records.decode(record.key, record.value))

    @property
    def error_code(self) -> ErrorCode:
        """What every group request gets: `none` while the log can be written."""
        failed = self._state_log.partition.log.failure is not None
        return ErrorCode.coordinator_not_available if failed else ErrorCode.none

    def carry_out(self, outcome: Outcome) -> None:
        """Append and replay an outcome's records, then send its answers, which may reveal them."""

        def settled(error_code: ErrorCode) -> None:
            for refuse in outcome.refusals if error_code else ():
                refuse(error_code)
            for answer in () if error_code else outcome.answers:
                answer()

        self.record(outcome.records, settled)

    def record(self, records: Sequence[GroupRecord], settled: Callable[[ErrorCode], None]) -> None:
        """Append `records` in one batch and replay them; `settled` is told once they are durable, or the error."""
        error_code = self._append(records)
        if error_code:
            settled(error_code)
        else:
            self.when_synced(settled)

    def append_in_batches(self, records: Sequence[GroupRecord]) -> ErrorCode:
        """Append and replay records that need not be in one batch, which bounds their number; ends at an error."""
        for begin in range(0, len(records), RECORDS_IN_A_BATCH):
            error_code = self._append(records[begin : begin + RECORDS_IN_A_BATCH])
            if error_code:
                return error_code
        return ErrorCode.none

    def _append(self, records: Sequence[GroupRecord]) -> ErrorCode:
        if self.error_code or not records:
            return self.error_code
        try:
            self._state_log.append([group_records.encode(record) for record in records])
        except LogError as error:
            logger.error("the groups' records could not be appended: %s", error)
            return ErrorCode.coordinator_not_available
        for record in records:
            self._groups.replay(record)
        return ErrorCode.none

    def when_synced(self, settled: Callable[[ErrorCode], None]) -> None:
        """Tell `settled` once all that the coordinator knows is durable, or that it never will be."""
        self._state_log.when_synced(
            lambda code: settled(ErrorCode.coordinator_not_available if code else ErrorCode.none)
        )
