"""The broker beside Apache Kafka over SASL_SSL: TLS with a generated certificate, and users of SCRAM.

Topics are created through a plain listener, which no measured client uses.
"""

import socket
import ssl
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import trustme
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from benchmarks import java_tools, kafka, librdkafka
from benchmarks.against_kafka import rate
from benchmarks.comparison import Figure, Goal, Row, columns, compared, lines
from benchmarks.figures import Line, Table
from benchmarks.peers import NEVER, OURS, Peer
from onceflow import services
from onceflow.client.connection import Connection
from onceflow.client.security import Security, read_security
from onceflow.testing import BrokerProcess

HOST = "127.0.0.1"
USER, PASSWORD = "bench", "c0rrect-horse"
JAAS = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{USER}" password="{PASSWORD}";'
CPU_GOAL = Goal(1.2, 0.8, is_cost=True)
PROTOCOL = "SASL_SSL"


def write_certificates(directory: Path) -> tuple[Path, Path]:
    """Write the broker's key, as PKCS#8 for Java, with its certificate; return that file and the trusted one."""
    authority = trustme.CA()
    issued = authority.issue_cert(HOST, "localhost")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    chain = b"".join(certificate.bytes() for certificate in issued.cert_chain_pems)
    store, trusted = directory / "broker.pem", directory / "authority.pem"
    store.touch(0o600)
    store.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + chain)
    authority.cert_pem.write_to_path(str(trusted))
    return store, trusted


def with_user(name: str, plain: str, port: int, pid: int, trusted: Path) -> Peer:
    """Store the user of a running broker, and return the peer whose clients log in."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    upsertion = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    admin = AdminClient({"bootstrap.servers": plain})
    admin.alter_user_scram_credentials([upsertion])[USER].result(30)
    clients = {
        "bootstrap.servers": f"{HOST}:{port}",
        "security.protocol": PROTOCOL,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(trusted),
    }
    java = {
        "security.protocol": PROTOCOL,
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": JAAS,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(trusted),
    }
    unsynced = {"flush.messages": NEVER} if name == OURS else {}
    return Peer(name, plain, pid, unsynced=unsynced, clients=clients, java_clients=java)


@contextmanager
def peers(directory: Path) -> Iterator[list[Peer]]:
    """Run ours, and Kafka if its jars are found."""
    store, trusted = write_certificates(directory)
    with ExitStack() as exits:
        port = services.free_port()
        listen = ("--listen", f"PLAINTEXT://{HOST}:0,{PROTOCOL}://{HOST}:{port}")
        ours = exits.enter_context(
            BrokerProcess(directory / "onceflow", 0, *listen, "--ssl-keystore-location", str(store))
        )
        running = [with_user(OURS, ours.bootstrap, port, ours.pid, trusted)]
        classpath = kafka.jars()
        if classpath is None:
            print("no Maven here, or it found no Kafka: ours alone")
        else:
            port = services.free_port()
            settings = {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(store),
                "sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": JAAS.partition(" username")[0] + ";",
            }
            theirs = exits.enter_context(
                kafka.KafkaProcess(directory / "kafka", classpath, settings, listeners={PROTOCOL: port})
            )
            running.append(with_user(theirs.name, theirs.bootstrap, port, theirs.pid, trusted))
        yield running


def security_of(peer: Peer) -> Security:
    """Return the settings of our own client."""
    return read_security(
        {
            "security.protocol": PROTOCOL,
            "ssl.truststore.location": peer.clients["ssl.ca.location"],
            "sasl.mechanism": peer.clients["sasl.mechanism"],
            "sasl.jaas.config": JAAS,
        }
    )


def handshakes(peer: Peer, _topic: str, count: int) -> tuple[float]:
    """TLS handshakes per second, one after the other."""
    context = ssl.create_default_context(cafile=peer.clients["ssl.ca.location"])
    host, _, port = peer.clients["bootstrap.servers"].rpartition(":")
    started = time.perf_counter()
    for _ in range(count):
        with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain, server_hostname=HOST):
            pass
    return (count / (time.perf_counter() - started),)


def logins(peer: Peer, _topic: str, count: int) -> tuple[float]:
    """Connections with TLS and SCRAM per second, one after the other, the client's own work included."""
    host, _, port = peer.clients["bootstrap.servers"].rpartition(":")
    security = security_of(peer)
    started = time.perf_counter()
    for _ in range(count):
        Connection(host, int(port), security=security).close()
    return (count / (time.perf_counter() - started),)


def rows() -> list[Row]:
    """Produce, consume, handshakes and logins."""
    shown = partial(Figure, unit="a second", goal=None)
    return [
        Row(
            partial(librdkafka.produce, size_bytes=1000, count=200_000),
            rate("produce over SASL_SSL, librdkafka, 1 kB", 0.8, 1.1),
            cpu_goal=CPU_GOAL,
        ),
        Row(
            partial(librdkafka.produce_and_consume, size_bytes=1000, count=200_000),
            rate("consume over SASL_SSL, librdkafka, 1 kB", 0.8, 1.1),
            cpu_goal=CPU_GOAL,
        ),
        Row(
            partial(java_tools.produce, size_bytes=1000, count=200_000),
            rate("produce over SASL_SSL, Java, 1 kB", 0.8, 1.1),
            cpu_goal=CPU_GOAL,
        ),
        Row(
            partial(java_tools.consume, size_bytes=1000, count=200_000),
            rate("consume over SASL_SSL, Java, 1 kB", 0.8, 1.1),
            cpu_goal=CPU_GOAL,
        ),
        Row(partial(handshakes, count=300), (shown("TLS handshakes"),)),
        Row(partial(logins, count=200), (shown("connections with TLS and SCRAM-SHA-512"),)),
    ]


def measure(names: Sequence[str]) -> Iterator[Line]:
    """The rows of these names."""
    with tempfile.TemporaryDirectory() as directory, peers(Path(directory)) as both:
        for number, row in enumerate(rows()):
            if row.name in names:
                yield from lines(row, compared(row, both, number))


TABLE = Table("Over SASL_SSL beside Apache Kafka", columns(CPU_GOAL), [row.name for row in rows()], measure)
