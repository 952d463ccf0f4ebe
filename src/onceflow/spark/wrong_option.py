"""The one error of options that cannot be meant."""

from onceflow.errors import OnceflowError


class WrongOption(OnceflowError):
    """An option is missing, unknown, or has a value that means nothing; the sentence says what would be right."""
