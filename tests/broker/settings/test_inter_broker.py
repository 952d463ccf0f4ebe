"""Settings of the connections between brokers: what a start refuses, and what has no effect for one broker."""

import re

import pytest

from onceflow.broker.security.logins import listener_of_others, login_at_others
from onceflow.broker.settings.kinds import SettingRefused
from onceflow.broker.settings.sources import Source, resolve

JAAS = "listener.name.in.scram-sha-512.sasl.jaas.config"
LOGIN = 'ScramLoginModule required username="broker" password="hush";'
SASL = {
    "log.dirs": "x",
    "zookeeper.connect": "z:1",
    "listeners": "OUT://h:1,IN://h:2",
    "listener.security.protocol.map": "OUT:PLAINTEXT,IN:SASL_SSL",
    "inter.broker.listener.name": "in",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
    JAAS: LOGIN,
}


def test_kafkas_names_are_read() -> None:
    config = resolve(Source(SASL)).config
    assert listener_of_others(config) == "IN"
    login = login_at_others(config.security_of("IN"), "SCRAM-SHA-512")
    assert login is not None and (login.user, login.password) == ("broker", "hush")
    assert "hush" not in repr(config)
    by_protocol = {"listeners": "SSL://h:1,PLAINTEXT://h:2", "security.inter.broker.protocol": "SSL"}
    assert listener_of_others(resolve(Source({"log.dirs": "x", **by_protocol})).config) == "SSL"
    assert listener_of_others(resolve(Source({"log.dirs": "x"})).config) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"inter.broker.listener.name": "other"},
            "=OTHER is not one of the listeners OUT, IN",
        ),
        ({"security.inter.broker.protocol": "SSL"}, "exclude each other"),
        ({"security.inter.broker.protocol": "TLS"}, "is not SASL_SSL or PLAINTEXT or SSL or SASL_PLAINTEXT"),
        ({"sasl.mechanism.inter.broker.protocol": "GSSAPI"}, "is not PLAIN or SCRAM-SHA-256 or SCRAM-SHA-512"),
        ({"sasl.mechanism.inter.broker.protocol": "PLAIN"}, "is not one of sasl.enabled.mechanisms="),
        (
            {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"},
            "in listener.name.in.scram-sha-256.sasl.jaas",
        ),
        (
            {JAAS: "ScramLoginModule required;"},
            "needs username and password",
        ),
        (
            {JAAS: LOGIN.replace("password", "pass")},
            "has unknown options: pass",
        ),
        (
            {JAAS: 'ScramLoginModule required username="a";'},
            "has only one of username and password",
        ),
        ({JAAS: LOGIN.replace("Scram", "Plain")}, "is not in the form"),
    ],
)
def test_wrong_settings_are_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(SettingRefused, match=re.escape(message)) as refused:
        resolve(Source(SASL | change))
    assert "hush" not in str(refused.value)


def test_a_cluster_needs_a_listener_between_brokers() -> None:
    given = {"log.dirs": "x", "zookeeper.connect": "z:1", "listeners": "SSL://h:1"}
    with pytest.raises(SettingRefused, match="needs a listener for other brokers"):
        resolve(Source(given))
    without = {name: text for name, text in SASL.items() if name != "sasl.mechanism.inter.broker.protocol"}
    with pytest.raises(SettingRefused, match=r"the protocol SASL_SSL needs sasl\.mechanism\.inter\.broker\.protocol"):
        resolve(Source(without))
    other = {"log.dirs": "x", "security.inter.broker.protocol": "SSL"}
    with pytest.raises(SettingRefused, match=r"security\.inter\.broker\.protocol=SSL needs a listener of that name"):
        resolve(Source(other))


def test_one_broker_has_no_use_for_them() -> None:
    given = {name: text for name, text in SASL.items() if name != "zookeeper.connect"}
    expected = ["inter.broker.listener.name", "sasl.mechanism.inter.broker.protocol"]
    assert resolve(Source(given)).without_effect == expected
    assert not resolve(Source(SASL)).without_effect
