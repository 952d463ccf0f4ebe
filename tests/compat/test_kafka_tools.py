"""Kafka's own command line tools of 4.1.1 print the same with Onceflow's broker as with Apache Kafka 4.1.1.

Each step runs on both, with one Kafka for all of them. Differences with a reason are in KNOWN_DIFFERENCES.
"""

import json
import re
from pathlib import Path

from onceflow.wire import apis
from tests.compat.kafka_tools import Peers
from tests.compat.known_differences import KNOWN_DIFFERENCES

BROKER = ("--bootstrap-server", "BROKER")


def test_topic_command(peers: Peers, topic: str) -> None:
    """Create, refuse, describe, enlarge, list, delete."""
    name = ("--topic", topic)
    assert "eligible leader replicas" in KNOWN_DIFFERENCES
    created = peers.same(
        "TopicCommand", *BROKER, "--create", *name, "--partitions", "3", "--config", "cleanup.policy=compact"
    )
    assert f"Created topic {topic}." in created
    assert peers.same("TopicCommand", *BROKER, "--create", *name).code == 1
    assert peers.same("TopicCommand", *BROKER, "--create", *name, "--if-not-exists").code == 0
    assert "PartitionCount: 3" in peers.same("TopicCommand", *BROKER, "--describe", *name)
    assert peers.same("TopicCommand", *BROKER, "--alter", *name, "--partitions", "4").code == 0
    assert peers.same("TopicCommand", *BROKER, "--alter", *name, "--partitions", "2").code == 1
    assert peers.same("TopicCommand", *BROKER, "--describe", *name, "--under-replicated-partitions").lines == []
    assert "cleanup.policy=compact" in peers.same(
        "TopicCommand", *BROKER, "--describe", *name, "--topics-with-overrides"
    )
    assert peers.same("TopicCommand", *BROKER, "--list", "--topic", topic + ".*").lines == [topic]
    assert peers.same("TopicCommand", *BROKER, "--delete", *name).code == 0
    assert peers.same("TopicCommand", *BROKER, "--delete", *name).code == 1
    assert peers.same("TopicCommand", *BROKER, "--describe", *name).code == 1


def test_console_producer_and_consumer(peers: Peers, topic: str) -> None:
    """Keys, headers, a codec, to a topic that the first record creates; all read back with partition and offset."""
    properties = ("--property", "parse.key=true", "--property", "parse.headers=true")
    records = "h1:v1,h2:v2\tk1\tone\nh1:x\tk2\ttwo\nh1:x\tk2\tthree\n"
    peers.same("ConsoleProducer", *BROKER, "--topic", topic, *properties, "--compression-codec", "lz4", stdin=records)
    shown = [
        word for name in ("key", "headers", "partition", "offset") for word in ("--property", f"print.{name}=true")
    ]
    reader = (*BROKER, "--topic", topic, "--max-messages", "3", "--timeout-ms", "10000")
    read = peers.same("ConsoleConsumer", *reader, "--from-beginning", *shown)
    assert read.lines[0] == "Partition:0 Offset:0 h1:v1,h2:v2 k1 one"
    committed = peers.same("ConsoleConsumer", *reader, "--from-beginning", "--isolation-level", "read_committed")
    assert committed.lines == ["one", "two", "three"]
    at_offset = (*BROKER, "--topic", topic, "--partition", "0", "--offset", "2", "--max-messages", "1")
    assert peers.same("ConsoleConsumer", *at_offset).lines == ["three"]


def test_consumer_group_command(peers: Peers, topic: str) -> None:
    """List, describe in each form, reset in each way, delete offsets, delete."""
    peers.same("TopicCommand", *BROKER, "--create", "--topic", topic, "--partitions", "2")
    keyed = ("--property", "parse.key=true", "--property", "key.separator=:")
    peers.same("ConsoleProducer", *BROKER, "--topic", topic, *keyed, stdin="k:one\nk:two\nk:three\n")
    group = ("--group", topic)
    read = (*BROKER, "--topic", topic, *group, "--from-beginning", "--max-messages", "3", "--timeout-ms", "10000")
    assert len(peers.same("ConsoleConsumer", *read).lines) == 3
    command = "ConsumerGroupCommand"
    assert peers.same(command, *BROKER, "--list", "--state", about=topic).lines == [f"{topic} Empty"]
    assert " 3 3 0 - - -" in peers.same(command, *BROKER, "--describe", *group)
    assert "(1) - Empty 0" in peers.same(command, *BROKER, "--describe", *group, "--state")
    assert peers.same(command, *BROKER, "--describe", *group, "--members", "--verbose").code == 0
    reset = (command, *BROKER, *group, "--reset-offsets")
    peers.same(*reset, "--to-earliest", "--topic", topic, "--dry-run")
    moved = peers.same(*reset, "--shift-by", "-1", "--topic", topic, "--execute")
    assert any(line.endswith(" 2") for line in moved.lines)
    peers.same(*reset, "--to-datetime", "2020-01-01T00:00:00.000", "--all-topics", "--dry-run")
    peers.same(*reset, "--to-current", "--all-topics", "--export", "--dry-run")
    assert "Successful" in peers.same(command, *BROKER, *group, "--delete-offsets", "--topic", topic)
    assert "was successful" in peers.same(command, *BROKER, *group, "--delete")
    assert "GroupIdNotFoundException" in peers.same(command, *BROKER, *group, "--delete")
    assert "GroupIdNotFoundException" in peers.same(command, *BROKER, *group, "--describe")


def test_offsets_and_deleted_records(peers: Peers, topic: str, tmp_path: Path) -> None:
    """GetOffsetShell by each kind of time, before and after DeleteRecordsCommand."""
    peers.same("TopicCommand", *BROKER, "--create", "--topic", topic, "--partitions", "1")
    peers.same("ConsoleProducer", *BROKER, "--topic", topic, stdin="one\n")
    shell = ("GetOffsetShell", *BROKER, "--topic", topic)
    # Several records may have the same millisecond, and the first of those is the newest.
    assert peers.same(*shell, "--time", "max-timestamp").lines == [f"{topic}:0:0"]
    peers.same("ConsoleProducer", *BROKER, "--topic", topic, stdin="two\nthree\n")
    assert peers.same(*shell).lines == [f"{topic}:0:3"]
    for time in ("earliest", "latest", "1000"):
        peers.same(*shell, "--time", time)
    wanted = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 2}]}
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps(wanted))
    deleted = peers.same("DeleteRecordsCommand", *BROKER, "--offset-json-file", str(file))
    assert f"partition: {topic}-0 low_watermark: 2" in deleted
    assert peers.same(*shell, "--time", "earliest").lines == [f"{topic}:0:2"]
    wanted["partitions"] = [{"topic": topic, "partition": 0, "offset": 99}]
    file.write_text(json.dumps(wanted))
    assert "OffsetOutOfRange" in peers.same("DeleteRecordsCommand", *BROKER, "--offset-json-file", str(file))
    assert peers.same(*shell, "--time", "earliest-local").lines == [f"{topic}:0:2"]
    peers.same(*shell, "--time", "latest-tiered")


def test_config_command(peers: Peers, topic: str) -> None:
    """Add, describe, delete and refuse configs of a topic; all have Kafka's values."""
    peers.same("TopicCommand", *BROKER, "--create", "--topic", topic)
    entity = (*BROKER, "--entity-type", "topics", "--entity-name", topic)
    added = "segment.bytes=2000000,cleanup.policy=[compact,delete]"
    peers.same("ConfigCommand", *entity, "--alter", "--add-config", added)
    described = peers.same("ConfigCommand", *entity, "--describe")
    assert "cleanup.policy=compact,delete sensitive=false" in described
    peers.same("ConfigCommand", *entity, "--alter", "--delete-config", "segment.bytes")
    assert peers.same("ConfigCommand", *entity, "--alter", "--add-config", "no.such=1").code == 1
    assert "segment.bytes" not in peers.same("ConfigCommand", *entity, "--describe")
    theirs, ours = (
        {line.partition(" sensitive")[0] for line in printed.lines}
        for printed in peers.ask("ConfigCommand", *entity, "--describe", "--all")
    )
    assert ours <= theirs
    assert "synonyms of retention.ms" in KNOWN_DIFFERENCES
    assert "configs of tiered storage, throttles and compression levels" in KNOWN_DIFFERENCES
    left_out = {line.partition("=")[0] for line in theirs - ours}
    assert all(re.match(r"remote\.|local\.|.*throttled|compression\..*level", name) for name in left_out), left_out
    peers.same("ConfigCommand", *BROKER, "--entity-type", "brokers", "--entity-name", "1", "--describe")


def test_log_dirs_command(peers: Peers, topic: str) -> None:
    """The same records have the same size on disk."""
    peers.same("TopicCommand", *BROKER, "--create", "--topic", topic, "--partitions", "1")
    peers.same("ConsoleProducer", *BROKER, "--topic", topic, "--sync", stdin="one\n")
    described = peers.same("LogDirsCommand", *BROKER, "--describe", "--topic-list", topic)
    assert f'"partition":"{topic}-0","size":' in described


def test_transactions_command(peers: Peers, topic: str) -> None:
    """A finished transaction's state, and no hanging ones; producer ids and times are each broker's own."""
    peers.same("TopicCommand", *BROKER, "--create", "--topic", topic, "--partitions", "1")
    perform = ("--producer-props", "bootstrap.servers=BROKER", "--transactional-id", topic)
    size = ("--num-records", "200", "--record-size", "100", "--throughput", "-1", "--transaction-duration-ms", "20")
    for printed in peers.ask("ProducerPerformance", "--topic", topic, *size, *perform):
        assert "200 records sent" in printed
    command = ("TransactionsCommand", *BROKER)
    for printed in peers.ask(*command, "list"):
        assert any(re.fullmatch(rf"{topic} 1 \d+ CompleteCommit", line) for line in printed.lines)
    for printed in peers.ask(*command, "describe", "--transactional-id", topic):
        assert any(re.match(rf"1 {topic} \d+ \d+ CompleteCommit 60000 \d+ ", line) for line in printed.lines)
    for printed in peers.ask(*command, "describe-producers", "--topic", topic, "--partition", "0"):
        assert any(re.fullmatch(r"\d+ \d+ 0 -?\d+ \d+ None", line) for line in printed.lines)
    peers.same(*command, "find-hanging", "--broker-id", "1")
    assert peers.same(*command, "describe", "--transactional-id", topic + "-none").code == 1
    assert peers.same(*command, "abort", "--topic", topic, "--partition", "0", "--start-offset", "0").code == 1


def test_performance_tools(peers: Peers, topic: str) -> None:
    """ProducerPerformance and ConsumerPerformance send and count all records; the figures depend on the machine."""
    peers.same("TopicCommand", *BROKER, "--create", "--topic", topic, "--partitions", "3")
    size = ("--num-records", "5000", "--record-size", "100", "--throughput", "-1")
    producer = ("--producer-props", "bootstrap.servers=BROKER", "compression.type=zstd")
    for printed in peers.ask("ProducerPerformance", "--topic", topic, *size, *producer):
        assert "5000 records sent" in printed
    for printed in peers.ask("ConsumerPerformance", *BROKER, "--topic", topic, "--messages", "5000"):
        assert printed.code == 0
        assert printed.lines[-1].split(", ")[4] == "5000"


def test_verifiable_producer_and_consumer(peers: Peers, topic: str) -> None:
    """Every event in order: each acknowledged value, each assignment, each commit."""
    peers.same("TopicCommand", *BROKER, "--create", "--topic", topic, "--partitions", "1")
    sent = peers.same("VerifiableProducer", *BROKER, "--topic", topic, "--max-messages", "50")
    assert sum('"producer_send_success"' in line for line in sent.lines) == 50
    members = ("--group-id", topic, "--group-instance-id", "one", "--reset-policy", "earliest", "--verbose")
    read = peers.same("VerifiableConsumer", *BROKER, "--topic", topic, "--max-messages", "50", *members)
    assert sum('"record_data"' in line for line in read.lines) == 50
    assert '"offset":50}],"success":true' in read


def test_broker_api_versions_command(peers: Peers) -> None:
    """All APIs here are supported by Kafka and used by this client; those it calls unsupported are not in our table."""
    theirs, ours = peers.ask("BrokerApiVersionsCommand", *BROKER)
    assert theirs.code == ours.code == 0
    usable = {line.split(":")[0] for line in ours.lines if "usable" in line}
    assert usable <= {line.split(":")[0] for line in theirs.lines if "usable" in line}
    assert usable == {f"{row.name}({row.key})" for row in apis.APIS.values()}
    assert "APIs and versions" in KNOWN_DIFFERENCES


def test_other_commands(peers: Peers, topic: str) -> None:
    """Empty results are reported: no features, no leader to elect, no authorizer, groups without a type."""
    assert (
        peers.same("LeaderElectionCommand", *BROKER, "--election-type", "preferred", "--all-topic-partitions").code == 0
    )
    for printed in peers.ask("ClusterTool", "cluster-id", *BROKER):
        assert re.fullmatch(r"Cluster ID: \S{22}", printed.lines[0])
    assert "FeatureCommand" in KNOWN_DIFFERENCES
    _theirs, ours = peers.ask("FeatureCommand", *BROKER, "describe")
    assert (ours.lines, ours.code) == ([], 0)
    refused = peers.same("AclCommand", *BROKER, "--list")
    assert refused.code == 1 and "No Authorizer is configured on the broker" in refused
