"""Errors of the archive and of queries about it."""

from onceflow.errors import OnceflowError


class ArchiveUnreadable(OnceflowError):
    """Directory that has no archive, or one that this version of onceflow cannot read."""


class ArchiveFailed(OnceflowError):
    """Files of an archive that cannot be read."""


class QueryRefused(OnceflowError):
    """Events that cannot be read completely: the log has deleted some of the tail, or the tail is too long."""


class QueryCancelled(OnceflowError):
    """A query whose caller no longer waits for it."""
