"""Checks of the servers at the given addresses: a Kafka cluster, a Redis, and their clocks."""

import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from onceflow.cli.doctor.findings import Finding, State, failure
from onceflow.client.addresses import Address, parse_bootstrap
from onceflow.listening import is_loopback
from onceflow.remedies import Remedy

if TYPE_CHECKING:
    from onceflow.client.cluster import Cluster
    from onceflow.client.security import Security

TIMEOUT_S = 5.0
CLOCK_S_MAX = 5.0
"""Difference of clocks that is reported: lag and ages are then wrong by as much."""
OWN_SETTING = "log.dir.reserve.bytes"
"""Broker setting that only Onceflow has."""
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
"""Topics whose records have the broker's own time."""

Clock = Callable[[], float]


def kafka(
    bootstrap: str, security: "Security", *, is_default: bool = False, now_s: Clock = time.time
) -> Iterator[Finding]:
    """Check that a broker responds, what it is, and that it serves the requests of this client."""
    from onceflow.client.cluster import Cluster
    from onceflow.client.errors import ClientError

    if is_default and not any(_accepts(address) for address in parse_bootstrap(bootstrap)):
        reason = f"nothing listens at {bootstrap}, the default"
        yield Finding("kafka", State.NOT_CHECKED, reason, f"{Remedy.START_BROKER}, or {Remedy.NAME_BROKER}")
        return
    timeout_ms = round(TIMEOUT_S * 1000)
    try:
        with Cluster(bootstrap, timeout_ms=timeout_ms, security=security) as cluster:
            yield Finding("kafka", State.OK, f"{_broker_kind(cluster)} at {bootstrap}")
            yield from _versions(cluster)
            yield _broker_clock(cluster, bootstrap, now_s)
    except ClientError as error:
        yield failure("kafka", error)


def _accepts(address: Address) -> bool:
    try:
        socket.create_connection(address, timeout=TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _broker_kind(cluster: "Cluster") -> str:
    from onceflow.client.admin import Admin
    from onceflow.client.errors import RequestRefused

    cluster.router.metadata(())
    brokers = cluster.router.brokers()
    size = f"{len(brokers)} broker{'' if len(brokers) == 1 else 's'}"
    try:
        configs = Admin(cluster).describe_broker_configs(min(brokers))
    except RequestRefused as error:
        return f"a cluster ({size}) that does not show what it is ({error})"
    if OWN_SETTING in configs:
        return f"Onceflow ({size})"
    protocol = configs.get("inter.broker.protocol.version")
    version = f", inter.broker.protocol.version {protocol.value}" if protocol else ""
    return f"a Kafka broker other than Onceflow's ({size}{version})"


def _versions(cluster: "Cluster") -> Iterator[Finding]:
    """Check the versions that are needed; the broker's are those of its ApiVersions response."""
    from onceflow.client.errors import UnsupportedBroker
    from onceflow.client.requests import REQUIRED_VERSIONS
    from onceflow.wire.apis import APIS

    connection = cluster.router.any_connection()
    shown = []
    for api, least in REQUIRED_VERSIONS.items():
        try:
            version = connection.version_of(api, version_min=least)
        except UnsupportedBroker as error:
            yield failure("kafka versions", error)
            return
        shown.append(f"{APIS[api].name} {version}")
    yield Finding("kafka versions", State.OK, f"common versions: {', '.join(shown)}")


def _broker_clock(cluster: "Cluster", bootstrap: str, now_s: Clock) -> Finding:
    """Compare the newest internal records with this clock: Kafka has no request for the time."""
    from onceflow.client.cluster import MAX_TIMESTAMP
    from onceflow.client.errors import ClientError

    check, newest_ms = "kafka clock", -1
    try:
        for name, topic in cluster.topics(*INTERNAL_TOPICS).items():
            partitions = dict.fromkeys(topic.partitions, MAX_TIMESTAMP)
            ends = cluster.list_offsets(name, partitions, read_committed=False)
            newest_ms = max([newest_ms, *(end.timestamp_ms for end in ends.values())])
    except ClientError as error:
        return Finding(check, State.NOT_CHECKED, f"the times of {', '.join(INTERNAL_TOPICS)}: {error}")
    if newest_ms < 0:
        if all(is_loopback(address.host) for address in parse_bootstrap(bootstrap)):
            return Finding(check, State.OK, "the broker is on this machine")
        return Finding(check, State.NOT_CHECKED, f"{' and '.join(INTERNAL_TOPICS)} have no records to compare with")
    ahead_s = newest_ms / 1000 - now_s()
    if ahead_s > CLOCK_S_MAX:
        return Finding(
            check, State.WARNING, f"the broker is {ahead_s:,.0f} s ahead of this machine", Remedy.SYNC_CLOCKS
        )
    return Finding(check, State.OK, "no internal record is later than this machine's time")


def redis(redis_url: str, hash_key: str, *, is_default: bool = False, now_s: Clock = time.time) -> Iterator[Finding]:
    """Check that Redis responds, keeps all counts, and has the same time."""
    try:
        import redis as library
    except ModuleNotFoundError:
        yield Finding("redis", State.NOT_CHECKED, "the package redis is not installed; see the extra dashboard")
        return
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    from onceflow.redis.address import shown
    from onceflow.redis.errors import is_absent, remedy_for
    from onceflow.redis.route import open_client

    parts = urlsplit(redis_url)
    if is_default and not _accepts(Address(parts.hostname or "", parts.port or 0)):
        reason = f"nothing listens at {shown(redis_url)}, the default"
        yield Finding("redis", State.NOT_CHECKED, reason, f"{Remedy.START_REDIS}, or {Remedy.NAME_REDIS}")
        return
    timeouts = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S, "retry": Retry(NoBackoff(), 0)}
    try:
        with open_client(redis_url, hash_key, **timeouts) as client:
            client.ping()
            try:
                info = client.info()
            except library.ResponseError as error:
                if not is_absent(error):
                    raise
                yield Finding("redis", State.OK, f"a Redis at {shown(redis_url)}")
                yield Finding("redis settings", State.NOT_CHECKED, f"INFO: {error}", remedy_for(error))
            else:
                yield Finding("redis", State.OK, f"{_product(info)} at {shown(redis_url)}")
                yield from _redis_settings(client, info)
            yield _redis_clock(client, now_s)
    except library.RedisError as error:
        yield Finding("redis", State.FAILED, f"Redis at {shown(redis_url)} failed: {error}", remedy_for(error))


def _product(info: dict[str, Any]) -> str:
    return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info.get('redis_version')}"


def _redis_settings(client: Any, info: dict[str, Any]) -> Iterator[Finding]:
    from onceflow.spark.redis import settings

    check, current = "redis settings", settings.read(client)
    listed = ", ".join(f"{name} {value}" for name, value in current.items())
    wrong = settings.unsuitable(current, is_synced=True)
    if wrong is not None:
        state = State.FAILED if wrong.name == "maxmemory-policy" else State.WARNING
        yield Finding(check, state, str(wrong), wrong.remedy)
    elif (unsynced := settings.why_unsynced(client, info)) is not None:
        message = f"it cannot report when a write is on disk: {unsynced.reason}"
        yield Finding(check, State.WARNING, message, unsynced.remedy)
    else:
        yield Finding(check, State.OK, listed)
    if settings.leaves_torn_scripts(client, info):
        newer = Remedy.NEWER_VALKEY.format(version=".".join(map(str, settings.WHOLE_TAILS_SINCE)))
        reason = "aof-load-truncated is 'yes': after a power cut, a sum may become too high at the second next start"
        yield Finding("redis append-only file", State.WARNING, reason, f"{Remedy.REWRITE_AOF}, or {newer}")


def _redis_clock(client: Any, now_s: Clock) -> Finding:
    before_s = now_s()
    seconds, microseconds = client.time()
    after_s = now_s()
    there_s = seconds + microseconds / 1e6
    # Its time is right if it is one of the request.
    ahead_s = there_s - after_s if there_s > after_s else min(0.0, there_s - before_s)
    if abs(ahead_s) > CLOCK_S_MAX:
        order = "ahead of" if ahead_s > 0 else "behind"
        message = f"Redis is {abs(ahead_s):,.0f} s {order} this machine"
        return Finding("redis clock", State.WARNING, message, Remedy.SYNC_CLOCKS)
    return Finding("redis clock", State.OK, f"within {CLOCK_S_MAX:g} s of this machine's")
