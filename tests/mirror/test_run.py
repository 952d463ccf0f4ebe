"""The mirror between two brokers: equal records, crashes, fencing, and refusals."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.client.errors import ClientError, RequestRefused
from onceflow.client.transactional import TransactionalProducer
from onceflow.mirror.errors import MirrorFenced, MirrorStopped
from onceflow.mirror.run import Mirror
from onceflow.mirror.topics import Topics
from onceflow.remedies import Remedy
from onceflow.testing import Broker
from onceflow.wire.batch import batches
from onceflow.wire.codecs import Codec
from tests import remedies
from tests.mirror.conftest import Clusters, contents


def test_records_keep_everything(clusters: Clusters) -> None:
    """Partition, order, key, value, null, headers and timestamp; aborted transactions are not mirrored."""
    topic = clusters.topic
    clusters.source.create_topic(topic, 2)
    with TransactionalProducer(clusters.source.bootstrap, topic, codec=Codec.GZIP) as producer:
        for round_ in range(3):
            producer.begin()
            for number in range(100):
                content = b"%d-%d" % (round_, number)
                producer.send(topic, content, b"key", partition=number % 2, timestamp_ms=1_000 * number)
            producer.send(topic, None, b"key", partition=1, headers=(("a", b"1"), ("b", None)))
            producer.send(topic, b"", partition=1)
            producer.flush()
            producer.abort() if round_ == 1 else producer.commit()
    mirror = clusters.run_once()
    for partition in (0, 1):
        assert contents(clusters.target, topic, partition) == contents(clusters.source, topic, partition)
    assert len(contents(clusters.target, topic, 1)) == 104
    assert (mirror.progress.records, mirror.progress.lag_messages) == (204, 0)


def test_no_matching_topic_is_warned_about(clusters: Clusters, caplog: pytest.LogCaptureFixture) -> None:
    clusters.run_once()
    assert f"no topic at {clusters.source.bootstrap} matches '{clusters.topic}(-\\w+)?'; " in caplog.text
    caplog.clear()
    clusters.source.create_topic(clusters.topic, 1)
    clusters.run_once()
    assert "matches" not in caplog.text


def test_uncommitted_records_are_mirrored_on_request(clusters: Clusters) -> None:
    clusters.source.create_topic(clusters.topic, 1)
    clusters.write("aborted", commit=False)
    clusters.write("committed")
    clusters.run_once(read_committed=False)
    assert clusters.copied() == ["aborted", "committed"]


@pytest.mark.parametrize(("requested", "stored"), [(None, Codec.LZ4), (Codec.ZSTD, Codec.ZSTD)])
def test_compression_is_kept_or_chosen(clusters: Clusters, requested: Codec | None, stored: Codec) -> None:
    topic = clusters.topic
    clusters.source.create_topic(topic, 1)
    with TransactionalProducer(clusters.source.bootstrap, topic, codec=Codec.LZ4) as producer:
        producer.begin()
        for number in range(5_000):
            producer.send(topic, b"%d" % number, partition=0)
        producer.commit()
    clusters.run_once(codec=requested)
    fetched = clusters.target.fetch(topic, 0, 0)
    assert {header.codec for _, header in batches(fetched.records) if not header.is_control} == {stored}
    assert contents(clusters.target, topic) == contents(clusters.source, topic)


def test_topics_get_partitions_and_configs(clusters: Clusters) -> None:
    configs = {"retention.ms": "86400000", "message.timestamp.type": "LogAppendTime", "min.insync.replicas": "2"}
    clusters.source.create_topic(clusters.topic, 3, configs=configs)
    clusters.run_once()
    created = Admin(clusters.target).describe_topic_configs(clusters.topic)
    assert len(clusters.target.require_topic(clusters.topic).partitions) == 3
    assert created["retention.ms"].value == "86400000"
    assert created["min.insync.replicas"].value == "1"
    assert created["message.timestamp.type"].value == "CreateTime"


class Running:
    """A mirror in a thread."""

    def __init__(self, mirror: Mirror) -> None:
        self._stop = threading.Event()
        self._mirror = mirror
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._mirror.run(self._stop.is_set)
        except Exception as error:  # noqa: BLE001 - it is handed to the test
            self.error = error

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()

    def __enter__(self) -> "Running":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.join()


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1_000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("the condition was not met within 10 s")


def test_new_topics_and_partitions_follow(clusters: Clusters) -> None:
    clusters.source.create_topic(clusters.topic, 1)
    later = f"{clusters.topic}-later"
    with (
        Cluster(clusters.source.bootstrap) as source,
        Cluster(clusters.target.bootstrap) as target,
        Running(Mirror(source, target, clusters.settings())),
    ):
        until(lambda: clusters.topic in clusters.target.topics())
        clusters.source.create_topic(later, 1)
        Admin(clusters.source).create_partitions(clusters.topic, 2)
        until(lambda: len(clusters.source.require_topic(clusters.topic).partitions) == 2)
        clusters.write("a", topic=later)
        clusters.write("b", partition=1)
        until(lambda: clusters.copied(later) == ["a"])
        until(lambda: len(clusters.target.topics()[clusters.topic].partitions) == 2)
        until(lambda: clusters.copied(partition=1) == ["b"])


class Killed(BaseException):
    """The end of the process."""


@pytest.mark.parametrize("point", ["send_batches", "_end"])
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
def test_a_killed_mirror_resumes(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch, point: str, is_done: bool
) -> None:
    """The process ends before or after each step of each of its transactions; nothing is lost or repeated."""
    clusters.source.create_topic(clusters.topic, 1)
    clusters.write("a", "b")
    original = getattr(TransactionalProducer, point)
    calls_left = 0

    def step(producer: TransactionalProducer, *arguments: object, **options: object) -> object:
        nonlocal calls_left
        calls_left -= 1
        if calls_left == 0 and not is_done:
            producer.close()
            raise Killed
        result = original(producer, *arguments, **options)
        if calls_left == 0:
            producer.close()
            raise Killed
        return result

    for calls in range(1, 4):
        with monkeypatch.context() as patch:
            patch.setattr(TransactionalProducer, point, step)
            calls_left = calls
            try:
                clusters.run_once()
            except Killed:
                assert clusters.copied() in ([], ["a", "b"])
    clusters.write("c")
    clusters.run_once()
    assert clusters.copied() == ["a", "b", "c"]


@pytest.mark.parametrize("api", ["InitProducerId", "AddPartitionsToTxn", "Produce", "EndTxn"])
def test_lost_responses_change_nothing(clusters: Clusters, api: str) -> None:
    clusters.source.create_topic(clusters.topic, 1)
    clusters.write("a", "b")
    fault = clusters.target_broker.faults.lose(api, times=2)
    clusters.run_once()
    assert fault.count == 2
    clusters.write("c")
    clusters.run_once()
    assert clusters.copied() == ["a", "b", "c"]


def test_a_refused_batch_names_its_partition(clusters: Clusters) -> None:
    clusters.source.create_topic(clusters.topic, 1)
    clusters.write("a")
    clusters.target.create_topic(clusters.topic, 1)
    clusters.target_broker.faults.fail("Produce", "MESSAGE_TOO_LARGE", topic=clusters.topic)
    with pytest.raises(RequestRefused, match=rf"MESSAGE_TOO_LARGE.*{clusters.topic}-0"):
        clusters.run_once()
    clusters.run_once()
    assert clusters.copied() == ["a"]


def test_a_timed_out_transaction_starts_again(clusters: Clusters) -> None:
    """Its coordinator has raised the epoch; the owner's record shows that no other mirror has."""
    clusters.source.create_topic(clusters.topic, 1)
    clusters.write("a")
    fault = clusters.target_broker.faults.fail("EndTxn", "PRODUCER_FENCED", skip=2, times=1)
    mirror = clusters.run_once(transaction_timeout_ms=1)
    assert fault.count == 1
    assert mirror.progress.restarts == 1
    assert clusters.copied() == ["a"]


@pytest.mark.remedy(Remedy.OTHER_MIRROR_NAME)
def test_the_older_of_two_is_fenced(clusters: Clusters) -> None:
    clusters.source.create_topic(clusters.topic, 1)
    with (
        Cluster(clusters.source.bootstrap) as source,
        Cluster(clusters.target.bootstrap) as target,
        Running(Mirror(source, target, clusters.settings())) as older,
    ):
        clusters.write("a")
        until(lambda: clusters.copied() == ["a"])
        clusters.run_once()
        clusters.write("b")
        older.join()
    assert isinstance(older.error, MirrorFenced)
    remedies.find(Remedy.OTHER_MIRROR_NAME, older.error)
    clusters.run_once()
    assert clusters.copied() == ["a", "b"]
    clusters.write("c")
    with pytest.raises(MirrorStopped, match="did not write"):
        clusters.run_once(name=f"{clusters.topic}-other")


def test_the_positions_show_as_a_group(clusters: Clusters) -> None:
    clusters.source.create_topic(clusters.topic, 1)
    clusters.write("a", "b")
    clusters.run_once()
    assert clusters.source.committed_offsets(f"onceflow-mirror.{clusters.topic}", clusters.topic) == {0: 3}


def test_a_refused_group_does_not_stop_it(clusters: Clusters, caplog: pytest.LogCaptureFixture) -> None:
    clusters.source.create_topic(clusters.topic, 1)
    clusters.write("a")
    clusters.source_broker.faults.fail("OffsetCommit", "GROUP_AUTHORIZATION_FAILED", times=None)
    clusters.run_once()
    assert clusters.copied() == ["a"]
    assert "GROUP_AUTHORIZATION_FAILED" in caplog.text


def test_progress_is_shown_after_a_deleted_topic(clusters: Clusters) -> None:
    clusters.source.create_topic(clusters.topic, 1)
    clusters.write("a", "b")
    clusters.source_broker.faults.fail("OffsetCommit", "UNKNOWN_TOPIC_OR_PARTITION")
    clusters.run_once()
    assert clusters.source.committed_offsets(f"onceflow-mirror.{clusters.topic}", clusters.topic) == {0: 3}


def test_both_clusters_must_be_reached_first(clusters: Clusters) -> None:
    with Cluster("127.0.0.1:1") as nowhere, pytest.raises(ClientError, match=r"127\.0\.0\.1:1"):
        Mirror(clusters.source, nowhere, clusters.settings()).run(lambda: False)


def test_a_lasting_outage_ends_it(clusters: Clusters) -> None:
    clusters.source.create_topic(clusters.topic, 1)
    clusters.write("a")
    with Cluster(clusters.target.bootstrap, timeout_ms=1_000) as target:
        clusters.target_broker.faults.fail("AddPartitionsToTxn", "COORDINATOR_NOT_AVAILABLE", skip=2, times=None)
        clock = iter(range(0, 1_000_000, 100))
        mirror = Mirror(
            clusters.source, target, clusters.settings(retry_timeout_s=1_000.0), clock=lambda: float(next(clock))
        )
        with pytest.raises(ClientError):
            mirror.run(lambda: False, once=True)
    assert mirror.progress.restarts > 0


def test_a_target_that_refuses_ends_it(clusters: Clusters) -> None:
    """Reading from the source does not count as progress while no transaction can be committed."""
    clusters.source.create_topic(clusters.topic, 1)
    clusters.write("a")
    with Cluster(clusters.target.bootstrap, timeout_ms=100) as target:
        clusters.target_broker.faults.fail("Produce", "NOT_ENOUGH_REPLICAS", topic=clusters.topic, times=None)
        clock = iter(range(0, 1_000_000, 100))
        mirror = Mirror(
            clusters.source,
            target,
            clusters.settings(retry_timeout_s=3_000.0),
            clock=lambda: float(next(clock)),
            sleep=lambda _s: None,
        )
        with pytest.raises(ClientError, match="NOT_ENOUGH_REPLICAS"):
            mirror.run(lambda: mirror.progress.restarts > 20)
    assert 0 < mirror.progress.restarts < 20


def test_an_outage_after_the_begin_is_retried(clusters: Clusters) -> None:
    """The source fails before its first response with records."""
    clusters.source.create_topic(clusters.topic, 1)
    clusters.write("a")
    with Cluster(clusters.source.bootstrap, timeout_ms=100) as source:
        clusters.source_broker.faults.fail("ListOffsets", "NOT_LEADER_OR_FOLLOWER", topic=clusters.topic, times=3)
        settings = clusters.settings(retry_timeout_s=10_000.0)
        clock = iter(range(1_000_000, 2_000_000))
        mirror = Mirror(source, clusters.target, settings, clock=lambda: float(next(clock)), sleep=lambda _s: None)
        mirror.run(lambda: False, once=True)
    assert (clusters.copied(), mirror.progress.restarts > 0) == (["a"], True)


@pytest.mark.remedy(Remedy.OTHER_CLUSTER)
def test_a_cluster_is_not_mirrored_onto_itself(clusters: Clusters) -> None:
    with pytest.raises(MirrorStopped, match="the same cluster") as raised:
        Mirror(clusters.source, clusters.source, clusters.settings()).run(lambda: False)
    remedies.find(Remedy.OTHER_CLUSTER, raised.value)
    clusters.run_once()


@pytest.mark.remedy(Remedy.APPEND_TO_TARGET, Remedy.DELETE_TARGET_TOPIC)
@pytest.mark.parametrize("deletes", [False, True])
def test_records_of_others_are_refused(clusters: Clusters, deletes: bool) -> None:
    clusters.source.create_topic(clusters.topic, 1)
    clusters.write("a")
    clusters.target.create_topic(clusters.topic, 1)
    with TransactionalProducer(clusters.target.bootstrap, "other") as producer:
        producer.begin()
        producer.send(clusters.topic, b"other", partition=0)
        producer.commit()
    with pytest.raises(MirrorStopped, match="did not write") as raised:
        clusters.run_once()
    remedies.find(Remedy.APPEND_TO_TARGET, raised.value)
    remedies.find(Remedy.DELETE_TARGET_TOPIC, raised.value)
    if deletes:
        clusters.target.delete_topic(clusters.topic)
    clusters.run_once(appends=not deletes)
    assert clusters.copied() == ([] if deletes else ["other"]) + ["a"]


@pytest.mark.remedy(Remedy.KEEP_TIMESTAMPS)
def test_timestamps_must_be_kept(clusters: Clusters) -> None:
    clusters.source.create_topic(clusters.topic, 1)
    clusters.target.create_topic(clusters.topic, 1, configs={"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(MirrorStopped, match="LogAppendTime") as raised:
        clusters.run_once()
    assert remedies.find(Remedy.KEEP_TIMESTAMPS, raised.value) == {"topic": clusters.topic}
    Admin(clusters.target).alter_topic_configs(clusters.topic, set={"message.timestamp.type": "CreateTime"})
    clusters.run_once()


def recreate_source(clusters: Clusters) -> None:
    clusters.source.delete_topic(clusters.topic)
    clusters.source.create_topic(clusters.topic, 1)
    clusters.write("new", "c", "d")


def recreate_target(clusters: Clusters) -> None:
    clusters.target.delete_topic(clusters.topic)
    clusters.target.create_topic(clusters.topic, 1)
    clusters.write("c")


def trim_source(clusters: Clusters) -> None:
    clusters.write("lost", "c")
    Admin(clusters.source).delete_records(clusters.topic, {0: 4})


@pytest.mark.remedy(Remedy.ACCEPT_MIRROR_LOSS)
@pytest.mark.parametrize(
    ("change", "reason", "copied"),
    [
        (recreate_source, "of the source has topic id", ["a", "b", "new", "c", "d"]),
        (recreate_target, "of the target has topic id", ["a", "b", "c"]),
        (trim_source, "records were deleted before they were mirrored", ["a", "b", "c"]),
    ],
)
def test_losses_must_be_accepted(
    clusters: Clusters, change: Callable[[Clusters], None], reason: str, copied: list[str]
) -> None:
    clusters.source.create_topic(clusters.topic, 1)
    clusters.write("a", "b")
    clusters.run_once()
    change(clusters)
    with pytest.raises(MirrorStopped, match=reason) as raised:
        clusters.run_once()
    remedies.find(Remedy.ACCEPT_MIRROR_LOSS, raised.value)
    clusters.run_once(accepts_loss=True)
    assert clusters.copied() == copied
    clusters.run_once()
    assert clusters.copied() == copied


@pytest.mark.parametrize("change", [recreate_source, trim_source, recreate_target])
def test_losses_are_noticed_while_it_runs(clusters: Clusters, change: Callable[[Clusters], None]) -> None:
    """Also between two checks of the topics: the ids are compared with each transaction."""
    clusters.source.create_topic(clusters.topic, 1)
    clusters.write("a", "b")
    mirror = clusters.mirror(refresh_s=1_000.0)
    pauses = 0

    def is_stopping() -> bool:
        nonlocal pauses
        if clusters.copied() == ["a", "b"]:
            pauses += 1
            if pauses == 1:
                change(clusters)
        return pauses > 20

    with pytest.raises(MirrorStopped):
        mirror.run(is_stopping)


def test_a_deleted_topic_is_dropped(clusters: Clusters, caplog: pytest.LogCaptureFixture) -> None:
    clusters.source.create_topic(clusters.topic, 1)
    clusters.source.create_topic(f"{clusters.topic}-stays", 1)
    clusters.write("a")
    is_deleted = False

    def is_stopping() -> bool:
        nonlocal is_deleted
        if not is_deleted and clusters.copied() == ["a"]:
            is_deleted = True
            clusters.source.delete_topic(clusters.topic)
            clusters.write("b", topic=f"{clusters.topic}-stays")
        return is_deleted and clusters.copied(f"{clusters.topic}-stays") == ["b"]

    clusters.mirror().run(is_stopping)
    assert clusters.copied() == ["a"]
    assert "was deleted in the source" in caplog.text


def test_topics_deleted_during_a_check_are_dropped(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two, so that the check that follows the first failure fails too."""
    names = [f"{clusters.topic}-{letter}" for letter in "abc"]
    for name in names:
        clusters.source.create_topic(name, 1)
    clusters.write("stays", topic=names[-1])
    check, deleted = Topics.require_create_time, names[:2]

    def require_create_time(topics: Topics, name: str) -> None:
        check(topics, name)
        if name in deleted:
            deleted.remove(name)
            clusters.source.delete_topic(name)

    monkeypatch.setattr(Topics, "require_create_time", require_create_time)
    clusters.run_once()
    assert (deleted, clusters.copied(names[-1])) == ([], ["stays"])


@pytest.mark.parametrize("side", ["source", "target"])
def test_it_survives_a_broker_restart(clusters: Clusters, side: str, tmp_path: Path) -> None:
    """A broker stops and starts again, on the same port and data, while the mirror runs."""
    restarting = Broker(tmp_path / "data")
    with restarting:
        brokers = {"source": clusters.source_broker, "target": clusters.target_broker, side: restarting}
        ours = Clusters(brokers["source"], brokers["target"])
        ours.source.create_topic(ours.topic, 1)
        ours.write("a")
        written = ["a"]

        def is_stopping() -> bool:
            if ours.copied() == written:
                if len(written) == 2:
                    return True
                restarting.stop()
                restarting.start()
                written.append(f"{len(written)}")
                ours.write(written[-1])
            return False

        ours.mirror().run(is_stopping)
        assert ours.copied() == ["a", "1"]
        ours.close()
