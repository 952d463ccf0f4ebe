"""`--metrics-host` and `--metrics-port` of commands."""

import logging

from onceflow.listening import is_loopback

logger = logging.getLogger(__name__)


def warn_if_open(host: str, port: int) -> None:
    """Log a warning if other machines can read the metrics."""
    if not is_loopback(host):
        logger.warning(
            "metrics on %s:%d are open to other machines without authentication: they name topics and groups; keep them"
            " inside a trusted network",
            host,
            port,
        )
