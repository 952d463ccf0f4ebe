"""`/metrics` of a broker: its numbers, its cost on the event loop, and its failures."""

import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker.config import Endpoint
from onceflow.broker.loop.slices import WORK_PER_TURN
from onceflow.broker.metrics import exporter, snapshot
from onceflow.broker.metrics.snapshot import Gathering
from onceflow.broker.metrics.traffic import MeteredReply, Traffic
from onceflow.broker.network.listener import Listener
from onceflow.broker.node import BrokerConfig, Node
from onceflow.log.clock import SystemClock
from onceflow.log.disk import RealDisk
from onceflow.testing import BrokerProcess
from onceflow.wire import apis
from tests.broker.driven_broker import InnerBroker, eventually
from tests.broker.groups.raw_group import RawGroup
from tests.broker.metrics.metered_broker import MeteredBroker
from tests.broker.raw_client import batch_of, connected
from tests.scrapes import get, scrape

REQUESTS = "onceflow_broker_requests_total"


def metadata_of(*names: str) -> dict[str, Any]:
    """Return the fields of a Metadata request."""
    return {
        "topics": [{"topic_id": None, "name": name} for name in names],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }


@pytest.fixture
def metered(tmp_path: Path) -> Iterator[MeteredBroker]:
    with MeteredBroker(tmp_path / "data") as broker:
        yield broker


def test_traffic_by_api(metered: MeteredBroker) -> None:
    with connected(metered.bootstrap) as client:
        client.create_topic("visits", 2)
        for _ in range(3):
            client.produce("visits", 0, batch_of(b"one", b"two"))
        fetched = client.fetch([("visits", 0, 0)])
        client.send(apis.METADATA, 12, **metadata_of("unknown"))
        metadata_bytes = 4 + len(client.receive_frame())
    # The broker notices the end of the connection in one of its next turns.
    scraped = next(seen for seen in iter(metered.scrape, None) if not seen.value("onceflow_broker_connections"))
    assert scraped.value(REQUESTS, api="Produce") == 3
    assert scraped.value(REQUESTS, api="Fetch") == 3, "creating the topic takes two"
    assert scraped.value("onceflow_broker_request_bytes_total", api="Produce") > 3 * len(batch_of(b"one", b"two"))
    assert scraped.value("onceflow_broker_response_bytes_total", api="Fetch") > len(fetched[0].records)
    assert scraped.value("onceflow_broker_response_bytes_total", api="Metadata") == metadata_bytes
    assert scraped.value("onceflow_broker_request_seconds_count", api="Produce") == 3
    assert scraped.value("onceflow_broker_request_seconds_bucket", api="Produce", le="+Inf") == 3
    assert scraped.value("onceflow_broker_log_end_offset", topic="visits") == 6
    assert scraped.value("onceflow_broker_log_bytes", topic="visits") == 3 * len(batch_of(b"one", b"two"))
    assert scraped.value("onceflow_broker_sync_rounds_total") >= 3
    assert scraped.value("onceflow_broker_connections_accepted_total") == 1


def test_large_requests_are_counted(metered: MeteredBroker) -> None:
    with connected(metered.bootstrap) as client:
        client.ask(apis.METADATA, 12, **metadata_of(*(f"{number:0200}" for number in range(100))))
    scraped = metered.scrape()
    assert scraped.value(REQUESTS, api="Metadata") == 1
    assert scraped.value("onceflow_broker_errors_total", api="Metadata", error="UNKNOWN_TOPIC_OR_PARTITION") == 100


def test_errors_by_api_and_name(metered: MeteredBroker) -> None:
    with connected(metered.bootstrap) as client, RawGroup(metered.bootstrap, "group") as group:
        client.create_topic("visits")
        client.produce("unknown", 0, batch_of(b"x"))
        client.produce("visits", 0, bytearray(b"not a batch"))
        client.fetch([("unknown", 0, 0)])
        client.fetch([("visits", 0, 7)])
        group.beat(1, "no member")
    scraped = metered.scrape()
    errors = {
        (dict(labels)["api"], dict(labels)["error"]): count
        for (name, labels), count in scraped.values.items()
        if name == "onceflow_broker_errors_total"
    }
    assert errors == {
        ("Produce", "UNKNOWN_TOPIC_OR_PARTITION"): 1,
        ("Produce", "INVALID_RECORD"): 1,
        ("Fetch", "UNKNOWN_TOPIC_OR_PARTITION"): 1,
        ("Fetch", "OFFSET_OUT_OF_RANGE"): 1,
        ("Heartbeat", "UNKNOWN_MEMBER_ID"): 1,
    }


def test_unknown_apis_share_a_label(metered: MeteredBroker) -> None:
    for key in (1000, 1001, 32767):
        with connected(metered.bootstrap) as client:
            client.socket.sendall(struct.pack(">ihhih", 10, key, 0, 1, -1))
            assert client.receive_frame() == b""
    scraped = metered.scrape()
    assert scraped.labels(REQUESTS, "api") == ["unknown"]
    assert scraped.value(REQUESTS, api="unknown") == 3
    assert scraped.value("onceflow_broker_connections_failed_total") == 3


def test_lag_of_groups(metered: MeteredBroker) -> None:
    with connected(metered.bootstrap) as client, RawGroup(metered.bootstrap, "g") as group:
        client.create_topic("visits", 2)
        for index in (0, 1):
            client.produce("visits", index, batch_of(*[b"x"] * 10))
        group.commit("visits", 4)
        group.commit("visits", 9, partition=1)
    scraped = metered.scrape()
    assert scraped.value("onceflow_broker_group_lag_messages", group="g", topic="visits") == 7
    assert scraped.value("onceflow_broker_groups") == 1


def test_topics_and_groups_are_limited(metered: MeteredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "TOPICS_MAX", 4)
    monkeypatch.setattr(snapshot, "GROUP_SERIES_MAX", 3)
    names = [f"topic-{number}" for number in range(5)]
    with connected(metered.bootstrap) as client:
        for name in names:
            client.create_topic(name)
    for number in range(2):
        with RawGroup(metered.bootstrap, f"g{number}") as group:
            for name in names[:2]:
                group.commit(name)
    scraped = metered.scrape()
    assert len(scraped.labels("onceflow_broker_log_bytes", "topic")) == 4
    assert scraped.value("onceflow_broker_topics_left_out") == 3, "with the two internal topics"
    assert len(scraped.labels("onceflow_broker_group_lag_messages", "group")) == 3
    assert scraped.value("onceflow_broker_groups_left_out") == 1


def test_failing_gathering_is_reported(metered: MeteredBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scrape would otherwise wait longer than this test may take."""
    monkeypatch.setattr(exporter, "GATHER_SECONDS_MAX", 3600.0)

    def fails_at_first(_gathering: Gathering) -> Iterator[int]:
        raise ValueError("broken at first")

    def fails_later(_gathering: Gathering) -> Iterator[int]:
        yield WORK_PER_TURN
        raise ValueError("broken later")

    for steps, reason in ((fails_at_first, "broken at first"), (fails_later, "broken later")):
        with monkeypatch.context() as patch:
            patch.setattr(Gathering, "steps", steps)
            status, text = get(metered.url)
        assert (status, text) == (500, f"metrics could not be collected: {reason}\n")
    assert metered.scrape().value("onceflow_broker_topics") == 2


def test_stop_ends_a_waiting_scrape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "GATHER_SECONDS_MAX", 3600.0)
    started: list[bool] = []

    def endless(_gathering: Gathering) -> Iterator[int]:
        while True:
            started.append(True)
            yield WORK_PER_TURN

    monkeypatch.setattr(Gathering, "steps", endless)
    with ThreadPoolExecutor(1) as thread:
        with MeteredBroker(tmp_path / "data") as broker:
            scraping = thread.submit(get, broker.url)
            eventually(lambda: started, "the scrape waits")
        assert scraping.result() == (500, "metrics could not be collected: the broker stops\n")


def test_gathering_is_done_in_slices(tmp_path: Path) -> None:
    """A scrape of many partitions and groups takes many turns of the loop, and no step exceeds one."""
    with InnerBroker(tmp_path / "data", disk=RealDisk()) as broker, connected(broker.bootstrap) as client:
        client.create_topic("visits", 2 * WORK_PER_TURN)
        traffic = Traffic()
        for api in traffic:
            api.requests = 1

        def steps(node: Node) -> list[int]:
            listener = Listener(BrokerConfig(tmp_path, listeners=(Endpoint(port=0),)), SystemClock())
            try:
                return list(Gathering(node, listener, traffic).steps())
            finally:
                listener.close()

        work = broker.call(steps)
    assert max(work) < WORK_PER_TURN // 10
    assert sum(work) >= 2 * WORK_PER_TURN
    assert len(work) > 2 * WORK_PER_TURN + len(list(traffic)), "a step for each partition and each API"


def test_errors_are_counted_in_steps() -> None:
    class Connection:
        is_open = True

    reply = MeteredReply(Connection())  # type: ignore[arg-type]
    traffic = next(iter(Traffic()))
    reply.traffic = traffic
    topics = [{"partitions": [{"error_code": 3, "index": index} for index in range(100)]} for _ in range(10)]
    assert sum(1 for _ in reply.count_errors({"topics": topics, "names": ["a"], "error_code": 0})) >= 50
    assert traffic.errors == {3: 1000}


def test_without_port_nothing_is_measured(tmp_path: Path) -> None:
    """The package is not even loaded."""
    text = f"""
import sys
from onceflow.testing import Broker
with Broker({str(tmp_path)!r}):
    loaded = [name for name in sys.modules if "prometheus" in name or "broker.metrics" in name]
print(loaded)
"""
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "[]\n"


@pytest.mark.parametrize(("host", "is_open"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_an_open_port_is_warned_of(tmp_path: Path, host: str, is_open: bool) -> None:
    options = ("--metrics-port", "0", "--metrics-host", host)
    with BrokerProcess(tmp_path / "data", 0, *options) as broker, connected(broker.bootstrap) as client:
        client.create_topic("visits")
        log = broker.log_path.read_text()
        assert ("metrics on 0.0.0.0:0 are open to other machines" in log) is is_open
        url = log.partition("metrics are at ")[2].split()[0]
        assert scrape(url).value("onceflow_broker_topics") == 3


def test_a_taken_port_names_the_option(tmp_path: Path, metered: MeteredBroker) -> None:
    port = metered.url.rpartition(":")[2].partition("/")[0]
    command = [sys.executable, "-m", "onceflow", "broker", "--data", str(tmp_path / "b"), "--listen", "127.0.0.1:0"]
    ended = subprocess.run([*command, "--metrics-port", port], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert (
        f"port {port} of 127.0.0.1 is in use: stop what listens there, or choose another --metrics-port" in ended.stderr
    )
    assert not (tmp_path / "b").exists()
