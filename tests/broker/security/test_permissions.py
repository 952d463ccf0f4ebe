"""The table of permissions against what handlers ask and what clients get."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.handlers import inter_broker
from onceflow.broker.security import page
from onceflow.broker.security.authorizer import AclAccess
from onceflow.broker.security.permissions import PERMISSIONS, WHOLE_REQUESTS
from onceflow.broker.server import REFUSALS
from onceflow.testing import Broker
from onceflow.wire.acls import AclOperation, ResourceType
from onceflow.wire.apis import APIS
from tests.conformance.guarded import GUARDED_CASES, SETTINGS, UNGUARDED, admit_admin, play, played

PAGE = Path(__file__).parents[3] / "docs" / "acls.md"
Asked = set[tuple[AclOperation, ResourceType]]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    """A broker on which only the clients at 127.0.0.1 may do something."""
    settings = {**SETTINGS, "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}
    with Broker(settings=settings) as broker:
        admit_admin(broker.bootstrap_servers)
        yield broker


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Permissions that handlers ask for, of clients that are not at 127.0.0.1."""
    seen: Asked = set()
    may, may_somewhere = AclAccess.may, AclAccess.may_somewhere

    def recorded(access: AclAccess, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        if access._host != "127.0.0.1":
            seen.add((operation, resource_type))
        return may(access, operation, resource_type, name)

    def recorded_somewhere(access: AclAccess, operation: AclOperation, resource_type: ResourceType) -> bool:
        seen.add((operation, resource_type))
        return may_somewhere(access, operation, resource_type)

    monkeypatch.setattr(AclAccess, "may", recorded)
    monkeypatch.setattr(AclAccess, "may_somewhere", recorded_somewhere)
    return seen


def test_every_api_has_its_permissions() -> None:
    assert PERMISSIONS.keys() == APIS.keys()
    assert {**REFUSALS, **inter_broker.REFUSALS}.keys() == WHOLE_REQUESTS.keys()
    assert inter_broker.REFUSALS.keys() == inter_broker.HANDLERS.keys()


@pytest.mark.parametrize("api_key", PERMISSIONS, ids=lambda api_key: APIS[api_key].name)
def test_handlers_ask_what_the_table_says(guarded: Broker, asked: Asked, api_key: int) -> None:
    newest = APIS[api_key].version_max
    for case in (case for case in GUARDED_CASES if case[:2] == (api_key, newest) and not case[3]):
        _key, version, name, _is_widened = case
        with played(guarded.bootstrap_servers, f"asked {APIS[api_key].name} {version} {name}") as side:
            play(side, api_key, version, name, is_widened=False)
    assert asked == {(row.operation, row.resource_type) for row in PERMISSIONS[api_key]}


def error_codes(came: Any) -> Iterator[str]:
    """Yield all error codes in the normal form of a response."""
    if isinstance(came, list):
        for element in came:
            yield from error_codes(element)
    elif isinstance(came, dict):
        for name, value in came.items():
            if name.endswith("error_code"):
                yield value
            yield from error_codes(value)


LISTS = {"ListGroups", "ListTransactions", "DescribeCluster"}
"""APIs that leave out what a client may not see, without an error."""
PARTLY = {"FindCoordinator", "Produce"}
"""APIs whose requests have a part that is refused in any case: a key without ACL, a transaction without an id."""


@pytest.mark.parametrize("api_key", sorted(set(PERMISSIONS) - UNGUARDED), ids=lambda api_key: APIS[api_key].name)
def test_effect_of_permissions(guarded: Broker, api_key: int) -> None:
    """Without any, nothing succeeds; with all, nothing is refused for want of one."""
    name = APIS[api_key].name
    codes = {}
    for chosen in ("nothing", "everything"):
        with played(guarded.bootstrap_servers, f"effect on {name} of {chosen}") as side:
            play(side, api_key, APIS[api_key].version_max, chosen, is_widened=chosen == "nothing")
            codes[chosen] = {code for step in side.steps for code in error_codes(step.came)}
    refused = {code for code in codes["nothing"] if code.endswith("authorization_failed")}
    assert bool(refused) == (name not in LISTS)
    assert codes["nothing"] - refused <= {"none"}
    assert name in PARTLY or not {code for code in codes["everything"] if code.endswith("authorization_failed")}


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page.page(), "run: .venv/bin/python -m onceflow.broker.security.page > docs/acls.md"
