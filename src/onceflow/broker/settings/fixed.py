"""Kafka's settings that cannot be changed here but occur in existing `server.properties` files.

A file or the environment may set them: those in FIXED to their one value, those in WITHOUT_EFFECT to any. Each is
logged. Settings in REFUSED, and all unknown names, prevent the start.
"""

_NO_SHARE_GROUPS = "there are no share groups"
_PEM = "OpenSSL reads keys and certificates in PEM; the key stores of Java are converted by keytool and openssl"

FIXED: dict[str, tuple[str, str]] = {
    "share.coordinator.state.topic.replication.factor": ("1", _NO_SHARE_GROUPS),
    "share.coordinator.state.topic.min.isr": ("1", _NO_SHARE_GROUPS),
    "compression.type": ("producer", "batches stay as their producer compressed them"),
    "group.coordinator.rebalance.protocols": ("classic", "groups use the classic protocol"),
    "ssl.keystore.type": ("PEM", _PEM),
    "ssl.truststore.type": ("PEM", _PEM),
    "sasl.oauthbearer.jwt.validator.class": (
        "org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator",
        "each token is verified; sasl.oauthbearer.validator names a function of yours",
    ),
    "offsets.topic.compression.codec": ("0", "the broker's own records are small"),
    "transaction.two.phase.commit.enable": ("false", "every transaction has a timeout"),
    "remote.log.storage.system.enable": ("false", "all records are on this broker's own disk"),
    "log.roll.jitter.hours": ("0", "segments are rolled exactly when due"),
    "log.roll.jitter.ms": ("0", "segments are rolled exactly when due"),
    "log.cleaner.threads": ("1", "one thread compacts all logs"),
    "log.preallocate": ("false", "files grow as they are written"),
    "zookeeper.ssl.keystore.type": ("PEM", _PEM),
    "zookeeper.ssl.truststore.type": ("PEM", _PEM),
    "zookeeper.metadata.migration.enable": ("false", "there are no KRaft controllers to migrate to"),
    "max.incremental.fetch.session.cache.slots": ("0", "there are no fetch sessions"),
    "transaction.partition.verification.enable": ("true", "transactions are verified before each append"),
}
"""Kafka's settings with one possible value: (value, reason). A file may set them to that value only."""

_TYPES: dict[int, tuple[str, ...]] = {
    1: (
        "log.preallocate",
        "remote.log.storage.system.enable",
        "transaction.partition.verification.enable",
        "transaction.two.phase.commit.enable",
        "zookeeper.metadata.migration.enable",
    ),
    3: (
        "log.cleaner.threads",
        "log.roll.jitter.hours",
        "max.incremental.fetch.session.cache.slots",
        "offsets.topic.compression.codec",
    ),
    4: (
        "share.coordinator.state.topic.min.isr",
        "share.coordinator.state.topic.replication.factor",
    ),
    5: ("log.roll.jitter.ms",),
    7: ("group.coordinator.rebalance.protocols",),
    8: ("sasl.oauthbearer.jwt.validator.class",),
}
"""Names in FIXED by DescribeConfigsResponse.ConfigType: boolean, int, short, long, list, class. Others are strings."""


def fixed_type(name: str) -> int:
    """Return Kafka's type of a setting in FIXED."""
    return next((number for number, names in _TYPES.items() if name in names), 2)


_ONE_PROCESS = "one process is broker, controller and coordinator"
_ONE_LOOP = "one event loop serves all connections"
_CLASSIC_GROUPS = "groups use the classic protocol"
_NO_PURGATORY = "there is no purgatory: a completed request is removed at once"
_INTER_BROKER_LOGIN = "brokers log in to each other by PLAIN or SCRAM, without this"
_AT_LOGINS = "the keys of tokens are a file, which each login checks for changes"
_OPENSSL = "OpenSSL has no such choice"
_NO_REPORTERS = "there are no reporters of metrics"
_EACH_VERSION = "each request states its version, and records have format 2 only"
_AS_NEEDED = "buffers are sized as needed"

WITHOUT_EFFECT: dict[str, str] = {
    "process.roles": _ONE_PROCESS,
    "controller.": _ONE_PROCESS,
    "metadata.": _ONE_PROCESS,
    "broker.heartbeat.": _ONE_PROCESS,
    "broker.session.": _ONE_PROCESS,
    "initial.broker.": _ONE_PROCESS,
    "early.start.listeners": _ONE_PROCESS,
    "add.partitions.to.txn.": _ONE_PROCESS,
    "broker.id.generation.enable": "node.id is 1 by default",
    "reserved.broker.max.id": "node.id is 1 by default",
    "zookeeper.clientCnxnSocket": "the client of ZooKeeper is kazoo, not Java's",
    "zookeeper.max.in.flight.requests": "changes are applied one after another",
    "num.network.threads": _ONE_LOOP,
    "num.io.threads": _ONE_LOOP,
    "background.threads": _ONE_LOOP,
    "queued.max.requests": _ONE_LOOP,
    "group.coordinator.": _ONE_LOOP,
    "request.timeout.ms": "a request to another broker has 30 s, a follower's fetch replica.socket.timeout.ms",
    "socket.connection.setup.": "a connection to another broker is opened within the time of its request",
    "replica.socket.receive.buffer.bytes": "the operating system chooses the size of this buffer",
    "replication.quota.": "replication is not throttled",
    "alter.log.dirs.": "there is one directory",
    "num.replica.alter.log.dirs.threads": "there is one directory",
    "num.recovery.threads.per.data.dir": "logs are recovered one after another",
    "log.dir.failure.timeout.ms": "there is one directory",
    "log.flush.scheduler.interval.ms": "each log is flushed when it is due",
    "log.flush.offset.checkpoint.interval.ms": "recovery reads each log's last segment itself",
    "log.flush.start.offset.checkpoint.interval.ms": "a new log start is on disk before the response",
    "log.message.format.version": _EACH_VERSION,
    "inter.broker.protocol.version": _EACH_VERSION,
    "log.cleaner.io.buffer.": _AS_NEEDED,
    "offsets.load.buffer.size": _AS_NEEDED,
    "transaction.state.log.load.buffer.size": _AS_NEEDED,
    "compression.": "batches stay as their producer compressed them",
    "fetch.purgatory.": _NO_PURGATORY,
    "producer.purgatory.": _NO_PURGATORY,
    "delete.records.purgatory.": _NO_PURGATORY,
    "group.consumer.": _CLASSIC_GROUPS,
    "group.share.": _NO_SHARE_GROUPS,
    "group.streams.": _CLASSIC_GROUPS,
    "share.": _NO_SHARE_GROUPS,
    "max.request.partition.size.limit": "DescribeTopicPartitions is not served",
    "metric.reporters": _NO_REPORTERS,
    "metrics.num.samples": _NO_REPORTERS,
    "metrics.recording.level": _NO_REPORTERS,
    "metrics.sample.window.ms": _NO_REPORTERS,
    "kafka.metrics.": _NO_REPORTERS,
    "telemetry.": _NO_REPORTERS,
    "auto.include.jmx.reporter": _NO_REPORTERS,
    "sasl.client.callback.handler.class": _INTER_BROKER_LOGIN,
    "sasl.login.": _INTER_BROKER_LOGIN,
    "sasl.oauthbearer.assertion.": _INTER_BROKER_LOGIN,
    "sasl.oauthbearer.client.credentials.": _INTER_BROKER_LOGIN,
    "sasl.oauthbearer.header.urlencode": _INTER_BROKER_LOGIN,
    "sasl.oauthbearer.jwt.retriever.class": _INTER_BROKER_LOGIN,
    "sasl.oauthbearer.scope": _INTER_BROKER_LOGIN,
    "sasl.oauthbearer.token.endpoint.url": _INTER_BROKER_LOGIN,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": _AT_LOGINS,
    "sasl.oauthbearer.jwks.endpoint.retry.": _AT_LOGINS,
    "sasl.mechanism.controller.protocol": "there are no KRaft controllers",
    "ssl.protocol": "ssl.enabled.protocols has the versions",
    "ssl.provider": _OPENSSL,
    "ssl.secure.random.implementation": _OPENSSL,
    "ssl.keymanager.algorithm": _OPENSSL,
    "ssl.trustmanager.algorithm": _OPENSSL,
    "ssl.allow.dn.changes": "changed certificates are loaded whatever their names",
    "ssl.allow.san.changes": "changed certificates are loaded whatever their names",
}
"""Settings of parts that only Kafka has, with the reason: accepted and logged.

A name that ends with a dot is a prefix.
"""

_NO_KERBEROS = "SASL has PLAIN, SCRAM and OAUTHBEARER, not GSSAPI"
_ONLY_PEM = "keys and certificates are in PEM, where only ssl.key.password is possible"
_ON_THIS_DISK = "all records are on this broker's own disk"

REFUSED: dict[str, str] = {
    "ssl.keystore.password": _ONLY_PEM,
    "ssl.truststore.password": _ONLY_PEM,
    "ssl.cipher.suites": "the cipher suites are OpenSSL's, as Python chooses them",
    "ssl.engine.factory.class": "TLS engines are Java classes",
    "sasl.kerberos.": _NO_KERBEROS,
    "sasl.jaas.config": "users of PLAIN are in listener.name.NAME.plain.sasl.jaas.config",
    "sasl.server.callback.handler.class": "callback handlers are Java classes",
    "security.providers": "security providers are Java classes",
    "listener.name.": "a listener's own settings are those of TLS and SASL, and limits of connections",
    "principal.builder.class": "principal builders are Java classes",
    "delegation.token.": "there are no delegation tokens",
    "password.encoder.": "no setting with a password can be changed at run time",
    "zookeeper.ssl.": "the TLS of ZooKeeper has PEM files and OpenSSL's choice of ciphers and versions",
    "remote.": _ON_THIS_DISK,
    "log.local.retention.": _ON_THIS_DISK,
    "quota.consumer.default": "quotas of clients are set by AlterClientQuotas (kafka-configs)",
    "quota.producer.default": "quotas of clients are set by AlterClientQuotas (kafka-configs)",
    "client.quota.": "quota callbacks are Java classes",
    "log.cleaner.io.max.bytes.per.second": "compaction is not throttled",
    "create.topic.policy.class.name": "policies are Java classes",
    "alter.config.policy.class.name": "policies are Java classes",
}
"""Kafka's settings that a user would rely on: refused with the reason. A name that ends with a dot is a prefix."""


def reason_of(name: str, table: dict[str, str]) -> str | None:
    """Return the reason in WITHOUT_EFFECT or REFUSED for a name; None if the name is not there, or is in FIXED."""
    if name in FIXED:
        return None
    if name in table:
        return table[name]
    return next((reason for prefix, reason in table.items() if prefix[-1] == "." and name.startswith(prefix)), None)
