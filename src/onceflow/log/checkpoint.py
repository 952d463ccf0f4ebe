"""The small text files beside the segments, in Kafka's formats.

`leader-epoch-checkpoint`: a version, the number of lines that follow, then `EPOCH START_OFFSET` lines. One node never
elects another leader, so epoch 0 begins at offset 0 and stays.

`partition.metadata`: `version: 0` and `topic_id: ` with 22 characters of url-safe base64. It tells a topic from a
later one of the same name.
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
    """As Kafka prints ids: 22 characters of url-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> UUID:
    """Raises ValueError where `text` is not 22 characters of url-safe base64."""
    return UUID(bytes=base64.b64decode(text + "==", altchars=b"-_", validate=True))


def new_checkpoints(disk: Disk, directory: Path, topic_id: UUID | None) -> None:
    """Writes both, not durably: one that a power cut tore is written again at the next start."""
    for name, content in _contents(topic_id).items():
        write_file(disk, directory / name, content, is_durable=False)


def check_checkpoints(disk: Disk, directory: Path, names: Container[str], topic_id: UUID | None) -> None:
    """Writes again what is missing or torn of these files in a directory where there are `names`, and epochs that are
    not this node's, for nothing is lost with them.

    Raises DataDirectoryRefused where the directory is of a topic with another id.
    """
    for name, wanted in _contents(topic_id).items():
        found = read_file(disk, directory / name) if name in names else b""
        if found.strip() == wanted.strip():
            continue
        if name == _METADATA_FILE and not wanted.startswith(found.rstrip(b"\0")):
            raise DataDirectoryRefused(
                f"{directory / name} says {found.decode(errors='replace')!r}, the topic's is {wanted.decode()!r};"
                f" {Remedy.MOVE_AWAY}"
            )
        replace_file(disk, directory / name, wanted)


def _contents(topic_id: UUID | None) -> dict[str, bytes]:
    contents = {_LEADER_EPOCH_FILE: f"0\n1\n{LEADER_EPOCH} 0\n".encode()}
    if topic_id is not None:
        contents[_METADATA_FILE] = f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode()
    return contents
