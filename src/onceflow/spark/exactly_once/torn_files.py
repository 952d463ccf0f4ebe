"""Files of a checkpoint that do not parse: those torn by a power cut are set aside, any other stops the query.

A power cut leaves a file that was not synced empty, cut, or at its full length with NUL bytes. Spark syncs none; the
sinks sync each before the first batch that rests on it is written:

| file | first batch that rests on it |
|---|---|
| `metadata` | 0 |
| `offsets/k` | k |
| `commits/k` | k+1 |

So a file is torn if neither the checkpoint nor a sink's marker says that this batch was written. Spark then plans or
repeats a batch of which the target has nothing. Any other file that does not parse was damaged after its sync.
"""

import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.checkpoint import METADATA, Checkpoint, CheckpointUnreadable
from onceflow.spark.exactly_once.proof import Proof

_log = logging.getLogger(__name__)

_VERSION = re.compile(r"v\d+")
_LINES_MIN = {"offsets": 3, "commits": 2}
_NO_OFFSETS = "-"
_REMEDY = f"{Remedy.PUT_FILE_BACK}; without a copy, {Remedy.FORGET_SINK}"


@dataclass(frozen=True, slots=True)
class TornFile:
    """A file that does not parse, which a power cut may have torn."""

    name: str
    first_batch: int
    """First batch that is written only after this file is on disk."""
    content: str
    """Its content, for a message."""


def torn_files(checkpoint: Checkpoint) -> Sequence[TornFile]:
    """Return the files that Spark is about to read and cannot parse.

    Raises CheckpointUnreadable if the checkpoint itself shows that the file was on disk.
    """
    torn = tuple(_unparsed(checkpoint))
    finished = max(checkpoint.newest_batch("offsets") - 1, checkpoint.newest_batch("commits"))
    for file in torn:
        if file.first_batch <= finished:
            raise CheckpointUnreadable(
                f"{checkpoint.location}/{file.name} cannot be parsed: {file.content}, and batch {finished} was "
                f"finished since, so no power cut tore it; {_REMEDY}"
            )
    return torn


def set_aside(checkpoint: Checkpoint, torn: Sequence[TornFile], proof: Proof | None) -> None:
    """Set the torn files aside, after comparing all of them with the sink's marker.

    Raises CheckpointUnreadable if the marker has a batch that rests on one of them.
    """
    for file in torn:
        if proof is not None and file.first_batch <= proof.batch:
            raise CheckpointUnreadable(
                f"{checkpoint.location}/{file.name} cannot be parsed: {file.content}, and sink {proof.sink!r} "
                f"has written batch {proof.batch}, so no power cut tore it; {_REMEDY}"
            )
    # `metadata` comes last: the plan of batch 0 is set aside with it.
    for file in reversed(torn):
        kept = checkpoint.set_aside(file.name)
        _log.warning(
            "%s/%s was torn by a power cut (content: %s) and moved to %s; no batch that rests on it was written",
            checkpoint.location,
            file.name,
            file.content,
            kept,
        )


def _unparsed(checkpoint: Checkpoint) -> Iterator[TornFile]:
    """Yield those of the files that Spark reads at a start: `metadata`, the two newest of `offsets` and `commits`."""
    text = checkpoint.read_text(METADATA)
    if text is not None and not _is_metadata(text):
        yield TornFile(METADATA, 0, _shown(text))
    for folder, distance in (("offsets", 0), ("commits", 1)):
        newest = checkpoint.newest_batch(folder)
        for number in range(max(0, newest - 1), newest + 1):
            text = checkpoint.read_text(f"{folder}/{number}")
            if text is not None and not _is_log(text, _LINES_MIN[folder]):
                yield TornFile(f"{folder}/{number}", number + distance, _shown(text))


def _is_metadata(text: str) -> bool:
    try:
        return isinstance(json.loads(text)["id"], str)
    except (ValueError, KeyError, TypeError):
        return False


def _is_log(text: str, lines_min: int) -> bool:
    """Return whether `text` is a version, Spark's own metadata, and a line of offsets for each source."""
    lines = text.splitlines()
    if len(lines) < lines_min or not _VERSION.fullmatch(lines[0]):
        return False
    return all(line == _NO_OFFSETS or _is_json(line) for line in lines[1:])


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _shown(text: str) -> str:
    if not text:
        return "nothing"
    return f"{len(text)} NUL bytes" if not text.strip("\0") else repr(text[:40])
