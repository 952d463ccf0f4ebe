"""Events into a topic: generated, or replayed from log files."""
