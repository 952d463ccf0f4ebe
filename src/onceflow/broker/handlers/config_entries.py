"""Configuration entries of DescribeConfigs and CreateTopics responses: value, source, synonyms.

A topic's value comes from the topic itself, else from the broker's setting, else from that setting's default
(org.apache.kafka.server.ConfigHelper). The synonyms are the values of these sources in that order.
"""

from collections.abc import Iterable
from typing import Any

from onceflow.broker.config import BrokerConfig
from onceflow.broker.settings.table import described
from onceflow.broker.topics.configs import TOPIC_CONFIGS, TopicConfig
from onceflow.broker.topics.topics import Topic
from onceflow.log.config import LogConfig

DYNAMIC_TOPIC = 1
STATIC_BROKER = 4
DEFAULT = 5
"""DescribeConfigsResponse.ConfigSource."""

_DEFAULTS = LogConfig()


def topic_entries(
    topic: Topic, config: LogConfig, defaults: LogConfig, names: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """Return the topic's configurations, all or those in `names`; `config` is what its logs use."""
    wanted = TOPIC_CONFIGS.keys() if names is None else set(names)
    return [_topic_entry(row, topic, config, defaults) for name, row in TOPIC_CONFIGS.items() if name in wanted]


def _topic_entry(row: TopicConfig, topic: Topic, config: LogConfig, defaults: LogConfig) -> dict[str, Any]:
    default, static = row.write(_DEFAULTS), row.write(defaults)
    synonyms = [(row.broker_setting, default, DEFAULT)] if row.broker_setting else []
    if static != default:
        synonyms.insert(0, (row.broker_setting, static, STATIC_BROKER))
    own = topic.configs.get(row.name)
    if topic.is_internal and row.write(config) != static:
        # The broker configures its own topics, as Kafka's coordinators do when they create them.
        own = row.write(config)
    if own is not None:
        synonyms.insert(0, (row.name, own, DYNAMIC_TOPIC))
    _name, value, source = synonyms[0] if synonyms else (row.name, default, DEFAULT)
    return _entry(row.name, value, source, synonyms, int(row.type), row.documentation, read_only=False)


def broker_entries(config: BrokerConfig, names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Return the broker's settings, all or those in `names`; all are read-only, since they change only by a restart."""
    wanted = None if names is None else set(names)
    entries = []
    for setting in described(config):
        if wanted is None or setting.name in wanted:
            source = DEFAULT if setting.is_default else STATIC_BROKER
            is_unset = setting.is_default and setting.default is None
            synonyms = [] if is_unset else [(setting.name, setting.value, source)]
            if not setting.is_default and setting.default is not None:
                synonyms.append((setting.name, setting.default, DEFAULT))
            entries.append(
                _entry(
                    setting.name,
                    setting.value,
                    source,
                    synonyms,
                    setting.kafka_type,
                    setting.documentation,
                    read_only=True,
                    is_secret=setting.is_secret,
                )
            )
    return entries


def _entry(
    name: str,
    value: str | None,
    source: int,
    synonyms: list[tuple[str, str, int]] | list[tuple[str, str | None, int]],
    config_type: int,
    documentation: str,
    *,
    read_only: bool,
    is_secret: bool = False,
) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "read_only": read_only,
        "config_source": source,
        "is_sensitive": is_secret,
        "synonyms": [{"name": synonym, "value": text, "source": origin} for synonym, text, origin in synonyms],
        "config_type": config_type,
        "documentation": documentation,
    }
