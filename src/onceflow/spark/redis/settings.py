"""The settings of Redis on which the sink relies, checked again while the query runs: anyone may change them.

INFO tells the policy and whether there is an append-only file, CONFIG how often that is synced. A user may be forbidden
either; what cannot be read is not judged.
"""

from collections.abc import Mapping
from typing import Any

import redis

from onceflow.redis import errors as redis_answers
from onceflow.remedies import Remedy


def read(client: Any) -> dict[str, str]:
    """Return `maxmemory-policy`, `maxmemory`, `appendonly` and `appendfsync`, as far as the server tells them.

    Raises redis-py's errors.
    """

    def ask() -> list[Any]:
        pipeline = client.pipeline(transaction=False)
        pipeline.info("memory")
        pipeline.info("persistence")
        pipeline.config_get("appendfsync")
        answers: list[Any] = pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, redis.RedisError) and redis_answers.code_of(answer) in redis_answers.PASSING:
                raise answer
        return answers

    memory, persistence, synced = (
        answer if isinstance(answer, Mapping) else {}
        for answer in redis_answers.patiently(ask, pool=client.connection_pool)
    )
    has_file = persistence.get("aof_enabled")
    found = {
        "maxmemory-policy": memory.get("maxmemory_policy"),
        "maxmemory": memory.get("maxmemory"),
        "appendonly": None if has_file is None else "yes" if has_file else "no",
        "appendfsync": synced.get("appendfsync"),
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def why_unfit(found: Mapping[str, str], *, is_synced: bool) -> str | None:
    """Return which setting loses writes, its value, and what would be right; None where none does.

    `is_synced` says that each batch waits for the append-only file, as the settings at the start allowed.
    """
    policy = found.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        limit = found.get("maxmemory", "unknown")
        return _change("maxmemory-policy", policy, f"may drop counts at maxmemory {limit}", "noeviction")
    if is_synced and found.get("appendonly") == "no":
        return _change("appendonly", "no", "keeps no log of writes", "yes")
    if is_synced and found.get("appendfsync") == "no":
        return _change("appendfsync", "no", "does not say when a write is on disk", "everysec")
    return None


def _change(name: str, value: str, effect: str, right: str) -> str:
    set_it = Remedy.CONFIG_SET.format(name=name, value=right)
    return f"{name} is {value!r}, which {effect}; {set_it}, then {Remedy.START_AGAIN}"
