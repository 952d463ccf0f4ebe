"""One transaction of the Kafka sink, step by step (`kafka_steps`).

The driver holds the only producer. Each attempt at a batch takes a new epoch, which ends whatever an earlier attempt or
another driver has open. Nothing it has written is visible before EndTxn, and EndTxn makes all of it visible, the marker
too.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from onceflow.client import requests
from onceflow.client.addresses import Address
from onceflow.client.cluster import PAUSE_MS_MAX, PAUSE_MS_MIN, Cluster
from onceflow.client.connection import Connection
from onceflow.client.errors import ClientError
from onceflow.remedies import Remedy
from onceflow.spark.exactly_once.sink_errors import CommitUnknown, SinkStopped
from onceflow.spark.kafka import steps
from onceflow.spark.kafka.marker import KafkaMarker, Place, parse, with_offset_of
from onceflow.spark.kafka.sender import PASSING, Producer, Sender, TopicPartition
from onceflow.spark.kafka.steps import Refused, Step, Verdict, code_name, remedy
from onceflow.wire.frames import request_class
from onceflow.wire.messages import message_of

_log = logging.getLogger(__name__)

AGAIN_MS = 60_000
"""How long one step may be answered with codes that pass."""
TRANSACTION_TIMEOUT_MS = 120_000

At = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a transaction is done with. `at` is told before and after each request, where tests end the driver."""

    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    again_ms: int = AGAIN_MS
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    at: At = lambda _point: None


class Transaction:
    """One attempt: `begin`, `group_marker`, `add`, `sender.send`, `commit_marker`, `commit`, in this order.

    Every method may raise AttemptEnded, after which another attempt reads the marker, and SinkStopped.
    """

    sender: Sender

    def __init__(self, cluster: Cluster, place: Place, settings: Settings) -> None:
        self._cluster = cluster
        self._place = place
        self._settings = settings
        self._addresses: dict[int, Address] = {}
        self._producer = Producer(place.name, -1, -1)
        self._opened_s: float | None = None
        self._is_ended = False

    def begin(self) -> None:
        """Steps 1 and 2: a new epoch. What an earlier one has open is aborted, or its commit is waited for."""
        values = {
            "transactional_id": self._place.name,
            "transaction_timeout": timedelta(milliseconds=self._settings.transaction_timeout_ms),
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer = self._ask(steps.INIT_PRODUCER_ID, requests.TRANSACTION, values, lambda found: [found.error_code])
        self._producer = Producer(self._place.name, int(answer.producer_id), int(answer.producer_epoch))
        self.sender = Sender(
            self._cluster,
            self._producer,
            again_ms=self._settings.again_ms,
            at=self._settings.at,
            sleep=self._settings.sleep,
        )

    def group_marker(self) -> tuple[KafkaMarker, int] | None:
        """Step 3: the marker in the group's offset, and the offset of its record. After `begin`, so nothing pends."""
        topics = [{"name": self._place.topic, "partition_indexes": [self._place.partition]}]
        values = {"group_id": self._place.name, "topics": topics, "require_stable": True}

        def codes(found: Any) -> list[int]:
            return [found.error_code, *(each.error_code for topic in found.topics for each in topic.partitions)]

        answer = self._ask(steps.OFFSET_FETCH, requests.GROUP, values, codes)
        entry = answer.topics[0].partitions[0]
        if entry.committed_offset < 0:
            return None
        found, record_offset = parse("the group's offset", self._place, entry.metadata or "")
        return with_offset_of(self._place, entry.committed_offset, found), record_offset

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Steps 4 and 5: the partitions that will be written to, and the marker's group."""
        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)
        # The coordinator's clock starts later than this, so it cannot be ahead.
        self._opened_s = self._settings.clock()
        values = {
            **{f"v3_and_below_{name}": value for name, value in self._identity().items()},
            "v3_and_below_topics": [{"name": topic, "partitions": each} for topic, each in by_topic.items()],
        }

        def codes(found: Any) -> list[int]:
            return [
                each.partition_error_code
                for topic in found.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            ]

        self._ask(steps.ADD_PARTITIONS, requests.TRANSACTION, values, codes)
        group = {**self._identity(), "group_id": self._place.name}
        self._ask(steps.ADD_OFFSETS, requests.TRANSACTION, group, lambda found: [found.error_code])

    def commit_marker(self, marker: KafkaMarker, record_offset: int) -> None:
        """Step 7: the marker into the group's offset, as a part of the transaction."""
        entry = {
            "partition_index": self._place.partition,
            "committed_offset": marker.batch,
            "committed_leader_epoch": -1,
            "committed_metadata": marker.metadata(record_offset),
        }
        values = {
            **self._identity(),
            "group_id": self._place.name,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": self._place.topic, "partitions": [entry]}],
        }

        def codes(found: Any) -> list[int]:
            return [each.error_code for topic in found.topics for each in topic.partitions]

        self._ask(steps.TXN_OFFSET_COMMIT, requests.GROUP, values, codes)

    def commit(self) -> None:
        """Step 8. Raises CommitUnknown where it is not known whether it happened."""
        self._end(committed=True)
        self._is_ended = True

    def abort(self) -> None:
        """Takes back what was sent, if that is still to be done and can be; else the coordinator does, in time."""
        if self._opened_s is None or self._is_ended:
            return
        self._is_ended = True
        try:
            connection = self._coordinator(requests.TRANSACTION)
            self._request(connection, steps.END_TXN, {**self._identity(), "committed": False})
        except (ClientError, SinkStopped) as error:
            _log.warning("transaction %s is left to its time-out: %s", self._place.name, error)

    def _end(self, *, committed: bool) -> None:
        values = {**self._identity(), "committed": committed}
        self._ask(steps.END_TXN, requests.TRANSACTION, values, lambda found: [found.error_code])

    # One step

    def _ask(self, step: Step, kind: int, values: Mapping[str, Any], codes: Callable[[Any], Sequence[int]]) -> Any:
        """The answer to one request, sent again while its codes are of those that pass, for a bounded time."""
        begun = self._settings.clock()
        pause_ms = PAUSE_MS_MIN
        while True:
            reason = ""
            connection = self._coordinator(kind)
            self._settings.at(f"before {step.name}")
            try:
                answer = self._request(connection, step, values)
            except PASSING as error:
                if step is steps.END_TXN:
                    raise CommitUnknown(f"whether {self._place.name} was committed is not known: {error}") from error
                self._addresses.clear()
                reason = str(error)
            else:
                self._settings.at(f"after {step.name}")
                worst = self._judge(step, [int(code) for code in codes(answer)])
                if worst == 0:
                    return answer
                reason = code_name(worst)
                if worst in steps.COORDINATOR_MOVED:
                    self._addresses.clear()
            self._wait(step, begun, pause_ms, reason)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)

    def _judge(self, step: Step, codes: Sequence[int]) -> int:
        """0 where all is done, a code that passes where one is left. Raises SinkStopped, Refused for others."""
        verdicts = {code: step.verdict(code) for code in codes}
        for code, verdict in verdicts.items():
            if verdict is Verdict.STOPS:
                raise SinkStopped(
                    f"{step.name} of transaction {self._place.name} was refused: {code_name(code)}; {remedy(code)}"
                )
        for code, verdict in verdicts.items():
            if verdict is Verdict.ENDS:
                raise Refused(f"{step.name} of {self._place.name} was answered {code_name(code)}", code)
        return next((code for code in codes if code), 0)

    def _wait(self, step: Step, begun: float, pause_ms: int, reason: str) -> None:
        if (self._settings.clock() - begun) * 1000 > self._settings.again_ms:
            raise SinkStopped(
                f"{step.name} of transaction {self._place.name} could not be done within {self._settings.again_ms} ms "
                f"({reason}): nothing is lost; {Remedy.LOOK_AT_BROKER_LOG}, then {Remedy.START_AGAIN}"
            )
        self._settings.sleep(pause_ms / 1000)

    def _coordinator(self, kind: int) -> Connection:
        """Step 1, where the coordinator is not known yet, and a connection to it."""
        begun = self._settings.clock()
        pause_ms = PAUSE_MS_MIN
        while True:
            try:
                if kind not in self._addresses:
                    self._settings.at(f"before {steps.FIND_COORDINATOR.name}")
                    values = {"key": self._place.name, "key_type": kind}
                    answer = self._request(self._cluster.any_connection(), steps.FIND_COORDINATOR, values)
                    self._settings.at(f"after {steps.FIND_COORDINATOR.name}")
                    reason = code_name(answer.error_code)
                    if self._judge(steps.FIND_COORDINATOR, [int(answer.error_code)]) == 0:
                        self._addresses[kind] = Address(answer.host, answer.port)
                if kind in self._addresses:
                    return self._cluster.connection_to(self._addresses[kind])
            except PASSING as error:
                self._addresses.clear()
                reason = str(error)
            self._wait(steps.FIND_COORDINATOR, begun, pause_ms, reason)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)

    def _request(self, connection: Connection, step: Step, values: Mapping[str, Any]) -> Any:
        if not connection.serves(step.api_key, step.version):
            raise SinkStopped(
                f"{connection.address} does not serve {step.name} version {step.version}, which an exactly-once sink "
                f"needs: {Remedy.NEWER_KAFKA}"
            )
        return connection.request_version(
            step.api_key,
            step.version,
            lambda _schema, version: message_of(request_class(step.api_key, version), values),
        )

    def _identity(self) -> dict[str, Any]:
        return {
            "transactional_id": self._place.name,
            "producer_id": self._producer.producer_id,
            "producer_epoch": self._producer.epoch,
        }

    def refuse_if_fenced(self, refused: Refused) -> None:
        """Raise SinkStopped where the newer epoch is not that of a time-out: something else took it."""
        if refused.code not in steps.FENCED:
            return
        since_s = 0.0 if self._opened_s is None else self._settings.clock() - self._opened_s
        timeout_ms = self._settings.transaction_timeout_ms
        if since_s * 1000 < timeout_ms:
            raise SinkStopped(
                f"{self._place.name} was fenced {since_s:.1f} s after its transaction began, before its time-out of "
                f"{timeout_ms} ms ({refused}): another driver of this query took it over, or it was aborted from "
                f"outside, as by 'onceflow transaction abort'; nothing is lost: {Remedy.END_OTHER_DRIVER}, or where "
                f"there is none {Remedy.START_AGAIN}"
            ) from refused
        raise Refused(
            f"{refused}, {since_s:.1f} s after it was begun and its time-out is {timeout_ms} ms; if a batch takes "
            f"longer, {Remedy.LONGER_TRANSACTION}",
            refused.code,
        ) from refused
