"""Redis settings that the sink relies on, checked again while the query runs: anyone may change them.

INFO reports the policy and whether there is an append-only file, CONFIG reports when it is synced. The user may have no
permission for either; a setting that cannot be read is not checked.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import redis

from onceflow.redis import errors as redis_errors
from onceflow.remedies import Remedy

WHOLE_TAILS_SINCE = (9, 1, 2)
"""First Valkey that removes the start of a torn script from its append-only file (valkey-io/valkey#4342)."""
WAITAOF_SINCE = (7, 2)
"""First Redis that can report when a write is on disk."""


def read(client: Any) -> dict[str, str]:
    """Return `maxmemory-policy`, `maxmemory`, `appendonly` and `appendfsync`, as far as the server reports them.

    Raises redis-py's errors.
    """

    def ask() -> list[Any]:
        pipeline = client.pipeline(transaction=False)
        pipeline.info("memory")
        pipeline.info("persistence")
        pipeline.config_get("appendfsync")
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, redis.RedisError) and redis_errors.code_of(reply) in redis_errors.TEMPORARY:
                raise reply
            if isinstance(reply, Mapping):
                require_loaded(reply)
        return replies

    memory, persistence, synced = (
        reply if isinstance(reply, Mapping) else {}
        for reply in redis_errors.patiently(ask, pool=client.connection_pool)
    )
    has_file = persistence.get("aof_enabled")
    settings = {
        "maxmemory-policy": memory.get("maxmemory_policy"),
        "maxmemory": memory.get("maxmemory"),
        "appendonly": None if has_file is None else "yes" if has_file else "no",
        "appendfsync": synced.get("appendfsync"),
    }
    return {name: str(value) for name, value in settings.items() if value is not None}


def require_loaded(info: Mapping[str, Any]) -> None:
    """Raise BusyLoadingError if Redis loads its data: until the end INFO reports no append-only file."""
    if info.get("loading"):
        raise redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory")


class Unsuitable(NamedTuple):
    """A setting that can lose writes."""

    name: str
    value: str
    effect: str
    right: str
    """The value to set."""

    def __str__(self) -> str:
        return f"{self.name} is {self.value!r}, which {self.effect}"

    @property
    def remedy(self) -> str:
        return Remedy.CONFIG_SET.format(name=self.name, value=self.right)


def unsuitable(settings: Mapping[str, str], *, is_synced: bool) -> Unsuitable | None:
    """Return the first setting that can lose writes; None if there is none.

    `is_synced`: each batch waits for the append-only file, as the settings at the start allowed.
    """
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        limit = settings.get("maxmemory", "unknown")
        return Unsuitable("maxmemory-policy", policy, f"may drop counts at maxmemory {limit}", "noeviction")
    if is_synced and settings.get("appendonly") == "no":
        return Unsuitable("appendonly", "no", "keeps no log of writes", "yes")
    if is_synced and settings.get("appendfsync") == "no":
        return Unsuitable("appendfsync", "no", "does not report when a write is on disk", "everysec")
    return None


def why_unsuitable(settings: Mapping[str, str], *, is_synced: bool) -> str | None:
    """Return the message for a setting that can lose writes while a query runs; None if there is none."""
    setting = unsuitable(settings, is_synced=is_synced)
    return None if setting is None else f"{setting}; {setting.remedy}, then {Remedy.START_AGAIN}"


def leaves_torn_scripts(client: Any, info: Mapping[str, Any]) -> bool:
    """Return whether Redis keeps the start of a script torn at the end of its file; false if unknown."""
    if not info.get("aof_enabled") or _version(info.get("valkey_version")) >= WHOLE_TAILS_SINCE:
        return False
    # A hosted Redis's files are its provider's concern.
    return _setting(client, "aof-load-truncated") == "yes"


def _setting(client: Any, name: str) -> str | None:
    """Return a setting; None if CONFIG is forbidden, as a hosted Redis may do."""
    try:
        value: str | None = client.config_get(name).get(name)
    except redis.ResponseError:
        return None
    return value


def _version(text: Any) -> tuple[int, ...]:
    """Return a version as numbers; () if there is none, or it is not numeric."""
    parts = str(text or "").split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


class Unsynced(NamedTuple):
    """Why waiting for Redis's sync is impossible."""

    reason: str
    remedy: str


def why_unsynced(client: Any, info: Mapping[str, Any]) -> Unsynced | None:
    """Return why waiting for Redis's sync is impossible; None if it is possible."""
    if not info.get("aof_enabled"):
        return Unsynced("its append-only file is off", Remedy.CONFIG_SET.format(name="appendonly", value="yes"))
    try:
        client.execute_command("WAITAOF", 0, 0, 1)
    except redis.exceptions.NoPermissionError:
        return Unsynced("its user may not call WAITAOF", Remedy.ALLOW_COMMANDS)
    except redis.ResponseError as error:
        if not redis_errors.is_absent(error):
            raise
        # Valkey also reports the Redis version that it is compatible with.
        if _version(info.get("redis_version")) < WAITAOF_SINCE:
            return Unsynced("WAITAOF came with Redis 7.2", Remedy.NEWER_REDIS)
        return Unsynced("its configuration renames or disables WAITAOF", Remedy.KEEP_COMMAND)
    # With `no`, each batch would wait for the whole time-out in vain. If the setting is unknown, the wait succeeds, or
    # fails with a message.
    if _setting(client, "appendfsync") == "no":
        return Unsynced("appendfsync is 'no'", Remedy.CONFIG_SET.format(name="appendfsync", value="everysec"))
    return None
