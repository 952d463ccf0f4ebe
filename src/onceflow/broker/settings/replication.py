"""Settings of a cluster's replicas, their leaders and followers."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from onceflow.broker.config import BrokerConfig
from onceflow.broker.settings.kinds import BOOLEAN, INT32_MAX, INT64_MAX, RACK, Choice, SettingRefused, Whole
from onceflow.broker.settings.setting import Setting

SELECTOR = Choice(
    {
        "org.apache.kafka.common.replica.LeaderSelector": False,
        "org.apache.kafka.common.replica.RackAwareReplicaSelector": True,
    }
)

REPLICATION = (
    Setting(
        "min.insync.replicas",
        "log.min_insync_replicas",
        Whole(1, INT32_MAX),
        "Default of the topic config: number of replicas that must be in sync for a record with acks=all. Of a"
        " partition with fewer replicas all must be.",
    ),
    Setting(
        "unclean.leader.election.enable",
        "log.unclean_leader_election",
        BOOLEAN,
        "Default of the topic config: whether a replica that is not in sync leads when no other one is alive."
        " Acknowledged records that it does not have are lost then.",
    ),
    Setting(
        "default.replication.factor",
        "replication_factor_default",
        Whole(1, 32767),
        "Number of replicas of a new topic's partitions, if its creation does not say it. Without"
        " `zookeeper.connect` only 1 can be reached.",
    ),
    Setting(
        "broker.rack",
        "rack",
        RACK,
        "Rack, or availability zone, of the broker. New partitions get replicas in different racks if all brokers of a"
        " cluster have one.",
    ),
    Setting(
        "replica.selector.class",
        "reads_by_rack",
        SELECTOR,
        "Whether clients with `client.rack` are sent to an in-sync replica in their rack (KIP-392):"
        " RackAwareReplicaSelector; by default they read from leaders.",
    ),
    Setting(
        "controlled.shutdown.enable",
        "controlled_shutdown",
        BOOLEAN,
        "Whether a broker that stops lets the controller move its leaders to other replicas first.",
    ),
    Setting(
        "controlled.shutdown.max.retries",
        "controlled_shutdown_retries",
        Whole(0, INT32_MAX),
        "Number of further attempts to move the leaders. The broker stops after the last one in any case.",
    ),
    Setting(
        "controlled.shutdown.retry.backoff.ms",
        "controlled_shutdown_pause_ms",
        Whole(0, INT32_MAX),
        "Delay before each further attempt to move the leaders.",
    ),
    Setting(
        "auto.leader.rebalance.enable",
        "leader_rebalance",
        BOOLEAN,
        "Whether the controller moves leaders back to the preferred replicas, the first ones of their partitions.",
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        "leader_imbalance_check_seconds",
        Whole(1, INT64_MAX),
        "How often the controller checks which brokers do not lead their preferred partitions.",
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        "leader_imbalance_percent_max",
        Whole(0, 100),
        "Percentage of a broker's preferred partitions that others may lead; above it, leaders are moved back.",
    ),
    Setting(
        "replica.lag.time.max.ms",
        "replica_lag_time_max_ms",
        Whole(1, INT64_MAX),
        "Time after which a follower leaves the in-sync replicas if it was not at the leader's end.",
    ),
    Setting(
        "replica.lag.max.messages",
        "replica_lag_messages_max",
        Whole(1, INT64_MAX),
        "Number of records that a follower may lack before it leaves the in-sync replicas; no limit by default."
        " Only Kafka's releases before 0.9 had this setting.",
    ),
    Setting(
        "replica.high.watermark.checkpoint.interval.ms",
        "high_watermark_interval_ms",
        Whole(0, INT64_MAX),
        "How often the high watermarks of replicas are stored, from which a leader continues after a start.",
    ),
    Setting(
        "num.replica.fetchers",
        "replica_fetchers",
        Whole(1, 100),
        "Number of connections to each other broker that copy partitions.",
    ),
    Setting(
        "replica.fetch.wait.max.ms",
        "replica_fetch_wait_max_ms",
        Whole(0, INT32_MAX),
        "Maximum time that a leader delays its response to a follower while there are no records.",
    ),
    Setting(
        "replica.fetch.min.bytes",
        "replica_fetch_bytes_min",
        Whole(0, INT32_MAX),
        "Bytes for which a leader delays its response to a follower.",
    ),
    Setting(
        "replica.fetch.max.bytes",
        "replica_fetch_bytes_max",
        Whole(0, INT32_MAX),
        "Bytes of a partition in one response to a follower; a larger first batch is sent nevertheless.",
    ),
    Setting(
        "replica.fetch.response.max.bytes",
        "replica_fetch_response_bytes_max",
        Whole(0, INT32_MAX),
        "Bytes of all partitions in one response to a follower; a larger first batch is sent nevertheless.",
    ),
    Setting(
        "replica.fetch.backoff.ms",
        "replica_fetch_backoff_ms",
        Whole(0, INT32_MAX),
        "Maximum delay before a partition, or a leader, is fetched again after an error. The first one is 50 ms, and"
        " each further one twice as long; Kafka waits this time after every error.",
    ),
    Setting(
        "replica.socket.timeout.ms",
        "replica_socket_timeout_ms",
        Whole(1, INT32_MAX),
        "Maximum time that a follower waits for a response; longer than `replica.fetch.wait.max.ms`.",
    ),
)

OF_CLUSTERS: dict[str, tuple[str, int]] = {
    "offsets.topic.num.partitions": ("offsets_topic_partitions", 50),
    "offsets.topic.replication.factor": ("offsets_topic_replication_factor", 3),
    "transaction.state.log.num.partitions": ("transaction_log_partitions", 50),
    "transaction.state.log.replication.factor": ("transaction_log_replication_factor", 3),
    "transaction.state.log.min.isr": ("transaction_log_min_isr", 2),
}
"""Name → field and default, Kafka's, of settings that are 1 without `zookeeper.connect`."""


def with_cluster_defaults(config: BrokerConfig, given: Collection[str]) -> BrokerConfig:
    """Return the configuration with the defaults of a cluster. Raises SettingRefused for its settings without one."""
    if config.zookeeper_connect is None:
        for name, (field, _default) in OF_CLUSTERS.items():
            if getattr(config, field) != 1:
                raise SettingRefused(f"{name}={getattr(config, field)}: must be 1, since there is one broker")
        return config
    defaults: dict[str, Any] = {field: default for name, (field, default) in OF_CLUSTERS.items() if name not in given}
    return replace(config, **defaults)
