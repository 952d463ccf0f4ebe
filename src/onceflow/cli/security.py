"""What the present command's Kafka asks for: TLS and SASL, by Kafka's names, from -X and the file of settings."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from onceflow.client.cluster import Cluster
    from onceflow.client.security import Security

_META = "onceflow.kafka"
"""Where click keeps them for a command and those above it."""


def require(context: click.Context, settings: Mapping[str, str]) -> None:
    """Connect as these say; one that was said before, by the file, gives way. Raises InvalidSecurity."""
    joined = {**context.meta.get(_META, {}), **settings}
    if joined:
        from onceflow.client.security import read_security

        read_security(joined)
    context.meta[_META] = joined


def say_in_file(context: click.Context, settings: Mapping[str, str]) -> None:
    """What the file of settings says; whether it goes together is seen when a command has said what it wants else."""
    context.meta[_META] = dict(settings)


def kafka_settings() -> dict[str, str]:
    """By Kafka's names, of the present command."""
    return dict(click.get_current_context().meta.get(_META, {}))


def security() -> "Security":
    """The same, understood."""
    from onceflow.client.security import read_security

    return read_security(kafka_settings())


def open_cluster(bootstrap: str) -> "Cluster":
    """The cluster at `bootstrap`, reached as the present command was told to."""
    from onceflow.client.cluster import Cluster

    return Cluster(bootstrap, security=security())
