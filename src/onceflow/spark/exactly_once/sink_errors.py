"""Errors that stop a sink or end an attempt. Not in `sink`, because tasks in the executors raise them."""

from onceflow.errors import OnceflowError


class SinkStopped(OnceflowError):
    """The sink stops the query: any further write could write a row twice or never."""


class MarkerRefused(SinkStopped):
    """Marker, data and checkpoint do not belong together; a further write would be wrong."""


class AttemptEnded(OnceflowError):
    """This attempt at the batch cannot be finished; the marker says whether it was committed all the same.

    A sink raises it if another attempt may succeed. The attempt is aborted; the next one recovers and decides again.
    """


class CommitUnknown(AttemptEnded):
    """The response to the commit is lost: data and marker are either both written, or neither."""
