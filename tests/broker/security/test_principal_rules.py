"""Rules that map a certificate's name: the cases are those of Kafka's SslPrincipalMapperTest, and others."""

import pytest

from onceflow.broker.security.principal_rules import map_name, parse_rules

SERVICE = "CN=Duke,OU=ServiceUsers,O=Org,C=US"


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("DEFAULT", SERVICE, SERVICE),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", SERVICE, "Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", SERVICE, "duke"),
        ("RULE:^CN=(.*?),OU=(.*?),O=.*$/$1@$2/U, DEFAULT", SERVICE, "DUKE@SERVICEUSERS"),
        ("RULE:^CN=(.*?),OU=Other.*$/$1/", SERVICE, None),
        ("RULE:^CN=(.*?),OU=Other.*$/$1/,RULE:^.*OU=(.*?),.*$/$1/", SERVICE, "ServiceUsers"),
        ("RULE:^CN=(.*?),.*$/$1@$4/", SERVICE, "Duke@$4"),
        ("RULE:^CN=(.*?),.*$/$12/", SERVICE, "Duke2"),
        (r"RULE:^CN=(.*?),.*$/a\/\$1/", SERVICE, "a/$1"),
        (r"RULE:^CN=(.{1,9}?),.*$/$1/", SERVICE, "Duke"),
        ("RULE:.*/x/", SERVICE, "xx"),
        (r"RULE:^CN=(\w+)$/$1/L", "CN=Duke", "duke"),
        (r"RULE:^CN=(\w+)$/$1/L", "CN=Dükë", None),
        (r"RULE:^CN=(\d+)$/$1/", "CN=\u0664", None),
        (r"RULE:(?i)^CN=(k.*)$/$1/", "CN=\u212aate", None),
        ("", SERVICE, None),
    ],
)
def test_the_first_matching_rule_applies(rules: str, name: str, expected: str | None) -> None:
    assert map_name(parse_rules(rules), name) == expected


@pytest.mark.parametrize("rules", ["default", "DEFAUL", "DEFAULT/L", "RULE:CN=(.*)/$1", "RULE:a/b/X", "RULE:(/b/"])
def test_invalid_rules_are_refused(rules: str) -> None:
    with pytest.raises(ValueError, match="has an invalid"):
        parse_rules(rules)
