"""Count events exactly once, in real time, with Python."""

__version__ = "0.1.0"
