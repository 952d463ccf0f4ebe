"""The commands that forget what a sink has written down, as sentences name them: with their options, to be copied."""

import shlex
from collections.abc import Iterable

from onceflow.spark.redis_address import shown
from onceflow.spark.redis_marker import same_slot


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
    return _command("redis", *words, *_of_checkpoint(checkpoint))


def kafka_reset(bootstrap: str, name: str, checkpoint: str | None, *, query: str, marker_topic: str) -> str:
    """For a Kafka sink; `query` stands for a checkpoint that is on no file system of this machine."""
    words = ["--bootstrap", bootstrap, "--name", name, "--marker-topic", marker_topic]
    where = _of_checkpoint(checkpoint) or ["--query", query]
    return _command("kafka", *words, *where)


def _command(*words: str) -> str:
    return shlex.join(["onceflow", "sink", "reset", *words, "--execute"])


def local_path(location: str) -> str | None:
    """The path of a checkpoint on a file system of this machine, as `/x`, `file:/x` or `file:///x`; None for others."""
    if location.startswith("file:"):
        return "/" + location.removeprefix("file:").lstrip("/")
    return None if "://" in location else location


def _of_checkpoint(checkpoint: str | None) -> list[str]:
    path = None if checkpoint is None else local_path(checkpoint)
    return [] if path is None else ["--checkpoint", path]
