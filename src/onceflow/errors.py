"""The base class of Onceflow's own errors, and the message about a missing package."""

from pathlib import Path

from onceflow import __version__
from onceflow.remedies import Remedy


class OnceflowError(Exception):
    """An error whose message says what failed, with which value, and what to do; the command line prints it alone."""


def missing_package(user: str, package: str, extras: str) -> str:
    """Return the message that `user` needs a package, which these extras have."""
    remedy = Remedy.INSTALL_EXTRA.format(package=f"{installed_from()}[{extras}]")
    return f"{user} needs the package {package}, which is not installed; {remedy}"


def installed_from() -> str:
    """Return the checkout or wheel of this installation if it still exists, or else the wheel's name.

    Source: PEP 610, `direct_url.json`.
    """
    # Slow imports, for messages alone.
    import json
    import urllib.parse
    from importlib import metadata

    try:
        origin = metadata.distribution("onceflow").read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # It is on the path and was never installed.
        origin = None
    path = urllib.parse.unquote(urllib.parse.urlsplit(json.loads(origin)["url"]).path) if origin else ""
    return path if path and Path(path).exists() else f"onceflow-{__version__}-py3-none-any.whl"
