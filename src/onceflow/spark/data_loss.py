"""The one place that decides what happens when the log no longer has what a query was to read."""

import logging
from collections.abc import Iterable

from onceflow.errors import OnceflowError
from onceflow.spark.offsets import Loss
from onceflow.spark.options import FAIL_ON_DATA_LOSS

_logger = logging.getLogger(__name__)


class DataLost(OnceflowError):
    """Offsets that the query has not read are gone, and option failOnDataLoss is true."""


def report(lost: Iterable[Loss], *, fail: bool) -> None:
    """Raises DataLost for the first loss, or logs each and lets the query go on without those records."""
    for loss in lost:
        if fail:
            raise DataLost(
                f"{loss.gone} is gone from the log: {loss.reason}; option {FAIL_ON_DATA_LOSS}=false goes on without it"
            )
        _logger.warning("%s is gone from the log: %s; going on without it", loss.gone, loss.reason)
