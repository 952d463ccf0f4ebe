"""Reaction to data loss: fail or log, when the log no longer has offsets that a query had to read."""

import logging
from collections.abc import Iterable

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark.offsets import Loss, LossKind

_logger = logging.getLogger(__name__)


REMEDIES = {
    LossKind.TRIMMED: f"it was deleted before the query read it: to count the rest, {Remedy.ACCEPT_DATA_LOSS}",
    LossKind.TRUNCATED: (
        f"the log's end moved back: to continue at its end, without the records written since, "
        f"{Remedy.ACCEPT_DATA_LOSS}"
    ),
    LossKind.RECREATED: (
        f"to count the new topic beside the old counts, {Remedy.ACCEPT_DATA_LOSS}; to count it alone, "
        f"{Remedy.BEGIN_NEW_CHECKPOINT}"
    ),
    LossKind.MISSING: f"{Remedy.NAME_OTHER_BROKERS}, or {Remedy.CREATE_TOPIC} and {Remedy.ACCEPT_DATA_LOSS}",
}
"""Remedy for each kind of loss."""


class DataLost(OnceflowError):
    """Loss of offsets that the query has not read, with option failOnDataLoss=true."""


def report(lost: Iterable[Loss], *, fail: bool) -> None:
    """Log each loss, or raise DataLost for the first one if `fail` is true."""
    for loss in lost:
        if fail:
            raise DataLost(f"{loss.place} is missing from the log: {loss.reason}; {REMEDIES[loss.kind]}")
        _logger.warning("%s is missing from the log: %s; the query continues without it", loss.place, loss.reason)
