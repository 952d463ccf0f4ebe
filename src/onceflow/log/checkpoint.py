"""The small text files beside the segments, in Kafka's formats.

`leader-epoch-checkpoint` (`onceflow.log.epochs`). Without replicas there is one leader, so epoch 0 starts at
offset 0 and never changes. A new replica has no epochs yet.

`partition.metadata`: `version: 0` and `topic_id: ` with 22 characters of url-safe base64. The id distinguishes a topic
from a later one of the same name.
"""

import base64
from collections.abc import Container
from pathlib import Path
from uuid import UUID

from onceflow.log.disk import Disk, read_file, replace_file, write_file
from onceflow.log.epochs import EPOCHS_FILE, LeaderEpochs, parse_epochs
from onceflow.log.errors import OtherTopicThere
from onceflow.remedies import Remedy

LEADER_EPOCH = 0
"""The only epoch of a log without replicas."""

_METADATA_FILE = "partition.metadata"


def encode_uuid(value: UUID) -> str:
    """Return an id as Kafka prints it: 22 characters of url-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def new_checkpoints(disk: Disk, directory: Path, topic_id: UUID | None, *, is_replica: bool) -> LeaderEpochs:
    """Write both files without syncing them: one that a power cut tore is rewritten at the next start."""
    epochs = _first_epochs(is_replica=is_replica)
    for name, content in {EPOCHS_FILE: epochs.encode(0), **_metadata(topic_id)}.items():
        write_file(disk, directory / name, content, is_durable=False)
    return epochs


def check_checkpoints(
    disk: Disk, directory: Path, names: Container[str], topic_id: UUID | None, *, is_replica: bool
) -> LeaderEpochs | None:
    """Return the leader epochs; None where the batches of a replica must provide them.

    Rewrite files that are missing from `names` or torn, and without replicas also epochs of another node; no
    information is lost. Raises OtherTopicThere where the directory belongs to a topic with another id.
    """
    expected = _metadata(topic_id)
    epochs: LeaderEpochs | None = None
    if is_replica:
        epochs = parse_epochs(read_file(disk, directory / EPOCHS_FILE)) if EPOCHS_FILE in names else None
    else:
        epochs = _first_epochs(is_replica=False)
        expected[EPOCHS_FILE] = epochs.encode(0)
    for name, content in expected.items():
        _check(disk, directory / name, content, is_there=name in names)
    return epochs


def _check(disk: Disk, path: Path, expected: bytes, *, is_there: bool) -> None:
    content = read_file(disk, path) if is_there else b""
    if content.strip() == expected.strip():
        return
    if path.name == _METADATA_FILE and not expected.startswith(content.rstrip(b"\0")):
        raise OtherTopicThere(
            f"{path} holds {content.decode(errors='replace')!r}, not {expected.decode()!r}; {Remedy.MOVE_AWAY}"
        )
    replace_file(disk, path, expected)


def _first_epochs(*, is_replica: bool) -> LeaderEpochs:
    return LeaderEpochs() if is_replica else LeaderEpochs([(LEADER_EPOCH, 0)])


def _metadata(topic_id: UUID | None) -> dict[str, bytes]:
    if topic_id is None:
        return {}
    return {_METADATA_FILE: f"version: 0\ntopic_id: {encode_uuid(topic_id)}".encode()}
