"""Quotas: which one applies, how usage becomes a throttle time, and its effect on a connection."""

import itertools
import random
import select
import threading
from collections.abc import Generator, Iterator
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.broker.handlers.quotas import DEFAULT, EXACT, SPECIFIED
from onceflow.broker.network import throttling
from onceflow.broker.network.throttling import throttle_position
from onceflow.broker.security.client_quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    ClientQuotas,
    Entity,
)
from onceflow.broker.security.quota_usage import QuotaUsage
from onceflow.broker.security.rates import Rate
from onceflow.broker.topics import records
from onceflow.broker.topics.records import ClientQuotaRecord
from onceflow.testing import Broker, ManualClock
from onceflow.wire import apis, fetch, produce
from onceflow.wire.apis import APIS
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import encode_response, response_class
from tests.broker.driven_broker import PoweredBroker, eventually
from tests.broker.raw_client import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    RawClient,
    batch_of,
    connected,
    stored_batches,
)
from tests.wire.messages import random_message

WINDOW_MS = 1000
SAMPLES = 11


def entity(**names: str | None) -> Entity:
    return frozenset((name.replace("_", "-"), value) for name, value in names.items())


ENTITIES = [
    entity(user="ada", client_id="c"),
    entity(user="ada", client_id=None),
    entity(user="ada"),
    entity(user=None, client_id="c"),
    entity(user=None, client_id=None),
    entity(user=None),
    entity(client_id="c"),
    entity(client_id=None),
]
"""Entities, the most specific first."""


@given(st.sets(st.sampled_from(range(len(ENTITIES)))))
def test_most_specific_quota_applies(numbers: set[int]) -> None:
    quotas = ClientQuotas()
    for number in numbers:
        quotas.set(ENTITIES[number], PRODUCER_BYTE_RATE, 100 + number)
    applied = quotas.applied(PRODUCER_BYTE_RATE, "ada", "c")
    assert (applied.bound if applied is not None else None) == min((100 + number for number in numbers), default=None)
    assert quotas.applied(CONSUMER_BYTE_RATE, "ada", "c") is None
    if applied is not None:
        used = dict(ENTITIES[int(applied.bound) - 100])
        shared = ("ada" if USER in used else "", "c" if CLIENT_ID in used else "")
        assert (applied.user, applied.client_id) == shared
    for number in numbers:
        quotas.set(ENTITIES[number], PRODUCER_BYTE_RATE, None)
    assert (quotas.by_entity, dict(quotas.counts)) == ({}, {})


def kafkas_throttle_ms(events: list[tuple[int, float]], bound: float, now_ms: int) -> int:
    """Measure the rate like SampledStat and Rate, with a list of samples as in Java."""
    samples: list[list[float]] = []
    for at_ms, value in events:
        if not samples or at_ms - samples[-1][0] >= WINDOW_MS:
            samples.append([at_ms, at_ms, 0.0])
        samples[-1][1] = at_ms
        samples[-1][2] += value
    kept = [sample for sample in samples if now_ms - sample[1] < SAMPLES * WINDOW_MS]
    elapsed_ms = now_ms - min((sample[0] for sample in kept), default=now_ms)
    elapsed_ms += max(SAMPLES - 1 - elapsed_ms // WINDOW_MS, 0) * WINDOW_MS
    rate = sum(sample[2] for sample in kept) / elapsed_ms * 1000
    return 0 if rate <= bound else round((rate - bound) / bound * elapsed_ms)


@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 5000)), min_size=1, max_size=30), st.integers(0, 13_000))
def test_throttle_times_are_kafkas(steps: list[tuple[int, int]], wait_ms: int) -> None:
    rate, events, now_ms = Rate(SAMPLES, WINDOW_MS), [], 0
    for step_ms, value in steps:
        now_ms += step_ms
        rate.record(value, now_ms)
        events.append((now_ms, float(value)))
        assert rate.throttle_ms(1000, now_ms) == kafkas_throttle_ms(events, 1000, now_ms)
    now_ms += wait_ms
    assert rate.throttle_ms(1000, now_ms) == kafkas_throttle_ms(events, 1000, now_ms)


@pytest.mark.parametrize(("seconds", "low", "high"), [(30, 1.10, 1.11), (300, 1.00, 1.05)])
def test_a_greedy_client_has_bursts(seconds: int, low: float, high: float) -> None:
    """It uses all windows at once at the start, and again when they have passed; Kafka's rules allow it."""
    rate, now_ms, used = Rate(SAMPLES, WINDOW_MS), 0, 0
    while now_ms < seconds * 1000:
        rate.record(100, now_ms)
        used += 100
        now_ms += rate.throttle_ms(10_000, now_ms)
    assert low < used / (10_000 * seconds) < high


def test_known_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceflow.broker.security.quota_usage.CLIENTS_MAX", 3)
    quotas, clock = ClientQuotas(), ManualClock()
    quotas.set(entity(client_id=None), PRODUCER_BYTE_RATE, 1)
    usage = QuotaUsage(quotas, clock, samples=SAMPLES, window_ms=WINDOW_MS)
    for number in range(10):
        assert usage.record(PRODUCER_BYTE_RATE, "", f"c{number}", 1000) > 0
    assert len(usage._rates) == 3


@pytest.mark.parametrize("value", [None, 1.5])
def test_records_round_trip(value: float | None) -> None:
    for of in ENTITIES:
        record = ClientQuotaRecord(of, REQUEST_PERCENTAGE, value)
        assert records.decode(records.encode(record)) == record


THROTTLE_MS = 0x01020304
VERSIONS = [(key, at) for key, api in APIS.items() for at in range(max(api.version_min, 1), api.version_max + 1)]


@pytest.mark.parametrize(("api_key", "version"), VERSIONS, ids=[f"{APIS[key].name} {at}" for key, at in VERSIONS])
def test_position_of_the_throttle_time(api_key: int, version: int) -> None:
    message = random_message(response_class(api_key, version), random.Random(version))
    position = throttle_position(api_key, version)
    if not hasattr(message, "throttle_time"):
        assert position is None
        return
    untagged = {field.name: field.default for field in fields(message) if "tag" in field.metadata}
    frames = []
    for throttle_ms in (0, THROTTLE_MS):
        changed = replace(message, throttle_time=timedelta(milliseconds=throttle_ms), **untagged)
        frames.append(bytearray(encode_response(api_key, version, 7, changed)))
    assert position is not None
    begin = position % len(frames[0])
    frames[0][begin : begin + 4] = THROTTLE_MS.to_bytes(4, "big")
    assert frames[0] == frames[1]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("t")
        yield running


def alter(client: RawClient, types: list[tuple[str, str | None]], *ops: tuple[str, float | None], **more: Any) -> Any:
    """Change the quotas of one entity; return (error, message)."""
    entry = {
        "entity": [{"entity_type": entity_type, "entity_name": name} for entity_type, name in types],
        "ops": [{"key": key, "value": value or 0, "remove": value is None} for key, value in ops],
    }
    response = client.ask(apis.ALTER_CLIENT_QUOTAS, 1, entries=[entry], **{"validate_only": False, **more})
    return ErrorCode(response.entries[0].error_code), response.entries[0].error_message


def described(client: RawClient, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    asked = [{"entity_type": kind, "match_type": match_type, "match": match} for kind, match_type, match in components]
    response = client.ask(apis.DESCRIBE_CLIENT_QUOTAS, 1, components=asked, strict=strict)
    if response.error_code:
        return ErrorCode(response.error_code)
    return {
        frozenset((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in response.entries
    }


NONE = (ErrorCode.none, None)


def test_quotas_are_altered_and_described(broker: Broker) -> None:
    with connected(broker.bootstrap_servers) as client:
        assert alter(client, [(USER, "ada")], (PRODUCER_BYTE_RATE, 1000), (REQUEST_PERCENTAGE, 12.5)) == NONE
        assert alter(client, [(USER, None), (CLIENT_ID, "c")], (CONSUMER_BYTE_RATE, 2000)) == NONE
        assert alter(client, [(USER, "eve")], (CONSUMER_BYTE_RATE, 1), validate_only=True) == NONE
        ada = {entity(user="ada"): {PRODUCER_BYTE_RATE: 1000, REQUEST_PERCENTAGE: 12.5}}
        both = {entity(user=None, client_id="c"): {CONSUMER_BYTE_RATE: 2000}}
        assert described(client) == ada | both
        assert described(client, (USER, EXACT, "ada")) == ada
        assert described(client, (USER, DEFAULT, None)) == both
        assert described(client, (USER, SPECIFIED, None), strict=True) == ada
        assert described(client, (CLIENT_ID, SPECIFIED, None), strict=True) == {}
        assert described(client, ("ip", SPECIFIED, None)) == {}
        assert alter(client, [(USER, "ada")], (PRODUCER_BYTE_RATE, None), (REQUEST_PERCENTAGE, None)) == NONE
        assert described(client) == both


@pytest.mark.parametrize(
    ("types", "ops", "message"),
    [
        ([], [(PRODUCER_BYTE_RATE, 1)], "Invalid empty client quota entity"),
        ([("role", "x")], [(PRODUCER_BYTE_RATE, 1)], "Unhandled client quota entity type: role"),
        ([(USER, "")], [(PRODUCER_BYTE_RATE, 1)], "Empty user not supported"),
        ([(USER, "a"), (USER, "b")], [(PRODUCER_BYTE_RATE, 1)], "Invalid client quota entity, duplicate"),
        ([("ip", "10.0.0.1"), (USER, "a")], [(PRODUCER_BYTE_RATE, 1)], "Invalid quota entity combination, IP"),
        ([("ip", "nowhere")], [(CONNECTION_CREATION_RATE, 1)], "nowhere is not a valid IP"),
        ([("ip", None)], [(PRODUCER_BYTE_RATE, 1)], "Invalid configuration key producer_byte_rate"),
        ([("ip", None)], [(CONNECTION_CREATION_RATE, 2**31)], "Proposed value for connection_creation_rate is too"),
        ([(USER, "a")], [("bytes", 1)], "Invalid configuration key bytes"),
        ([(USER, "a")], [(PRODUCER_BYTE_RATE, -1)], "Quota producer_byte_rate must be greater than 0"),
        ([(USER, "a")], [(PRODUCER_BYTE_RATE, 1.5)], "producer_byte_rate cannot be a fractional value."),
        ([(USER, "a")], [(PRODUCER_BYTE_RATE, float("nan"))], "Quota producer_byte_rate must be greater than 0"),
        ([(USER, "a")], [(PRODUCER_BYTE_RATE, 1), (PRODUCER_BYTE_RATE, 2)], "Duplicate quota key"),
    ],
)
def test_invalid_quotas_are_refused(shared: Broker, types: Any, ops: Any, message: str) -> None:
    with connected(shared.bootstrap_servers) as client:
        code, reason = alter(client, types, *ops)
        assert code == ErrorCode.invalid_request
        assert reason.startswith(message)
        assert described(client) == {}


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", EXACT, "a")], ErrorCode.invalid_request),
        ([(USER, EXACT, None)], ErrorCode.invalid_request),
        ([(USER, DEFAULT, "a")], ErrorCode.invalid_request),
        ([(USER, 9, None)], ErrorCode.invalid_request),
        ([(USER, EXACT, "a"), (USER, DEFAULT, None)], ErrorCode.invalid_request),
        ([(USER, EXACT, "a"), ("ip", DEFAULT, None)], ErrorCode.invalid_request),
        ([("role", EXACT, "a")], ErrorCode.unsupported_version),
    ],
)
def test_invalid_filters_are_refused(shared: Broker, components: Any, code: ErrorCode) -> None:
    with connected(shared.bootstrap_servers) as client:
        assert described(client, *components) == code


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    """A broker on which no test sets a quota."""
    with Broker() as running:
        yield running


def throttled_produce(client: RawClient, batch: Any) -> int:
    """Produce; return the throttle time of the response."""
    client.send_batch("t", 0, batch)
    _correlation_id, topics, throttle_ms = produce.parse_response(PRODUCE_VERSION, client.receive_frame())
    assert topics[0][1][0].error_code == 0
    return throttle_ms


def test_produce_beyond_its_quota_is_muted(broker: Broker) -> None:
    """Records are stored and acknowledged; the next request of the connection waits, those of others do not."""
    with connected(broker.bootstrap_servers) as client, connected(broker.bootstrap_servers) as other:
        assert throttled_produce(client, batch_of(b"x" * 1000)) == 0
        alter(other, [(CLIENT_ID, "raw")], (PRODUCER_BYTE_RATE, 1000))
        assert throttled_produce(client, batch_of(b"x" * 10_300)) in range(1, 1000)
        assert client.ask(apis.METADATA, 1, topics=None).topics, "after the throttle time"
        assert throttled_produce(client, batch_of(b"x" * 900_000)) > 100_000
        client.send(apis.METADATA, 1, topics=None)
        assert described(other)
        assert select.select([client.socket], [], [], 0) == ([], [], [])
        assert len(stored_batches(broker.bootstrap_servers, "t")) == 3


def test_pipelined_produce_is_muted_before_its_sync(powered: PoweredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests behind one beyond the quota are not accepted while that waits for the disk."""
    with connected(powered.bootstrap) as client, connected(powered.bootstrap) as other:
        other.create_topic("t")
        alter(other, [(CLIENT_ID, "raw")], (PRODUCER_BYTE_RATE, 1000))
        disk_syncs = threading.Event()
        with monkeypatch.context() as slow:
            slow.setattr("onceflow.testing.disk._FaultyFile.sync_data", lambda _file: disk_syncs.wait(10))
            request = client.produce_request("t", 0, batch_of(b"x" * 900_000))
            client.socket.sendall(request + request)
            log = powered.log("t")
            eventually(lambda: log.log_end_offset, "the first is appended")
            assert described(other)
            assert log.log_end_offset == 1
            disk_syncs.set()
        assert client.receive_produced().base_offset == 0
        assert select.select([client.socket], [], [], 0.1) == ([], [], [])


def test_fetch_beyond_its_quota_is_empty(broker: Broker) -> None:
    """Its size does not count, so a later fetch gets the records; ten windows of the quota limit one fetch."""
    with connected(broker.bootstrap_servers) as client:
        for _ in range(4):
            client.produce("t", 0, batch_of(b"x" * 4000))
        alter(client, [(USER, "ANONYMOUS")], (CONSUMER_BYTE_RATE, 1000))
        (first,) = client.fetch([("t", 0, 0)])
        assert len(first.records) in range(8000, 10_000), "no more than ten windows"
        client.send_fetch([("t", 0, 0)])
        throttled = fetch.parse_response(FETCH_VERSION, client.receive_frame())
        assert (throttled.throttle_ms > 0, throttled.partitions) == (True, [])


def test_time_of_requests_is_limited(broker: Broker) -> None:
    with connected(broker.bootstrap_servers) as client:
        alter(client, [(USER, None)], (REQUEST_PERCENTAGE, 1e-9))
        response = client.ask(apis.METADATA, 3, topics=(), allow_auto_topic_creation=False)
        assert response.throttle_time == timedelta(seconds=1), "the maximum is a window"


def test_all_time_of_a_request_counts(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is a millisecond later at each reading: each step of decoding and responding takes one."""
    readings = itertools.count()
    monkeypatch.setattr(throttling, "perf_counter", lambda: next(readings) / 1000)
    percents: list[float] = []

    def record(_usage: QuotaUsage, key: str, _user: str, _client_id: str, value: float) -> int:
        percents.append(value if key == REQUEST_PERCENTAGE else 0)
        return 0

    monkeypatch.setattr(QuotaUsage, "record", record)
    with connected(broker.bootstrap_servers) as client:
        alter(client, [(USER, None)], (REQUEST_PERCENTAGE, 1))
        for count, steps in ((1, 2), (100, 200), (1000, 2000)):
            resources = [{"resource_type": 2, "resource_name": "t", "configuration_keys": ["x"]}] * count
            client.ask(apis.DESCRIBE_CONFIGS, 1, resources=resources, include_synonyms=False)
            assert steps <= 10 * percents[-1] <= 3 * steps + 5


def test_decoding_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = itertools.count()
    monkeypatch.setattr(throttling, "perf_counter", lambda: float(next(readings)))

    def decoding() -> Generator[int, None, str]:
        yield 7
        yield 8
        return "body"

    steps: list[int] = []

    def run() -> Generator[int, None, None]:
        assert (yield from throttling.timed_decoding(decoding())) == ("body", 3.0)

    steps += run()
    assert steps == [7, 8]


def mutate(broker: Broker, api_key: int, version: int, **fields: Any) -> tuple[ErrorCode, int]:
    """Send a request about one topic on a connection of its own; return (error, throttle time in ms)."""
    with connected(broker.bootstrap_servers) as client:
        response = client.ask(api_key, version, timeout=timedelta(seconds=10), validate_only=False, **fields)
    results = getattr(response, {apis.CREATE_TOPICS: "topics", apis.DELETE_TOPICS: "responses"}.get(api_key, "results"))
    return ErrorCode(results[0].error_code), round(response.throttle_time.total_seconds() * 1000)


def creation(name: str, partitions: int) -> dict[str, Any]:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": (), "configs": ()}
    return {"topics": [topic]}


def test_mutations_beyond_their_quota_are_refused() -> None:
    """The burst is eleven windows; an operation that begins within it may exceed it once."""
    with Broker(clock=ManualClock()) as broker, connected(broker.bootstrap_servers) as admin:
        alter(admin, [(CLIENT_ID, "raw")], (CONTROLLER_MUTATION_RATE, 1))
        assert mutate(broker, apis.CREATE_TOPICS, 7, **creation("a", 15)) == (ErrorCode.none, 0)
        exceeded = (ErrorCode.throttling_quota_exceeded, 4000)
        assert mutate(broker, apis.CREATE_TOPICS, 6, **creation("b", 1)) == exceeded
        more = [{"name": "a", "count": 16, "assignments": None}]
        assert mutate(broker, apis.CREATE_PARTITIONS, 3, topics=more) == exceeded
        deletion = {"topics": [{"name": "a", "topic_id": None}], "topic_names": ["a"]}
        assert mutate(broker, apis.DELETE_TOPICS, 6, **deletion) == exceeded
        assert mutate(broker, apis.CREATE_TOPICS, 5, **creation("c", 1)) == (ErrorCode.none, 5000)
        metadata = admin.ask(apis.METADATA, 4, topics=[{"name": "d"}], allow_auto_topic_creation=True)
        assert metadata.topics[0].error_code == ErrorCode.unknown_topic_or_partition
        assert metadata.throttle_time == timedelta(seconds=5)


def test_new_connections_are_limited_by_address() -> None:
    """Ten windows' worth is accepted at once; a further connection is closed without a response."""
    with Broker(clock=ManualClock()) as broker, connected(broker.bootstrap_servers) as admin:
        assert alter(admin, [("ip", "127.0.0.2")], (CONNECTION_CREATION_RATE, 1)) == NONE
        assert alter(admin, [("ip", None)], (CONNECTION_CREATION_RATE, 1000)) == NONE
        assert described(admin, ("ip", EXACT, "127.0.0.2"))
        outcomes = []
        for source in ["127.0.0.2"] * 11 + ["127.0.0.3"]:
            client = RawClient(broker.bootstrap_servers, source=source)
            client.send(apis.METADATA, 1, topics=())
            try:
                outcomes.append(client.receive_frame() != b"")
            except ConnectionResetError:
                outcomes.append(False)
            client.close()
        assert outcomes == [*[True] * 10, False, True]


def test_quotas_survive_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        with Broker(tmp_path / "data") as broker, connected(broker.bootstrap_servers) as client:
            alter(client, [(USER, "eve"), (CLIENT_ID, None)], (PRODUCER_BYTE_RATE, 5), (CONSUMER_BYTE_RATE, 6))
            alter(client, [(USER, "eve"), (CLIENT_ID, None)], (CONSUMER_BYTE_RATE, None))
            assert described(client) == {entity(user="eve", client_id=None): {PRODUCER_BYTE_RATE: 5}}
