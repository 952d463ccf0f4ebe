"""Each API with and without each of its permissions, at Apache Kafka with StandardAuthorizer and at the broker."""

from collections.abc import Callable, Iterator

import pytest

from benchmarks import kafka
from onceflow.testing import BrokerProcess
from onceflow.wire.apis import APIS
from tests.compat.conftest import kafka_jars, tool
from tests.conformance import acls, guarded
from tests.conformance.comparison import Figures, differences, unlisted
from tests.conformance.conftest import KAFKAS, SETTINGS, await_coordinators
from tests.conformance.expected_differences import guarded_patterns


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of an Apache Kafka on which only 127.0.0.1 may do something."""
    tool("java", "apt install default-jdk-headless")
    directory = tmp_path_factory.mktemp("guarded") / "kafka"
    with kafka.KafkaProcess(
        directory, kafka_jars(kafka.VERSION), {**SETTINGS, **KAFKAS, **guarded.SETTINGS}
    ) as running:
        await_coordinators(running.bootstrap)
        guarded.admit_admin(running.bootstrap)
        yield running.bootstrap


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a broker with the same settings."""
    settings = {**SETTINGS, **guarded.SETTINGS}
    options = [word for name, value in settings.items() for word in (f"--{name.replace('.', '-')}", value)]
    with BrokerProcess(tmp_path_factory.mktemp("ours") / "data", 0, *options) as running:
        guarded.admit_admin(running.bootstrap)
        yield running.bootstrap


def case_name(case: guarded.GuardedCase) -> str:
    api_key, version, permissions, is_widened = case
    return f"{APIS[api_key].name} {version} with {permissions}{' of several' if is_widened else ''}"


@pytest.mark.parametrize("case", guarded.GUARDED_CASES, ids=case_name)
def test_permissions_have_the_same_effect(theirs: str, ours: str, figures: Figures, case: guarded.GuardedCase) -> None:
    api_key, version, permissions, is_widened = case

    def scenario(side: guarded.GuardedSide) -> None:
        guarded.play(side, api_key, version, permissions, is_widened=is_widened)

    compare(theirs, ours, figures, case_name(case), scenario)


@pytest.mark.parametrize("case", acls.CASES)
def test_invalid_acls_and_filters(theirs: str, ours: str, figures: Figures, case: str) -> None:
    compare(theirs, ours, figures, case, acls.CASES[case])


def compare(
    theirs: str, ours: str, figures: Figures, name: str, scenario: Callable[[guarded.GuardedSide], None]
) -> None:
    """Run a scenario on both brokers and fail for a difference that is not expected."""
    steps = []
    for bootstrap in (theirs, ours):
        with guarded.played(bootstrap, name) as side:
            scenario(side)
            steps.append(side.steps)
    differing = differences(*steps)
    figures.count(steps[1], differing)
    lines = unlisted(differing, guarded_patterns(name))
    if lines:
        pytest.fail("\n".join(f"unexpected: {line}" for line in lines), pytrace=False)
