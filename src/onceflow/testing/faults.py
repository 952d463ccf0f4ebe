"""Faults of a broker for tests, on demand: `broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=3)`.

Each method requests one fault and returns it: `remove` ends it, `wait` waits until requests have met it, and in a
`with` statement it ends with the block. A request meets at most one fault: the one that was requested first, of those
that fit it and are not used up.
"""

import difflib
import math
import threading
from collections.abc import Callable, Mapping, Set
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias, TypedDict, Unpack

from onceflow.errors import OnceflowError

if TYPE_CHECKING:
    from onceflow.testing.error_responses import Concerned
    from onceflow.testing.interception import Exchange, Interception
    from onceflow.wire.apis import Api
    from onceflow.wire.errors import ErrorCode

    Effect: TypeAlias = Callable[[Exchange, Concerned], None]

WAIT_SECONDS_MAX = 10.0


class ImpossibleFault(OnceflowError):
    """No request to the broker could meet the fault."""


class FaultNotMet(OnceflowError):
    """Fewer requests than expected have met a fault."""


class Selection(TypedDict, total=False):
    """Requests that a fault is for; `Faults` describes the fields."""

    times: int | None
    skip: int
    topic: str | None
    partition: int | None
    client_id: str | None


class Fault:
    """One fault, until it is removed or used up. All methods may be called in any thread."""

    def __init__(
        self,
        name: str,
        on_removed: Callable[["Fault"], None],
        effect: "Effect",
        api: "Api | None",
        concerned: "Concerned",
        *,
        client_id: str | None = None,
        peers: Set[str] = frozenset(),
        times: int | None = None,
        skip: int = 0,
    ) -> None:
        """`times` is the number of requests that meet it, None without a limit, after `skip` that do not.

        `peers` are client ids that meet it only if `client_id` is one of them.
        """
        self._name = name
        self._on_removed = on_removed
        self._effect = effect
        self._api = api
        self.concerned = concerned
        """Topic and partition."""
        self._client_id = client_id
        self._peers = peers
        self._times = times
        self._skip = skip
        self._count = 0
        self._met = threading.Condition()

    @property
    def count(self) -> int:
        """Number of requests that have met it."""
        return self._count

    def wait(self, count: int = 1, seconds: float = WAIT_SECONDS_MAX) -> None:
        """Return when `count` requests have met it. Raises FaultNotMet after `seconds`."""
        with self._met:
            if not self._met.wait_for(lambda: self._count >= count, seconds):
                raise FaultNotMet(f"{self._name}: {self._count} requests in {seconds:g} s, expected {count}")

    def remove(self) -> None:
        """End it; what a paused network holds is sent. No effect if it has ended."""
        self._on_removed(self)

    def __enter__(self) -> "Fault":
        return self

    def __exit__(self, _kind: object, _error: BaseException | None, _traceback: TracebackType | None) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"<Fault {self._name}, met {self._count} times>"

    # Called by the interception

    def fits(self, api_key: int, client_id: str | None) -> bool:
        """Return whether a request of this API and client can meet it."""
        is_client = client_id not in self._peers if self._client_id is None else client_id == self._client_id
        return is_client and (self._api is None or self._api.key == api_key)

    def take(self) -> bool:
        """Count a request that meets it; return whether it has an effect on this one."""
        with self._met:
            if self._skip:
                self._skip -= 1
                return False
            if self._times is not None and self._count >= self._times:
                return False
            self._count += 1
            self._met.notify_all()
            return True

    def apply(self, exchange: "Exchange") -> None:
        """Treat a request."""
        self._effect(exchange, self.concerned)


class Faults:
    """Faults of one broker; they stay when it stops and starts again.

    `api` is Kafka's name, such as "Produce"; None: all APIs. The other arguments select requests:

    - `times`: the number of requests that meet the fault, 1 by default; None: all until it is removed
    - `skip`: the number of requests before them that do not meet it
    - `topic`, `partition`: only requests that name the topic, or the partition
    - `client_id`: only requests of clients with exactly this client id

    Requests of other brokers of the cluster meet a fault only if `client_id` names them. All methods raise
    ImpossibleFault for what no request can meet.
    """

    def __init__(self, peers: Set[str] = frozenset()) -> None:
        """`peers` are the client ids of the other brokers."""
        self._peers = peers
        self._lock = threading.Lock()
        self._interception: Interception | None = None
        self._rules: list[Fault] = []
        self._versions_max: dict[Fault, Mapping[int, int]] = {}
        self._paused: dict[Fault, str | None] = {}

    def layer(self) -> "Interception":
        """Return the layer of the broker that has the faults."""
        with self._lock:
            if self._interception is None:
                from onceflow.testing.interception import Interception

                self._interception = Interception()
            return self._interception

    def fail(self, api: str, error: str, **selection: Unpack[Selection]) -> Fault:
        """Respond with an error, by Kafka's name, such as "NOT_LEADER_OR_FOLLOWER"; the request is not handled.

        With `topic`, the other topics and partitions of the same request are handled.
        """
        from onceflow.testing.error_responses import carries_topic_errors
        from onceflow.wire.frames import response_class

        wanted, code = _api(api), _error(error)
        topic = selection.get("topic")
        if topic is not None and not carries_topic_errors(response_class(wanted.key, wanted.version_max)):
            raise ImpossibleFault(f"fail {api} for topic {topic}: the response has no errors of topics; omit topic=")
        return self._add(
            f"fail {api} with {error}", lambda exchange, concerned: exchange.fail(code, concerned), api, selection
        )

    def close(self, api: str | None = None, **selection: Unpack[Selection]) -> Fault:
        """Close the connection; the request is not handled."""
        return self._add(f"close at {api}", lambda exchange, _: exchange.close(), api, selection)

    def lose(self, api: str | None = None, **selection: Unpack[Selection]) -> Fault:
        """Handle the request, then close the connection instead of the response."""
        return self._add(
            f"lose the response to {api}",
            lambda exchange, _: exchange.serve(lambda _pieces: exchange.close()),
            api,
            selection,
        )

    def drop(self, api: str | None = None, **selection: Unpack[Selection]) -> Fault:
        """Handle the request, then send nothing more on its connection, which stays open until the client closes it."""
        return self._add(f"drop the response to {api}", lambda exchange, _: exchange.drop(), api, selection)

    def delay(self, seconds: float, api: str | None = None, **selection: Unpack[Selection]) -> Fault:
        """Handle the request, and send the response `seconds` later; later ones of the connection wait behind it."""
        if not 0 <= seconds < math.inf:
            raise ImpossibleFault(f"delay of {seconds} seconds is not a number from 0")
        return self._add(f"delay {api}", lambda exchange, _: exchange.delay(seconds), api, selection)

    def pause(self, client_id: str | None = None) -> Fault:
        """Pause the network of the clients with this client id, None for all, until the fault is removed.

        Connections stay open and new ones are accepted, but no request arrives and no response leaves.
        """
        return self._begin("pause the network", lambda fault: self._paused.update({fault: client_id}))

    def limit(self, api: str, version_max: int) -> Fault:
        """Serve versions of an API only up to this one, until the fault is removed.

        ApiVersions responses say so; a request above it closes its connection, as in Kafka.
        """
        wanted = _api(api)
        if not wanted.version_min <= version_max <= wanted.version_max:
            raise ImpossibleFault(
                f"limit {api} to {version_max}: versions {wanted.version_min} to {wanted.version_max} are served"
            )
        return self._begin(
            f"limit {api} to {version_max}", lambda fault: self._versions_max.update({fault: {wanted.key: version_max}})
        )

    def play(self, release: str) -> Fault:
        """Serve the APIs and versions of an older Kafka, such as "2.1", until the fault is removed.

        Of those that this broker serves: docs/protocol.md has their lowest versions.
        """
        from onceflow.testing.releases import RELEASES, versions_max

        if release not in RELEASES:
            raise ImpossibleFault(f"play Kafka {release}: the releases are {', '.join(RELEASES)}")
        return self._begin(
            f"play Kafka {release}", lambda fault: self._versions_max.update({fault: versions_max(release)})
        )

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._rules.clear()
            self._versions_max.clear()
            self._paused.clear()
        self._apply()

    def _add(self, name: str, effect: "Effect", api: str | None, selection: Selection) -> Fault:
        from onceflow.testing.error_responses import Concerned

        unknown = sorted(selection.keys() - Selection.__annotations__.keys())
        if unknown:
            raise TypeError(f"{name}: unknown argument {unknown[0]!r}")
        wanted = None if api is None else _api(api)
        concerned = Concerned(selection.get("topic"), selection.get("partition"))
        _check(wanted, concerned)
        fault = Fault(
            name,
            self._remove,
            effect,
            wanted,
            concerned,
            client_id=selection.get("client_id"),
            peers=self._peers,
            times=_at_least(1, "times", selection.get("times", 1)),
            skip=_at_least(0, "skip", selection.get("skip", 0)) or 0,
        )
        with self._lock:
            self._rules.append(fault)
        self._apply()
        return fault

    def _begin(self, name: str, begin: Callable[[Fault], None]) -> Fault:
        from onceflow.testing.error_responses import Concerned

        fault = Fault(name, self._remove, lambda exchange, _: exchange.serve(exchange.respond), None, Concerned())
        with self._lock:
            begin(fault)
        self._apply()
        return fault

    def _remove(self, fault: Fault) -> None:
        with self._lock:
            if fault in self._rules:
                self._rules.remove(fault)
            self._versions_max.pop(fault, None)
            self._paused.pop(fault, None)
        self._apply()

    def _apply(self) -> None:
        from onceflow.testing.interception import Plan

        with self._lock:
            limits: dict[int, int] = {}
            for versions in self._versions_max.values():
                limits |= {key: min(version, limits.get(key, version)) for key, version in versions.items()}
            plan = Plan(tuple(self._rules), limits, frozenset(self._paused.values()), self._peers)
        self.layer().change(plan)


def _api(name: str) -> "Api":
    from onceflow.wire.apis import APIS

    for api in APIS.values():
        if api.name == name:
            return api
    close = difflib.get_close_matches(name, [api.name for api in APIS.values()], 1)
    raise ImpossibleFault(f"API {name!r} is not served{f'; did you mean {close[0]}?' if close else ''}")


def _error(name: str) -> "ErrorCode":
    from onceflow.wire.errors import ErrorCode

    names = [code.name.upper() for code in ErrorCode if code]
    if name not in names:
        close = difflib.get_close_matches(name.upper(), names, 1)
        raise ImpossibleFault(f"{name!r} is not an error of Kafka{f'; did you mean {close[0]}?' if close else ''}")
    return ErrorCode[name.lower()]


def _check(api: "Api | None", concerned: "Concerned") -> None:
    """Raise ImpossibleFault if requests of the API do not name topics or partitions."""
    from onceflow.testing.error_responses import has_partitions, has_topics
    from onceflow.wire.frames import request_class

    if concerned.partition is not None and concerned.topic is None:
        raise ImpossibleFault(f"partition {concerned.partition} without a topic; add topic=")
    if concerned.topic is None:
        return
    if api is None:
        raise ImpossibleFault(f"topic {concerned.topic} without an API; add api=")
    requests = request_class(api.key, api.version_max)
    if not has_topics(requests):
        raise ImpossibleFault(f"{api.name} requests name no topics; omit topic=")
    if concerned.partition is not None and not has_partitions(requests):
        raise ImpossibleFault(f"{api.name} requests name no partitions; omit partition=")


def _at_least(least: int, name: str, number: int | None) -> int | None:
    if number is not None and number < least:
        raise ImpossibleFault(f"{name}={number} is not a number from {least}")
    return number
