"""The small text files beside the segments, in Kafka's formats.

`leader-epoch-checkpoint`: a version, the number of lines that follow, then `EPOCH START_OFFSET` lines. One node never
elects another leader, so epoch 0 begins at offset 0 and stays.

`partition.metadata`: `version: 0` and `topic_id: ` with 22 characters of url-safe base64. It tells a topic from a
later one of the same name.
"""

import base64
from pathlib import Path
from uuid import UUID

from onceflow.log.disk import Disk, read_file, replace_file
from onceflow.log.errors import DataDirectoryRefused

LEADER_EPOCH = 0

_LEADER_EPOCH_FILE = "leader-epoch-checkpoint"
_METADATA_FILE = "partition.metadata"


def encode_uuid(value: UUID) -> str:
    """As Kafka prints ids: 22 characters of url-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> UUID:
    """Raises ValueError where `text` is not 22 characters of url-safe base64."""
    return UUID(bytes=base64.b64decode(text + "==", altchars=b"-_", validate=True))


def write_checkpoints(disk: Disk, directory: Path, topic_id: UUID | None) -> None:
    """Writes what is missing; raises DataDirectoryRefused where the directory is of a topic with another id."""
    leader_epochs = directory / _LEADER_EPOCH_FILE
    if not disk.exists(leader_epochs):
        replace_file(disk, leader_epochs, f"0\n1\n{LEADER_EPOCH} 0\n".encode())
    if topic_id is None:
        return
    metadata = directory / _METADATA_FILE
    wanted = f"version: 0\ntopic_id: {encode_uuid(topic_id)}"
    if not disk.exists(metadata):
        replace_file(disk, metadata, wanted.encode())
        return
    found = read_file(disk, metadata).decode(errors="replace").strip()
    if found != wanted:
        raise DataDirectoryRefused(
            f"{metadata} says {found!r}, the topic's is {wanted!r}; move the directory of the other topic away"
        )
