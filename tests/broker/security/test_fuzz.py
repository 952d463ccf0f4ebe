"""Damaged logins and TLS records to a broker in this process: no client gets in, and its memory is bounded."""

import contextlib
import resource
import socket
import ssl
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from onceflow.broker.config import BrokerConfig, Endpoint, SecurityConfig
from onceflow.broker.handlers.authentication import Authenticator
from onceflow.broker.network.newcomer_connection import NewcomerConnection
from onceflow.broker.network.newcomers import Newcomers
from onceflow.broker.network.reply import Reply
from onceflow.broker.network.request_memory import RequestMemory
from onceflow.broker.network.response_budget import ResponseBudget
from onceflow.broker.network.tls_connection import TlsSocket
from onceflow.broker.security.jwks import JwksValidator
from onceflow.broker.security.principal import ANONYMOUS
from onceflow.testing import ManualClock
from tests.broker.security.damaged_logins import STOLEN, frames_of
from tests.broker.security.tokens import new_key, public, write_keys
from tests.broker.simulation.stepped_broker import SteppedBroker, Unexpected
from tests.broker.test_malformed_frames import BufferedSocket, NoDescriptors
from tests.campaigns import RecordProperty, tell
from tests.client.tls import HOST, Authority

LISTENER = Endpoint(port=1, listener="SASL_PLAINTEXT")
PIECES = 4
COUNT = 100_000
GROWTH_BYTES_MAX = 64 * 2**20


def peak_bytes() -> int:
    """Return the largest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Fuzzed:
    """A broker whose listener requires SASL."""

    def __init__(self, directory: Path, unexpected: Unexpected) -> None:
        keys = directory / "jwks.json"
        write_keys(keys, public(new_key(), kid="one"))
        security = SecurityConfig(
            sasl_mechanisms=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
            plain_passwords={"ada": "right"},
            bearer_keys_file=str(keys),
        )
        self.clock = ManualClock()
        settings: dict[str, Any] = {"listeners": (LISTENER,), "failed_login_delay_ms": 0}
        root = directory / "data"
        self.broker = SteppedBroker(
            root, disk=NoDescriptors(), clock=self.clock, unexpected=unexpected, security=security, **settings
        )
        self._config = BrokerConfig(root, security=security, **settings)
        self._memory = RequestMemory(self._config.queued_request_bytes_max, 2**20, lambda: None)
        self._response_budget = ResponseBudget(self._config.unsent_bytes_max, lambda: None)
        self.newcomers = Newcomers(self._config, self.clock)
        validate = JwksValidator(LISTENER.listener, security)
        self._login = Authenticator(self.broker.node, security, validate, self.broker.handle, self.broker.decode)

    def play(self, sent: bytes) -> str:
        """Send bytes on a new connection, and leave; return what came of it."""
        client: Any = BufferedSocket()
        with self.broker.loop.running():
            connection = NewcomerConnection(
                client,
                ("127.0.0.1", 1),
                LISTENER,
                self._config,
                self._memory,
                self._response_budget,
                self.clock,
                self.broker.node.deferred,
                self._login.handle,
                self._login.decode,
                Reply,
                lambda _connection, _is_failed: None,
                self.newcomers,
            )
        client.incoming += sent
        while client.incoming and connection.is_open and client.fileno() in self.broker.loop.readers:
            with self.broker.loop.running():
                self.broker.loop.readers[client.fileno()]()
            self.broker.settle()
        outcome = "left open" if connection.is_open else "closed"
        assert connection.principal == ANONYMOUS
        with self.broker.loop.running():
            connection.close(None)
        return f"{outcome} with a response" if client.outgoing else outcome

    def check(self) -> None:
        """Check that no login was served, and that closed connections hold nothing."""
        assert STOLEN not in self.broker.node.topics.by_name
        assert len(self.newcomers) == self._memory.used_bytes == self._response_budget.used_bytes == 0
        assert not self.broker.unexpected.found, self.broker.unexpected.found


def fuzz_logins(seeds: range, directory: Path) -> Counter[str]:
    directory.mkdir(exist_ok=True)
    outcomes: Counter[str] = Counter()
    with Unexpected().listening() as unexpected:
        fuzzed = Fuzzed(directory, unexpected)
        for seed in seeds:
            outcomes[fuzzed.play(frames_of(seed))] += 1
            assert not unexpected.found, f"seed {seed}: {unexpected.found}"
        fuzzed.check()
        fuzzed.broker.stop()
    return outcomes


class Tls:
    """The server's end of TLS, and a client without a socket whose bytes are damaged on their way."""

    def __init__(self, authority: Authority) -> None:
        self._server = authority.server()
        self._client = authority.client()

    def play(self, random: Random, *, is_whole: bool) -> str:
        """Damage the first message of a handshake, or a record after a whole one; return what came of it."""
        ours, theirs = socket.socketpair()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self._client.wrap_bio(incoming, outgoing, server_hostname=HOST)
        ours.setblocking(False)
        theirs.settimeout(10)
        server = TlsSocket(ours, self._server)
        try:
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            if not is_whole:
                theirs.sendall(damaged(random, outgoing.read()))
                return self._outcome(server, b"")
            self._shake_hands(server, theirs, client, incoming, outgoing)
            plain = random.randbytes(random.choice((1, 100, 20_000)))
            client.write(plain)
            theirs.sendall(damaged(random, outgoing.read()))
            return self._outcome(server, plain)
        finally:
            server.close()
            theirs.close()

    @staticmethod
    def _shake_hands(
        server: TlsSocket,
        theirs: socket.socket,
        client: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
    ) -> None:
        theirs.sendall(outgoing.read())
        with contextlib.suppress(ssl.SSLWantReadError):
            server.do_handshake()
        incoming.write(theirs.recv(65536))
        client.do_handshake()
        theirs.sendall(outgoing.read())
        server.do_handshake()

    @staticmethod
    def _outcome(server: TlsSocket, plain: bytes) -> str:
        """Let the server read. What it decrypts is what the client wrote."""
        received = memoryview(bytearray(65536))
        try:
            if not plain:
                server.do_handshake()
                raise AssertionError("a handshake of one message")
            count = server.recv_into(received)
        except (ssl.SSLWantReadError, BlockingIOError):
            return "incomplete"
        except OSError:
            return "refused"
        assert bytes(received[:count]) == plain[:count], "a damaged record was decrypted"
        return "decrypted before the damage"


def damaged(random: Random, sent: bytes) -> bytes:
    """Return bytes that differ: some of them changed, the end cut, or others before or behind them."""
    changed = bytearray(sent)
    kind = random.randrange(4)
    if kind == 0:
        return bytes(changed[: random.randrange(len(changed))])
    if kind == 1:
        return bytes(changed) + random.randbytes(random.randrange(1, 100))
    if kind == 2:
        return random.randbytes(random.randrange(1, 100)) + bytes(changed)
    for _ in range(random.randrange(1, 5)):
        changed[random.randrange(len(changed))] ^= random.randrange(1, 256)
    return bytes(changed)


def fuzz_tls(seeds: range, directory: Path) -> Counter[str]:
    """One in ten has a whole handshake before the damage: it costs ten times as much."""
    outcomes: Counter[str] = Counter()
    directory.mkdir(exist_ok=True)
    tls = Tls(Authority(directory))
    for seed in seeds:
        try:
            outcomes[tls.play(Random(seed), is_whole=seed % 10 == 0)] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    return outcomes


FUZZ = {"logins": fuzz_logins, "TLS": fuzz_tls}


@pytest.mark.parametrize("kind", FUZZ)
def test_damage_lets_no_client_in(kind: str, scratch: Path) -> None:
    outcomes = FUZZ[kind](range(200), scratch)
    assert len(outcomes) >= 3, outcomes


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("piece", range(PIECES))
@pytest.mark.parametrize("kind", FUZZ)
def test_much_damage_lets_no_client_in(kind: str, piece: int, scratch: Path, record_property: RecordProperty) -> None:
    """100,000 damaged logins and 100,000 damaged TLS handshakes and records in process: memory is bounded."""
    count = COUNT // PIECES
    FUZZ[kind](range(1000), scratch / "warm-up")
    before = peak_bytes()
    seeds = range(1000 + piece * count, 1000 + (piece + 1) * count)
    outcomes = FUZZ[kind](seeds, scratch / "fuzzed")
    growth_bytes = peak_bytes() - before
    assert growth_bytes < GROWTH_BYTES_MAX
    named = {f"{kind} {outcome}": number for outcome, number in outcomes.items()}
    tell(record_property, seeds, {**named, "at most MiB of memory more": growth_bytes // 2**20})
