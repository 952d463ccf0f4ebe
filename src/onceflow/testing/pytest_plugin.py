"""pytest plugin of `pip install onceflow`: a broker per session, a topic per test.

`-p no:onceflow` disables it. It imports the broker only when a test requests one.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from onceflow.testing.cluster import Cluster
    from onceflow.testing.faults import Faults
    from onceflow.testing.in_process import Broker

DATA_OPTION = "--onceflow-data"
SETTINGS_OPTION = "onceflow_settings"
USERS_OPTION = "onceflow_users"
TLS_OPTION = "onceflow_tls"
ACLS_OPTION = "onceflow_acls"
TOPIC_MARKER = "onceflow_topic"
CLUSTER_MARKER = "onceflow_cluster"
NAME_CHARACTERS_MAX = 200
"""Maximum length of a test's name in its topic's name; Kafka allows 249 characters."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("onceflow", "Kafka-protocol broker for tests (onceflow)")
    group.addoption(
        DATA_OPTION,
        metavar="DIRECTORY",
        help="keep the data of the fixture onceflow_broker in DIRECTORY, per worker of pytest-xdist in one below it; "
        "without it the data is temporary",
    )
    parser.addini(
        SETTINGS_OPTION,
        "settings of the fixture onceflow_broker, one a line, as in server.properties: num.partitions=3",
        type="linelist",
        default=[],
    )
    parser.addini(
        USERS_OPTION,
        "users of the fixture onceflow_broker with their passwords, one a line: ada=secret; it then requires SASL",
        type="linelist",
        default=[],
    )
    parser.addini(
        ACLS_OPTION,
        "ACLs of the fixture onceflow_broker, one a line: ada Read topic:visits; nothing else is allowed then",
        type="linelist",
        default=[],
    )
    parser.addini(TLS_OPTION, "whether the fixture onceflow_broker encrypts, with generated certificates", type="bool")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{TOPIC_MARKER}(partitions=1, configs=None): how the fixture onceflow_topic creates this test's topic; "
        "configs by Kafka's names",
    )
    config.addinivalue_line(
        "markers",
        f"{CLUSTER_MARKER}(brokers=3, settings=None): what the fixture onceflow_cluster starts; by Kafka's names",
    )


@pytest.fixture(scope="session")
def onceflow_broker(request: pytest.FixtureRequest) -> "Iterator[Broker]":
    """A broker in a thread of this process, for the whole session: `onceflow_broker.bootstrap_servers`."""
    from onceflow.testing.in_process import Broker

    config = request.config
    with Broker(
        _data_path(config),
        settings=_pairs(config, SETTINGS_OPTION, "num.partitions=3"),
        users=_pairs(config, USERS_OPTION, "ada=secret"),
        tls=bool(config.getini(TLS_OPTION)),
        acls=config.getini(ACLS_OPTION) or None,
    ) as broker:
        yield broker


@pytest.fixture
def onceflow_faults(onceflow_broker: "Broker") -> "Iterator[Faults]":
    """The faults of the fixture onceflow_broker; those of this test end with it."""
    yield onceflow_broker.faults
    onceflow_broker.faults.clear()


@pytest.fixture
def onceflow_topic(request: pytest.FixtureRequest, onceflow_broker: "Broker") -> str:
    """The name of a new, empty topic for this test only, with one partition unless the marker sets another number."""
    stem = re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name)[:NAME_CHARACTERS_MAX]
    arguments = _arguments(request, TOPIC_MARKER, partitions="N", configs="{NAME: VALUE}")
    return onceflow_broker.create_topic(f"{stem}-{os.urandom(4).hex()}", **arguments)


@pytest.fixture
def onceflow_cluster(request: pytest.FixtureRequest) -> "Iterator[Cluster]":
    """A cluster of three brokers in threads of this process, for this test only, unless the marker says otherwise."""
    from onceflow.testing.cluster import Cluster

    with Cluster(**_arguments(request, CLUSTER_MARKER, brokers="N", settings="{NAME: VALUE}")) as cluster:
        yield cluster


def _arguments(request: pytest.FixtureRequest, name: str, **known: str) -> dict[str, Any]:
    """Return the arguments of a test's marker; `known` are the possible ones, with their forms."""
    marker = request.node.get_closest_marker(name)
    if marker is None:
        return {}
    if marker.args or marker.kwargs.keys() - known.keys():
        forms = " and ".join(f"{argument}={form}" for argument, form in known.items())
        raise pytest.UsageError(f"{name} takes {forms}, not {marker}")
    return dict(marker.kwargs)


def _data_path(config: pytest.Config) -> Path | None:
    directory = config.getoption(DATA_OPTION)
    if directory is None:
        return None
    worker = getattr(config, "workerinput", {}).get("workerid")
    return Path(directory, worker) if worker else Path(directory)


def _pairs(config: pytest.Config, option: str, example: str) -> dict[str, str]:
    pairs = {}
    for number, line in enumerate(config.getini(option), 1):
        name, separator, value = line.partition("=")
        if not separator:
            # The line may be a password.
            raise pytest.UsageError(f"{option}: line {number} is not NAME=VALUE, such as {example}")
        pairs[name.strip()] = value.strip()
    return pairs
