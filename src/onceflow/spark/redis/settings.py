"""Redis settings that the sink relies on, checked again while the query runs: anyone may change them.

INFO has the policy and whether there is an append-only file, CONFIG how often that is synced. A user may be denied
either; a setting that cannot be read is not checked.
"""

from collections.abc import Mapping
from typing import Any

import redis

from onceflow.redis import errors as redis_errors
from onceflow.remedies import Remedy


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


def why_unsuitable(settings: Mapping[str, str], *, is_synced: bool) -> str | None:
    """Return the message for a setting that can lose writes; None if there is none.

    `is_synced`: each batch waits for the append-only file, as the settings at the start allowed.
    """
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        limit = settings.get("maxmemory", "unknown")
        return _change("maxmemory-policy", policy, f"may drop counts at maxmemory {limit}", "noeviction")
    if is_synced and settings.get("appendonly") == "no":
        return _change("appendonly", "no", "keeps no log of writes", "yes")
    if is_synced and settings.get("appendfsync") == "no":
        return _change("appendfsync", "no", "does not report when a write is on disk", "everysec")
    return None


def _change(name: str, value: str, effect: str, right: str) -> str:
    set_it = Remedy.CONFIG_SET.format(name=name, value=right)
    return f"{name} is {value!r}, which {effect}; {set_it}, then {Remedy.START_AGAIN}"
