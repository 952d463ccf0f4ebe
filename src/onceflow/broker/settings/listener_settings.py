"""A listener's own settings: `listener.name.NAME.SETTING`, with the listener's name in lower case."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from onceflow.broker.config import BrokerConfig, ListenerLimits, SecurityConfig
from onceflow.broker.security.jwks import JWKS_URL
from onceflow.broker.security.sasl import OAUTHBEARER
from onceflow.broker.settings.connections import LIMITS_OF_LISTENERS
from onceflow.broker.settings.fixed import FIXED
from onceflow.broker.settings.kinds import SettingRefused
from onceflow.broker.settings.security import OF_LISTENERS, SASL, SECURITY
from onceflow.broker.settings.setting import Setting

PREFIX = "listener.name."
NO_LIMITS = ListenerLimits()
VALIDATORS = tuple(
    f"org.apache.kafka.common.security.oauthbearer.{place}OAuthBearerValidatorCallbackHandler"
    for place in ("", "secured.")
)
"""Kafka's handler that verifies tokens by a key set, by both of its names."""
_BEARER_LOGIN = re.compile(r"listener\.name\..+\.oauthbearer\.sasl\.(jaas\.config|server\.callback\.handler\.class)")


def own_setting(name: str) -> tuple[str, Setting] | None:
    """Return the listener and the setting that a name with the prefix names; None if it is not such a name."""
    if not name.startswith(PREFIX):
        return None
    rest = name.removeprefix(PREFIX)
    for setting in (*OF_LISTENERS.values(), *LIMITS_OF_LISTENERS.values()):
        listener = rest.removesuffix(f".{setting.name}")
        if listener != rest:
            if setting.name.startswith("sasl.oauthbearer."):
                # Kafka's prefix of a mechanism may follow the listener's name.
                listener = listener.removesuffix(".oauthbearer")
            return listener.upper(), setting
    return None


def without_prefix(name: str) -> str:
    """Return the name of the setting that a listener's `ssl.keystore.type` or `ssl.truststore.type` overrides."""
    return next((fixed for fixed in FIXED if name.startswith(PREFIX) and name.endswith(f".{fixed}")), name)


def with_own_settings(config: BrokerConfig, overrides: Mapping[str, Mapping[str, object]]) -> BrokerConfig:
    """Return the configuration with the listeners' own settings. Raises SettingRefused for an unknown listener."""
    names = [endpoint.listener for endpoint in config.listeners]
    for listener in overrides:
        if listener not in names:
            raise SettingRefused(
                f"{PREFIX}{listener.lower()}: {listener} is not one of the listeners {', '.join(names)}"
            )
    security = {name: _security(config, name, overrides.get(name, {})) for name in names}
    for name, own in security.items():
        has_sasl = config.listener_protocols.get(name, "").startswith("SASL_")
        if has_sasl and OAUTHBEARER in own.sasl_mechanisms:
            _check_bearer(name, own)
    limits = {name: _limits(own) for name, own in overrides.items()}
    return replace(
        config,
        listener_security={name: own for name, own in security.items() if own != config.security},
        listener_limits={name: own for name, own in limits.items() if own != NO_LIMITS},
    )


def _limits(overrides: Mapping[str, object]) -> ListenerLimits:
    limits: dict[str, Any] = {path: value for path, value in overrides.items() if not path.startswith("security.")}
    return ListenerLimits(**limits)


def _check_bearer(listener: str, own: SecurityConfig) -> None:
    """Refuse OAUTHBEARER without exactly one validator. Raises SettingRefused."""
    if own.bearer_validator is None and own.bearer_keys_file is None:
        raise SettingRefused(f"listeners: {listener}: {OAUTHBEARER} needs {JWKS_URL} or sasl.oauthbearer.validator")
    if own.bearer_validator is not None and own.bearer_keys_file is not None:
        raise SettingRefused(f"listeners: {listener}: {JWKS_URL} and sasl.oauthbearer.validator exclude each other")


def _security(config: BrokerConfig, listener: str, overrides: Mapping[str, object]) -> SecurityConfig:
    own: dict[str, Any] = {
        path.removeprefix("security."): value for path, value in overrides.items() if path.startswith("security.")
    }
    if config.listener_protocols.get(listener) == "SASL_SSL":
        # KIP-684: clients of SASL present certificates only to a listener that asks for them itself.
        own = {"client_auth": "none"} | own
    return replace(config.security, **own)


def note_of_kafkas_login(name: str, text: str) -> str | None:
    """Return the note on a setting that Kafka needs for a mechanism and this broker does not; None for any other.

    Raises SettingRefused for a callback handler that is not Kafka's own.
    """
    if is_scram_login(name):
        return f"{name}: this broker's login; the users of SCRAM are stored by 'onceflow credential'"
    match = _BEARER_LOGIN.fullmatch(name)
    if match is None:
        return None
    if match[1] == "server.callback.handler.class" and text.strip() not in VALIDATORS:
        raise SettingRefused(f"{name}={text} is not {VALIDATORS[0]}: other callback handlers are Java classes")
    return f"{name}: {JWKS_URL} or sasl.oauthbearer.validator has what validates tokens"


def is_kafkas_login(name: str) -> bool:
    """Return whether Kafka needs this setting for a mechanism, and this broker does not."""
    return is_scram_login(name) or _BEARER_LOGIN.fullmatch(name) is not None


def is_scram_login(name: str) -> bool:
    """Return whether this is Kafka's JAAS configuration of a SCRAM listener, which has no users."""
    return re.fullmatch(r"listener\.name\..+\.scram-sha-(256|512)\.sasl\.jaas\.config", name) is not None


def settings_of_no_listener(config: BrokerConfig, given: Iterable[str]) -> list[str]:
    """Return the settings of TLS and SASL among those given if no listener uses it."""
    protocols = {config.listener_protocols[endpoint.listener] for endpoint in config.listeners}
    has_tls = any(protocol.endswith("SSL") for protocol in protocols)
    has_sasl = any(protocol.startswith("SASL_") for protocol in protocols)
    unused = {setting.name for setting in (() if has_tls else SECURITY)}
    unused |= {setting.name for setting in (() if has_sasl else SASL)}
    return [name for name in given if name in OF_LISTENERS and name in unused]
