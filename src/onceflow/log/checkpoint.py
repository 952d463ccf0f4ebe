"""The small text files beside the segments, in Kafka's formats.

`leader-epoch-checkpoint`: a version, the number of lines that follow, then `EPOCH START_OFFSET` lines. A single
node never elects another leader, so epoch 0 starts at offset 0 and never changes.

`partition.metadata`: `version: 0` and `topic_id: ` with 22 characters of url-safe base64. The id distinguishes a topic
from a later one of the same name.
"""

import base64
from collections.abc import Container
from pathlib import Path
from uuid import UUID

from onceflow.log.disk import Disk, read_file, replace_file, write_file
from onceflow.log.errors import DataDirectoryRefused
from onceflow.remedies import Remedy

LEADER_EPOCH = 0

_LEADER_EPOCH_FILE = "leader-epoch-checkpoint"
_METADATA_FILE = "partition.metadata"


def encode_uuid(value: UUID) -> str:
    """Return an id as Kafka prints it: 22 characters of url-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def new_checkpoints(disk: Disk, directory: Path, topic_id: UUID | None) -> None:
    """Write both files without syncing them: one that a power cut tore is rewritten at the next start."""
    for name, content in _contents(topic_id).items():
        write_file(disk, directory / name, content, is_durable=False)


def check_checkpoints(disk: Disk, directory: Path, names: Container[str], topic_id: UUID | None) -> None:
    """Rewrite files that are missing from `names`, torn, or hold epochs of another node; no information is lost.

    Raises DataDirectoryRefused where the directory belongs to a topic with another id.
    """
    for name, expected in _contents(topic_id).items():
        content = read_file(disk, directory / name) if name in names else b""
        if content.strip() == expected.strip():
            continue
        if name == _METADATA_FILE and not expected.startswith(content.rstrip(b"\0")):
            raise DataDirectoryRefused(
                f"{directory / name} holds {content.decode(errors='replace')!r}, not {expected.decode()!r};"
                f" {Remedy.MOVE_AWAY}"
            )
        replace_file(disk, directory / name, expected)


def _contents(topic_id: UUID | None) -> dict[str, bytes]:
    contents = {_LEADER_EPOCH_FILE: f"0\n1\n{LEADER_EPOCH} 0\n".encode()}
    if topic_id is not None:
        contents[_METADATA_FILE] = f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode()
    return contents
