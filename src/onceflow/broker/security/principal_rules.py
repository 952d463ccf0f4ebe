"""Rules that map the name in a client's certificate to the name of a principal: `ssl.principal.mapping.rules`.

A list separated by commas of `DEFAULT` (the name itself) and `RULE:PATTERN/REPLACEMENT/[LU]`, where L and U convert to
lower and upper case. The first rule that matches the whole name applies
(org.apache.kafka.common.security.ssl.SslPrincipalMapper). As in Java, `\\w`, `\\d`, `\\s` and `\\b` mean ASCII.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_RULE = re.compile(r"DEFAULT|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_SPLIT = re.compile(r"\s*(DEFAULT|RULE:(?:\\.|[^\\/])*/(?:\\.|[^\\/])*/[LU]?.*?|.*?)\s*(?:,\s*|$)")
_REFERENCE = re.compile(r"\\(.)|\$([1-9][0-9]*|0)", re.DOTALL)


@dataclass(frozen=True)
class Rule:
    """One rule; without a pattern, the default."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the principal's name; None if the rule does not match."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        mapped = self.pattern.sub(self._replaced, name)
        return {"L": mapped.lower(), "U": mapped.upper()}.get(self.case, mapped)

    def _replaced(self, match: re.Match[str]) -> str:
        """Return the replacement with Java's references to groups; one to a group that does not exist is plain text."""

        def expanded(reference: re.Match[str]) -> str:
            escaped, number = reference.groups()
            if escaped is not None:
                return str(escaped)
            rest = ""
            while int(number) > match.re.groups and len(number) > 1:
                number, rest = number[:-1], number[-1] + rest
            if int(number) > match.re.groups:
                return reference[0]
            return (match[int(number)] or "") + rest

        return _REFERENCE.sub(expanded, self.replacement)


def parse_rules(text: str) -> Sequence[Rule]:
    """Return the rules. Raises ValueError, with what is wrong."""
    rules = []
    for part in _SPLIT.findall(text.strip()):
        if not part:
            continue
        match = _RULE.fullmatch(part)
        if match is None:
            raise ValueError(f"has an invalid rule: {part}; write DEFAULT or RULE:PATTERN/REPLACEMENT/[LU]")
        if match[1] is None:
            rules.append(Rule())
            continue
        try:
            rules.append(Rule(re.compile(match[1], re.ASCII), match[2], match[3]))
        except re.error as error:
            raise ValueError(f"has an invalid pattern: {match[1]}: {error}") from error
    return rules


def map_name(rules: Sequence[Rule], name: str) -> str | None:
    """Return the principal's name of a certificate's; None if no rule matches."""
    return next((mapped for rule in rules if (mapped := rule.apply(name)) is not None), None)
