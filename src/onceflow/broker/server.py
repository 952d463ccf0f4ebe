"""The broker: a Node behind a listening socket, on one event loop.

In-process use:

    broker = Broker(BrokerConfig(Path("data"), listeners=(Endpoint(port=0),)))
    await broker.start()
    ...                         # clients connect to 127.0.0.1:broker.port
    await broker.stop()
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from onceflow.broker.config import BrokerConfig, Endpoint
from onceflow.broker.handlers import acls as acl_handlers
from onceflow.broker.handlers import authentication, group_admin, group_offsets, groups, transaction_admin, transactions
from onceflow.broker.handlers import cluster as cluster_handlers
from onceflow.broker.handlers import configs as config_handlers
from onceflow.broker.handlers import credentials as credential_handlers
from onceflow.broker.handlers import delete_records as record_handlers
from onceflow.broker.handlers import fetch as fetch_handler
from onceflow.broker.handlers import list_offsets as offset_handlers
from onceflow.broker.handlers import metadata as metadata_handler
from onceflow.broker.handlers import produce as produce_handler
from onceflow.broker.handlers import quotas as quota_handlers
from onceflow.broker.handlers import topics as topic_handlers
from onceflow.broker.handlers.authentication import Authenticator, new_validator
from onceflow.broker.loop.watch import LoopWatch
from onceflow.broker.network.connection import Connection, Handle
from onceflow.broker.network.listener import Layer, Listener, Serving
from onceflow.broker.network.reply import Reply
from onceflow.broker.network.request import DecodedRequest, Request
from onceflow.broker.network.throttling import timed_decoding
from onceflow.broker.node import Node
from onceflow.broker.security.permissions import WHOLE_REQUESTS
from onceflow.broker.security.principal import KafkaPrincipal
from onceflow.broker.security.sasl import Validate
from onceflow.log.clock import Clock, SystemClock
from onceflow.log.disk import Disk
from onceflow.wire import apis
from onceflow.wire.errors import ErrorCode, UnsupportedVersion
from onceflow.wire.frames import (
    RequestHeader,
    decode_request_in_steps,
    encode_unsupported_api_versions,
    read_request_header,
)
from onceflow.wire.known_produce import Known

if TYPE_CHECKING:
    from onceflow.broker.metrics.exporter import Exporter
    from onceflow.zookeeper.session import Session

logger = logging.getLogger(__name__)

Handler = Callable[[Node, Request], None]

HANDLERS: Mapping[int, Handler] = {
    **produce_handler.HANDLERS,
    **fetch_handler.HANDLERS,
    **offset_handlers.HANDLERS,
    **metadata_handler.HANDLERS,
    **authentication.HANDLERS,
    **credential_handlers.HANDLERS,
    **record_handlers.HANDLERS,
    **topic_handlers.HANDLERS,
    **config_handlers.HANDLERS,
    **cluster_handlers.HANDLERS,
    **acl_handlers.HANDLERS,
    **quota_handlers.HANDLERS,
    **groups.HANDLERS,
    **group_offsets.HANDLERS,
    **group_admin.HANDLERS,
    **transactions.HANDLERS,
    **transaction_admin.HANDLERS,
}
"""Handlers by API key."""

Refusal = Callable[[Request, ErrorCode, str | None], None]

REFUSALS: Mapping[int, Refusal] = {
    **cluster_handlers.REFUSALS,
    **acl_handlers.REFUSALS,
    **credential_handlers.REFUSALS,
    **quota_handlers.REFUSALS,
    **transaction_admin.REFUSALS,
}
"""Responses to requests that are refused as a whole, by API key: those of `WHOLE_REQUESTS`."""

TICK_SECONDS = 0.25
TICKS_PER_CHECK = 4
"""Connections are checked once a second: there may be thousands."""
LONG_WAITS = frozenset((apis.JOIN_GROUP, apis.SYNC_GROUP))
"""Requests whose responses wait for other clients."""


class Broker:
    """One broker. `disk` and `clock` are the real ones unless a test passes its own.

    `on_lost` is called once when the data directory is no longer at its path: the broker is useless then.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        on_lost: Callable[[], None] | None = None,
        layers: Sequence[Layer] = (),
        session: "Session | None" = None,
    ) -> None:
        """`layers` see each request before the dispatch, the last one first; `session` is as in `Node.open`."""
        self.config = config
        self._layers = layers
        self._session = session
        self._on_lost = on_lost
        self.endpoints: tuple[Endpoint, ...] = ()
        """The addresses of the listeners, with the ports that were free."""
        self._disk = disk
        self._clock = clock
        self._node: Node | None = None
        self._listener: Listener | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._ticks = 0
        self._watch: LoopWatch | None = None
        self._exporter: Exporter | None = None
        self._validators: dict[str, Validate | None] = {}
        """Validators of tokens, by the listeners with SASL."""
        self._apis = apis.served(in_cluster=config.zookeeper_connect is not None, down_converts=config.down_converts)
        self._handlers = HANDLERS
        self._refusals = REFUSALS
        if config.zookeeper_connect is not None:
            # Imported here: a broker without a cluster starts faster without it.
            from onceflow.broker.handlers import inter_broker

            self._handlers = {**HANDLERS, **cluster_handlers.CLUSTER_HANDLERS, **inter_broker.HANDLERS}
            self._refusals = {**REFUSALS, **inter_broker.REFUSALS}
        if config.down_converts:
            # Imported here: other brokers do not need it.
            from onceflow.broker.handlers import old_fetch

            self._handlers = {**self._handlers, **old_fetch.HANDLERS}

    @property
    def port(self) -> int:
        """Port of the first listener; 0 before the start."""
        return self.endpoints[0].port if self.endpoints else 0

    @property
    def node(self) -> Node:
        assert self._node is not None, "the broker is not started"
        return self._node

    async def start(self) -> None:
        """Recover the data and listen.

        Raises CannotListen, InvalidTls, UnusableValidator, UnusableKeys, DataDirectoryRefused, OSError, and
        ModuleNotFoundError without the package for metrics or for tokens.
        """
        clock = self._clock or SystemClock()
        self._listener = Listener(self.config, clock)
        try:
            self.endpoints = self._listener.endpoints
            self._exporter = self._new_exporter()
            self._validators = self._new_validators()
            config = replace(self.config, listeners=self.endpoints)
            self._node = Node.open(config, disk=self._disk, clock=clock, session=self._session)
        except BaseException:
            self._listener.close()
            if self._exporter is not None:
                await self._exporter.stop()
            raise
        self._node.transactions.resume()
        if self.config.loop_block_report_ms >= 0:
            self._watch = LoopWatch(self.config.loop_block_report_ms)
            self._watch.start()
        self._start_serving(self._listener, self._node)
        self._node.group_shards.load()
        self._node.housekeeping.start()
        if self._node.cluster is not None:
            self._node.cluster.replication.start()
        self._on_tick()

    def _new_exporter(self) -> "Exporter | None":
        """Listen for Prometheus, if that is configured."""
        if self.config.metrics_port < 0:
            return None
        from onceflow.broker.metrics.exporter import Exporter

        return Exporter(self.config.metrics_host, self.config.metrics_port)

    def _new_validators(self) -> dict[str, Validate | None]:
        names = [endpoint.listener for endpoint in self.endpoints]
        return {
            name: new_validator(name, self.config.security_of(name))
            for name in names
            if self.config.listener_protocols[name].startswith("SASL_")
        }

    def _start_serving(self, listener: Listener, node: Node) -> None:
        authenticators = {
            name: Authenticator(node, self.config.security_of(name), validate, self._handle, self._decode)
            for name, validate in self._validators.items()
        }
        logins: dict[str, Serving] = {name: (login.handle, login.decode) for name, login in authenticators.items()}
        serving: Serving = self._handle, self._decode
        for layer in self._layers:
            serving, logins = _with_layer(layer, serving, logins)
        take_connection = node.throttling.usage.take_connection
        if self._exporter is None:
            listener.start(*serving, node.deferred, logins=logins, take_connection=take_connection)
            return
        from onceflow.broker.metrics.snapshot import Gathering
        from onceflow.broker.metrics.traffic import MeteredReply, Traffic

        traffic = Traffic()
        serving, logins = _with_layer(traffic, serving, logins)
        listener.start(*serving, node.deferred, MeteredReply, logins, take_connection=take_connection)
        self._exporter.start(lambda: Gathering(node, listener, traffic))
        logger.info("metrics are at %s", self._exporter.url)

    async def stop(self) -> bool:
        """Send the possible responses, close all connections and logs; return whether all logs were closed.

        In a cluster the leaders of this broker are moved first, while it still serves.
        """
        await self._leave_cluster()
        return await self._stop()

    async def abort(self) -> bool:
        """Close all connections without the responses, then all logs; return whether all were closed.

        The leaders of this broker are not moved.
        """
        if self._listener is not None:
            self._listener.abort()
        return await self._stop()

    async def _stop(self) -> bool:
        if self._exporter is not None:
            await self._exporter.stop()
        if self._listener is not None:
            await self._listener.stop()
        if self._tick is not None:
            self._tick.cancel()
        if self._watch is not None:
            self._watch.stop()
        return await self.node.close()

    async def _leave_cluster(self) -> None:
        node = self._node
        if node is not None and node.cluster is not None and self.config.controlled_shutdown and not node.is_lost:
            await node.cluster.leaving.move_leaders()

    def _balance_leaders(self) -> None:
        """Check, as the controller, which brokers do not lead their preferred partitions."""
        cluster, seconds = self.node.cluster, self.config.leader_imbalance_check_seconds
        if cluster is not None and self.config.leader_rebalance and self._ticks % round(seconds / TICK_SECONDS) == 0:
            cluster.metadata.requests.balance_leaders(self.config.leader_imbalance_percent_max)

    def reload_certificates(self) -> None:
        """Load the certificates of all listeners again; a file that changes is loaded without this."""
        if self._listener is not None:
            self._listener.reload_certificates()

    def close_descriptors(self) -> None:
        """Close the copied descriptors in a forked child, which has no loop; the parent keeps its own."""
        if self._listener is not None:
            self._listener.close_descriptors()
        if self._exporter is not None:
            self._exporter.close_descriptors()
        if self._node is not None:
            self._node.directory.close_descriptor()

    def _handle(self, frame: memoryview, reply: Reply, connection: Connection) -> None:
        node = self._node
        assert node is not None
        if node.throttling.quotas.counts and reply.limit is None:
            node.throttling.handle(self._handle, frame, reply, connection)
            return
        known = node.known_requests.find(frame)
        if known is None or not (node.authorizer is None or self._may_repeat(known[0], connection)):
            self._parse_and_handle(frame, reply, connection)
        elif self._watch is None:
            produce_handler.handle_known(node, *known, reply)
        else:
            with self._watch.measured(apis.APIS[apis.PRODUCE].name, connection.peer):
                produce_handler.handle_known(node, *known, reply)

    def _may_repeat(self, known: Known, connection: Connection) -> bool:
        return produce_handler.may_repeat(self.node, known, connection.principal, connection.peer_host)

    def _parse_and_handle(self, frame: memoryview, reply: Reply, connection: Connection) -> None:
        try:
            header = read_request_header(frame, self.config.request_tags_max, self._apis)
        except UnsupportedVersion as error:
            if error.api_key != apis.API_VERSIONS:
                raise
            reply.send([encode_unsupported_api_versions(error.correlation_id)])
            return
        self._serve(Request(header, frame, reply, connection.peer_host, self._elements_max(header)), connection)

    def _elements_max(self, header: RequestHeader) -> int:
        """Return the maximum number of array elements; a controller's request may have all partitions."""
        return sys.maxsize if header.api.key in apis.INTER_BROKER_APIS else self.config.request_elements_max

    def _serve(self, request: Request, connection: Connection) -> None:
        api = request.header.api
        request.reply.is_long_wait = api.key in LONG_WAITS
        if self._watch is None:
            self._serve_if_allowed(request)
            return
        with self._watch.measured(api.name, connection.peer):
            self._serve_if_allowed(request)

    def _serve_if_allowed(self, request: Request) -> None:
        """Serve a request, or refuse it as a whole."""
        node, api_key = self.node, request.header.api.key
        if node.authorizer is not None and self._is_refused(api_key, request.principal, request.peer_host):
            self._refusals[api_key](request, ErrorCode.cluster_authorization_failed, "Cluster authorization failed.")
            return
        self._handlers[api_key](node, request)

    def _is_refused(self, api_key: int, principal: KafkaPrincipal, host: str) -> bool:
        """Return whether a client lacks the permission for any such request."""
        authorizer = self.node.authorizer
        if authorizer is None or api_key not in WHOLE_REQUESTS:
            return False
        access = authorizer.access(principal, host)
        return not any(map(access.may_on_cluster, WHOLE_REQUESTS[api_key]))

    def _decode(self, frame: memoryview, connection: Connection) -> Generator[int, None, Handle]:
        """Decode a large request (`connection.Decode`), except Fetch, whose handler has a faster parser."""
        try:
            header = read_request_header(frame, self.config.request_tags_max, self._apis)
        except UnsupportedVersion:
            return self._handle
        if header.api.key == apis.FETCH:
            return self._handle
        # A request between brokers has no limit of elements: one that will be refused is not decoded.
        is_between_brokers = header.api.key in apis.INTER_BROKER_APIS
        if is_between_brokers and self._is_refused(header.api.key, connection.principal, connection.peer_host):
            return self._handle
        decoding = decode_request_in_steps(frame, header, elements_max=self._elements_max(header))
        body, seconds = yield from timed_decoding(decoding)
        return partial(self._handle_decoded, header, body, seconds)

    def _handle_decoded(
        self,
        header: RequestHeader,
        body: Any,
        decoding_seconds: float,
        frame: memoryview,
        reply: Reply,
        connection: Connection,
    ) -> None:
        if self.node.throttling.quotas.counts and reply.limit is None:
            handle = partial(self._handle_decoded, header, body, decoding_seconds)
            self.node.throttling.handle(handle, frame, reply, connection, decoding_seconds=decoding_seconds)
            return
        self._serve(DecodedRequest(header, frame, reply, connection.peer_host, body=body), connection)

    def _on_tick(self) -> None:
        """Run the periodic work; one that fails does not stop the others."""
        node = self.node
        for work in (
            node.group_shards.expire,
            node.transactions.tick,
            self._check_connections,
            self._check_directory,
            self._forget_dead_brokers,
            self._balance_leaders,
        ):
            try:
                work()
            except Exception:
                logger.exception("%s failed; retrying in %s s", work.__qualname__, TICK_SECONDS)
        self._tick = asyncio.get_running_loop().call_later(TICK_SECONDS, self._on_tick)

    def _forget_dead_brokers(self) -> None:
        if self.node.cluster is not None:
            self.node.cluster.forget_dead()

    def _check_directory(self) -> None:
        self.node.check_directory()
        if self.node.is_lost and self._on_lost is not None:
            on_lost, self._on_lost = self._on_lost, None
            on_lost()

    def _check_connections(self) -> None:
        self._ticks += 1
        if self._listener is not None and self._ticks % TICKS_PER_CHECK == 0:
            self._listener.check_connections()


def _with_layer(layer: Layer, serving: Serving, logins: Mapping[str, Serving]) -> tuple[Serving, dict[str, Serving]]:
    """Return what serves connections, and those with SASL by their listeners, with a layer above it."""

    def above(below: Serving) -> Serving:
        handle, decode = below
        return layer.handling(handle), layer.decoding(decode)

    return above(serving), {name: above(login) for name, login in logins.items()}
