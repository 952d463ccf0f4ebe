"""The error for a wrong option."""

from onceflow.errors import OnceflowError


class WrongOption(OnceflowError):
    """Option that is missing, unknown or has an invalid value; the message says what is valid."""
