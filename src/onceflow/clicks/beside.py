"""Keys beside the counts that the sink does not write: claimed for its marker, so that a reset deletes them."""

from collections.abc import Mapping

import redis

from onceflow.clicks.results import Keys
from onceflow.errors import OnceflowError
from onceflow.redis import errors as redis_errors
from onceflow.redis.address import shown
from onceflow.redis.route import open_client
from onceflow.spark.redis.marker import claims_key


class NotRecorded(OnceflowError):
    """A key that could not be written."""


def write_beside(redis_url: str, keys: Keys, key: str, values: Mapping[str, str]) -> None:
    """Write these fields of `key`, one of `keys`. Raises NotRecorded."""
    try:
        with open_client(redis_url, key) as client, client.pipeline(transaction=True) as pipe:
            pipe.hset(key, mapping=dict(values))
            pipe.hset(claims_key(keys.marker), key, keys.marker)
            pipe.execute()
    except redis.RedisError as error:
        raise NotRecorded(
            f"failed to write {key} at {shown(redis_url)} ({error}): {redis_errors.remedy_for(error)}"
        ) from error
