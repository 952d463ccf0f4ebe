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
    with open_client(redis_url, key) as client:

        def write() -> None:
            # The claim comes last: a key of another type stays another program's.
            client.hset(key, mapping=dict(values))
            client.hset(claims_key(key), key, keys.marker)

        try:
            claim = redis_scripts.claims_of(client, [key]).get(key, keys.marker)
            if claim == keys.marker:
                redis_errors.patiently(write, pool=client.connection_pool)
        except redis.RedisError as error:
            raise NotRecorded(
                f"failed to write {key} at {shown(redis_url)} ({error}): {redis_errors.remedy_for(error)}"
            ) from error
    if claim != keys.marker:
        raise NotRecorded(redis_scripts.claimed_by_other(key, claim, keys.marker))
