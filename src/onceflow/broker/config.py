"""What can be set for a broker: one field for each setting; `broker.settings` says what it is called and explains it.

Defaults are Kafka's where Kafka has the setting, except where the comment says why not.
"""

from dataclasses import dataclass, field
from pathlib import Path

from onceflow.log.config import DAY_MS, LogConfig

DEFAULT_RETENTION_POLICY = "onceflow.log.retention:by_age_and_size"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The settings of one broker; `log` has the defaults of its topics."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 9092
    advertised: tuple[str, int] | None = None
    """Host and port that clients are told to connect to; None: the ones listened on."""
    auto_create_topics: bool = True
    partition_count_default: int = 1
    partitions_max: int = 20_000
    """Of all topics together."""
    log: LogConfig = field(default_factory=LogConfig)
    reserve_bytes: int = 16 * 1024**2
    """Space kept for deletions on a full disk (onceflow.log.reserve): some indexes of large segments, and more."""
    node_id: int = 1
    cluster_id: str | None = None
    """The cluster that the data directory must belong to; None: the one that it says, or one made up for a new one."""

    # Connections and requests (broker.connection, broker.server)
    connections_max: int = 10_000
    """Kafka has no limit; here it bounds what connections can cost in sum."""
    connections_per_address_max: int = 10_000
    connections_idle_max_ms: int = 600_000
    """A connection on which nothing happened for so long is closed; -1: never."""
    produce_request_bytes_max: int = 100 * 1024**2
    """The largest Produce frame; Kafka's limit for all."""
    group_request_bytes_max: int = 16 * 1024**2
    """The largest JoinGroup, SyncGroup, OffsetCommit and TxnOffsetCommit frame."""
    other_request_bytes_max: int = 1024**2
    request_elements_max: int = 20_000
    """Array elements in one request other than Produce and Fetch."""
    request_partitions_max: int = 10_000
    """Topics and partitions in a Produce or Fetch request; each costs microseconds, whatever its size."""
    request_tags_max: int = 100
    """Tagged fields in one section of a request."""
    request_stalled_max_ms: int = 30_000
    """A connection that has sent half a request and then nothing for so long is closed; -1: never."""
    request_bytes_per_second_min: int = 1024
    """A connection whose request arrives more slowly for 30 s is closed; 0: none is. Any modem is faster."""
    queued_requests_max: int = 100
    """Unanswered requests of one connection: at so many the next ones are left in the socket."""
    parked_fetch_partitions_max: int = 100_000
    """Partitions named by all Fetch requests that wait; each costs about 400 bytes."""
    queued_request_bytes_max: int = 224 * 1024**2
    """Memory of all requests that are being received, half of it for those up to 1 MiB; Kafka has no limit."""
    unsent_bytes_per_connection_max: int = 4 * 1024**2
    """Answers of one connection held in memory: at so many its next requests are left in the socket."""
    unsent_bytes_max: int = 512 * 1024**2
    """Answers of all connections held in memory: beyond that those who left most of them unread are closed."""
    turn_read_bytes_max: int = 4 * 1024**2
    """Read of one connection before others have their turn."""
    turn_request_bytes_max: int = 1024**2
    """Requests of one connection handled before others have their turn; a single larger one is handled whole."""
    turn_sent_bytes_max: int = 4 * 1024**2
    """Sent of one connection before others have their turn."""
    listen_backlog: int = 1024
    socket_send_buffer_bytes: int = 100 * 1024
    """-1: the operating system's own, which grows to megabytes: on one machine that costs a fetch half of its speed."""
    socket_receive_buffer_bytes: int = -1
    fetch_bytes_max: int = 55 * 1024**2
    """The largest Fetch answer; a first batch that is larger is sent all the same."""
    loop_block_report_ms: int = -1
    """Say in the log what held the event loop for so long; -1: do not measure."""
    stop_timeout_ms: int = 5_000
    """How long a stop waits for answers that are on their way."""

    # Topics and logs (broker.node, broker.housekeeping)
    delete_topics: bool = True
    retention_check_interval_ms: int = 300_000
    retention_check_first_ms: int = 30_000
    """A broker that just started has other things to do."""
    retention_policy: str = DEFAULT_RETENTION_POLICY
    """`module:name` of what decides which segments are deleted (`onceflow.log.retention`)."""
    cleaner_enabled: bool = True
    cleaner_interval_ms: int = 15_000
    cleaner_dedupe_bytes: int = 128 * 1024**2

    # Groups (broker.groups)
    group_initial_rebalance_delay_ms: int = 0
    """Kafka waits 3 s for more members of a new group; here tests and single consumers want to begin at once."""
    group_session_timeout_min_ms: int = 6_000
    group_session_timeout_max_ms: int = 1_800_000
    group_new_member_timeout_ms: int = 300_000
    """A new member cannot send heartbeats: if its connection broke it is given up after this."""
    group_name_bytes_max: int = 1000
    """Of group ids, protocol names and instance ids: a record's strings end at 32,767 bytes."""
    group_members_max: int = 2**31 - 1
    group_subscription_bytes_max: int = 1024**2
    groups_memory_bytes_max: int = 64 * 1024**2
    group_pending_ids_max: int = 5_000
    groups_pending_ids_max: int = 20_000
    """Member ids that were handed out and not used yet, in one group and over all."""
    offset_metadata_bytes_max: int = 4096
    offsets_retention_ms: int = 7 * DAY_MS
    offsets_retention_check_interval_ms: int = 600_000
    offsets_commit_timeout_ms: int = 5_000
    """How long a commit, or any other answer about a group, may wait for the disk."""
    offsets_topic_segment_bytes: int = 100 * 1024**2

    # Transactions (broker.transactions)
    transaction_timeout_max_ms: int = 900_000
    transactional_id_expiration_ms: int = 7 * DAY_MS
    transaction_abort_interval_ms: int = 10_000
    """How often transactions that timed out are looked for."""
    transactional_id_expiration_interval_ms: int = 3_600_000
    transaction_log_segment_bytes: int = 100 * 1024**2
