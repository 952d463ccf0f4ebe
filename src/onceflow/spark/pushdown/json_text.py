"""JSON text looked at before it becomes values: how deep it nests, what a number means exactly as it is written.

RFC 8259 is the rule; msgspec is the parser. It needs nothing but msgspec: clicks.events judges events with it too.
"""

import re
from typing import NamedTuple

import msgspec

NO_VALUE = "no-value"
NOT_UTF8 = "not-utf8"
NOT_JSON = "not-json"
NOT_OBJECT = "not-object"

DEPTH_MAX = 200
DEEP_CHARACTERS_MIN = 2 * (DEPTH_MAX + 1)
"""JSON that is too deep has so many characters, in brackets alone; of a shorter text the parser may decide."""
POWER_MAX = 10**18
"""An exponent of more than 18 digits is out of all reach, whatever it is exactly."""

_NUMBER = re.compile(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)


class Number(NamedTuple):
    """A JSON number, exact: its digits times 10^power. They neither begin nor end with 0; those of zero are empty."""

    negative: bool
    digits: str
    power: int

    @property
    def places(self) -> int:
        """How many digits stand before the decimal point, 0 or less for a number below 1."""
        return len(self.digits) + self.power


def parse_number(text: str) -> Number | None:
    """Read text that is exactly a JSON number; None for any other. Never through a float, so 2^53 + 1 is not 2^53."""
    number = _NUMBER.fullmatch(text)
    if number is None:
        return None
    sign, whole, fraction, exponent = number.groups()
    digits = (whole + (fraction or "")).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return Number(bool(sign), "", 0)
    power = len(digits) - len(significant) + _power(exponent) - len(fraction or "")
    return Number(bool(sign), significant, power)


def _power(exponent: str | None) -> int:
    if exponent is None:
        return 0
    digits = exponent.lstrip("+-").lstrip("0")
    size = int(digits or "0") if len(digits) <= 18 else POWER_MAX
    return -size if exponent.startswith("-") else size


def is_too_deep(text: str) -> bool:
    """Say whether brackets outside of strings nest deeper than `DEPTH_MAX`, counted up to any syntax error."""
    if text.count("[") + text.count("{") <= DEPTH_MAX:
        return False
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text):
        first = token[0][0]
        if first in "[{":
            depth += 1
            if depth > DEPTH_MAX:
                return True
        elif first != '"':
            depth -= 1
    return False


def is_json(text: str) -> bool:
    """Say whether the text is one JSON text of any kind; it must not be too deep."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True
