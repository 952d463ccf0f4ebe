"""Kafka's settings that cannot be set here, and yet stand in the `server.properties` that people have.

A file, the environment or an option may name them: those of FIXED with the one value that describes this broker,
those of WITHOUT_EFFECT with any. Each is told in the log; no other unknown name is accepted.
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
    "log.cleaner.threads": ("1", "one thread compacts"),
    "log.preallocate": ("false", "files grow as they are written"),
    "max.incremental.fetch.session.cache.slots": ("0", "there are no fetch sessions"),
    "transaction.partition.verification.enable": ("true", "transactions are verified before each append"),
}
"""Kafka's settings that have one value here: (value, why). In a file they are accepted with that value alone."""

_ONE_PROCESS = "one process is broker, controller and coordinator"
_ONE_LOOP = "one event loop serves all connections"

WITHOUT_EFFECT: dict[str, str] = {
    "process.roles": _ONE_PROCESS,
    "controller.quorum.voters": _ONE_PROCESS,
    "controller.quorum.bootstrap.servers": _ONE_PROCESS,
    "controller.listener.names": _ONE_PROCESS,
    "zookeeper.connect": "topics and configurations are in the data directory; there is no ZooKeeper",
    "zookeeper.connection.timeout.ms": "topics and configurations are in the data directory; there is no ZooKeeper",
    "listener.security.protocol.map": "there is one listener, PLAINTEXT",
    "num.network.threads": _ONE_LOOP,
    "num.io.threads": _ONE_LOOP,
    "background.threads": _ONE_LOOP,
    "num.replica.fetchers": _ONE_BROKER,
    "num.recovery.threads.per.data.dir": "logs are recovered one after the other",
    "auto.leader.rebalance.enable": _ONE_BROKER,
}
"""Kafka's settings about how Kafka is built, which a `server.properties` of Kafka has: accepted with a log line."""
