"""Errors that stop a mirror."""

from onceflow.errors import OnceflowError


class MirrorStopped(OnceflowError):
    """Continuing would lose, repeat or mix records, or needs a decision."""


class MirrorFenced(MirrorStopped):
    """Another mirror with the same name has taken over."""
