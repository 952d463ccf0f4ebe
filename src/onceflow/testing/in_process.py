"""Broker in a thread of this process, for tests and programs: `with Broker() as broker: broker.bootstrap_servers`.

The thread has its own event loop and does not change the process: no signal handler, no limit, no other event loop.
Acknowledged data is as durable as with `onceflow broker`. A program that ends without `stop` leaves its data like after
a crash: acknowledged records are there.

After a fork the child has no broker thread. It can use its parent's broker, and its copies of the sockets and of the
directory's lock are closed, so that they end with the parent's. `stop` in the child has no effect.
"""

import asyncio
import atexit
import logging
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from onceflow.errors import OnceflowError
from onceflow.remedies import Remedy
from onceflow.testing.faults import Faults
from onceflow.testing.secured import (
    Access,
    Certificates,
    generate_certificates,
    protocol_of,
    read_acl,
    secured,
    store_acls,
    store_users,
)

if TYPE_CHECKING:
    from onceflow.broker import server
    from onceflow.broker.config import BrokerConfig
    from onceflow.broker.topics.operations import Created
    from onceflow.log.clock import Clock
    from onceflow.log.disk import Disk
    from onceflow.zookeeper.session import Session

HOST = "127.0.0.1"
STOP_SECONDS_MAX = 60.0
CREATE_SECONDS_MAX = 30.0
EXIT_SECONDS_MAX = 5.0
IN_THIS_PROCESS = "in this process"
"""`zookeeper.connect` of a broker with a registry for tests."""
Setting: TypeAlias = str | int | float | bool
_OWN_SETTINGS = {"log.dir", "log.dirs", "listeners", "advertised.listeners"}

logger = logging.getLogger(__name__)


class BrokerNotUsable(OnceflowError):
    """The broker of this process is in the wrong state for the call."""


class Broker:
    """One Kafka-protocol broker on 127.0.0.1; `start` and `stop` may be called again, and the port stays the same.

    Creating one starts nothing; it raises BrokerNotUsable for settings of another type, or that set its path or port.

    `users` are the passwords of users by their names: the broker then requires SASL, by PLAIN or SCRAM. `tls` encrypts
    with generated certificates, which needs the package trustme; `client_settings` has what clients need. `acls` allow
    what they say, such as `ada Read topic:visits`, and nothing else is allowed then.

    `path` is the data directory, created if necessary and kept; None uses a temporary one that `stop` removes. `port`
    0 uses any free port. `settings` are the broker's, by Kafka's names, as text or Python's values. `disk` and `clock`
    are for tests that provide them (`FaultyDisk`, `ManualClock`).
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        port: int = 0,
        settings: Mapping[str, Setting] | None = None,
        users: Mapping[str, str] | None = None,
        tls: bool = False,
        acls: Sequence[str] | None = None,
        disk: "Disk | None" = None,
        clock: "Clock | None" = None,
    ) -> None:
        self._settings = {name: _text(name, value) for name, value in (settings or {}).items()}
        own = sorted(_OWN_SETTINGS & self._settings.keys())
        if own:
            raise BrokerNotUsable(f"settings must not contain {', '.join(own)}; give Broker its path and port instead")
        self._path = None if path is None else Path(path)
        self._users = dict(users or {})
        self._has_tls = tls
        try:
            self._acls = None if acls is None else list(map(read_acl, acls))
        except ValueError as error:
            raise BrokerNotUsable(str(error)) from error
        self._certificates: Certificates | None = None
        self._port = port
        self._disk = disk
        self._clock = clock
        self._run: _Run | None = None
        self.faults = Faults()
        """Errors, delays and losses of its responses, on demand."""

    def start(self) -> "Broker":
        """Recover the directory's data and listen; return when clients can connect.

        Raises BrokerNotUsable if it is already running, SettingRefused, RetentionPolicyUnusable, DataDirectoryRefused
        if another broker uses the directory or it belongs to another cluster, CannotListen, OSError.
        """
        if self._run is not None:
            raise BrokerNotUsable(
                f"the broker on {self._run.path} is already running, on {self._run.address}; {Remedy.STOP_TEST_BROKER}"
            )
        # Imported in the caller's thread: an import in another thread could wait for the caller's import lock.
        import onceflow.broker.server
        import onceflow.testing.interception  # noqa: F401

        if self._has_tls and self._certificates is None:
            try:
                self._certificates = generate_certificates(HOST)
            except ModuleNotFoundError as error:
                raise BrokerNotUsable(f"tls=True needs the package {error.name}: pip install trustme") from error
        access = Access(self._users, self._certificates, self._acls)
        run = _Run(
            self._path, self._port, self._settings, self._disk, self._clock, access, self.faults, self._new_session()
        )
        run.start()
        self._run = run
        self._port = run.port
        return self

    def _new_session(self) -> "Session | None":
        """Return a session with the registry of a cluster for tests."""
        return None

    def stop(self) -> None:
        """Sync and close every log, end the thread, remove a temporary directory. No effect if it is not running.

        Raises BrokerNotUsable if that takes more than 60 s.
        """
        run, self._run = self._run, None
        if run is not None and run.is_here:
            run.stop(STOP_SECONDS_MAX)

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT for clients. Raises BrokerNotUsable if the broker is not running."""
        return self._running().address

    @property
    def authority(self) -> Path | None:
        """The PEM file of the authority that issued the broker's certificate; None without TLS.

        Raises BrokerNotUsable if the broker is not running.
        """
        return self._running().authority

    def client_settings(self, user: str | None = None, mechanism: str = "SCRAM-SHA-256") -> dict[str, str]:
        """Return the settings of librdkafka's clients (confluent-kafka) for a user, by default the first one.

        `mechanism` is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. Raises BrokerNotUsable if the broker is not running, or
        has no such user.
        """
        run = self._running()
        settings = {"bootstrap.servers": run.address, "security.protocol": run.protocol}
        if run.authority is not None:
            settings["ssl.ca.location"] = str(run.authority)
        if self._users or user is not None:
            name = next(iter(self._users)) if user is None else user
            if name not in self._users:
                known = ", ".join(self._users) or "none"
                raise BrokerNotUsable(f"the broker on {run.path} has no user '{name}', only {known}")
            settings |= {"sasl.mechanism": mechanism, "sasl.username": name, "sasl.password": self._users[name]}
        return settings

    @property
    def path(self) -> Path:
        """The data directory. Raises BrokerNotUsable if the broker is not running."""
        return self._running().path

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """Create a topic, ready when this returns; `configs` by Kafka's names. Returns `name`.

        Raises BrokerNotUsable, with the reason, if the topic is refused or not created within 30 s.
        """
        return self._create_topic(name, partitions, configs, replication_factor=-1)

    def _create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str] | None, *, replication_factor: int
    ) -> str:
        run = self._running()
        if not run.is_here:
            raise BrokerNotUsable(
                f"the broker on {run.path} is the parent process's; {Remedy.CREATE_WITH_CLIENT.format(topic=name)}"
            )
        created = run.create_topic(name, partitions, replication_factor, dict(configs or {}))
        if created.error_code:
            from onceflow.wire.errors import error_name

            reason = created.error_message or error_name(created.error_code)
            raise BrokerNotUsable(f"topic {name} was not created: {reason}")
        return name

    def _running(self) -> "_Run":
        if self._run is None:
            raise BrokerNotUsable(f"the broker is not running; {Remedy.START_TEST_BROKER}, or {Remedy.WITH_STATEMENT}")
        return self._run

    def __enter__(self) -> "Broker":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _text(name: str, value: Setting) -> str:
    """Return a setting's value as in a settings file. Raises BrokerNotUsable."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise BrokerNotUsable(
            f"settings {name}={value!r} is a {type(value).__name__}; give text, a number, True or False"
        )
    return str(value)


_runs: "weakref.WeakSet[_Run]" = weakref.WeakSet()


class _Run:
    """A broker from start to stop."""

    def __init__(
        self,
        path: Path | None,
        port: int,
        settings: Mapping[str, str],
        disk: "Disk | None",
        clock: "Clock | None",
        access: Access,
        faults: Faults,
        session: "Session | None",
    ) -> None:
        # mkdtemp instead of TemporaryDirectory, whose finalizer would remove the parent's data when a forked child
        # ends.
        self.path = path if path is not None else Path(tempfile.mkdtemp(prefix="onceflow-"))
        self.port = port
        self.protocol = protocol_of(has_users=bool(access.users), has_tls=access.certificates is not None)
        self.authority: Path | None = None
        self._access = access
        self._faults = faults
        self._session = session
        self._is_killed = False
        self._is_temporary = path is None
        self._pid = os.getpid()
        self._settings = settings
        self._disk = disk
        self._clock = clock
        self._thread = threading.Thread(target=self._run_thread, name=f"onceflow-broker {self.path}", daemon=True)
        self._started: Future[None] = Future()
        self._ended: Future[None] = Future()
        self._stopping = False
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: server.Broker | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def is_here(self) -> bool:
        """Whether this is the process with the thread; False in a forked child."""
        return self._pid == os.getpid()

    def start(self) -> None:
        try:
            if self._access.certificates is not None:
                self.authority = Path(tempfile.mkdtemp(prefix="onceflow-authority-")) / "authority.pem"
                self.authority.write_text(self._access.certificates.authority)
            self._thread.start()
            self._started.result()
        except BaseException:
            if self._thread.ident is not None:
                self._end_thread(STOP_SECONDS_MAX)
            self._remove_temporary()
            raise
        _runs.add(self)

    def kill(self) -> None:
        """End without responses, and without moving leaders."""
        self._is_killed = True
        self.stop(STOP_SECONDS_MAX)

    def stop(self, seconds_max: float) -> None:
        _runs.discard(self)
        try:
            self._end_thread(seconds_max)
            self._ended.result(timeout=0)
        finally:
            self._remove_temporary()

    def create_topic(
        self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> "Created":
        from onceflow.broker.topics.topics import NewTopic

        async def create() -> "Created":
            assert self._server is not None
            done: asyncio.Future[list[Created]] = asyncio.get_running_loop().create_future()
            new = NewTopic(name, partitions, replication_factor, dict(configs))
            self._server.node.topic_operations.create([new], done.set_result)
            return (await done)[0]

        assert self._loop is not None
        try:
            return asyncio.run_coroutine_threadsafe(create(), self._loop).result(CREATE_SECONDS_MAX)
        except TimeoutError as error:
            raise BrokerNotUsable(
                f"topic {name} was not created on {self.path} within {CREATE_SECONDS_MAX:g} s; is its disk stuck?"
            ) from error

    def close_descriptors_in_child(self) -> None:
        if self._server is not None:
            self._server.close_descriptors()

    def _end_thread(self, seconds_max: float) -> None:
        self._stopping = True
        if self._stop is not None and self._loop is not None and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._stop.set)
            except RuntimeError:
                # The loop was closed between the check and the call: it has ended.
                logger.debug("the broker on %s ended by itself", self.path)
        self._thread.join(seconds_max)
        if self._thread.is_alive():
            raise BrokerNotUsable(
                f"the broker on {self.path} did not stop within {seconds_max:.0f} s; is its disk stuck?"
            )

    def _remove_temporary(self) -> None:
        if self.authority is not None:
            shutil.rmtree(self.authority.parent)
        if self._is_temporary:
            shutil.rmtree(self.path)

    def _run_thread(self) -> None:
        try:
            # A plain loop of its own, regardless of the program's policy.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._serve())
            self._ended.set_result(None)
        except BaseException as error:  # noqa: BLE001 - it is handed to the thread that waits
            self._ended.set_exception(error)
            if not self._started.done():
                self._started.set_exception(error)

    async def _serve(self) -> None:
        from onceflow.broker.server import Broker as Server

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        layer = self._faults.layer()
        layer.begin()
        self._server = Server(self._config(), disk=self._disk, clock=self._clock, layers=[layer], session=self._session)
        await self._server.start()
        store_users(self._server.node, self._access.users)
        store_acls(self._server.node, self._access.acls or ())
        self.port = self._server.port
        self._started.set_result(None)
        try:
            if not self._stopping:
                await self._stop.wait()
        finally:
            if self._is_killed:
                await self._server.abort()
            else:
                await self._server.stop()

    def _config(self) -> "BrokerConfig":
        from onceflow.broker.config import BrokerConfig, Endpoint

        listeners = (Endpoint(HOST, self.port, self.protocol),)
        registry = None if self._session is None else IN_THIS_PROCESS
        if not self._settings:
            return secured(BrokerConfig(self.path, listeners, zookeeper_connect=registry), self._access)
        from onceflow.broker.settings.sources import Source, resolve

        resolved = resolve(Source({**self._settings, "log.dirs": str(self.path)}))
        for note in resolved.notes:
            logger.info("%s", note)
        for warning in resolved.warnings:
            logger.warning("%s", warning)
        config = replace(resolved.config, listeners=listeners)
        if registry is not None:
            config = replace(config, zookeeper_connect=registry)
        return secured(config, self._access)


def _stop_all() -> None:
    """Stop all running brokers at exit, so that nothing of them stays behind."""
    for run in list(_runs):
        try:
            if run.is_here:
                run.stop(EXIT_SECONDS_MAX)
        except (OnceflowError, OSError) as error:
            logger.error("%s", error)


def _after_fork_in_child() -> None:
    for run in list(_runs):
        run.close_descriptors_in_child()


atexit.register(_stop_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
