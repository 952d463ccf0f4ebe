"""The command that resets a Redis sink, complete with its options, as error messages show it."""

import shlex
from collections.abc import Iterable

from onceflow.redis.address import shown
from onceflow.spark.exactly_once.checkpoint import checkpoint_words
from onceflow.spark.redis.marker import same_slot


def redis_reset(
    url: str, hash_key: str, checkpoint: str | None, keys: Iterable[str] = (), *, tagged: bool = False
) -> str:
    """For a Redis sink; `keys` are those of its data, of which the ones beside the hash key need not be named.

    A checkpoint that is on no file system of this machine is left out: the command cannot remove it.
    """
    beside = same_slot(hash_key, "")
    others = [key for key in keys if key != hash_key and not key.startswith(beside)]
    words = [
        "--redis",
        shown(url),
        "--hash-key",
        hash_key,
        *(["--tags"] if tagged else []),
        *(word for key in others for word in ("--key", key)),
    ]
    return shlex.join(["onceflow", "sink", "reset", "redis", *words, *checkpoint_words(checkpoint), "--execute"])
