"""The one place that decides what happens when the log no longer has what a query was to read."""

import logging
from collections.abc import Iterable

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.spark.offsets import Loss, LossKind

_logger = logging.getLogger(__name__)


REMEDIES = {
    LossKind.TRIMMED: f"it was deleted before the query read it: to count what is left, {Remedy.ACCEPT_DATA_LOSS}",
    LossKind.TRUNCATED: (
        f"the log's end went back: to continue at its end, without what came since, {Remedy.ACCEPT_DATA_LOSS}"
    ),
    LossKind.RECREATED: (
        f"to count the new topic beside the old counts, {Remedy.ACCEPT_DATA_LOSS}; to count it alone, "
        f"{Remedy.BEGIN_NEW_CHECKPOINT}"
    ),
    LossKind.MISSING: f"{Remedy.NAME_OTHER_BROKERS}, or {Remedy.CREATE_TOPIC} and {Remedy.ACCEPT_DATA_LOSS}",
}
"""What to do about each kind of loss."""


class DataLost(OnceflowError):
    """Offsets that the query has not read are gone, and option failOnDataLoss is true."""


def report(lost: Iterable[Loss], *, fail: bool) -> None:
    """Log each loss. Raises DataLost for the first one where `fail` is true."""
    for loss in lost:
        if fail:
            raise DataLost(f"{loss.gone} is gone from the log: {loss.reason}; {REMEDIES[loss.kind]}")
        _logger.warning("%s is gone from the log: %s; the query continues without it", loss.gone, loss.reason)
