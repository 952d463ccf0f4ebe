"""The command that resets a Kafka sink, complete with its options, as error messages show it."""

import shlex

from onceflow.spark.exactly_once.checkpoint import checkpoint_words


def kafka_reset(bootstrap: str, name: str, checkpoint: str | None, *, query: str, marker_topic: str) -> str:
    """For a Kafka sink; `query` stands for a checkpoint that is on no file system of this machine."""
    words = ["--bootstrap", bootstrap, "--name", name, "--marker-topic", marker_topic]
    where = checkpoint_words(checkpoint) or ["--query", query]
    return shlex.join(["onceflow", "sink", "reset", "kafka", *words, *where, "--execute"])
