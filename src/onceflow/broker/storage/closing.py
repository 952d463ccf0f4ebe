"""The logs of a broker that stops are closed by several threads: their syncs share the file system's own commits."""

import logging
import threading
from collections import deque
from collections.abc import Sequence

from onceflow.broker.storage.partitions import Partition
from onceflow.log.errors import LogError

logger = logging.getLogger(__name__)

THREADS_MAX = 16
LOGS_PER_THREAD = 64
"""Fewer logs than this are closed by the calling thread alone."""


def close_all(partitions: Sequence[Partition]) -> bool:
    """Sync and close every log; whether all are whole. Blocks; raises what closing one of them raised unexpectedly."""
    left = deque(partitions)
    were_whole: list[bool] = []
    failures: list[BaseException] = []

    def work() -> None:
        while True:
            try:
                partition = left.popleft()
            except IndexError:
                return
            try:
                were_whole.append(_close(partition))
            except BaseException as failure:  # noqa: BLE001 - raised by the calling thread
                failures.append(failure)

    threads = [
        threading.Thread(target=work, name=f"log-closing-{number}", daemon=True)
        for number in range(min(THREADS_MAX, len(partitions) // LOGS_PER_THREAD))
    ]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return all(were_whole)


def _close(partition: Partition) -> bool:
    was_whole = partition.log.failure is None
    try:
        partition.log.close()
    except LogError as error:
        logger.error("%s", error)
        return False
    return was_whole
