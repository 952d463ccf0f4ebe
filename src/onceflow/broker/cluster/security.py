"""ACLs, users and quotas of a broker on ZooKeeper: written by any broker, and followed by every one.

A change is replayed at once and queued as a write of what it adds and removes: that is merged with what the node has
then, since other brokers and tools write it too (AclAuthorizer.updateResourceAcls). Each write has a notice, after
which every broker reads the node. Everything is read at the start, and after a session without watches.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from typing import NamedTuple

from onceflow.broker.cluster import nodes
from onceflow.broker.cluster import security_nodes as stored
from onceflow.broker.cluster.notices import Notices
from onceflow.broker.cluster.registry import Registry, Write
from onceflow.broker.cluster.write_queue import Step
from onceflow.broker.security.client_quotas import USER
from onceflow.broker.security.credentials import CredentialKey
from onceflow.broker.topics.records import (
    AclRecord,
    ClientQuotaRecord,
    MetadataRecord,
    RemoveAclRecord,
    RemoveUserScramRecord,
    UserScramRecord,
)
from onceflow.broker.topics.security_state import SecurityState
from onceflow.errors import OnceflowError
from onceflow.log.clock import Clock
from onceflow.log.errors import LogError
from onceflow.wire.acls import AclBinding, AclPattern, PatternType
from onceflow.wire.errors import ErrorCode
from onceflow.wire.scram import BY_NUMBER, MECHANISMS
from onceflow.zookeeper.nodes import DamagedNode, decode
from onceflow.zookeeper.session import Check, Create, Delete, Session, Set, StoredNode

logger = logging.getLogger(__name__)

Config = Mapping[str, str]
ConfigChanges = dict[str, dict[str, str | None]]
"""Changed values of entities' nodes by path; None removes a value."""
OnDamaged = Callable[[OnceflowError], None]


class TooManyAcls(LogError):
    """The ACLs of one pattern are more than a node in ZooKeeper can hold."""

    error_code = ErrorCode.policy_violation


class SecuritySeen(NamedTuple):
    """Nodes that were read: ACLs by pattern, values by the path of the entity; None for a damaged one."""

    acls: Mapping[AclPattern, frozenset[AclBinding] | None]
    configs: Mapping[str, Config | None]
    is_complete: bool
    """Whether these are all."""


@dataclass
class _Due:
    """Nodes that the next look reads."""

    patterns: set[AclPattern] = field(default_factory=set)
    entities: set[str] = field(default_factory=set)
    is_all: bool = False

    def add(self, other: "_Due") -> None:
        self.patterns |= other.patterns
        self.entities |= other.entities
        self.is_all = self.is_all or other.is_all


class RegistrySecurity:
    """`look` belongs to the registry's thread, the other methods to the event loop's."""

    def __init__(self, registry: Registry, state: SecurityState, *, has_acls: bool) -> None:
        """`has_acls`: whether the broker has an authorizer; its ACLs are neither read nor created without one."""
        self._registry = registry
        self._state = state
        self._acls, self._credentials, self._quotas = state
        self.has_acls = has_acls
        self._lock = threading.Lock()
        self._due = _Due(is_all=True)
        self._notices: Sequence[Notices] = ()

    def open(self, clock: Clock, on_change: Callable[[], None]) -> None:
        """Create the nodes of ACLs, and watch them from the first look on. Blocks."""
        if not self.has_acls:
            return
        zookeeper = self._registry.zookeeper
        for path in stored.ACL_PERSISTENT:
            self._registry.read(methodcaller("ensure", path))
        directories = (stored.ACL_CHANGES, stored.PREFIXED_ACL_CHANGES)
        self._notices = [Notices(zookeeper, directory, clock, on_change) for directory in directories]

    # Changes by others

    def look_again(self) -> None:
        """Let the next look read everything."""
        self._put_back(_Due(is_all=True))

    def _put_back(self, due: _Due) -> None:
        with self._lock:
            self._due.add(due)

    def put_back(self, seen: SecuritySeen) -> None:
        """Let the next look read these nodes again."""
        self._put_back(_Due(set(seen.acls), set(seen.configs), seen.is_complete))

    def look(self, zookeeper: Session, entities: Collection[str], on_damaged: OnDamaged) -> SecuritySeen:
        """Read what has changed; `entities` have new notices. Raises OutcomeUnknown."""
        with self._lock:
            due, self._due = self._due, _Due()
        due.entities |= set(entities)
        try:
            for notices in self._notices:
                for path, value in notices.new():
                    try:
                        due.patterns.add(stored.noticed_pattern(path, value))
                    except DamagedNode as error:
                        on_damaged(error)
            if due.is_all:
                due.patterns |= set(_all_patterns(zookeeper)) if self.has_acls else set()
                due.entities |= set(_all_entities(zookeeper))
            return self._read(zookeeper, due, on_damaged)
        except BaseException:
            self._put_back(due)
            raise

    def _read(self, zookeeper: Session, due: _Due, on_damaged: OnDamaged) -> SecuritySeen:
        patterns, entities = list(due.patterns), list(due.entities)
        acls: dict[AclPattern, frozenset[AclBinding] | None] = dict.fromkeys(patterns)
        values = zookeeper.read_all([stored.acls_path(pattern) for pattern in patterns])
        for pattern, node in zip(patterns, values, strict=True):
            try:
                acls[pattern] = frozenset() if node is None else stored.bindings_of(pattern, node.value)
            except DamagedNode as error:
                on_damaged(error)
        configs: dict[str, Config | None] = dict.fromkeys(entities)
        values = zookeeper.read_all([stored.config_path(path) for path in entities])
        for path, node in zip(entities, values, strict=True):
            try:
                configs[path] = _config_in(path, node)
            except DamagedNode as error:
                on_damaged(error)
        return SecuritySeen(acls, configs, due.is_all)

    def adopt(self, seen: SecuritySeen) -> None:
        """Replay the differences. Damaged nodes stay as they were."""
        acls, configs = dict(seen.acls), dict(seen.configs)
        if seen.is_complete:
            for pattern in self._acls.by_pattern:
                acls.setdefault(pattern, frozenset())
            for path in self._known_entities():
                configs.setdefault(path, {})
        for pattern, bindings in acls.items():
            if bindings is not None:
                self._adopt_acls(pattern, bindings)
        for path, config in configs.items():
            if config is not None:
                self._adopt_entity(path, config)

    def _known_entities(self) -> set[str]:
        users = {frozenset(((USER, key.user),)) for key in self._credentials.by_key}
        return {stored.entity_path(entity) for entity in (*users, *self._quotas.by_entity)}

    def _adopt_acls(self, pattern: AclPattern, bindings: frozenset[AclBinding]) -> None:
        present = dict(self._acls.by_pattern.get(pattern, {}))
        for acl_id, binding in present.items():
            if binding not in bindings:
                self._acls.remove(acl_id)
        for binding in bindings.difference(present.values()):
            self._acls.add(uuid.uuid4(), binding)

    def _adopt_entity(self, path: str, config: Config) -> None:
        entity = stored.entity_of(path)
        assert entity is not None
        try:
            wanted = stored.quotas_of(entity, config)
            credentials = stored.credentials_of(config, MECHANISMS)
        except ValueError as error:
            logger.error("%s in ZooKeeper is not followed: %s", stored.config_path(path), error)
            return
        present = self._quotas.by_entity.get(entity, {})
        for key in [*present.keys() - wanted.keys()]:
            self._quotas.set(entity, key, None)
        for key, value in wanted.items():
            if present.get(key) != value:
                self._quotas.set(entity, key, value)
        user = dict(entity).get(USER)
        if len(entity) == 1 and user is not None:
            for number in BY_NUMBER:
                self._credentials.replay(CredentialKey(user, number), credentials.get(number))

    # Changes by this broker

    def record(self, records: Sequence[MetadataRecord]) -> list[Step]:
        """Replay changes, and return the steps that write them. Raises TooManyAcls."""
        added: dict[AclPattern, set[AclBinding]] = {}
        removed: dict[AclPattern, set[AclBinding]] = {}
        changes: ConfigChanges = {}
        for record in records:
            match record:
                case AclRecord(_, binding):
                    added.setdefault(binding.pattern, set()).add(binding)
                case RemoveAclRecord(acl_id):
                    binding = self._acls.by_id[acl_id]
                    removed.setdefault(binding.pattern, set()).add(binding)
                case ClientQuotaRecord(entity, key, value):
                    text = None if value is None else stored.quota_text(key, value)
                    changes.setdefault(stored.entity_path(entity), {})[key] = text
                case UserScramRecord() | RemoveUserScramRecord():
                    add_user_change(changes, record)
        for pattern, bindings in added.items():
            present = self._acls.by_pattern.get(pattern, {}).values()
            if stored.acls_bytes((*present, *bindings)) > stored.VALUE_BYTES_MAX:
                raise TooManyAcls(f"the ACLs of {pattern.name!r} exceed {stored.VALUE_BYTES_MAX} bytes in ZooKeeper")
        for record in records:
            self._state.replay(record)
        merges: list[Callable[[Session], Write | None]] = [
            partial(_merged_acls, pattern, added.get(pattern, set()), removed.get(pattern, set()), self._known(pattern))
            for pattern in dict.fromkeys((*added, *removed))
        ]
        merges += [partial(merged_config, path, of_entity) for path, of_entity in changes.items()]
        return [partial(self._registry.merge, merge) for merge in merges]

    def can_store_acls_of(self, name: str) -> bool:
        """Return whether a node can have this name (AclAuthorizer.validateAclBinding)."""
        return stored.is_legal_name(name)

    def can_store_entity(self, name: str) -> bool:
        """Return whether a node can have this name, encoded."""
        return stored.is_legal_name(stored.sanitized(name))

    def _known(self, pattern: AclPattern) -> frozenset[AclBinding]:
        return frozenset(self._acls.by_pattern.get(pattern, {}).values())


def add_user_change(changes: ConfigChanges, record: UserScramRecord | RemoveUserScramRecord) -> None:
    """Add the change of a credential, or its removal, to those of entities' nodes."""
    path = stored.entity_path(frozenset(((USER, record.key.user),)))
    text = stored.credential_text(record.credential) if isinstance(record, UserScramRecord) else None
    changes.setdefault(path, {})[BY_NUMBER[record.key.mechanism].name] = text


def _all_patterns(zookeeper: Session) -> list[AclPattern]:
    kinds = [(of, how) for how in (PatternType.LITERAL, PatternType.PREFIXED) for of in stored.RESOURCE_TYPES]
    names = zookeeper.children_of_all([stored.acls_directory(*kind) for kind in kinds])
    return [AclPattern(of, name, how) for (of, how), listed in zip(kinds, names, strict=True) for name in listed or ()]


def _all_entities(zookeeper: Session) -> list[str]:
    users, clients, ips = _below(zookeeper, [stored.USERS, stored.CLIENTS, stored.IPS])
    of_users = _below(zookeeper, [f"{user}/{stored.CLIENTS}" for user in users])
    return [*users, *clients, *ips, *(path for paths in of_users for path in paths)]


def _below(zookeeper: Session, directories: Sequence[str]) -> list[list[str]]:
    names = zookeeper.children_of_all([stored.config_path(directory) for directory in directories])
    return [
        [f"{directory}/{name}" for name in listed or ()] for directory, listed in zip(directories, names, strict=True)
    ]


def _config_in(path: str, node: StoredNode | None) -> dict[str, str]:
    """Return the value of an entity's node. Raises DamagedNode."""
    if node is None or not node.value:
        return {}
    return decode(nodes.ConfigNode, stored.config_path(path), node.value).config


def _write(path: str, value: bytes, present: StoredNode | None) -> Write:
    return [Create(path, value) if present is None else Set(path, value, present.version)]


def _merged_acls(
    pattern: AclPattern,
    added: Collection[AclBinding],
    removed: Collection[AclBinding],
    known: frozenset[AclBinding],
    zookeeper: Session,
) -> Write | None:
    """Return the write after which a pattern's node has the change, as well as those of other brokers.

    A damaged node is replaced by what this broker knows.
    """
    path = stored.acls_path(pattern)
    node = zookeeper.read(path)
    try:
        present = frozenset() if node is None else stored.bindings_of(pattern, node.value)
    except DamagedNode as error:
        logger.error("replacing the ACLs: %s", error)
        present, added = frozenset(), known
    wanted = (present - set(removed)) | set(added)
    if wanted == present:
        return None
    if not wanted and node is not None:
        return [Check(path, node.version), Delete(path), stored.acls_notice(pattern)]
    return [*_write(path, stored.acls_value(sorted(wanted)), node), stored.acls_notice(pattern)]


def merged_config(path: str, changes: Mapping[str, str | None], zookeeper: Session) -> Write | None:
    """Return the write after which an entity's node has the changed values (AdminZkClient.changeEntityConfig)."""
    node = zookeeper.read(stored.config_path(path))
    try:
        present = _config_in(path, node)
    except DamagedNode as error:
        logger.error("replacing the configuration: %s", error)
        present = {}
    wanted = {key: value for key, value in {**present, **changes}.items() if value is not None}
    if wanted == present:
        return None
    notice = Create(nodes.CONFIG_CHANGE, nodes.encode(nodes.ConfigChangeNode(entity_path=path)), sequence=True)
    if not wanted:
        deletions = _deletions(path, zookeeper)
        if deletions:
            return [*deletions, notice]
    value = nodes.encode(nodes.ConfigNode(config=wanted))
    return [*_missing_above(path, zookeeper), *_write(stored.config_path(path), value, node), notice]


def _missing_above(path: str, zookeeper: Session) -> Write:
    """Return the creation of the nodes of a user whose client id gets a quota."""
    user, separator, _name = path.rpartition(f"/{stored.CLIENTS}/")
    if not separator:
        return []
    above = [stored.config_path(user), stored.config_path(f"{user}/{stored.CLIENTS}")]
    return [Create(path) for path, node in zip(above, zookeeper.read_all(above), strict=True) if node is None]


def _deletions(path: str, zookeeper: Session) -> list[Delete]:
    """Return the deletion of a node that is empty now, and of those above it that then are (tryCleanQuotaNodes)."""
    (below,) = zookeeper.children_of_all([stored.config_path(path)])
    if below:
        return []
    deletions = [Delete(stored.config_path(path))]
    user, separator, name = path.rpartition(f"/{stored.CLIENTS}/")
    if separator:
        clients = f"{user}/{stored.CLIENTS}"
        of_user, of_clients = zookeeper.children_of_all([stored.config_path(user), stored.config_path(clients)])
        if of_clients == [name]:
            deletions.append(Delete(stored.config_path(clients)))
            is_empty = not _config_in(user, zookeeper.read(stored.config_path(user)))
            if is_empty and of_user == [stored.CLIENTS]:
                deletions.append(Delete(stored.config_path(user)))
    return deletions
