"""One transaction of the Kafka sink, step by step (`steps`).

The driver holds the only producer. Each attempt at a batch takes a new epoch, which ends any open transaction of an
earlier attempt or another driver. Nothing is visible before EndTxn, and EndTxn makes everything visible, the marker
included.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from onceflow.client import requests
from onceflow.client.addresses import Address
from onceflow.client.cluster import Cluster
from onceflow.client.connection import Connection
from onceflow.client.errors import ClientError
from onceflow.client.requests import ProducerIdentity
from onceflow.client.routing import PAUSE_MS_MAX, PAUSE_MS_MIN
from onceflow.remedies import Remedy
from onceflow.spark.errors import CommitUnknown, SinkStopped
from onceflow.spark.kafka import steps
from onceflow.spark.kafka.marker import KafkaMarker, MarkerLocation, parse, with_offset_of
from onceflow.spark.kafka.sender import RETRIABLE, Sender
from onceflow.spark.kafka.steps import Refused, Step, Verdict, code_name, remedy
from onceflow.wire import TopicPartition

_log = logging.getLogger(__name__)

RETRY_TIMEOUT_MS = 60_000
"""Time limit for the retries of one step."""
TRANSACTION_TIMEOUT_MS = 120_000

At = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a transaction. `at` is called before and after each request; tests end the driver there."""

    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    retry_timeout_ms: int = RETRY_TIMEOUT_MS
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    at: At = lambda _point: None


class Transaction:
    """One attempt at a batch: `begin`, `group_marker`, `add`, `sender.send`, `commit_marker`, `commit`, in this order.

    Every method may raise AttemptEnded, after which another attempt reads the marker, and SinkStopped.
    """

    sender: Sender

    def __init__(self, cluster: Cluster, location: MarkerLocation, settings: Settings) -> None:
        self._cluster = cluster
        self._location = location
        self._settings = settings
        self._addresses: dict[int, Address] = {}
        self._producer = ProducerIdentity(location.name)
        self._opened_s: float | None = None
        self._is_ended = False

    def begin(self) -> None:
        """Do steps 1 and 2: take a new epoch. An open transaction is aborted, or its commit ends first."""
        build = requests.init_producer_id(self._producer, self._settings.transaction_timeout_ms)
        response = self._call(steps.INIT_PRODUCER_ID, requests.TRANSACTION, build)
        self._producer = ProducerIdentity(self._location.name, int(response.producer_id), int(response.producer_epoch))
        self.sender = Sender(
            self._cluster,
            self._producer,
            retry_timeout_ms=self._settings.retry_timeout_ms,
            at=self._settings.at,
            sleep=self._settings.sleep,
        )

    def group_marker(self) -> tuple[KafkaMarker, int] | None:
        """Do step 3: return the marker in the group's offset, and its record's offset. `begin` comes first."""
        build = requests.offset_fetch(self._location.name, self._location.topic, [self._location.partition])
        response = self._call(
            steps.OFFSET_FETCH,
            requests.GROUP,
            build,
            lambda response: [response.error_code, *requests.offset_codes(response)],
        )
        entry = response.topics[0].partitions[0]
        if entry.committed_offset < 0:
            return None
        marker, record_offset = parse("the group's offset", self._location, entry.metadata or "")
        return with_offset_of(self._location, entry.committed_offset, marker), record_offset

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Do steps 4 and 5: add the partitions to write to, and the marker's group."""
        # The coordinator starts its time-out later than this.
        self._opened_s = self._settings.clock()
        build = requests.add_partitions_to_txn(self._producer, partitions)
        self._call(steps.ADD_PARTITIONS, requests.TRANSACTION, build, requests.added_codes)
        build = requests.add_offsets_to_txn(self._producer, self._location.name)
        self._call(steps.ADD_OFFSETS, requests.TRANSACTION, build)

    def commit_marker(self, marker: KafkaMarker, record_offset: int) -> None:
        """Do step 7: commit the marker as the group's offset, within the transaction."""
        build = requests.txn_offset_commit(
            self._producer,
            self._location.name,
            self._location.topic,
            {self._location.partition: marker.batch},
            marker.metadata(record_offset),
        )
        self._call(steps.TXN_OFFSET_COMMIT, requests.GROUP, build, requests.offset_codes)

    def commit(self) -> None:
        """Do step 8. Raises CommitUnknown if the outcome is unknown."""
        self._call(steps.END_TXN, requests.TRANSACTION, requests.end_txn(self._producer, commit=True))
        self._is_ended = True

    def abort(self) -> None:
        """Abort the transaction if it is open; if that fails, its time-out does."""
        if self._opened_s is None or self._is_ended:
            return
        self._is_ended = True
        try:
            connection = self._coordinator(requests.TRANSACTION)
            self._request(connection, steps.END_TXN, requests.end_txn(self._producer, commit=False))
        except (ClientError, SinkStopped) as error:
            _log.warning(
                "transaction %s could not be aborted; its time-out will abort it: %s", self._location.name, error
            )

    # One step

    def _call(
        self,
        step: Step,
        kind: int,
        build: requests.Build,
        codes: Callable[[Any], Sequence[int]] = lambda response: [response.error_code],
    ) -> Any:
        """Return the response to one request, repeated for a bounded time while its codes are retriable."""
        started = self._settings.clock()
        pause_ms = PAUSE_MS_MIN
        while True:
            reason = ""
            connection = self._coordinator(kind)
            self._settings.at(f"before {step.name}")
            try:
                response = self._request(connection, step, build)
            except RETRIABLE as error:
                if step is steps.END_TXN:
                    raise CommitUnknown(f"whether {self._location.name} was committed is unknown: {error}") from error
                self._addresses.clear()
                reason = str(error)
            else:
                self._settings.at(f"after {step.name}")
                worst = self._judge(step, [int(code) for code in codes(response)])
                if worst == 0:
                    return response
                reason = code_name(worst)
                if worst in steps.COORDINATOR_MOVED:
                    self._addresses.clear()
            self._wait(step, started, pause_ms, reason)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)

    def _judge(self, step: Step, codes: Sequence[int]) -> int:
        """Return 0 if all codes are 0, otherwise a retriable code. Raises SinkStopped, Refused for any other."""
        verdicts = {code: step.verdict(code) for code in codes}
        for code, verdict in verdicts.items():
            if verdict is Verdict.FAIL_QUERY:
                raise SinkStopped(
                    f"{step.name} of transaction {self._location.name} was refused: {code_name(code)}; {remedy(code)}"
                )
        for code, verdict in verdicts.items():
            if verdict is Verdict.END_ATTEMPT:
                raise Refused(f"{step.name} of {self._location.name} failed: {code_name(code)}", code)
        return next((code for code in codes if code), 0)

    def _wait(self, step: Step, started: float, pause_ms: int, reason: str) -> None:
        if (self._settings.clock() - started) * 1000 > self._settings.retry_timeout_ms:
            raise SinkStopped(
                f"{step.name} of transaction {self._location.name} did not succeed within "
                f"{self._settings.retry_timeout_ms} ms ({reason}); no data was lost: {Remedy.LOOK_AT_BROKER_LOG}, then "
                f"{Remedy.START_AGAIN}"
            )
        self._settings.sleep(pause_ms / 1000)

    def _coordinator(self, kind: int) -> Connection:
        """Return a connection to the coordinator; do step 1 if it is not known yet."""
        started = self._settings.clock()
        pause_ms = PAUSE_MS_MIN
        while True:
            try:
                if kind not in self._addresses:
                    self._settings.at(f"before {steps.FIND_COORDINATOR.name}")
                    build = requests.find_coordinator(self._location.name, kind)
                    response = self._request(self._cluster.router.any_connection(), steps.FIND_COORDINATOR, build)
                    self._settings.at(f"after {steps.FIND_COORDINATOR.name}")
                    reason = code_name(response.error_code)
                    if self._judge(steps.FIND_COORDINATOR, [int(response.error_code)]) == 0:
                        self._addresses[kind] = Address(response.host, response.port)
                if kind in self._addresses:
                    return self._cluster.router.connection_to(self._addresses[kind])
            except RETRIABLE as error:
                self._addresses.clear()
                reason = str(error)
            self._wait(steps.FIND_COORDINATOR, started, pause_ms, reason)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)

    def _request(self, connection: Connection, step: Step, build: requests.Build) -> Any:
        if not connection.serves(step.api_key, step.version):
            raise SinkStopped(
                f"{connection.address} does not serve {step.name} version {step.version}, which an exactly-once sink "
                f"needs: {Remedy.NEWER_KAFKA}"
            )
        return connection.request_version(step.api_key, step.version, build)

    def refuse_if_fenced(self, refused: Refused) -> None:
        """Raise SinkStopped unless a time-out explains the newer epoch: another driver took it."""
        if refused.code not in steps.FENCED:
            return
        since_s = 0.0 if self._opened_s is None else self._settings.clock() - self._opened_s
        timeout_ms = self._settings.transaction_timeout_ms
        if since_s * 1000 < timeout_ms:
            raise SinkStopped(
                f"{self._location.name} was fenced {since_s:.1f} s after its transaction began, before its time-out of "
                f"{timeout_ms} ms ({refused}): another driver of this query took it over, or it was aborted by "
                f"'onceflow transaction abort' or another tool. No data was lost: {Remedy.END_OTHER_DRIVER}; if there "
                f"is none, {Remedy.START_AGAIN}"
            ) from refused
        raise Refused(
            f"{refused}, {since_s:.1f} s after its start and with a time-out of {timeout_ms} ms; if a batch takes "
            f"longer, {Remedy.LONGER_TRANSACTION}",
            refused.code,
        ) from refused
