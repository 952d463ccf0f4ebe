"""The driver's transaction without Spark: error codes, lost responses and deaths at every step."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from onceflow.cli import onceflow
from onceflow.client.addresses import parse_address
from onceflow.client.admin import Admin
from onceflow.client.cluster import LATEST, Cluster
from onceflow.client.transactional import TransactionalProducer
from onceflow.spark.errors import SinkStopped
from onceflow.spark.exactly_once.batch import AcceptedLoss
from onceflow.spark.kafka import steps as kafka_steps
from onceflow.spark.kafka.sender import Blob
from onceflow.spark.kafka.steps import STEPS, Step
from onceflow.testing import BrokerProcess
from onceflow.wire import apis
from tests.spark.kafka_driver import (
    MARKER_TOPIC,
    QUERY,
    Driver,
    Killed,
    Rows,
    batch,
    eventually,
    expect,
    make_topics,
    values_of,
    visible,
)
from tests.spark.response_proxy import DROPPED, LOST, ResponseProxy

POINTS = [f"{side} {step.name}" for step in STEPS for side in ("before", "after")]
STOPPING = (10, 12, 18, 29, 30, 50, 53, 87)

NewDriver = Callable[..., Driver]


@pytest.fixture
def new_driver(bootstrap: str, topic: str) -> Iterator[NewDriver]:
    make_topics(bootstrap, topic)
    made: list[Driver] = []

    def make(at: str | None = None, **options: object) -> Driver:
        made.append(Driver(at or bootstrap, topic, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for driver in made:
        driver.close()


@pytest.fixture
def proxy(bootstrap: str) -> Iterator[ResponseProxy]:
    with ResponseProxy(parse_address(bootstrap)) as running:
        yield running


def test_batches_are_visible_whole_and_once(new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    driver = new_driver()
    for number in range(4):
        assert driver.write(number)
    assert not driver.write(3)
    assert driver.encoded == 4
    expect(bootstrap, topic, 4)
    again = new_driver(owner="owner-2")
    assert not again.write(3)
    assert again.encoded == 0
    assert again.write(4)
    expect(bootstrap, topic, 5)


@pytest.mark.parametrize("point", POINTS)
def test_next_driver_continues_after_any_death(point: str, new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    new_driver().write(0)
    visit = 0
    for number in range(1, 4):
        # The driver dies at a later visit each time: a step's later visits are other states of the transaction.
        visit += 1
        dying = new_driver(owner=f"dying-{number}", dies_at=(point, visit))
        try:
            dying.write(number)
        except Killed:
            dying.close()
        else:
            visit = 0
        following = new_driver(owner=f"following-{number}")
        following.write(number)
        expect(bootstrap, topic, number + 1)
        assert not following.write(number)
    new_driver(owner="last").write(4)
    expect(bootstrap, topic, 5)


def further_attempts(caplog: pytest.LogCaptureFixture) -> int:
    """Return the number of attempts after the first of each batch."""
    return sum("; retrying: " in message for message in caplog.messages)


every_step = pytest.mark.parametrize("step", STEPS, ids=lambda step: str(step.name))


@every_step
def test_temporary_codes_are_retried(
    step: Step,
    new_driver: NewDriver,
    proxy: ResponseProxy,
    bootstrap: str,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = new_driver(proxy.bootstrap)
    driver.write(0)
    for number, code in enumerate(sorted(step.retry), start=1):
        if step is kafka_steps.FIND_COORDINATOR:
            driver = new_driver(proxy.bootstrap, owner=f"owner-{number}")
        proxy.faults = [(step.api_key, code), (step.api_key, code)]
        driver.write(number)
        assert proxy.faults == []
    assert further_attempts(caplog) == 0
    expect(bootstrap, topic, len(step.retry) + 1)


@every_step
def test_codes_that_end_the_attempt(
    step: Step,
    new_driver: NewDriver,
    proxy: ResponseProxy,
    bootstrap: str,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = new_driver(proxy.bootstrap)
    driver.write(0)
    for number, code in enumerate(sorted(step.end_attempt), start=1):
        proxy.faults = [(step.api_key, code)]
        if code in kafka_steps.FENCED:
            with pytest.raises(SinkStopped, match=r"was fenced .* before its time-out"):
                driver.write(number)
            driver = new_driver(proxy.bootstrap, owner=f"owner-{number}")
        driver.write(number)
    assert further_attempts(caplog) == len(step.end_attempt - kafka_steps.FENCED)
    expect(bootstrap, topic, len(step.end_attempt) + 1)


@every_step
def test_every_other_code_stops_the_query(
    step: Step, new_driver: NewDriver, proxy: ResponseProxy, bootstrap: str, topic: str
) -> None:
    new_driver(proxy.bootstrap).write(0)
    codes = sorted(set(STOPPING) - step.retry - step.end_attempt)
    for number, code in enumerate(codes):
        proxy.faults = [(step.api_key, code)]
        with pytest.raises(SinkStopped, match=rf"\({code}\)"):
            new_driver(proxy.bootstrap, owner=f"owner-{number}").write(1)
    expect(bootstrap, topic, 1)
    new_driver(owner="last").write(1)
    expect(bootstrap, topic, 2)


@every_step
def test_lost_response_changes_nothing(
    step: Step, new_driver: NewDriver, proxy: ResponseProxy, bootstrap: str, topic: str
) -> None:
    driver = new_driver(proxy.bootstrap)
    driver.write(0)
    for number, faults in enumerate(([LOST], [DROPPED], [LOST, LOST], [DROPPED, LOST]), start=1):
        proxy.faults = [(step.api_key, fault) for fault in faults]
        driver.write(number)
    driver.write(5)
    expect(bootstrap, topic, 6)


def test_lasting_retriable_codes_stop_the_query(
    new_driver: NewDriver, proxy: ResponseProxy, bootstrap: str, topic: str
) -> None:
    for step in STEPS[1:]:
        driver = new_driver(proxy.bootstrap, settings={"retry_timeout_ms": 100}, owner=step.name)
        proxy.faults = [(step.api_key, min(step.retry))] * 1000
        with pytest.raises(SinkStopped, match="100 ms"):
            driver.write(0)
        proxy.faults = []
    new_driver(owner="last").write(0)
    expect(bootstrap, topic, 1)


def test_query_stops_after_five_attempts(
    new_driver: NewDriver, proxy: ResponseProxy, bootstrap: str, topic: str
) -> None:
    driver = new_driver(proxy.bootstrap)
    driver.write(0)
    proxy.faults = [(apis.PRODUCE, 48)] * 5
    with pytest.raises(SinkStopped, match="could not be written in 5 attempts"):
        driver.write(1)
    assert proxy.faults == []
    expect(bootstrap, topic, 1)
    driver.write(1)
    expect(bootstrap, topic, 2)


def test_first_batch_of_partition_is_sent_alone(
    new_driver: NewDriver, proxy: ResponseProxy, bootstrap: str, topic: str
) -> None:
    driver = new_driver(proxy.bootstrap)
    driver.write(0)
    proxy.produced.clear()
    # The first batch is refused. If the second were already sent, the leader would accept it as the first.
    proxy.faults = [(apis.PRODUCE, 7)]
    # It is sent again, and the batches after it do not wait for each other.
    proxy.holds = 3
    driver.write(1, Rows(topic, values_of(1), blobs_per_pull=100))
    expect(bootstrap, topic, 2)
    assert proxy.several_in_flight
    firsts = [sequence for place, sequence in proxy.produced if place == (topic, 0)]
    assert firsts[:3] == [0, 0, firsts[2]] and firsts[2] > 0


def test_batches_after_a_refused_one_are_resent(
    new_driver: NewDriver, proxy: ResponseProxy, bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    driver = new_driver(proxy.bootstrap)
    driver.write(0)
    for number in range(1, 7):
        spared: list[tuple[int, int | None]] = [(apis.PRODUCE, None)] * (1 + number // 2)
        following: list[tuple[int, int | None]] = [(apis.PRODUCE, LOST)] if number % 2 else []
        proxy.faults = [*spared, (apis.PRODUCE, 19), *following]
        driver.write(number, Rows(topic, values_of(number), blobs_per_pull=100))
        assert proxy.faults == []
    assert further_attempts(caplog) == 0
    expect(bootstrap, topic, 7)


def test_timed_out_transaction_is_repeated(
    new_driver: NewDriver, proxy: ResponseProxy, bootstrap: str, topic: str
) -> None:
    """The driver detects the time-out by its own clock, which the test advances; the proxy sends the error code."""
    now = [0.0]
    driver = new_driver(proxy.bootstrap, settings={"clock": lambda: now[0], "transaction_timeout_ms": 30_000})
    driver.write(0)

    def slow(number: int) -> None:
        now[0] += 31

    rows = Rows(topic, values_of(1), between=slow)
    proxy.faults = [(apis.TXN_OFFSET_COMMIT, 90)]
    driver.write(1, rows)
    assert driver.visits["before InitProducerId"] >= 3
    expect(bootstrap, topic, 2)


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[str]:
    """Start a broker that checks for timed-out transactions every 50 ms; Apache Kafka does so every ten seconds."""
    option = "--transaction-abort-timed-out-transaction-cleanup-interval-ms"
    with BrokerProcess(tmp_path / "broker", 0, option, "50") as running:
        yield running.bootstrap


def test_transaction_aborted_by_broker_is_repeated(impatient: str, topic: str) -> None:
    make_topics(impatient, topic)
    driver = Driver(impatient, topic, settings={"transaction_timeout_ms": 300})
    admin = Admin(driver.cluster)

    def wait_for_abort(number: int) -> None:
        # Only the first attempt waits until the coordinator has aborted it.
        if number == 1 and rows.pulls == 2:
            eventually(lambda: admin.describe_transaction(driver.location.name).state != "Ongoing", 30)

    driver.write(0)
    rows = Rows(topic, values_of(1), between=wait_for_abort)
    driver.write(1, rows)
    # At least two pulls per attempt; on a slow machine the second attempt may time out, too.
    assert rows.pulls >= 4
    expect(impatient, topic, 2)
    driver.close()


def test_batch_continues_after_broker_kill(tmp_path: Path, topic: str) -> None:
    with BrokerProcess(tmp_path / "broker") as running:
        make_topics(running.bootstrap, topic)
        driver = Driver(running.bootstrap, topic)

        def killed(number: int) -> None:
            if number in (1, 3):
                running.kill()
                running.start()

        driver.write(0)
        driver.write(1, Rows(topic, values_of(1), blobs_per_pull=2, between=killed))
        driver.write(2)
        expect(running.bootstrap, topic, 3)
        driver.close()


def test_open_transaction_is_aborted_by_command(new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    def onceflow(*words: str) -> str:
        command = [sys.executable, "-m", "onceflow", "transaction", *words, "--bootstrap", bootstrap]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    new_driver().write(0)
    dying = new_driver(owner="dying", dies_at=("before EndTxn", 1))
    with pytest.raises(Killed):
        dying.write(1)
    name = dying.location.name
    assert name in onceflow("list", "--state", "Ongoing")
    assert "the open transaction was aborted" in onceflow("abort", name, "--yes")
    assert name not in onceflow("list", "--state", "Ongoing")
    new_driver(owner="owner-2").write(1)
    expect(bootstrap, topic, 2)


def test_lost_encoded_rows_are_detected(new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    class Losing(Rows):
        def blobs(self) -> Iterator[object]:  # type: ignore[override]
            for number, pull in enumerate(super().blobs()):
                if number != 1:
                    yield pull

    driver = new_driver()
    driver.write(0)
    with pytest.raises(SinkStopped, match=r"5 attempts .*: \d+ records were acknowledged and 30 encoded"):
        driver.write(1, Losing(topic, values_of(1), blobs_per_pull=2))
    expect(bootstrap, topic, 1)


def test_transaction_is_aborted_if_unpersist_fails(
    new_driver: NewDriver, bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(Rows):
        def close(self) -> None:
            raise ConnectionError("Spark has ended")

        def blobs(self) -> Iterator[Sequence[Blob]]:
            yield from super().blobs()
            raise ZeroDivisionError

    driver = new_driver()
    driver.write(0)
    with pytest.raises(ZeroDivisionError):
        driver.write(1, Stubborn(topic, values_of(1)))
    with Cluster(bootstrap) as cluster:
        assert driver.location.name not in {
            transaction.transactional_id for transaction in Admin(cluster).list_transactions(states=["Ongoing"])
        }
    assert "Spark has ended" in caplog.text


def test_second_driver_fences_the_first(new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    first = new_driver()
    first.write(0)
    second = new_driver(owner="owner-2")

    def overtaken(number: int) -> None:
        if number == 1:
            second.write(1)
            # A partition knows the newer epoch only after Kafka has written the transaction's marker there.
            expect(bootstrap, topic, 2)

    with pytest.raises(
        SinkStopped,
        match=r"another driver of this query took it over.*end the other driver, whose progress",
    ):
        first.write(1, Rows(topic, values_of(1), between=overtaken))
    expect(bootstrap, topic, 2)
    with pytest.raises(SinkStopped, match=r"was written by another driver \(owner owner-2\).*sink show kafka' shows"):
        first.write(2)
    second.write(2)
    expect(bootstrap, topic, 3)


def test_transaction_aborted_from_outside(new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    """No other driver runs: the message also names the abort, and the next start writes the batch."""
    driver = new_driver()
    driver.write(0)

    def abort(number: int) -> None:
        if number == 1:
            arguments = ["transaction", "abort", driver.location.name, "--yes", "--bootstrap", bootstrap]
            assert CliRunner().invoke(onceflow, arguments).exit_code == 0

    fenced = r"was fenced .*or it was aborted by 'onceflow transaction abort'.*restart the query"
    with pytest.raises(SinkStopped, match=fenced):
        driver.write(1, Rows(topic, values_of(1), between=abort))
    assert new_driver().write(1)
    expect(bootstrap, topic, 2)


def test_more_partitions_are_refused_until_accepted(new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    driver = new_driver()
    driver.write(0)
    driver.write(1)
    grown = Rows(topic, values_of(2), partition_count=8)
    with pytest.raises(SinkStopped, match=rf"had 3 partitions .* has 8 now.*accept_partitions={{'{topic}': 8}}"):
        driver.write(2, grown)
    new_driver(owner="owner-2", accepted={topic: 8}).write(2, grown)
    # The new count is now the expected one.
    with pytest.raises(SinkStopped, match=r"had 8 partitions .* has 3 now"):
        new_driver(owner="owner-3").write(3)
    expect(bootstrap, topic, 3)


# The marker and its two copies


def test_mismatched_marker_stops_the_query(new_driver: NewDriver, topic: str) -> None:
    with pytest.raises(SinkStopped, match=r"there is no marker .* Spark has committed batch 1"):
        new_driver().write(2)
    driver = new_driver()
    for number in range(3):
        driver.write(number)
    refusals = {
        "is at batch 2 and the checkpoint is at batch 1: the checkpoint is older": batch(1),
        "the cluster lost batches: .* is at batch 2 and Spark has committed batch 3": batch(4),
        "holds batch 2 as ranges .* and the checkpoint plans it as": batch(2, begin=31),
        "ends batch 2 of in-0 at offset 60 and the checkpoint begins batch 3 at 61": batch(3, begin=61),
        "is of plan 'plan' and this job is 'other'": batch(3, plan="other"),
    }
    for message, refused in refusals.items():
        with pytest.raises(SinkStopped, match=message):
            driver.write(refused.number, of=refused)
    assert not driver.write(2, of=batch(2, version=2))
    assert driver.write(3, of=batch(3, version=2))


def test_marker_record_alone_is_sufficient(new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    driver = new_driver()
    driver.write(0)
    driver.write(1)
    with Cluster(bootstrap) as cluster:
        Admin(cluster).delete_group(driver.location.name)
    following = new_driver(owner="owner-2")
    assert not following.write(1)
    following.write(2)
    expect(bootstrap, topic, 3)


def test_group_offset_alone_is_sufficient(new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    forgetting = f"{topic}-markers"
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(forgetting, 1)
        driver = new_driver(marker_topic=forgetting)
        driver.write(0)
        driver.write(1)
        eventually(lambda: driver.location.read_record(cluster) == driver.target.last)
        Admin(cluster).delete_records(forgetting, {0: cluster.list_offsets(forgetting, {0: LATEST})[0].offset})
        assert driver.location.read_record(cluster) is None
    following = new_driver(owner="owner-2", marker_topic=forgetting)
    assert not following.write(1)
    following.write(2)
    expect(bootstrap, topic, 3)
    # The query's first offsets are no longer known.
    assert following.target.last is not None and following.target.last.since is None


def test_record_after_an_open_transaction_is_read(new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    driver = new_driver()
    driver.write(0)
    with TransactionalProducer(bootstrap, f"{topic}-other") as other:
        other.begin()
        other.send(MARKER_TOPIC, b"open", b"other key", partition=0)
        other.flush()
        # The group's offset holds batch 1; of the marker's records, only that of batch 0 can be read yet.
        driver.write(1)
        following = new_driver(owner="owner-2")
        assert not following.write(1)
        assert following.target.last is not None and following.target.last.since == {"in": {"0": 0}}
        with Cluster(bootstrap) as cluster:
            Admin(cluster).delete_group(driver.location.name)
        with pytest.raises(SinkStopped, match="where another sink's transaction is open"):
            new_driver(owner="owner-3", settings={"retry_timeout_ms": 100}).write(2)
        other.abort()
    new_driver(owner="owner-4").write(2)
    expect(bootstrap, topic, 3)


def test_sibling_after_an_open_transaction_is_detected(new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    markers = f"{topic}-markers"
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(markers, 2, configs={"cleanup.policy": "compact"})

    def write_as_new_query(**options: object) -> None:
        driver = new_driver(owner="owner-2", marker_topic=markers, **options)
        driver.location = replace(driver.location, name=f"{driver.location.name}-new", partition=1)
        driver.write(0, of=replace(batch(0), query="query-new"))

    with TransactionalProducer(bootstrap, f"{topic}-other") as other:

        def begin_other(point: str) -> None:
            if point == "before AddPartitionsToTxn":
                other.begin()
                other.send(markers, b"open", b"other key", partition=0)
                other.flush()

        new_driver(marker_topic=markers, settings={"at": begin_other}).write(0)
        with pytest.raises(SinkStopped, match=rf"markers in {markers}-0 cannot be read from offset 0"):
            write_as_new_query(settings={"retry_timeout_ms": 100})
        other.abort()
    may_hold = rf"{topic} may hold what sink 'kafka' of query {QUERY} wrote, up to batch 0, .* if it holds records"
    with pytest.raises(SinkStopped, match=may_hold):
        write_as_new_query()


def test_copies_that_differ_stop_the_query(new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    driver = new_driver()
    driver.write(0)
    place = driver.location
    eventually(lambda: place.read_record(driver.cluster) is not None)
    older = place.read_record(driver.cluster)
    assert older is not None
    driver.write(1)
    with TransactionalProducer(bootstrap, f"{topic}-other") as producer:
        producer.begin()
        producer.send(MARKER_TOPIC, older.value(), place.name.encode(), partition=0)
        producer.commit()
    eventually(lambda: place.read_record(driver.cluster) == older)
    with pytest.raises(SinkStopped, match=r"is of batch 1 .* and the record of batch 0"):
        new_driver(owner="owner-2").write(2)


def test_empty_batch_writes_only_its_marker(new_driver: NewDriver, bootstrap: str, topic: str) -> None:
    driver = new_driver()
    for number in range(3):
        driver.write(number, Rows(topic, {}))
    assert visible(bootstrap, topic) == {0: [], 1: [], 2: []}
    eventually(lambda: driver.location.read_record(driver.cluster) == driver.target.last)
    record = driver.location.read_record(driver.cluster)
    assert record is not None and record.batch == 2
    assert (record.since, record.offsets) == ({"in": {"0": 0}}, {"in": {"0": 60}})


def test_accepted_losses_are_kept_in_the_record(new_driver: NewDriver) -> None:
    """Later batches keep them, also after another start has read the marker."""
    loss = AcceptedLoss("trimmed", "in", 0, 0, 5, batch=1, at_ms=17, option="accept_data_loss")
    driver = new_driver()
    driver.write(0)
    driver.write(1, of=replace(batch(1), accepted=(loss,)))
    following = new_driver(owner="owner-2")
    following.write(2)
    marker = following.target.recover(QUERY)
    assert marker is not None
    assert (marker.batch, marker.losses) == (2, (loss,))
