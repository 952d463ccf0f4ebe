"""Settings of the connections between the brokers of a cluster."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onceflow.broker.config import PLAINTEXT, PROTOCOLS, BrokerConfig
from onceflow.broker.security.logins import listener_of_others, login_at_others
from onceflow.broker.security.sasl import PLAIN
from onceflow.broker.settings.kinds import Choice, SettingRefused
from onceflow.broker.settings.setting import Setting
from onceflow.wire.scram import BY_NAME


@dataclass(frozen=True)
class ListenerName:
    """The name of a listener, in any case."""

    kafka_type = 2
    metavar = "NAME"
    allowed = "the name of a listener"

    def read(self, text: str) -> str:
        if not text:
            raise ValueError(f"is not {self.allowed}")
        return text.upper()

    def write(self, value: object) -> str:
        return str(value)


INTER_BROKER: tuple[Setting, ...] = (
    Setting(
        "inter.broker.listener.name",
        "inter_broker_listener",
        ListenerName(),
        "Listener of the other brokers that this one connects to, and of which it uses the certificates and the login."
        " Default: the first with the protocol PLAINTEXT. Used with zookeeper.connect.",
    ),
    Setting(
        "security.inter.broker.protocol",
        "inter_broker_protocol",
        Choice({protocol: protocol for protocol in PROTOCOLS}),
        "Security protocol between brokers; the listener has the same name. Not together with"
        " inter.broker.listener.name.",
    ),
    Setting(
        "sasl.mechanism.inter.broker.protocol",
        "inter_broker_mechanism",
        Choice({name: name for name in (PLAIN, *BY_NAME)}),
        "Mechanism of SASL between brokers. User and password are in plain.sasl.jaas.config or in that of SCRAM, with"
        " the prefix of the listener. Kafka's default is GSSAPI.",
    ),
)


def check_inter_broker_listener(config: BrokerConfig, given: Mapping[str, str]) -> None:
    """Refuse a listener of other brokers that Kafka would refuse (KafkaConfig). Raises SettingRefused."""
    names = [endpoint.listener for endpoint in config.listeners]
    if "inter.broker.listener.name" in given and "security.inter.broker.protocol" in given:
        raise SettingRefused("inter.broker.listener.name and security.inter.broker.protocol exclude each other")
    if config.inter_broker_listener is not None and config.inter_broker_listener not in names:
        raise SettingRefused(
            f"inter.broker.listener.name={config.inter_broker_listener} is not one of the listeners {', '.join(names)}"
        )
    if config.inter_broker_protocol != PLAINTEXT and config.inter_broker_protocol not in names:
        raise SettingRefused(
            f"security.inter.broker.protocol={config.inter_broker_protocol} needs a listener of that name; the"
            f" listeners are {', '.join(names)}"
        )
    if config.zookeeper_connect is not None:
        _check_login(config)


def _check_login(config: BrokerConfig) -> None:
    name = listener_of_others(config)
    protocols = {endpoint.listener: config.listener_protocols[endpoint.listener] for endpoint in config.listeners}
    if name is None:
        if PLAINTEXT not in protocols.values():
            raise SettingRefused(
                "zookeeper.connect needs a listener for other brokers: one with the protocol PLAINTEXT, or that of"
                " inter.broker.listener.name"
            )
        return
    if not protocols[name].startswith("SASL_"):
        return
    mechanism = config.inter_broker_mechanism
    if mechanism is None:
        raise SettingRefused(
            f"inter.broker.listener.name={name}: the protocol {protocols[name]} needs"
            " sasl.mechanism.inter.broker.protocol"
        )
    security = config.security_of(name)
    if mechanism not in security.sasl_mechanisms:
        raise SettingRefused(
            f"sasl.mechanism.inter.broker.protocol={mechanism} is not one of sasl.enabled.mechanisms="
            f"{','.join(security.sasl_mechanisms)} of the listener {name}"
        )
    if login_at_others(security, mechanism) is None:
        raise SettingRefused(
            f"sasl.mechanism.inter.broker.protocol={mechanism} needs username and password in"
            f" listener.name.{name.lower()}.{mechanism.lower()}.sasl.jaas.config"
        )


def settings_of_no_cluster(config: BrokerConfig, given: Iterable[str]) -> list[str]:
    """Return the settings of connections between brokers among those given if there is one broker."""
    names = {setting.name for setting in INTER_BROKER} | {"ssl.endpoint.identification.algorithm"}
    return [name for name in given if name in names and config.zookeeper_connect is None]
