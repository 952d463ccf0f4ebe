"""Kafka's settings that cannot be set here, and yet stand in the `server.properties` that people have.

A file or the environment may name them: those of FIXED with the one value that describes this broker, those of
WITHOUT_EFFECT with any. Each is told in the log; those of REFUSED, and all unknown names, end the start.
"""

_ONE_BROKER = "there is one broker, so there is one copy of everything"
_ONE_PARTITION = "one partition is enough: everything is on this broker, and one file is one sync"

FIXED: dict[str, tuple[str, str]] = {
    "default.replication.factor": ("1", _ONE_BROKER),
    "min.insync.replicas": ("1", _ONE_BROKER),
    "offsets.topic.replication.factor": ("1", _ONE_BROKER),
    "transaction.state.log.replication.factor": ("1", _ONE_BROKER),
    "transaction.state.log.min.isr": ("1", _ONE_BROKER),
    "share.coordinator.state.topic.replication.factor": ("1", _ONE_BROKER),
    "share.coordinator.state.topic.min.isr": ("1", _ONE_BROKER),
    "unclean.leader.election.enable": ("false", _ONE_BROKER),
    "offsets.topic.num.partitions": ("1", _ONE_PARTITION),
    "transaction.state.log.num.partitions": ("1", _ONE_PARTITION),
    "compression.type": ("producer", "batches stay as their producer compressed them"),
    "security.inter.broker.protocol": ("PLAINTEXT", "there is no other broker to speak with"),
    "inter.broker.listener.name": ("PLAINTEXT", "there is no other broker to speak with"),
    "group.coordinator.rebalance.protocols": ("classic", "groups use the classic protocol"),
    "offsets.topic.compression.codec": ("0", "the broker's own records are small"),
    "transaction.two.phase.commit.enable": ("false", "each transaction has a time-out"),
    "remote.log.storage.system.enable": ("false", "all records are on this broker's own disk"),
    "log.roll.jitter.hours": ("0", "files are ended as they are due"),
    "log.roll.jitter.ms": ("0", "files are ended as they are due"),
    "log.cleaner.threads": ("1", "one thread compacts"),
    "log.preallocate": ("false", "files grow as they are written"),
    "max.incremental.fetch.session.cache.slots": ("0", "there are no fetch sessions"),
    "transaction.partition.verification.enable": ("true", "transactions are verified before each append"),
}
"""Kafka's settings that have one value here: (value, why). In a file they are accepted with that value alone."""

_TYPES: dict[int, tuple[str, ...]] = {
    1: (
        "log.preallocate",
        "remote.log.storage.system.enable",
        "transaction.partition.verification.enable",
        "transaction.two.phase.commit.enable",
        "unclean.leader.election.enable",
    ),
    3: (
        "default.replication.factor",
        "log.cleaner.threads",
        "log.roll.jitter.hours",
        "max.incremental.fetch.session.cache.slots",
        "min.insync.replicas",
        "offsets.topic.compression.codec",
        "offsets.topic.num.partitions",
        "transaction.state.log.min.isr",
        "transaction.state.log.num.partitions",
    ),
    4: (
        "offsets.topic.replication.factor",
        "share.coordinator.state.topic.min.isr",
        "share.coordinator.state.topic.replication.factor",
        "transaction.state.log.replication.factor",
    ),
    5: ("log.roll.jitter.ms",),
    7: ("group.coordinator.rebalance.protocols",),
}
"""DescribeConfigsResponse.ConfigType: boolean, int, short, long, list; all others of FIXED are strings."""


def fixed_type(name: str) -> int:
    """The type that Kafka gives to one of FIXED."""
    return next((number for number, names in _TYPES.items() if name in names), 2)


_ONE_PROCESS = "one process is broker, controller and coordinator"
_ONE_LOOP = "one event loop serves all connections"
_NO_ZOOKEEPER = "topics and configurations are in the data directory; there is no ZooKeeper"
_CLASSIC_GROUPS = "groups use the classic protocol"
_NO_PURGATORY = "a waiting request is forgotten when it is answered"
_NO_REPORTERS = "there are no reporters of metrics"
_EACH_VERSION = "a client says with each request which version it speaks, and records have format 2 alone"
_AS_NEEDED = "its buffers are as large as they must be"

WITHOUT_EFFECT: dict[str, str] = {
    "process.roles": _ONE_PROCESS,
    "controller.": _ONE_PROCESS,
    "metadata.": _ONE_PROCESS,
    "broker.heartbeat.": _ONE_PROCESS,
    "broker.session.": _ONE_PROCESS,
    "initial.broker.": _ONE_PROCESS,
    "early.start.listeners": _ONE_PROCESS,
    "add.partitions.to.txn.": _ONE_PROCESS,
    "broker.id.generation.enable": "node.id is 1 where nothing else is said",
    "reserved.broker.max.id": "node.id is 1 where nothing else is said",
    "zookeeper.": _NO_ZOOKEEPER,
    "listener.security.protocol.map": "there is one listener, PLAINTEXT",
    "num.network.threads": _ONE_LOOP,
    "num.io.threads": _ONE_LOOP,
    "background.threads": _ONE_LOOP,
    "queued.max.requests": _ONE_LOOP,
    "group.coordinator.": _ONE_LOOP,
    "request.timeout.ms": "there is no other broker to ask",
    "socket.connection.setup.": "there is no other broker to ask",
    "broker.rack": _ONE_BROKER,
    "replica.": _ONE_BROKER,
    "replication.quota.": _ONE_BROKER,
    "alter.log.dirs.": "there is one directory",
    "num.replica.": _ONE_BROKER,
    "controlled.shutdown.": _ONE_BROKER,
    "leader.imbalance.": _ONE_BROKER,
    "auto.leader.rebalance.enable": _ONE_BROKER,
    "num.recovery.threads.per.data.dir": "logs are recovered one after the other",
    "log.dir.failure.timeout.ms": "there is one directory",
    "log.flush.scheduler.interval.ms": "each log is flushed when it is due",
    "log.flush.offset.checkpoint.interval.ms": "recovery reads each log's last segment itself",
    "log.flush.start.offset.checkpoint.interval.ms": "a log's start is on the disk before it is answered",
    "log.message.format.version": _EACH_VERSION,
    "log.message.downconversion.enable": _EACH_VERSION,
    "inter.broker.protocol.version": _EACH_VERSION,
    "log.cleaner.io.buffer.": _AS_NEEDED,
    "offsets.load.buffer.size": _AS_NEEDED,
    "transaction.state.log.load.buffer.size": _AS_NEEDED,
    "compression.": "batches stay as their producer compressed them",
    "fetch.purgatory.": _NO_PURGATORY,
    "producer.purgatory.": _NO_PURGATORY,
    "delete.records.purgatory.": _NO_PURGATORY,
    "group.consumer.": _CLASSIC_GROUPS,
    "group.share.": _CLASSIC_GROUPS,
    "group.streams.": _CLASSIC_GROUPS,
    "share.": _CLASSIC_GROUPS,
    "max.request.partition.size.limit": "DescribeTopicPartitions is not served",
    "metric.reporters": _NO_REPORTERS,
    "metrics.": _NO_REPORTERS,
    "kafka.metrics.": _NO_REPORTERS,
    "telemetry.": _NO_REPORTERS,
    "auto.include.jmx.reporter": _NO_REPORTERS,
}
"""Kafka's settings about how Kafka is built, which a `server.properties` of Kafka has: accepted with a log line.

A name that ends with a dot stands for all that begin so.
"""

_NOBODY_IS_ASKED = (
    "nobody who connects is asked who they are and nothing is encrypted; keep the broker inside a trusted network"
)
_ON_THIS_DISK = "all records are on this broker's own disk"
_NO_QUOTAS = "there are no quotas"

REFUSED: dict[str, str] = {
    "ssl.": _NOBODY_IS_ASKED,
    "sasl.": _NOBODY_IS_ASKED,
    "security.": _NOBODY_IS_ASKED,
    "listener.name.": _NOBODY_IS_ASKED,
    "authorizer.class.name": _NOBODY_IS_ASKED,
    "super.users": _NOBODY_IS_ASKED,
    "allow.everyone.if.no.acl.found": _NOBODY_IS_ASKED,
    "principal.builder.class": _NOBODY_IS_ASKED,
    "delegation.token.": _NOBODY_IS_ASKED,
    "password.encoder.": _NOBODY_IS_ASKED,
    "connections.max.reauth.ms": _NOBODY_IS_ASKED,
    "connection.failed.authentication.delay.ms": _NOBODY_IS_ASKED,
    "remote.": _ON_THIS_DISK,
    "log.local.retention.": _ON_THIS_DISK,
    "quota.": _NO_QUOTAS,
    "client.quota.": _NO_QUOTAS,
    "max.connection.creation.rate": _NO_QUOTAS,
    "log.cleaner.io.max.bytes.per.second": "compaction is not throttled",
    "max.connections.per.ip.overrides": "max.connections.per.ip is one number for all addresses",
    "create.topic.policy.class.name": "policies are classes of Java's",
    "alter.config.policy.class.name": "policies are classes of Java's",
}
"""Kafka's settings that would be missed, and are refused with the reason. A dot at the end as above."""


def reason_of(name: str, table: dict[str, str]) -> str | None:
    """What WITHOUT_EFFECT or REFUSED says of a name; None where they say nothing, or FIXED knows better."""
    if name in FIXED:
        return None
    if name in table:
        return table[name]
    return next((reason for prefix, reason in table.items() if prefix[-1] == "." and name.startswith(prefix)), None)
