"""A file with what most commands would otherwise have to be told each time: where the broker and Redis are.

    bootstrap=kafka.example.org:9093
    redis=redis://kafka.example.org:6379/1
    security.protocol=SASL_SSL
    sasl.mechanism=SCRAM-SHA-512
    sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="ada" password="…";

Options beat the environment, which beats the file. TLS and SASL have Kafka's names (`onceflow.client.security`), as in
a `client.properties` of Kafka's own tools; -X beats the file.
"""

import difflib
import os
from pathlib import Path

import click

from onceflow.cli import security as secured

VARIABLES = {"bootstrap": "ONCEFLOW_BOOTSTRAP", "redis": "ONCEFLOW_REDIS"}
"""Name in the file → variable of the environment, by which the commands get it."""


def default_path() -> Path:
    """Where the file is looked for if no other is named."""
    return Path(click.get_app_dir("onceflow"), "onceflow.conf")


def use(path: Path | None) -> None:
    """Let the commands find what the file says; one that is not named need not be there. Raises click.UsageError,
    since a 1 of `verify` means "different"."""
    chosen = path or default_path()
    if path is None and not chosen.exists():
        return
    from onceflow.broker.settings.properties import parse_properties
    from onceflow.client import security

    try:
        given = parse_properties(chosen.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"the file of settings {chosen} cannot be read: {error}") from error
    for name, value in given.items():
        if name not in VARIABLES and name not in security.NAMES:
            near = difflib.get_close_matches(name, (*VARIABLES, *security.NAMES), 1)
            names = f"{', '.join(VARIABLES)} and Kafka's settings of TLS and SASL"
            others = f"did you mean {near[0]}?" if near else f"it may have {names}"
            remedy = security.meant_by(name) or others
            # Not with its value, which may be a password.
            raise click.UsageError(f"{chosen} has {name}, which no command knows: {remedy}")
        # An empty variable counts as none, as click has it.
        if name in VARIABLES and not os.environ.get(VARIABLES[name]):
            os.environ[VARIABLES[name]] = value
    of_kafka = {name: value for name, value in given.items() if name in security.NAMES}
    secured.say_in_file(click.get_current_context(), of_kafka)
