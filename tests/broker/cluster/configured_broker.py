"""A broker in this process with the settings of a `server.properties`."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from onceflow.broker.settings.sources import Source, resolve
from tests.broker.driven_broker import InnerBroker


class ConfiguredBroker(InnerBroker):
    """A broker with settings by Kafka's names."""

    def __init__(self, data: Path, settings: Mapping[str, str]) -> None:
        config = resolve(Source({"log.dirs": str(data), **settings})).config
        values = {field.name: getattr(config, field.name) for field in fields(config)}
        del values["data"]
        super().__init__(data, **values)
