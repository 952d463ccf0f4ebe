"""No client stalls another: an innocent client's latency and the broker's memory during attacks."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from onceflow.services import free_port
from onceflow.testing import BrokerProcess
from tests.broker.attacks import many_entries, neighbour
from tests.client.tls import Authority

ATTACKS: Sequence[tuple[str, Sequence[str]]] = (
    ("many_small_requests", ()),
    ("parked_fetches", ()),
    ("parked_fetches", ("--connections", "100", "--requests", "10")),
    ("parked_fetches", ("--connections", "20", "--requests", "2", "--partitions", "8000")),
    ("parked_fetches", ("--connections", "100", "--requests", "1", "--again")),
    ("parked_fetches", ("--connections", "10", "--requests", "10", "--entries", "2000", "--leaving")),
    ("invented_producers", ()),
    ("invented_producers", ("--batches", "5")),
    ("invented_producers", ("--partitions", "10", "--ids", "400000")),
    ("joins_without_id", ("--count", "0")),
    ("joins_without_id", ("--count", "0", "--groups", "100000", "--name-bytes", "900")),
    ("large_joins", ()),
    ("large_joins", ("--one-group",)),
    ("large_joins", ("--count", "200", "--size", "500000", "--protocols", "5")),
    ("large_group", ()),
    ("large_group", ("--members", "5000", "--metadata-bytes", "1000")),
    ("many_partitions", ()),
    ("many_partitions", ("--partitions", "2000")),
    ("many_partitions", ("--requests", "1")),
    ("duplicate_topics", ()),
    ("duplicate_topics", ("--once",)),
    ("duplicate_topics", ("--api", "delete")),
    ("duplicate_topics", ("--api", "partitions")),
    ("compacted_bombs", ()),
    ("compacted_bombs", ("--bombs", "64", "--records", "100000", "--codec", "gzip")),
    ("many_list_offsets", ()),
    ("many_list_offsets", ("--version", "0")),
    ("many_list_offsets", ("--timestamp", "1700000000000", "--entries", "1000")),
    *(("many_entries", ("--api", api)) for api in many_entries.REQUESTS),
)
"""Attack program and its options, a row for each variant."""

LARGER: Sequence[tuple[int, str, Sequence[str]]] = (
    (16 * 1024, "half_sent_produce", ()),
    (900 * 1024, "half_sent_produce", ("--every", "1")),
    (16 * 1024, "half_sent_produce", ("--sizes", "65000", "--connections", "2000", "--sent", "60000", "--every", "1")),
    (16 * 1024, "half_sent_produce", ("--sizes", "100000000", "--connections", "38", "--sent", "5000000")),
    (900 * 1024, "half_sent_produce", ("--sizes", "1000000", "--connections", "150", "--sent", "900000")),
)
"""Bytes of each record of the innocent client, attack program and its options."""


@pytest.mark.campaign
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("attack", "options"), ATTACKS, ids=lambda value: value if isinstance(value, str) else None)
def test_the_neighbour_is_served(attack: str, options: Sequence[str], tmp_path: Path) -> None:
    """An innocent client beside each attack: p99 below 100 ms, 128 MiB more at most, recovered within 2 s."""
    with BrokerProcess(tmp_path / "data") as broker:
        figures = neighbour.measure(broker, attack, *options)
    print(f"{attack} {' '.join(options)}: {figures}")
    figures.check()


@pytest.mark.campaign
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("value_bytes", "attack", "options"), LARGER)
def test_larger_requests_are_served(value_bytes: int, attack: str, options: Sequence[str], tmp_path: Path) -> None:
    """The same bounds for a client with requests that need reserved memory."""
    with BrokerProcess(tmp_path / "data") as broker:
        figures = neighbour.measure(broker, attack, *options, value_bytes=value_bytes)
    print(f"{value_bytes} bytes beside {attack} {' '.join(options)}: {figures}")
    figures.check()


@pytest.mark.campaign
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["half", "whole", "logins"])
def test_handshakes_and_logins_are_limited(kind: str, tmp_path: Path) -> None:
    """The same bounds beside 1,000 unfinished handshakes, repeated handshakes and wrong logins."""
    protocol = "SASL_PLAINTEXT" if kind == "logins" else "SSL"
    port = free_port()
    listeners = f"PLAINTEXT://127.0.0.1:{free_port()},{protocol}://127.0.0.1:{port}"
    key_store = ("--ssl-keystore-location", str(Authority(tmp_path).issue("127.0.0.1")))
    options = ("--sasl-enabled-mechanisms", "PLAIN") if kind == "logins" else key_store
    with BrokerProcess(tmp_path / "data", 0, "--listeners", listeners, *options) as broker:
        figures = neighbour.measure(broker, "handshakes", "--address", f"127.0.0.1:{port}", "--kind", kind)
    print(f"handshakes, {kind}: {figures}")
    figures.check()


@pytest.mark.campaign
@pytest.mark.timeout(300)
@pytest.mark.parametrize("requests", ["1", "1000000"])
def test_thousands_of_logs_expire_at_once(requests: str, tmp_path: Path) -> None:
    """The same bounds while retention deletes the records of 9,000 partitions at each check."""
    options = ("--requests", requests, "--timestamp-ms", str(neighbour.TIME_MS))
    with BrokerProcess(tmp_path / "data", 0, "--log-retention-check-interval-ms", "3000") as broker:
        figures = neighbour.measure(broker, "many_partitions", *options)
    print(f"many_partitions, expired, {requests} requests: {figures}")
    figures.check()


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_a_flood_over_its_quota_is_limited(tmp_path: Path) -> None:
    """The same bounds beside 100 producers that ignore the quota of their client id."""
    with BrokerProcess(tmp_path / "data") as broker:
        figures = neighbour.measure(broker, "over_quota")
    print(f"over_quota: {figures}")
    figures.check()


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_a_neighbours_compacted_topic_is_served(tmp_path: Path) -> None:
    """Its batches are checked by the same thread as the bombs."""
    with BrokerProcess(tmp_path / "data") as broker:
        figures = neighbour.measure(broker, "compacted_bombs", is_compacted=True)
    print(f"compacted_bombs beside a compacted topic: {figures}")
    figures.check()
