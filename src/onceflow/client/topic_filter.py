"""Topics that a consumer connector follows, by regular expression."""

import re
from typing import ClassVar, Protocol

from onceflow.client.errors import ClientError


class InvalidFilter(ClientError):
    """A filter's regular expression cannot be compiled."""


class TopicFilter(Protocol):
    """Decides about each topic by name; the broker's own topics are left out before."""

    def allows(self, topic: str) -> bool:
        """Return whether the topic is followed."""
        ...


class _ByExpression:
    """Filter by one regular expression."""

    def __init__(self, pattern: str) -> None:
        self._pattern = _compile(pattern)

    @property
    def expression(self) -> str:
        """The regular expression."""
        return self._pattern.pattern


class Whitelist(_ByExpression):
    """Topics whose whole name matches; a comma separates alternatives, as in `clicks,views-.*`."""

    kind: ClassVar[str] = "white_list"
    """Name in ZooKeeper."""

    def allows(self, topic: str) -> bool:
        return self._pattern.fullmatch(topic) is not None


class Blacklist(_ByExpression):
    """Topics whose whole name does not match."""

    kind: ClassVar[str] = "black_list"
    """Name in ZooKeeper."""

    def allows(self, topic: str) -> bool:
        return self._pattern.fullmatch(topic) is None


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern.strip().strip("\"'").replace(",", "|").replace(" ", ""))
    except re.error as error:
        raise InvalidFilter(f"the topic filter {pattern!r} is not a regular expression: {error}") from error
