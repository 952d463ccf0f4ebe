"""The mechanisms without a broker: tokens in, tokens out."""

import base64
import hmac
from functools import cache

import pytest
import scramp
from hypothesis import given
from hypothesis import strategies as st

from onceflow.broker.security.credentials import Credential, credential_of
from onceflow.broker.security.sasl import AuthenticationFailed, PlainServer, ScramServer
from onceflow.wire.scram import BY_NAME, MECHANISMS, salted_password

SALT = b"0123456789abcdef"


@cache
def credential(mechanism: str, password: str, iterations: int = 4096) -> Credential:
    kind = BY_NAME[mechanism]
    return credential_of(kind, salted_password(kind, password, SALT, iterations), SALT, iterations)


def server(mechanism: str, **passwords: str) -> ScramServer:
    users = {user: credential(mechanism, password) for user, password in passwords.items()}
    return ScramServer(BY_NAME[mechanism], users.get)


@pytest.mark.parametrize("mechanism", [mechanism.name for mechanism in MECHANISMS])
def test_scram_with_another_library(mechanism: str) -> None:
    """Both sides prove that they know the password."""
    ours = server(mechanism, ada="secret")
    client = scramp.ScramClient([mechanism], "ada", "secret")
    client.set_server_first(ours.respond(client.get_client_first().encode()).decode())
    client.set_server_final(ours.respond(client.get_client_final().encode()).decode())
    assert ours.user == "ada"


def test_example_of_the_standard() -> None:
    """The exchange of RFC 7677, section 3, with the nonce and salt of that page."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    sha256 = BY_NAME["SCRAM-SHA-256"]
    known = credential_of(sha256, salted_password(sha256, "pencil", salt, 4096), salt, 4096)
    ours = ScramServer(sha256, {"user": known}.get)
    first = ours.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO").decode()
    assert first.startswith("r=rOprNGfwEbeRWgbNEkqO")
    assert first.endswith(",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    ours._nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    ours._server_first = f"r={ours._nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = f"c=biws,r={ours._nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert ours.respond(final.encode()) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(
    ("user", "password", "reason"), [("ada", "wrong", "password is wrong"), ("eve", "secret", "no such user")]
)
def test_scram_refuses_without_saying_why(user: str, password: str, reason: str) -> None:
    ours = server("SCRAM-SHA-256", ada="secret")
    client = scramp.ScramClient(["SCRAM-SHA-256"], user, password)

    def exchange() -> None:
        client.set_server_first(ours.respond(client.get_client_first().encode()).decode())
        ours.respond(client.get_client_final().encode())

    with pytest.raises(AuthenticationFailed) as refused:
        exchange()
    assert reason in refused.value.reason
    assert str(refused.value).endswith("due to invalid credentials with SASL mechanism SCRAM-SHA-256")
    assert ours.user is None


def test_unknown_users_look_like_others() -> None:
    """The first response has salt and iterations for each name, the same ones every time."""
    firsts = [server("SCRAM-SHA-256", ada="secret").respond(b"n,,n=eve,r=x").decode() for _ in range(2)]
    parts = [first.partition(",s=")[2] for first in firsts]
    assert parts[0] == parts[1]
    known = server("SCRAM-SHA-256", ada="secret").respond(b"n,,n=ada,r=x").decode().partition(",s=")[2]
    assert len(parts[0]) == len(known)


def test_names_with_commas_and_equals_signs() -> None:
    ours = ScramServer(BY_NAME["SCRAM-SHA-256"], {"a,b=c": credential("SCRAM-SHA-256", "secret")}.get)
    assert ours.respond(b"n,,n=a=2Cb=3Dc,r=nonce")


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,n=ada",
        b"y,,n=ada,r=x",
        b"p=tls-unique,,n=ada,r=x",
        b"n,a=eve,n=ada,r=x",
        b"n,,n=a=b,r=x",
        b"n,,n=ada,r=",
        b"n,,n=ada,r=x,",
        b"\xff\xfe",
        b"n,,n=ada,r=x\n",
    ],
)
def test_other_first_messages_are_refused(first: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        server("SCRAM-SHA-256", ada="secret").respond(first)


def test_a_final_message_of_another_exchange() -> None:
    ours, theirs = server("SCRAM-SHA-256", ada="secret"), server("SCRAM-SHA-256", ada="secret")
    client = scramp.ScramClient(["SCRAM-SHA-256"], "ada", "secret")
    first = client.get_client_first().encode()
    ours.respond(first)
    client.set_server_first(theirs.respond(first).decode())
    final = client.get_client_final().encode()
    with pytest.raises(AuthenticationFailed, match="invalid credentials"):
        ours.respond(final)
    theirs.respond(final)
    with pytest.raises(AuthenticationFailed):
        theirs.respond(final)


def final_message(first: str, server_first: str, nonce: str) -> bytes:
    """Return a final message with the right proof for the nonce that it names."""
    known, mechanism = credential("SCRAM-SHA-256", "secret"), BY_NAME["SCRAM-SHA-256"]
    client_key = hmac.digest(salted_password(mechanism, "secret", SALT, 4096), b"Client Key", "sha256")
    without_proof = f"c=biws,r={nonce}"
    signature = hmac.digest(known.stored_key, f"{first},{server_first},{without_proof}".encode(), "sha256")
    proof = base64.b64encode(bytes(left ^ right for left, right in zip(client_key, signature, strict=True)))
    return f"{without_proof},p={proof.decode()}".encode()


@pytest.mark.parametrize(
    ("nonce", "is_right"),
    [("{nonce}", True), ("x{nonce}", True), ("another", False), ("y{nonce}", False), ("xx{nonce}", False)],
)
def test_the_nonce_is_the_exchanges_own(nonce: str, is_right: bool) -> None:
    """librdkafka before 2.6.1 repeats the client's nonce before that of the exchange."""
    ours = server("SCRAM-SHA-256", ada="secret")
    server_first = ours.respond(b"n,,n=ada,r=x").decode()
    final = final_message("n=ada,r=x", server_first, nonce.format(nonce=ours._nonce))
    if is_right:
        assert ours.respond(final).startswith(b"v=")
        return
    with pytest.raises(AuthenticationFailed):
        ours.respond(final)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b"\0ada\0secret", None),
        (b"ada\0ada\0secret", None),
        ("\0zoë\0p\u00e4ss".encode(), None),
        (b"\0ada\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0eve\0secret", "Authentication failed: Invalid username or password"),
        (b"eve\0ada\0secret", "Client requested an authorization id that is different from username"),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"\0ada\0", "Authentication failed: password not specified"),
        (b"ada", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"\0ada\0a\0b\0c", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\xff\0secret", "Authentication failed: Invalid username or password"),
    ],
)
def test_plain(token: bytes, message: str | None) -> None:
    ours = PlainServer({"ada": "secret", "zoë": "p\u00e4ss"})
    if message is None:
        assert ours.respond(token) == b""
        assert ours.user in ("ada", "zoë")
        return
    with pytest.raises(AuthenticationFailed, match=message):
        ours.respond(token)
    assert ours.user is None


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_no_token_fails_otherwise(first: bytes, final: bytes) -> None:
    """Bytes of any kind are refused or get a response, and never authenticate."""
    for ours in (PlainServer({"ada": "secret"}), server("SCRAM-SHA-256")):
        for token in (first, final):
            try:
                ours.respond(token)
            except AuthenticationFailed:
                continue
        assert ours.user is None


@given(st.from_regex(r"c=[a-zA-Z0-9+/=]{0,12},r=[ -~]{0,60},p=[a-zA-Z0-9+/=]{0,60}", fullmatch=True))
def test_no_forged_proof_authenticates(final: str) -> None:
    ours = server("SCRAM-SHA-256", ada="secret")
    ours.respond(b"n,,n=ada,r=x")
    with pytest.raises(AuthenticationFailed):
        ours.respond(final.replace("NONCE", ours._nonce).encode())
