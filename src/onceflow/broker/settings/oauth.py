"""Settings of SASL/OAUTHBEARER."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from onceflow.broker.security.jwks import JWKS_URL
from onceflow.broker.settings.kinds import IMPORT_PATH, INT32_MAX, Whole, Word
from onceflow.broker.settings.setting import Setting


@dataclass(frozen=True)
class FileUrl:
    """URL of a file; the value is its path."""

    kafka_type = 2
    metavar = "URL"
    allowed = "the URL of a file, such as file:///etc/onceflow/jwks.json"

    def read(self, text: str) -> str:
        url = urlsplit(text)
        if url.scheme != "file" or url.netloc not in ("", "localhost") or not url.path.startswith("/"):
            raise ValueError(f"is not {self.allowed}")
        return unquote(url.path)

    def write(self, value: object) -> str | None:
        return None if value is None else Path(str(value)).as_uri()


@dataclass(frozen=True)
class Texts:
    """Texts, separated by commas."""

    allowed: str
    kafka_type = 7
    metavar = "TEXTS"

    def read(self, text: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())

    def write(self, value: object) -> str | None:
        assert isinstance(value, tuple)
        return ",".join(value) or None


_CLAIM = Word(r"\S+", "the name of a claim", "CLAIM")

OAUTH: tuple[Setting, ...] = (
    Setting(
        JWKS_URL,
        "security.bearer_keys_file",
        FileUrl(),
        "File with the public keys for tokens of OAUTHBEARER, as a JSON Web Key Set. A token is a JWT, signed with the"
        " key that it names. A changed file is loaded by the next login. Kafka also loads http and https URLs."
        " Needs the extra [oauth].",
    ),
    Setting(
        "sasl.oauthbearer.expected.audience",
        "security.bearer_audiences",
        Texts("audiences, separated by commas"),
        "Audiences of which a token must name one in its claim aud. Without them, a token with an audience is refused.",
    ),
    Setting(
        "sasl.oauthbearer.expected.issuer",
        "security.bearer_issuer",
        Word(r"\S+", "an issuer", "ISSUER"),
        "Issuer that a token must name in its claim iss. Default: any.",
    ),
    Setting(
        "sasl.oauthbearer.scope.claim.name",
        "security.bearer_scope_claim",
        _CLAIM,
        "Claim of a token with its scopes. Scopes may be absent, but not empty or repeated.",
    ),
    Setting(
        "sasl.oauthbearer.sub.claim.name",
        "security.bearer_user_claim",
        _CLAIM,
        "Claim of a token that names the user.",
    ),
    Setting(
        "sasl.oauthbearer.clock.skew.seconds",
        "security.bearer_clock_skew_seconds",
        Whole(0, INT32_MAX),
        "Difference allowed between the clocks of the issuer and the broker in seconds, for tokens that are not valid"
        " yet. A session ends with its token in any case.",
    ),
    Setting(
        "sasl.oauthbearer.validator",
        "security.bearer_validator",
        IMPORT_PATH,
        "Python function, as MODULE:NAME, that validates tokens of OAUTHBEARER in place of a key set: it takes a token"
        " and returns the user and the token's end in seconds since 1970, or raises ValueError. It runs on the event"
        " loop. Onceflow only.",
    ),
)
