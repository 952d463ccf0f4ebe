"""Why a sink stops, or begins an attempt at a batch anew. Apart from `sink`, because tasks in the executors use it."""

from onceflow.errors import OnceflowError


class SinkStopped(OnceflowError):
    """The sink cannot go on, and ends the query: whatever it might do could write a row twice or never."""


class MarkerRefused(SinkStopped):
    """Marker, data and checkpoint do not belong together; going on would write wrongly."""


class AttemptEnded(OnceflowError):
    """This attempt at the batch cannot be finished; whether it was committed all the same, the marker tells.

    A sink raises it where another attempt may succeed. It is aborted then, recovers, and what it finds decides.
    """


class CommitUnknown(AttemptEnded):
    """The answer to the commit is lost: data and marker may both be there, or neither."""
