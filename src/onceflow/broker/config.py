"""Configuration of a broker: one field per setting; `broker.settings` has their names and descriptions.

Defaults are Kafka's if Kafka has the setting; the docstring of a field gives the reason if not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from onceflow.log.config import DAY_MS, INT64_MAX, LogConfig

DEFAULT_RETENTION_POLICY = "onceflow.log.retention:by_age_and_size"
PLAINTEXT = "PLAINTEXT"
PROTOCOLS = ("SASL_SSL", PLAINTEXT, "SSL", "SASL_PLAINTEXT")
"""Kafka's security protocols (org.apache.kafka.common.security.auth.SecurityProtocol)."""
PROTOCOL_OF_NAME: Mapping[str, str] = MappingProxyType({name: name for name in PROTOCOLS})


UNLIMITED = 2**31 - 1
"""Number of connections, or of new ones per second, without a limit."""


class Endpoint(NamedTuple):
    """Address of a listener, with the listener's name."""

    host: str = "127.0.0.1"
    port: int = 9092
    listener: str = PLAINTEXT


@dataclass(frozen=True, slots=True)
class Login:
    """User and password of this broker at the other brokers."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """Settings of TLS and authentication, which a listener may override (`listener.name.NAME.…`)."""

    tls_versions: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    client_auth: str = "none"
    """Whether a client must present a certificate: none, requested or required."""
    key_store_file: str | None = None
    """File with the broker's private key and its certificates."""
    key: str | None = field(default=None, repr=False)
    certificates: str | None = None
    key_password: str | None = field(default=None, repr=False)
    trust_store_file: str | None = None
    trusted: str | None = None
    """Certificates of the authorities that issue clients' certificates."""
    principal_rules: str = "DEFAULT"
    """How the name of a client's certificate becomes the name of its principal (security.principal_rules)."""
    sasl_mechanisms: tuple[str, ...] = ("SCRAM-SHA-256", "SCRAM-SHA-512")
    plain_passwords: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Passwords of the users of SASL/PLAIN."""
    plain_login: Login | None = None
    scram_256_login: Login | None = None
    scram_512_login: Login | None = None
    """Logins of this broker at the others, by the mechanism of SASL."""
    endpoint_identification: str = "https"
    """Whether the certificate of another broker must have its host name: https, or empty for not."""
    bearer_validator: str | None = None
    """`module:name` of the function that validates tokens of SASL/OAUTHBEARER (security.sasl.Validate)."""
    bearer_keys_file: str | None = None
    """File with the public keys that sign these tokens, in place of a validator (security.jwks)."""
    bearer_audiences: tuple[str, ...] = ()
    bearer_issuer: str | None = None
    bearer_scope_claim: str = "scope"
    bearer_user_claim: str = "sub"
    bearer_clock_skew_seconds: int = 30
    reauthentication_ms_max: int = 0
    """Time after which a SASL client must authenticate again; 0: never."""


NO_SECURITY = SecurityConfig()


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Limits of one listener's connections (`listener.name.NAME.max.connections` and so on)."""

    connections_max: int = UNLIMITED
    connection_rate_max: int = UNLIMITED
    """New connections per second."""


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Settings of one broker; `log` has the defaults of its topics."""

    data: Path
    listeners: tuple[Endpoint, ...] = (Endpoint(),)
    """Where the broker listens; the first one is the address that the start reports."""
    advertised: tuple[Endpoint, ...] = ()
    """Where the clients of a listener connect to; its own address if it is not listed."""
    listener_protocols: Mapping[str, str] = field(default_factory=lambda: PROTOCOL_OF_NAME)
    """Security protocol of each listener, by its name."""
    security: SecurityConfig = NO_SECURITY
    listener_security: Mapping[str, SecurityConfig] = field(default_factory=dict)
    """The listeners with settings of their own."""
    listener_limits: Mapping[str, ListenerLimits] = field(default_factory=dict)
    """The listeners with limits of their own."""
    authentication_ms_max: int = 10_000
    """Time for the TLS handshake and the SASL login of a new connection."""
    unauthenticated_connections_max: int = 1_000
    """Connections with an unfinished handshake or login; beyond it, the oldest is closed."""
    login_bytes_max: int = 512 * 1024
    """Maximum size of a frame before a SASL login has succeeded."""
    failed_login_delay_ms: int = 100
    """Delay of the response to a failed login."""
    auto_create_topics: bool = True
    partition_count_default: int = 1
    partitions_max: int = 20_000
    """Limit of all topics together."""
    log: LogConfig = field(default_factory=LogConfig)
    down_converts: bool = False
    """Whether the Fetch versions of consumers before Kafka 0.11 are served, with converted records."""
    reserve_bytes: int = 16 * 1024**2
    """Space kept for deletions on a full disk (onceflow.log.reserve): enough for some indexes of large segments."""
    node_id: int = 1
    cluster_id: str | None = None
    """Id of the cluster that the data directory must belong to; None: that of the directory, or generated if new."""

    # ZooKeeper (broker.cluster)
    zookeeper_connect: str | None = None
    """HOST:PORT,HOST:PORT/CHROOT of the cluster's registry; None: the topics are in the data directory."""
    zookeeper_session_timeout_ms: int = 18_000
    zookeeper_connection_timeout_ms: int = 18_000
    """Kafka's default is the session timeout."""
    zookeeper_tls: bool = False
    zookeeper_key_store_file: str | None = None
    zookeeper_key_password: str | None = field(default=None, repr=False)
    zookeeper_trust_store_file: str | None = None
    zookeeper_endpoint_identification: str = "HTTPS"
    """Whether ZooKeeper's certificate must have its host name: HTTPS, or empty for not."""
    zookeeper_digest: Login | None = None
    """User and password of the scheme digest."""
    zookeeper_acls: bool = False
    """Whether only the brokers' user may change the nodes."""
    inter_broker_listener: str | None = None
    inter_broker_protocol: str = PLAINTEXT
    """Security protocol that is also the name of that listener, if this is not PLAINTEXT."""
    inter_broker_mechanism: str | None = None
    """Mechanism of SASL with which this broker authenticates at the others."""
    replication_factor_default: int = 1
    controlled_shutdown: bool = True
    controlled_shutdown_retries: int = 3
    controlled_shutdown_pause_ms: int = 5_000
    leader_rebalance: bool = True
    leader_imbalance_check_seconds: int = 300
    leader_imbalance_percent_max: int = 10
    replica_lag_time_max_ms: int = 30_000
    """Time after which a follower that is not at the leader's end is not in sync any more."""
    replica_lag_messages_max: int = INT64_MAX
    """Records that a follower in sync may lack, as in Kafka's first releases."""
    replica_fetchers: int = 1
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_bytes_min: int = 1
    replica_fetch_bytes_max: int = 1024**2
    replica_fetch_response_bytes_max: int = 10 * 1024**2
    replica_fetch_backoff_ms: int = 1_000
    high_watermark_interval_ms: int = 5_000
    rack: str | None = None
    reads_by_rack: bool = False
    """Whether clients read from a replica in their rack."""
    replica_socket_timeout_ms: int = 30_000

    # Connections and requests (broker.network, broker.server)
    connections_max: int = 10_000
    """Bounds the cost of all connections; Kafka has no limit by default."""
    connections_per_address_max: int = 10_000
    connections_per_address_overrides: Mapping[str, int] = field(default_factory=dict)
    """The addresses with another limit."""
    connection_rate_max: int = UNLIMITED
    """New connections per second."""
    connections_idle_max_ms: int = 600_000
    """Idle time after which a connection is closed; -1: never."""
    produce_request_bytes_max: int = 100 * 1024**2
    """Maximum size of a Produce frame; Kafka's limit for every request."""
    group_request_bytes_max: int = 16 * 1024**2
    """Maximum size of a JoinGroup, SyncGroup, OffsetCommit or TxnOffsetCommit frame."""
    other_request_bytes_max: int = 1024**2
    request_elements_max: int = 20_000
    """Array elements in a request other than Produce and Fetch."""
    request_partitions_max: int = 10_000
    """Topics and partitions in a Produce or Fetch request; each costs microseconds, whatever its size."""
    request_tags_max: int = 100
    """Tagged fields in one section of a request."""
    request_stalled_max_ms: int = 30_000
    """Time without data after which a connection with an incomplete request is closed; -1: never."""
    request_bytes_per_second_min: int = 1024
    """Minimum rate over 30 s at which a request arrives; slower connections are closed. 0: no minimum.

    Any modem is faster.
    """
    queued_requests_max: int = 100
    """Requests in progress per connection; further ones stay in the socket."""
    parked_fetch_partitions_max: int = 100_000
    """Partitions of all waiting Fetch requests; each costs about 400 bytes."""
    queued_request_bytes_max: int = 224 * 1024**2
    """Memory of all requests being received, half of it for those of up to 1 MiB; Kafka has no limit by default."""
    unsent_bytes_per_connection_max: int = 4 * 1024**2
    """Unsent responses of one connection; beyond it, further requests stay in the socket."""
    unsent_bytes_max: int = 512 * 1024**2
    """Unsent responses of all connections; beyond it, the connections with the most are closed."""
    turn_read_bytes_max: int = 4 * 1024**2
    """Bytes read from one connection before others are served."""
    turn_request_bytes_max: int = 1024**2
    """Bytes of requests of one connection handled before others are served; a larger request is handled whole."""
    turn_sent_bytes_max: int = 4 * 1024**2
    """Bytes sent on one connection before others are served."""
    listen_backlog: int = 1024
    socket_send_buffer_bytes: int = 100 * 1024
    """-1: the operating system's default, which grows to megabytes and halves the fetch rate on one machine."""
    socket_receive_buffer_bytes: int = -1
    fetch_bytes_max: int = 55 * 1024**2
    """Maximum size of a Fetch response; a larger first batch is returned nevertheless."""
    loop_block_report_ms: int = -1
    """Time of blocking the event loop from which work is logged; -1: do not measure."""
    stop_timeout_ms: int = 5_000
    """Time that a stop waits for responses to be sent."""

    # Security (broker.security)
    authorizer_class: str = ""
    """Kafka's name of the authorizer; empty: every request is allowed."""
    super_users: tuple[str, ...] = ()
    """Principals that may do everything, such as `User:admin`."""
    allow_everyone_if_no_acl: bool = False
    """Whether a resource that no ACL matches is allowed to every client."""

    quota_samples: int = 11
    """Windows over which the rate of a quota is measured, the current one included."""
    quota_window_seconds: int = 1

    # Metrics (broker.metrics)
    metrics_port: int = -1
    """Port of the metrics for Prometheus; -1: none, and no request is measured."""
    metrics_host: str = "127.0.0.1"

    # Topics and logs (broker.node, broker.housekeeping)
    delete_topics: bool = True
    retention_check_interval_ms: int = 300_000
    retention_check_first_ms: int = 30_000
    """Delay before the first check, since a broker that just started is busy."""
    retention_policy: str = DEFAULT_RETENTION_POLICY
    """`module:name` of the function that selects segments to delete (`onceflow.log.retention`)."""
    cleaner_enabled: bool = True
    cleaner_interval_ms: int = 15_000
    cleaner_dedupe_bytes: int = 128 * 1024**2

    # Groups (broker.groups)
    group_initial_rebalance_delay_ms: int = 0
    """Kafka's default is 3 s; without a delay, tests and single consumers start at once."""
    group_session_timeout_min_ms: int = 6_000
    group_session_timeout_max_ms: int = 1_800_000
    group_new_member_timeout_ms: int = 300_000
    """Time after which a new member, which cannot send heartbeats, is removed if its connection broke."""
    group_name_bytes_max: int = 1000
    """Limit of group ids, protocol names and instance ids; a record's strings have at most 32,767 bytes."""
    group_members_max: int = 2**31 - 1
    group_subscription_bytes_max: int = 1024**2
    groups_memory_bytes_max: int = 64 * 1024**2
    group_pending_ids_max: int = 5_000
    groups_pending_ids_max: int = 20_000
    """Member ids that were assigned but not used yet; `group_` limits one group, `groups_` all."""
    offset_metadata_bytes_max: int = 4096
    offsets_retention_ms: int = 7 * DAY_MS
    offsets_retention_check_interval_ms: int = 600_000
    offsets_commit_timeout_ms: int = 5_000
    """Maximum time that a commit, or any other response about a group, waits for the disk."""
    offsets_topic_segment_bytes: int = 100 * 1024**2
    offsets_topic_partitions: int = 1
    offsets_topic_replication_factor: int = 1
    """Those of a cluster are 50 and 3 (settings.replication)."""

    # Transactions (broker.transactions)
    transaction_timeout_max_ms: int = 900_000
    transactional_id_expiration_ms: int = 7 * DAY_MS
    transaction_abort_interval_ms: int = 10_000
    """Interval of the check for timed-out transactions."""
    transactional_id_expiration_interval_ms: int = 3_600_000
    transaction_log_segment_bytes: int = 100 * 1024**2
    transaction_log_partitions: int = 1
    transaction_log_replication_factor: int = 1
    transaction_log_min_isr: int = 1
    """Those of a cluster are 50, 3 and 2 (settings.replication)."""

    def security_of(self, listener: str) -> SecurityConfig:
        """Return the settings of a listener's security."""
        return self.listener_security.get(listener, self.security)

    def advertised_for(self, endpoint: Endpoint) -> Endpoint:
        """Return the address that clients of this listener connect to."""
        return next((other for other in self.advertised if other.listener == endpoint.listener), endpoint)
