"""Requests of a client with chosen permissions, to a broker with an authorizer.

Clients differ by their address, since everyone on a plaintext listener is User:ANONYMOUS: 127.0.0.1 may do
everything and prepares a case, an address of the case's own sends the requests that are compared.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from onceflow.broker.security.permissions import PERMISSIONS, Permission
from onceflow.wire import apis
from onceflow.wire.acls import CLUSTER_NAME, AclOperation, AclPermission, PatternType, ResourceType
from onceflow.wire.apis import APIS
from tests.broker.raw_client import RawClient, connected
from tests.conformance.guarded_requests import OTHER_REQUESTS, TOPIC_KINDS
from tests.conformance.side import PATIENCE_SECONDS, Side
from tests.conformance.valid_requests import VALID_REQUESTS

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""Everyone may create the first ACLs; from then on each resource has one."""
ADMIN = "127.0.0.1"
GUARDED = "guarded"
UNGUARDED = {apis.API_VERSIONS, apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE}

GuardedCase = tuple[int, int, str, bool]
"""(API key, version, name of the permissions, whether the request is about several resources)."""
Grant = tuple[AclOperation, ResourceType, str, PatternType, AclPermission]
"""(operation, type and name of the resource, pattern type, permission)."""


NO_FLAGS: dict[str, Any] = {
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
    "include_cluster_authorized_operations": False,
}


def creation(grant: Grant, host: str, principal: str = "User:ANONYMOUS") -> dict[str, Any]:
    """Return an entry of CreateAcls."""
    operation, resource_type, name, pattern_type, permission = grant
    return {
        "resource_type": resource_type,
        "resource_name": name,
        "resource_pattern_type": pattern_type,
        "principal": principal,
        "host": host,
        "operation": operation,
        "permission_type": permission,
    }


def allow(operation: AclOperation, resource_type: ResourceType, name: str) -> Grant:
    return operation, resource_type, name, PatternType.LITERAL, AclPermission.ALLOW


def describing(**fields: Any) -> dict[str, Any]:
    """Return a DescribeAcls, or a filter of DeleteAcls."""
    return {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
        **fields,
    }


def admit_admin(bootstrap: str) -> None:
    """Let clients at 127.0.0.1, the broker's own included, do everything, and no others anything."""
    names = {ResourceType.CLUSTER: CLUSTER_NAME}
    types = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)
    with connected(bootstrap) as client:
        wanted = [creation(allow(AclOperation.ALL, of, names.get(of, "*")), ADMIN) for of in types]
        response = client.ask(apis.CREATE_ACLS, 3, creations=wanted)
        assert not any(result.error_code for result in response.results), response


class GuardedSide(Side):
    """A side whose compared requests come from an address without permissions, except those that are granted."""

    def __init__(self, bootstrap: str, case: str) -> None:
        super().__init__(bootstrap, case)
        number = zlib.crc32(case.encode())
        self.host = f"127.{64 + number % 128}.{number // 128 % 256}.{1 + number // 2**15 % 254}"
        self.is_widened = False

    def client(self, on: str = "main") -> RawClient:
        if on == GUARDED and on not in self._clients:
            self._clients[on] = RawClient(self.bootstrap, source=self.host)
            self._clients[on].socket.settimeout(PATIENCE_SECONDS)
        return super().client(on)

    def ask(self, api_key: int, version: int, *, on: str = GUARDED, **fields: Any) -> Any:
        if self.is_widened:
            fields = {name: self._widened(value) for name, value in fields.items()}
        return super().ask(api_key, version, on=on, **fields)

    def ask_about_own(self, api_key: int, version: int, **fields: Any) -> None:
        super().ask_about_own(api_key, version, on=GUARDED, **fields)

    def create_topic(self, partitions: int = 1, name: str = "", **configs: str) -> str:
        """Create a topic, and number its id: responses may list topics in another order."""
        created = super().create_topic(partitions, name, **configs)
        self.ask_quietly(apis.METADATA, 12, topics=[{"name": created, "topic_id": None}], **NO_FLAGS)
        return created

    def grant(self, grants: Sequence[Grant]) -> None:
        """Create ACLs for the case's address, and wait until the broker applies them."""
        if not grants:
            return
        self.ask_quietly(apis.CREATE_ACLS, 3, creations=[creation(grant, self.host) for grant in grants])
        self.until(
            lambda response: sum(len(resource.acls) for resource in response.resources) == len(set(grants)),
            apis.DESCRIBE_ACLS,
            3,
            **describing(host_filter=self.host),
        )

    def _widened(self, value: Any) -> Any:
        """Return lists with each resource of the case followed by one that has no ACL and one that does not exist."""
        if isinstance(value, Mapping):
            return {name: self._widened(field) for name, field in value.items()}
        if not isinstance(value, list | tuple):
            return value
        wide = []
        for element in value:
            wide.append(element)
            for suffix in ("-other", "-absent"):
                renamed = self._renamed(element, suffix)
                if renamed != element:
                    wide.append(renamed)
        return wide

    def _renamed(self, element: Any, suffix: str) -> Any:
        if isinstance(element, str):
            return element + suffix if element in (self.topic, self.group) else element
        if isinstance(element, Mapping):
            return {name: self._renamed(value, suffix) for name, value in element.items()}
        return element


@contextmanager
def played(bootstrap: str, case: str) -> Iterator[GuardedSide]:
    side = GuardedSide(bootstrap, case)
    try:
        yield side
    finally:
        side.close()


def names_of(side: Side, resource_type: ResourceType) -> tuple[str, ...]:
    """Return the names of a case's resources of one type."""
    if resource_type == ResourceType.CLUSTER:
        return (CLUSTER_NAME,)
    if resource_type == ResourceType.TOPIC:
        return (side.topic, *(f"{side.topic}-{kind}" for kind in TOPIC_KINDS))
    return (side.group if resource_type == ResourceType.GROUP else side.topic, "x")


def grants_of(side: Side, rows: Sequence[Permission], permission: AclPermission = AclPermission.ALLOW) -> list[Grant]:
    """Return the rows for the case's resources."""
    return [
        (operation, resource_type, name, PatternType.LITERAL, permission)
        for operation, resource_type in dict.fromkeys((row.operation, row.resource_type) for row in rows)
        for name in names_of(side, resource_type)
    ]


def send_valid_request(side: GuardedSide, api_key: int, version: int, *, is_widened: bool = False) -> None:
    """Send the API's valid request from the case's address."""
    side.is_widened = is_widened
    if is_widened and api_key != apis.CREATE_TOPICS:
        side.create_topic(2, f"{side.topic}-other")
    VALID_REQUESTS[api_key](side, version)
    if version == APIS[api_key].version_max and api_key in OTHER_REQUESTS:
        OTHER_REQUESTS[api_key](side, version)


def chosen_permissions(api_key: int) -> dict[str, tuple[Sequence[Permission], Sequence[Permission]]]:
    """Return the sets of permissions to try for an API: name → (allowed, denied)."""
    rows = PERMISSIONS[api_key]
    chosen: dict[str, tuple[Sequence[Permission], Sequence[Permission]]] = {"nothing": ((), ())}
    for row in rows:
        name = f"{row.operation.spelled} {row.resource_type.spelled}"
        chosen[f"only {name}"] = ((row,), ())
        chosen[f"all but {name}"] = (tuple(other for other in rows if other != row), ())
        chosen[f"all, {name} denied"] = (rows, (row,))
    chosen["everything"] = (rows, ())
    return chosen


GUARDED_CASES: list[GuardedCase] = [
    (api_key, version, name, is_widened)
    for api_key in PERMISSIONS
    if api_key not in UNGUARDED
    for version, is_widened in dict.fromkeys(
        ((APIS[api_key].version_max, False), (APIS[api_key].version_max, True), (APIS[api_key].version_min, False))
    )
    for name in chosen_permissions(api_key)
]


def play(side: GuardedSide, api_key: int, version: int, name: str, *, is_widened: bool) -> None:
    """Run one case: grant the permissions, then send the request."""
    allowed, denied = chosen_permissions(api_key)[name]
    side.grant(grants_of(side, allowed) + grants_of(side, denied, AclPermission.DENY))
    send_valid_request(side, api_key, version, is_widened=is_widened)
