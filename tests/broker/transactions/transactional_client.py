"""A transactional producer of raw requests: each method is one request and returns its error code."""

import time
from typing import Any

from onceflow.client.records import committed_records
from onceflow.wire import apis, produce
from onceflow.wire.batch import batches
from onceflow.wire.errors import ErrorCode
from onceflow.wire.fetch import READ_COMMITTED
from tests.broker.raw_client import RawClient, batch_of, milliseconds

TIMEOUT_MS = 60_000
WAIT_SECONDS = 20
PASSING = (
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.not_enough_replicas,
)


class TransactionalClient:
    """One transactional id on one raw connection; `producer` is the id and epoch that the next requests carry."""

    def __init__(self, client: RawClient, transactional_id: str) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.producer = (-1, -1)
        self.sequences: dict[tuple[str, int], int] = {}

    def init_response(
        self, version: int = 4, *, timeout_ms: int = TIMEOUT_MS, producer: tuple[int, int] = (-1, -1)
    ) -> tuple[ErrorCode, int, int]:
        """(error code, producer id, epoch) of one InitProducerId."""
        fields: dict[str, Any] = {
            "transactional_id": self.transactional_id,
            "transaction_timeout": milliseconds(timeout_ms),
        }
        if version >= 3:
            fields |= {"producer_id": producer[0], "producer_epoch": producer[1]}
        response = self.client.ask(apis.INIT_PRODUCER_ID, version, **fields)
        return ErrorCode(response.error_code), int(response.producer_id), int(response.producer_epoch)

    def init(self, version: int = 4, **options: Any) -> ErrorCode:
        """One InitProducerId; success is taken over."""
        error_code, *producer = self.init_response(version, **options)
        if not error_code:
            self.producer = (producer[0], producer[1])
            self.sequences.clear()
        return error_code

    def init_until_done(self, **options: Any) -> tuple[int, int]:
        """InitProducerId, again while another transaction is on its way to its end, as clients do."""
        assert patiently(lambda: self.init(**options)) == ErrorCode.none
        return self.producer

    def _who(self, prefix: str = "") -> dict[str, Any]:
        names = ("transactional_id", "producer_id", "producer_epoch")
        return {
            prefix + name: value for name, value in zip(names, (self.transactional_id, *self.producer), strict=True)
        }

    def add_responses(self, *partitions: tuple[str, int], version: int = 3) -> list[ErrorCode]:
        """One AddPartitionsToTxn, an error code for each partition."""
        topics = [{"name": topic, "partitions": [partition]} for topic, partition in partitions]
        who = self._who("v3_and_below_")
        response = self.client.ask(apis.ADD_PARTITIONS_TO_TXN, version, **who, v3_and_below_topics=topics)
        return [
            ErrorCode(item.partition_error_code)
            for topic in response.results_by_topic_v3_and_below
            for item in topic.results_by_partition
        ]

    def add(self, *partitions: tuple[str, int], version: int = 3) -> ErrorCode:
        codes = set(self.add_responses(*partitions, version=version))
        assert len(codes) == 1, codes
        return codes.pop()

    def add_offsets(self, group: str, version: int = 3) -> ErrorCode:
        return ErrorCode(self.client.ask(apis.ADD_OFFSETS_TO_TXN, version, **self._who(), group_id=group).error_code)

    def commit_offset(
        self, group: str, topic: str, offset: int, partition: int = 0, version: int = 3, **member: Any
    ) -> ErrorCode:
        """One TxnOffsetCommit of one offset."""
        commit: dict[str, Any] = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_metadata": member.pop("metadata", ""),
        }
        if version >= 2:
            commit["committed_leader_epoch"] = -1
        if version >= 3:
            member = {"generation_id": -1, "member_id": "", "group_instance_id": None, **member}
        response = self.client.ask(
            apis.TXN_OFFSET_COMMIT,
            version,
            **self._who(),
            group_id=group,
            topics=[{"name": topic, "partitions": [commit]}],
            **member,
        )
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def produce(
        self,
        topic: str,
        *values: bytes,
        partition: int = 0,
        acks: int = -1,
        version: int = 9,
        transactional: bool = True,
        named: bool = True,
        sequence: int | None = None,
    ) -> ErrorCode:
        """One Produce of one batch; `named`: the request carries the transactional id."""
        at = (topic, partition)
        begin = self.sequences.get(at, 0) if sequence is None else sequence
        batch = batch_of(
            *values,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            base_sequence=begin,
            transactional=transactional,
        )
        pieces = produce.encode_request(
            version,
            7,
            "raw",
            transactional_id=self.transactional_id if named else None,
            acks=acks,
            timeout_ms=10_000,
            topics=[(topic, [(partition, batch)])],
        )
        self.client.socket.sendall(b"".join(map(bytes, pieces)))
        if acks == 0:
            self.sequences[at] = begin + len(values)
            return ErrorCode.none
        _id, topics, _throttle_ms = produce.parse_response(version, self.client.receive_frame())
        code = ErrorCode(topics[0][1][0].error_code)
        if not code and sequence is None:
            self.sequences[at] = begin + len(values)
        return code

    def end(self, *, commit: bool, version: int = 3) -> ErrorCode:
        return ErrorCode(self.client.ask(apis.END_TXN, version, **self._who(), committed=commit).error_code)

    def run(self, topic: str, *values: bytes, commit: bool = True, partition: int = 0) -> None:
        """A whole transaction."""
        assert patiently(lambda: self.add((topic, partition))) == ErrorCode.none
        assert self.produce(topic, *values, partition=partition) == ErrorCode.none
        assert self.end(commit=commit) == ErrorCode.none

    def open_transactions(self, topic: str, partition: int = 0) -> list[tuple[int, int, int]]:
        """(producer id, epoch, first offset) of each in one partition, by DescribeProducers."""
        asked = [{"name": topic, "partition_indexes": [partition]}]
        response = self.client.ask(apis.DESCRIBE_PRODUCERS, 0, topics=asked)
        producers = response.topics[0].partitions[0].active_producers
        return [
            (producer.producer_id, producer.producer_epoch, producer.current_txn_start_offset)
            for producer in producers
            if producer.current_txn_start_offset >= 0
        ]

    def state(self) -> str:
        """Its name by DescribeTransactions, "" where the id is not known."""
        return str(self.described().transaction_state)

    def described(self) -> Any:
        response = self.client.ask(apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[self.transactional_id])
        return response.transaction_states[0]


def patiently(ask: Any) -> ErrorCode:
    """Call `ask` until its response is not a temporary error."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (code := ErrorCode(ask())) in PASSING:
        assert time.monotonic() < deadline, code
        time.sleep(0.01)
    return code


def committed_values(client: RawClient, topic: str, partition: int = 0, *, begin: int = 0) -> list[bytes]:
    """Return the committed values up to the last stable offset."""
    values: list[bytes] = []
    offset = begin
    while True:
        (fetched,) = client.fetch([(topic, partition, offset)], isolation_level=READ_COMMITTED)
        assert fetched.error_code == 0, fetched
        ends = [header.last_offset + 1 for _position, header in batches(fetched.records)]
        if not ends:
            return values
        # It looks at records and aborted transactions alone, which both kinds of responses have.
        records = committed_records(fetched, offset, ends[-1])  # type: ignore[arg-type]
        values += [record.value or b"" for record in records]
        offset = ends[-1]
