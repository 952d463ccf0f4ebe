"""Keys beside the counts that the sink does not write: claimed for its marker, so that a reset deletes them."""

from collections.abc import Mapping

import redis

from onceflow.clicks.results import Keys
from onceflow.errors import OnceflowError
from onceflow.redis import errors as redis_errors
from onceflow.redis.address import shown
from onceflow.redis.route import open_client
from onceflow.spark.redis import scripts as redis_scripts
from onceflow.spark.redis.marker import claims_key


class NotRecorded(OnceflowError):
    """A key that could not be written."""


def write_beside(redis_url: str, keys: Keys, key: str, values: Mapping[str, str]) -> None:
    """Write these fields of `key`, one of `keys`. Raises NotRecorded; the key may belong to another sink."""
    claims = claims_key(keys.marker)
    with open_client(redis_url, key) as client:

        def write() -> bytes | None:
            claim: bytes | None = client.hget(claims, key)
            if claim in (None, keys.marker.encode()):
                # The claim comes last: a key of another type stays another program's.
                client.hset(key, mapping=dict(values))
                client.hset(claims, key, keys.marker)
                return None
            return claim

        try:
            owner = redis_errors.patiently(write, pool=client.connection_pool)
        except redis.RedisError as error:
            raise NotRecorded(
                f"failed to write {key} at {shown(redis_url)} ({error}): {redis_errors.remedy_for(error)}"
            ) from error
    if owner is not None:
        raise NotRecorded(redis_scripts.claimed_by_other(key, owner.decode(), keys.marker))
