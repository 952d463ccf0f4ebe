"""Listener and login with which this broker connects to the others of its cluster."""

from onceflow.broker.config import PLAINTEXT, BrokerConfig, Login, SecurityConfig
from onceflow.broker.security.sasl import PLAIN


def listener_of_others(config: BrokerConfig) -> str | None:
    """Return the name of the listener of other brokers that this one connects to; None: their first PLAINTEXT one."""
    if config.inter_broker_listener is None and config.inter_broker_protocol != PLAINTEXT:
        return config.inter_broker_protocol
    return config.inter_broker_listener


def login_at_others(security: SecurityConfig, mechanism: str) -> Login | None:
    """Return this broker's login at the others with a mechanism of SASL."""
    logins = {
        PLAIN: security.plain_login,
        "SCRAM-SHA-256": security.scram_256_login,
        "SCRAM-SHA-512": security.scram_512_login,
    }
    return logins[mechanism]
