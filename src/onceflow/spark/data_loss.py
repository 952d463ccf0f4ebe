"""The one place that decides what happens when the log no longer has what a query was to read."""

import logging
from collections.abc import Iterable

from onceflow.errors import OnceflowError
from onceflow.spark.offsets import Loss, LossKind
from onceflow.spark.options import FAIL_ON_DATA_LOSS

_logger = logging.getLogger(__name__)


ACCEPT_DATA_LOSS = (
    "accept the loss with 'onceflow run --accept-data-loss', in Python with option "
    f"{FAIL_ON_DATA_LOSS}=false of the source and accept_data_loss= of the sink"
)


REMEDIES = {
    LossKind.TRIMMED: f"it was deleted before the query read it: to count what is left, {ACCEPT_DATA_LOSS}",
    LossKind.TRUNCATED: f"the log's end went back: to continue at its end, without what came since, {ACCEPT_DATA_LOSS}",
    LossKind.RECREATED: (
        f"to count the new topic beside the old counts, {ACCEPT_DATA_LOSS}; to count it alone, begin with a new "
        "checkpoint and an empty target ('onceflow sink reset')"
    ),
    LossKind.MISSING: f"name the brokers that have it, or create the topic and {ACCEPT_DATA_LOSS}",
}
"""What to do about each kind of loss; tests/clicks/test_accepted_losses.py does it."""


class DataLost(OnceflowError):
    """Offsets that the query has not read are gone, and option failOnDataLoss is true."""


def report(lost: Iterable[Loss], *, fail: bool) -> None:
    """Log each loss. Raises DataLost for the first one where `fail` is true."""
    for loss in lost:
        if fail:
            raise DataLost(f"{loss.gone} is gone from the log: {loss.reason}; {REMEDIES[loss.kind]}")
        _logger.warning("%s is gone from the log: %s; the query continues without it", loss.gone, loss.reason)
