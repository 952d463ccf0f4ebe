"""Rows of the settings table about connections and requests."""

from onceflow.broker.settings.kinds import (
    BYTES,
    COUNT,
    INT32_MAX,
    MS,
    MS_OR_NONE,
    SOCKET_BUFFER,
    Whole,
)
from onceflow.broker.settings.setting import Setting

KIB = 1024
MIB = 1024**2

CONNECTIONS: tuple[Setting, ...] = (
    Setting(
        "max.connections",
        "connections_max",
        Whole(1, INT32_MAX),
        "Connections in all; further ones are closed at once. Kafka has no limit.",
        is_common=True,
    ),
    Setting(
        "max.connections.per.ip",
        "connections_per_address_max",
        Whole(0, INT32_MAX),
        "Connections from one address; further ones are closed at once.",
    ),
    Setting(
        "connections.max.idle.ms",
        "connections_idle_max_ms",
        MS_OR_NONE,
        "A connection on which nothing happened for so long is closed; -1: never.",
    ),
    Setting(
        "socket.request.max.bytes",
        "produce_request_bytes_max",
        Whole(1, INT32_MAX),
        "The largest Produce request. Kafka's limit for all requests; the two below are smaller here.",
        is_common=True,
    ),
    Setting(
        "group.request.max.bytes",
        "group_request_bytes_max",
        BYTES,
        "The largest JoinGroup, SyncGroup, OffsetCommit and TxnOffsetCommit request. Onceflow's own.",
    ),
    Setting(
        "other.request.max.bytes",
        "other_request_bytes_max",
        BYTES,
        "The largest request of any other kind. Onceflow's own.",
    ),
    Setting(
        "request.max.elements",
        "request_elements_max",
        COUNT,
        "Topics, partitions, names and the like in one request other than Produce and Fetch. Onceflow's own.",
    ),
    Setting(
        "request.max.partitions",
        "request_partitions_max",
        COUNT,
        "Topics and partitions in one Produce or Fetch request. Onceflow's own.",
    ),
    Setting(
        "request.max.tagged.fields",
        "request_tags_max",
        Whole(0, INT32_MAX),
        "Tagged fields in one section of a request; Kafka's own requests have fewer than ten. Onceflow's own.",
    ),
    Setting(
        "request.stalled.max.ms",
        "request_stalled_max_ms",
        MS_OR_NONE,
        "A connection that sent half a request and then nothing for so long is closed; -1: never. Onceflow's own.",
    ),
    Setting(
        "request.min.bytes.per.second",
        "request_bytes_per_second_min",
        Whole(0, INT32_MAX),
        "Pace, averaged over 30 s, at which a request must arrive; the connection of a slower one is closed. 0: any"
        " pace. Onceflow's own.",
    ),
    Setting(
        "queued.max.requests.per.connection",
        "queued_requests_max",
        COUNT,
        "Unanswered requests of one connection; further ones wait in its socket. Onceflow's own.",
    ),
    Setting(
        "queued.max.fetch.partitions",
        "parked_fetch_partitions_max",
        COUNT,
        "Partitions that Fetch requests name while they wait for records, in sum over all connections; beyond it"
        " the requests that name most are answered early. Onceflow's own.",
    ),
    Setting(
        "queued.max.request.bytes",
        "queued_request_bytes_max",
        Whole(MIB),
        "Memory for requests that are being received, in sum over all connections: half of it for requests of up to"
        " 1 MiB, half for larger ones. While a half is used up, further requests of its kind wait, and those that"
        " arrive at less than 256 KiB per second are closed, the slowest first. Kafka has no limit.",
    ),
    Setting(
        "unsent.max.bytes.per.connection",
        "unsent_bytes_per_connection_max",
        BYTES,
        "Answers that a client has not fetched, records not counted: at so many bytes its further requests wait in"
        " its socket. Onceflow's own.",
    ),
    Setting(
        "unsent.max.bytes",
        "unsent_bytes_max",
        Whole(MIB),
        "Memory for answers that clients have not fetched, records not counted, in sum over all connections: beyond"
        " it those that left most of them unread are closed. Onceflow's own.",
    ),
    Setting(
        "fetch.max.bytes",
        "fetch_bytes_max",
        Whole(KIB, INT32_MAX),
        "The most that one Fetch answer carries; a first batch that is larger is sent all the same.",
    ),
    Setting(
        "socket.listen.backlog.size",
        "listen_backlog",
        COUNT,
        "Connections that may wait to be taken. Kafka's default is 50.",
    ),
    Setting(
        "socket.send.buffer.bytes",
        "socket_send_buffer_bytes",
        SOCKET_BUFFER,
        "The sockets' send buffer; -1 leaves it to the operating system, which lets it grow. Raise it, or give -1,"
        " for consumers so far away that so many bytes are less than a round trip's.",
    ),
    Setting(
        "socket.receive.buffer.bytes",
        "socket_receive_buffer_bytes",
        SOCKET_BUFFER,
        "The sockets' receive buffer; -1 leaves it to the operating system. Kafka's default is 102400.",
    ),
    Setting(
        "stop.timeout.ms",
        "stop_timeout_ms",
        MS,
        "How long a stop waits for answers that are on their way. Onceflow's own.",
    ),
    Setting(
        "turn.max.read.bytes",
        "turn_read_bytes_max",
        BYTES,
        "How much is read from one connection before the others have their turn. Onceflow's own.",
    ),
    Setting(
        "turn.max.request.bytes",
        "turn_request_bytes_max",
        BYTES,
        "How many bytes of requests of one connection are handled before the others have their turn; a single"
        " larger one is handled whole. Other requests than Produce count eightfold from 16 KiB on. Onceflow's own.",
    ),
    Setting(
        "turn.max.sent.bytes",
        "turn_sent_bytes_max",
        BYTES,
        "How much is sent to one connection before the others have their turn. Onceflow's own.",
    ),
    Setting(
        "loop.block.report.ms",
        "loop_block_report_ms",
        MS_OR_NONE,
        "For debugging: log every request and every other piece of work that held all others up for so long; -1:"
        " do not measure. Onceflow's own.",
    ),
)
