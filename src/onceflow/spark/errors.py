"""Errors of the connector: wrong options, and what stops a sink or ends an attempt."""

from onceflow.errors import OnceflowError


class WrongOption(OnceflowError):
    """Option that is missing, unknown or has an invalid value; the message says what is valid."""


class SinkStopped(OnceflowError):
    """The sink stops the query: any further write could write a row twice or never."""


class IncompatibleData(SinkStopped):
    """A key's type, a field's value or a row does not allow adding to it."""


class MarkerRefused(SinkStopped):
    """Marker, data and checkpoint do not belong together; a further write would be wrong."""


class AttemptEnded(OnceflowError):
    """This attempt at the batch cannot be finished; the marker says whether it was committed all the same.

    A sink raises it if another attempt may succeed. The attempt is aborted; the next one recovers and decides again.
    """


class CommitUnknown(AttemptEnded):
    """The response to the commit is lost: data and marker are either both written, or neither."""
