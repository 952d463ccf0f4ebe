"""TLS and SASL settings of the current command, by Kafka's names, from -X and the configuration file."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from onceflow.client.cluster import Cluster
    from onceflow.client.security import Security

_META = "onceflow.kafka"
"""Key of the settings in click's context."""


def require(context: click.Context, settings: Mapping[str, str]) -> None:
    """Use these settings; they override those of the file. Raises InvalidSecurity."""
    joined = {**context.meta.get(_META, {}), **settings}
    if joined:
        from onceflow.client.security import read_security

        read_security(joined)
    context.meta[_META] = joined


def use_from_file(context: click.Context, settings: Mapping[str, str]) -> None:
    """Use the settings of the configuration file; they are validated together with those of the options."""
    context.meta[_META] = dict(settings)


def kafka_settings() -> dict[str, str]:
    """Return the current command's settings by Kafka's names."""
    return dict(click.get_current_context().meta.get(_META, {}))


def security() -> "Security":
    """Return the parsed settings."""
    from onceflow.client.security import read_security

    return read_security(kafka_settings())


def open_cluster(bootstrap: str) -> "Cluster":
    """Return a client of the cluster at `bootstrap` with the current command's settings."""
    from onceflow.client.cluster import Cluster

    return Cluster(bootstrap, security=security())
