"""`Mirror`: copies topics of one cluster to another, exactly once.

A mirror that restarts, after whatever ended it, reads the stored positions and continues there (`session`).
"""

import logging
import time
from collections.abc import Callable

from onceflow.client.admin import Admin
from onceflow.client.cluster import UNAVAILABLE, Cluster
from onceflow.client.errors import ClientError, InvalidTransaction, ProducerFenced, RequestRefused, UnknownTopic
from onceflow.client.transactional import TransactionalProducer
from onceflow.mirror.errors import MirrorFenced, MirrorStopped
from onceflow.mirror.positions import create_topics, read_stored
from onceflow.mirror.progress import Progress
from onceflow.mirror.session import Context, Session, Settings
from onceflow.remedies import Remedy
from onceflow.wire.codecs import Codec
from onceflow.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

RETRY_PAUSE_S = 1.0
STATE_REPLICAS_MAX = 3
"""Replication factor of the mirror's own topics, if the target has as many brokers."""
_ENDED_CODES = frozenset(
    {
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.transaction_abortable,
    }
)
"""Codes after which a new epoch and the stored positions are a safe start."""


class Mirror:
    """A mirror between two clusters; belongs to one thread.

    Creating it sends no request. `run` may raise MirrorStopped, MirrorFenced, and the client's errors.
    """

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._context = Context(source, target, settings, clock, sleep)

    @property
    def progress(self) -> Progress:
        """Counts and lag; may be read by another thread."""
        return self._context.progress

    def run(self, is_stopping: Callable[[], bool], *, once: bool = False) -> None:
        """Mirror until `is_stopping()`, which is checked between transactions.

        With `once`, end when everything is mirrored that the source had at the start. While a cluster cannot be
        reached it retries, for at most `retry_timeout_s` without progress; not before both were reached once.
        """
        self._require_two_clusters()
        while True:
            try:
                self._run_session(is_stopping, once=once)
            except (*UNAVAILABLE, InvalidTransaction, ProducerFenced, RequestRefused, UnknownTopic) as error:
                # UnknownTopic: a topic was deleted while it was checked.
                self._require_retriable(error)
                logger.warning("the mirror starts again from its stored positions: %s", error)
                self._context.progress.restarts += 1
                self._context.sleep(RETRY_PAUSE_S)
            else:
                return
            if is_stopping():
                return

    def _require_retriable(self, error: ClientError) -> None:
        """Raise the error unless a new session may succeed."""
        context = self._context
        if isinstance(error, RequestRefused) and error.error_code not in _ENDED_CODES:
            raise error
        timeout_s = context.settings.transaction_timeout_ms / 1000
        if isinstance(error, ProducerFenced) and context.clock() - context.began_s < timeout_s:
            raise self._fenced() from error
        if not context.has_begun or context.clock() - context.progressed_s > context.settings.retry_timeout_s:
            raise error

    def _fenced(self) -> MirrorFenced:
        return MirrorFenced(
            f"mirror '{self._context.settings.name}' at {self._context.target.bootstrap} was taken over by another "
            f"process with the same name, or another tool aborted its transaction; nothing was lost or repeated. If "
            f"two mirrors should run, {Remedy.OTHER_MIRROR_NAME}"
        )

    def _require_two_clusters(self) -> None:
        source, target = self._context.source, self._context.target
        cluster_id = Admin(source).describe_cluster().cluster_id
        if Admin(target).describe_cluster().cluster_id == cluster_id:
            raise MirrorStopped(
                f"{source.bootstrap} and {target.bootstrap} are the same cluster ({cluster_id}), and a topic cannot be "
                f"mirrored onto itself; {Remedy.OTHER_CLUSTER}"
            )

    def _run_session(self, is_stopping: Callable[[], bool], *, once: bool) -> None:
        context = self._context
        target, names = context.target, context.names
        create_topics(target, names, context.topics.replicas(STATE_REPLICAS_MAX))
        if context.has_begun and read_stored(target, names, all_committed=False).owner != context.owner:
            raise self._fenced()
        producer = TransactionalProducer(
            target.bootstrap,
            names.transactional_id,
            transaction_timeout_ms=context.settings.transaction_timeout_ms,
            timeout_ms=target.timeout_ms,
            codec=Codec.LZ4,
            security=target.security,
        )
        with producer:
            try:
                session = Session(context, producer)
                session.begin()
                session.loop(is_stopping, once=once)
            except (*UNAVAILABLE, InvalidTransaction, ProducerFenced):
                # The next session's epoch aborts the transaction.
                producer.close()
                raise
