"""Forgetting one pipeline's counts, so that its log can be counted from the beginning."""

import redis

from onceflow.clicks.results import Keys, RedisUnreachable
from onceflow.spark.redis_address import shown
from onceflow.spark.redis_route import open_client


def forget(redis_url: str, hash_key: str) -> list[str]:
    """Delete the counts, the read model and the marker in one command; returns the keys that were there.

    A pipeline that still runs stops at its next micro-batch, since its marker is gone. Raises RedisUnreachable.
    """
    keys = Keys(hash_key)
    names = [keys.count, keys.marker, keys.top, keys.os, keys.totals, keys.bad, keys.dead, keys.history]
    try:
        with open_client(redis_url, hash_key) as client:
            there = [name for name in names if client.exists(name)]
            client.unlink(*names)
    except redis.RedisError as error:
        raise RedisUnreachable(f"Redis at {shown(redis_url)} gave no answer ({error}): nothing was removed") from error
    return there
