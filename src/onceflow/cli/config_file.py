"""Configuration file of the commands: the addresses of the broker and Redis, and Kafka's security settings.

    bootstrap=kafka.example.org:9093
    redis=redis://kafka.example.org:6379/1
    security.protocol=SASL_SSL
    sasl.mechanism=SCRAM-SHA-512
    sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="ada" password="…";

Options override the environment, which overrides the file; -X overrides the file. TLS and SASL settings have Kafka's
names (`onceflow.client.security`), as in a `client.properties` of Kafka's tools.
"""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from onceflow.cli import options
from onceflow.cli import security as secured
from onceflow.private_files import MODE, is_exposed

ADDRESSES = {"bootstrap": "bootstrap", "redis": "redis_url"}
"""Name in the file → parameter of the commands."""


def _has_secret(given: Mapping[str, str]) -> bool:
    from onceflow.client import security

    return bool(given.keys() & security.SECRETS) or "@" in given.get("redis", "")


def default_path() -> Path:
    """Return the path used if no other is given."""
    return Path(click.get_app_dir("onceflow"), "onceflow.conf")


def use(path: Path | None) -> None:
    """Use the file's settings; the default file need not exist.

    Raises click.UsageError (exit code 2), because a 1 of `verify` means "different".
    """
    chosen = path or default_path()
    if path is None and not chosen.exists():
        return
    from onceflow.client import security

    given = read(chosen, tuple(ADDRESSES))
    kafka = {name: value for name, value in given.items() if name in security.NAMES}
    context = click.get_current_context()
    secured.use_from_file(context, kafka)
    options.use_addresses(context, {ADDRESSES[name]: value for name, value in given.items() if name in ADDRESSES})


def read(path: Path, others: Sequence[str] = ()) -> dict[str, str]:
    """Return a file's settings: Kafka's TLS and SASL settings, and those in `others`. Raises click.UsageError."""
    from onceflow.client import security
    from onceflow.properties import parse_properties

    try:
        given = parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise click.UsageError(f"cannot read the configuration file {path}: {reason}") from error
    for name in given:
        if name not in others and name not in security.NAMES:
            near = difflib.get_close_matches(name, (*others, *security.NAMES), 1)
            names = " and ".join([*([", ".join(others)] if others else []), "Kafka's TLS and SASL settings"])
            hint = f"did you mean {near[0]}?" if near else f"it can have {names}"
            # Without its value, which may be a password.
            raise click.UsageError(f"{path}: unknown setting {name}; {security.kafka_name_hint(name) or hint}")
    if _has_secret(given) and is_exposed(path):
        raise click.UsageError(f"{path} has a password, and every user of this machine can read it; {MODE}")
    return given
