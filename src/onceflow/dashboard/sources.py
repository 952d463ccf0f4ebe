"""Sources of the page: the counts in Redis, and the backlog at the broker. Blocking; called from threads."""

import contextlib
import json
from dataclasses import dataclass

from onceflow.clicks import results
from onceflow.clicks.live import Live, UserView
from onceflow.client.cluster import Cluster
from onceflow.client.security import PLAINTEXT, Security
from onceflow.errors import OnceflowError
from onceflow.redis.address import shown
from onceflow.remedies import Remedy

TOP_USERS = 10
BROKER_TIMEOUT_MS = 2_000
PAGE = f"the page shows only what 'onceflow run' counts; {Remedy.NAME_HASH_KEY}"


class NotOurs(OnceflowError):
    """Data under a key of the read model that the pipeline did not write."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses and names from the command's options."""

    redis_url: str = results.REDIS_URL
    hash_key: str = results.HASH_KEY
    bootstrap: str = "127.0.0.1:9092"
    topic: str = "user_events"
    security: Security = PLAINTEXT

    @property
    def redis_shown(self) -> str:
        """The Redis address without its password."""
        return shown(self.redis_url)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Messages in the log that are not counted yet.

    `oldest_ms` is the timestamp of the oldest one; None if there is none or the topic does not exist.
    """

    messages: int
    oldest_ms: int | None
    topic_exists: bool = True


class CountsSource:
    """Reader of the read model. Every method raises an `OnceflowError` whose text may be shown on the page."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._results = results.Results(addresses.redis_url, addresses.hash_key)

    def read(self) -> results.Snapshot:
        """Return all counts of the page, read in one MULTI."""
        try:
            snapshot = self._results.snapshot(top=TOP_USERS)
            results.refuse_other_job(self._addresses.hash_key, snapshot.marker, PAGE)
            return snapshot
        except OnceflowError as error:
            raise type(error)(self._shown(error)) from error
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise self._not_ours(error) from error

    def clicks_of(self, uid: str, live: Live | None) -> UserView:
        """Return one user's clicks."""
        try:
            return UserView(self._results.clicks_of(uid), is_live=False) if live is None else live.clicks_of(uid)
        except OnceflowError as error:
            raise type(error)(self._shown(error)) from error
        except ValueError as error:
            raise self._not_ours(error) from error

    def new_live(self) -> Live:
        """Return live counts of the same addresses, which are not started."""
        where = self._addresses
        reading = results.Results(where.redis_url, where.hash_key)
        return Live(reading, where.bootstrap, where.topic, security=where.security, top=TOP_USERS)

    def refuse_other_job(self) -> None:
        """Raise OtherJob if another job's counts are under the hash key; an unreachable Redis may come back."""
        with contextlib.suppress(results.RedisUnreachable):
            results.refuse_other_job(self._addresses.hash_key, self._results.marker(), PAGE)

    def close(self) -> None:
        """Close the connections."""
        self._results.close()

    def _shown(self, error: Exception) -> str:
        return str(error).replace(self._addresses.redis_url, self._addresses.redis_shown)

    def _not_ours(self, error: Exception) -> NotOurs:
        return NotOurs(
            f"onceflow did not write the data under '{self._addresses.hash_key}' in Redis at "
            f"{self._addresses.redis_shown} ({error}): {Remedy.OTHER_COUNTS}"
        )


class LogSource:
    """Reader of the backlog after the counted offsets; it connects on first use, and again after an error."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._cluster: Cluster | None = None

    def read(self, marker: results.MarkerView | None, now_ms: int) -> Backlog:
        """Return the backlog; without a marker the whole topic. Raises an `OnceflowError` if the broker is down."""
        counted = marker or _nothing_counted(self._addresses.topic)
        try:
            if self._cluster is None:
                self._cluster = Cluster(
                    self._addresses.bootstrap, timeout_ms=BROKER_TIMEOUT_MS, security=self._addresses.security
                )
            if len(self._cluster.topics(*counted.offsets)) < len(counted.offsets):
                return Backlog(0, None, topic_exists=False)
            lag = results.lag(self._cluster, counted, now_ms=now_ms)
        except OnceflowError:
            self.close()
            raise
        return Backlog(lag.messages, now_ms - round(lag.seconds * 1_000) if lag.messages else None)

    def close(self) -> None:
        """Close the connections; the next `read` opens new ones."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


def _nothing_counted(topic: str) -> results.MarkerView:
    fields = {"offsets": json.dumps({topic: {}})}
    marker = results.parse_marker(fields)
    assert marker is not None
    return marker
