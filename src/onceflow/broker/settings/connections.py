"""Settings of connections and requests."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from onceflow.broker.config import BrokerConfig
from onceflow.broker.security.acls import address_text, is_address
from onceflow.broker.settings.kinds import (
    BYTES,
    COUNT,
    INT32_MAX,
    MS,
    MS_OR_NONE,
    SOCKET_BUFFER,
    SettingRefused,
    Whole,
)
from onceflow.broker.settings.setting import Setting


@dataclass(frozen=True)
class AddressLimits:
    """Limits of addresses, such as 10.0.0.7:100,::1:5."""

    kafka_type = 2
    metavar = "LIMITS"
    allowed = "IP addresses with a number each, such as 10.0.0.7:100,10.0.0.8:200"

    def read(self, text: str) -> Mapping[str, int]:
        limits: dict[str, int] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            address, _, number = part.rpartition(":")
            if not is_address(address) or not re.fullmatch(r"[0-9]{1,9}", number):
                raise ValueError(f"is not {self.allowed}")
            limits[address_text(address)] = int(number)
        return MappingProxyType(limits)

    def write(self, value: object) -> str:
        assert isinstance(value, Mapping)
        return ",".join(f"{address}:{number}" for address, number in value.items())


KIB = 1024
MIB = 1024**2

CONNECTIONS: tuple[Setting, ...] = (
    Setting(
        "max.connections",
        "connections_max",
        Whole(1, INT32_MAX),
        "Maximum number of connections. Further ones are closed at once. With a listener's prefix, the maximum of that"
        " listener. Kafka has no limit by default.",
        is_common=True,
    ),
    Setting(
        "max.connections.per.ip",
        "connections_per_address_max",
        Whole(0, INT32_MAX),
        "Maximum number of connections from one IP address. Further ones are closed at once. 0 allows only the"
        " addresses of max.connections.per.ip.overrides.",
    ),
    Setting(
        "max.connections.per.ip.overrides",
        "connections_per_address_overrides",
        AddressLimits(),
        "Other values of max.connections.per.ip for some IP addresses. Kafka also takes host names.",
    ),
    Setting(
        "max.connection.creation.rate",
        "connection_rate_max",
        Whole(1, INT32_MAX),
        "Maximum number of new connections per second, measured over the windows of quota.window.num. Further ones"
        " wait. With a listener's prefix, the maximum of that listener.",
    ),
    Setting(
        "connections.max.idle.ms",
        "connections_idle_max_ms",
        MS_OR_NONE,
        "Idle connections are closed after this time. -1: never.",
    ),
    Setting(
        "socket.request.max.bytes",
        "produce_request_bytes_max",
        Whole(1, INT32_MAX),
        "Maximum size of a Produce request. Kafka applies this to every request; here group.request.max.bytes and"
        " other.request.max.bytes limit the others.",
        is_common=True,
    ),
    Setting(
        "group.request.max.bytes",
        "group_request_bytes_max",
        BYTES,
        "Maximum size of a JoinGroup, SyncGroup, OffsetCommit or TxnOffsetCommit request. Onceflow only.",
    ),
    Setting(
        "other.request.max.bytes",
        "other_request_bytes_max",
        BYTES,
        "Maximum size of any other request. Onceflow only.",
    ),
    Setting(
        "request.max.elements",
        "request_elements_max",
        COUNT,
        "Maximum number of array elements (topics, partitions, names and so on) in a request other than Produce and"
        " Fetch. Onceflow only.",
    ),
    Setting(
        "request.max.partitions",
        "request_partitions_max",
        COUNT,
        "Maximum number of topics and partitions in a Produce or Fetch request. Onceflow only.",
    ),
    Setting(
        "request.max.tagged.fields",
        "request_tags_max",
        Whole(0, INT32_MAX),
        "Maximum number of tagged fields in one section of a request. Kafka's own requests have fewer than ten."
        " Onceflow only.",
    ),
    Setting(
        "request.stalled.max.ms",
        "request_stalled_max_ms",
        MS_OR_NONE,
        "A connection is closed if an incomplete request receives no data for this time. -1: never. Onceflow only.",
    ),
    Setting(
        "request.min.bytes.per.second",
        "request_bytes_per_second_min",
        Whole(0, INT32_MAX),
        "Minimum rate at which a request must arrive, averaged over 30 s. Slower connections are closed. 0: no"
        " minimum. Onceflow only.",
    ),
    Setting(
        "queued.max.requests.per.connection",
        "queued_requests_max",
        COUNT,
        "Maximum number of requests in progress per connection. Further ones wait in its socket. Onceflow only.",
    ),
    Setting(
        "queued.max.fetch.partitions",
        "parked_fetch_partitions_max",
        COUNT,
        "Maximum number of partitions of the Fetch requests that wait for records. Beyond it, the requests with the"
        " most partitions get a response early. Onceflow only.",
    ),
    Setting(
        "queued.max.request.bytes",
        "queued_request_bytes_max",
        Whole(MIB),
        "Memory for all requests being received: half of it for requests of up to 1 MiB, half for larger ones. While"
        " a half is used up, further requests of its size wait, and a request that has memory which they wait for is"
        " closed if it needs more than 30 seconds at its pace. Kafka has no limit by default.",
    ),
    Setting(
        "unsent.max.bytes.per.connection",
        "unsent_bytes_per_connection_max",
        BYTES,
        "Maximum size of the responses waiting to be sent on one connection, without records. Beyond it, further"
        " requests wait in its socket. Onceflow only.",
    ),
    Setting(
        "unsent.max.bytes",
        "unsent_bytes_max",
        Whole(MIB),
        "Memory for the responses waiting to be sent on all connections, without records. Beyond it, the connections"
        " with the most unread bytes are closed. Onceflow only.",
    ),
    Setting(
        "fetch.max.bytes",
        "fetch_bytes_max",
        Whole(KIB, INT32_MAX),
        "Maximum size of a Fetch response. A larger first batch is returned nevertheless.",
    ),
    Setting(
        "socket.listen.backlog.size",
        "listen_backlog",
        COUNT,
        "Maximum number of connections waiting to be accepted. Kafka's default is 50.",
    ),
    Setting(
        "socket.send.buffer.bytes",
        "socket_send_buffer_bytes",
        SOCKET_BUFFER,
        "Size of the sockets' send buffer (SO_SNDBUF); -1 uses the operating system's default, which can grow. Raise"
        " it, or use -1, for distant consumers, where the bytes in flight during a round trip exceed it.",
    ),
    Setting(
        "socket.receive.buffer.bytes",
        "socket_receive_buffer_bytes",
        SOCKET_BUFFER,
        "Size of the sockets' receive buffer (SO_RCVBUF); -1 uses the operating system's default. Kafka's default is"
        " 102400.",
    ),
    Setting(
        "stop.timeout.ms",
        "stop_timeout_ms",
        MS,
        "Maximum time that a stop waits for responses to be sent. Onceflow only.",
    ),
    Setting(
        "turn.max.read.bytes",
        "turn_read_bytes_max",
        BYTES,
        "Maximum number of bytes read from one connection before other connections are served. Onceflow only.",
    ),
    Setting(
        "turn.max.request.bytes",
        "turn_request_bytes_max",
        BYTES,
        "Maximum size of the requests of one connection handled before other connections are served. A larger"
        " request is handled whole. Requests of 16 KiB and more, other than Produce, count eightfold. Onceflow only.",
    ),
    Setting(
        "turn.max.sent.bytes",
        "turn_sent_bytes_max",
        BYTES,
        "Maximum number of bytes sent on one connection before other connections are served. Onceflow only.",
    ),
    Setting(
        "loop.block.report.ms",
        "loop_block_report_ms",
        MS_OR_NONE,
        "For debugging: log each request, and any other work, that blocks the event loop for this time. -1 disables"
        " it. Onceflow only.",
    ),
)


def check_address_limits(config: BrokerConfig) -> None:
    """Refuse a limit of no connection at all, as Kafka does. Raises SettingRefused."""
    if config.connections_per_address_max == 0 and not config.connections_per_address_overrides:
        raise SettingRefused("max.connections.per.ip=0 needs max.connections.per.ip.overrides: no client could connect")


LIMITS_OF_LISTENERS: Mapping[str, Setting] = {
    setting.name: setting for setting in CONNECTIONS if setting.field in ("connections_max", "connection_rate_max")
}
"""Limits that a listener may have of its own, in addition to those of the broker."""
