"""The base class of Onceflow's own errors."""


class OnceflowError(Exception):
    """An error whose message says what failed, with which value, and what to do; the command line prints it alone."""
