"""Checks of JSON text before it is decoded: nesting depth, and the exact value of a number.

RFC 8259 is the rule, msgspec the parser. Only msgspec is imported, since clicks.events uses this module too.
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
"""Minimum number of characters, all brackets, of JSON that is too deep; shorter text needs no check."""
POWER_MAX = 10**18
"""Stand-in for an exponent of more than 18 digits: its exact value does not matter."""

_NUMBER = re.compile(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)


class Number(NamedTuple):
    """Exact JSON number: digits times 10^power. The digits neither start nor end with 0; those of zero are empty."""

    negative: bool
    digits: str
    power: int

    @property
    def places(self) -> int:
        """Number of digits before the decimal point, 0 or less for a number below 1."""
        return len(self.digits) + self.power


def parse_number(text: str) -> Number | None:
    """Parse text that is exactly a JSON number; return None for other text. Without floats, 2^53 + 1 stays exact."""
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
    """Return whether brackets outside strings nest deeper than `DEPTH_MAX`, counted up to any syntax error."""
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
    """Return whether the text is valid JSON of any kind; it must not be too deep."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True
