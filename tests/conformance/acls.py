"""Invalid requests and edge cases about ACLs, for brokers with an authorizer."""

from collections.abc import Callable
from typing import Any

from onceflow.wire import apis
from tests.conformance.side import Side
from tests.conformance.valid_requests import acl_fields, acl_filter

LITERAL, PREFIXED, ANY, MATCH = 3, 4, 1, 2


def create(*, is_refused: bool = False, **changes: Any) -> Callable[[Side], None]:
    """Create the case's ACL and one with changed fields, and describe and delete what came of it."""

    def case(side: Side) -> None:
        for version in (1, 3):
            side.ask(apis.CREATE_ACLS, version, creations=[acl_fields(side) | changes, acl_fields(side)], on="main")
            if not is_refused:
                described(side)

    return case


def described(side: Side, **changes: Any) -> None:
    """Describe the case's ACLs once the broker applies them, and delete them."""
    wanted = acl_filter(side) | {"principal_filter": None} | changes
    side.until(lambda response: response.resources, apis.DESCRIBE_ACLS, 3, **(acl_filter(side)))
    side.ask(apis.DESCRIBE_ACLS, 3, **wanted, on="main")
    side.ask(apis.DELETE_ACLS, 3, filters=[wanted], on="main")
    side.until(lambda response: not response.resources, apis.DESCRIBE_ACLS, 3, **(acl_filter(side)))


def matching(side: Side) -> None:
    """Create ACLs for patterns of all kinds, and select them by each kind of filter."""
    name = side.topic
    patterns = [(name, LITERAL), (name, PREFIXED), (name[:-1], PREFIXED), (f"{name}-more", LITERAL)]
    fields = [acl_fields(side) | {"resource_name": of, "resource_pattern_type": kind} for of, kind in patterns]
    user = f"User:{name}"
    fields = [entry | {"principal": user} for entry in fields]
    side.ask(apis.CREATE_ACLS, 3, creations=fields, on="main")
    mine = acl_filter(side) | {"principal_filter": user, "resource_name_filter": None}
    side.until(lambda response: len(response.resources) == len(patterns), apis.DESCRIBE_ACLS, 3, **mine)
    for kind in (LITERAL, PREFIXED, ANY, MATCH, 77):
        for wanted in (name, name[:-1], f"{name}-more", f"{name}x", None):
            selected = mine | {"pattern_type_filter": kind, "resource_name_filter": wanted}
            side.ask(apis.DESCRIBE_ACLS, 3, **selected, on="main")
    for change in (
        {"operation": 4},
        {"operation": 2},
        {"permission_type": 2},
        {"host_filter": "*"},
        {"host_filter": "x"},
    ):
        side.ask(apis.DESCRIBE_ACLS, 3, **(mine | change), on="main")
    side.ask(apis.DELETE_ACLS, 3, filters=[mine | {"operation": 99}, mine, mine], on="main")


def codes_of_unknown(side: Side) -> None:
    """Send the code 0, which closes the connection."""
    for field in ("resource_type", "resource_pattern_type", "operation", "permission_type"):
        side.ask(apis.CREATE_ACLS, 3, creations=[acl_fields(side) | {field: 0}], on="main")
    for field in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
        side.ask(apis.DESCRIBE_ACLS, 3, **(acl_filter(side) | {field: 0}), on="main")
        side.ask(apis.DELETE_ACLS, 3, filters=[acl_filter(side) | {field: 0}], on="main")


CASES: dict[str, Callable[[Side], None]] = {
    "ACLs selected by filters": matching,
    "ACLs with codes of unknown": codes_of_unknown,
    "ACLs of any resource": create(resource_type=1, is_refused=True),
    "ACLs of a later resource": create(resource_type=99),
    "ACLs of another cluster": create(resource_type=4),
    "ACLs of the cluster by prefix": create(resource_type=4, resource_pattern_type=PREFIXED),
    "ACLs without a name": create(resource_name=""),
    "ACLs of any pattern": create(resource_pattern_type=ANY, is_refused=True),
    "ACLs of matching patterns": create(resource_pattern_type=MATCH, is_refused=True),
    "ACLs of any operation": create(operation=1, is_refused=True),
    "ACLs of a later operation": create(operation=99),
    "ACLs of any permission": create(permission_type=1, is_refused=True),
    "ACLs of a later permission": create(permission_type=99),
    "ACLs of a principal without type": create(principal="ada"),
    "ACLs of an empty principal": create(principal=""),
    "ACLs of a principal without name": create(principal="User:"),
    "ACLs of a host": create(host="10.0.0.1"),
    "ACLs of an empty host": create(host=""),
    "ACLs of a host name": create(host="example.com"),
    "ACLs of a user": create(resource_type=7, resource_name="User:ada"),
    "ACLs twice": create(),
}
