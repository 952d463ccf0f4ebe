"""Quotas of users, client ids and their combinations, and of IP addresses, and the one that applies to a client.

An entity has a user, a client id, or both, or an IP address; None is the default of its type. The most specific quota
applies, in the order of Kafka's ClientQuotaManager.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from onceflow.broker.security.acls import is_address

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"
ENTITY_TYPES = (USER, CLIENT_ID, IP)
ENTITIES_MAX = 50_000
NAME_CHARACTERS_MAX = 1000

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
_LONG, _INT = (INT64_MAX, "a LONG"), (INT32_MAX, "an INT")
QUOTA_KEYS: Mapping[str, tuple[int, str] | None] = MappingProxyType(
    {
        PRODUCER_BYTE_RATE: _LONG,
        CONSUMER_BYTE_RATE: _LONG,
        REQUEST_PERCENTAGE: None,
        CONTROLLER_MUTATION_RATE: None,
    }
)
"""Name of a quota → its maximum and type if it is a whole number."""
IP_QUOTA_KEYS: Mapping[str, tuple[int, str] | None] = MappingProxyType({CONNECTION_CREATION_RATE: _INT})

Entity = frozenset[tuple[str, str | None]]
"""(type, name) of a user, a client id, or both, or of an IP address; a name of None is the default."""


class Applied(NamedTuple):
    """A quota of one client, and who shares it: clients with the same user and client id, "" for any."""

    bound: float
    user: str
    client_id: str


class ClientQuotas:
    """Quotas by entity. Single-threaded: the event loop is its lock."""

    def __init__(self) -> None:
        self.by_entity: dict[Entity, dict[str, float]] = {}
        self.counts: Counter[str] = Counter()
        """Number of entities with each quota; empty without quotas."""

    def set(self, entity: Entity, key: str, value: float | None) -> None:
        """Replay a change; None removes the quota."""
        quotas = self.by_entity.setdefault(entity, {})
        self.counts[key] += (value is not None) - (key in quotas)
        self.counts += Counter()
        if value is None:
            quotas.pop(key, None)
        else:
            quotas[key] = value
        if not quotas:
            del self.by_entity[entity]

    def applied(self, key: str, user: str, client_id: str) -> Applied | None:
        """Return the quota that applies to a client."""
        if key not in self.counts:
            return None
        for entity, shared_user, shared_client_id in _candidates(user, client_id):
            quotas = self.by_entity.get(entity)
            if quotas is not None and key in quotas:
                return Applied(quotas[key], shared_user, shared_client_id)
        return None

    def connection_rate(self, address: str) -> float | None:
        """Return the quota of new connections from an IP address, in the form of `address_text`."""
        if CONNECTION_CREATION_RATE not in self.counts:
            return None
        for name in (address, None):
            rate = self.by_entity.get(frozenset(((IP, name),)), {}).get(CONNECTION_CREATION_RATE)
            if rate is not None:
                return rate
        return None


def _candidates(user: str, client_id: str) -> Iterator[tuple[Entity, str, str]]:
    """Yield (entity, user, client id) from the most specific one on; users and client ids that share a quota are ""."""
    for name in (user, None):
        for id_name in (client_id, None):
            yield frozenset(((USER, name), (CLIENT_ID, id_name))), user, client_id
        yield frozenset(((USER, name),)), user, ""
    for id_name in (client_id, None):
        yield frozenset(((CLIENT_ID, id_name),)), "", client_id


def refusal_of_entity(types: Sequence[tuple[str, str | None]]) -> str | None:
    """Return why an entity is invalid (ClientQuotaControlManager.validateEntity)."""
    if not types:
        return "Invalid empty client quota entity"
    for entity_type, name in types:
        if entity_type not in ENTITY_TYPES:
            return f"Unhandled client quota entity type: {entity_type[:100]}"
        if name is not None and not name:
            return f"Empty {entity_type} not supported"
        if name is not None and len(name) > NAME_CHARACTERS_MAX:
            return f"The {entity_type} is longer than {NAME_CHARACTERS_MAX} characters"
    if len({entity_type for entity_type, _name in types}) < len(types):
        return "Invalid client quota entity, duplicate entity entry"
    return _refusal_of_address(dict(types))


def _refusal_of_address(names: Mapping[str, str | None]) -> str | None:
    if IP not in names:
        return None
    if len(names) > 1:
        return "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
    address = names[IP]
    if address is not None and not is_address(address):
        return f"{address} is not a valid IP address"
    return None


def refusal_of_value(entity: Entity, key: str, value: float) -> str | None:
    """Return why a value is invalid (ClientQuotaControlManager.validateQuotaKeyValue)."""
    keys = IP_QUOTA_KEYS if any(entity_type == IP for entity_type, _name in entity) else QUOTA_KEYS
    if key not in keys:
        return f"Invalid configuration key {key[:100]}"
    if not value > 0:
        return f"Quota {key} must be greater than 0"
    whole = keys[key]
    if whole is not None and value > whole[0]:
        return f"Proposed value for {key} is too large for {whole[1]}."
    if whole is not None and value % 1 > 1e-6:
        return f"{key} cannot be a fractional value."
    return None
