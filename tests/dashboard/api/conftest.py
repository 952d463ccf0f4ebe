"""One page server with counted and archived events for all tests of the API that change nothing."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.conftest import RedisProcess
from tests.dashboard.conftest import running_page
from tests.dashboard.events_of_two_days import Counted, Event, count_and_archive
from tests.dashboard.test_app import get


@dataclass(frozen=True)
class Api:
    """Client of the API of one page server."""

    url: str
    events: list[Event]

    def get(self, path: str, **parameters: Any) -> tuple[int, dict[str, str], Any]:
        """Return status, headers and content; a list is a repeated parameter, and `since` is `from`."""
        named = {"from" if name == "since" else name: value for name, value in parameters.items()}
        query = urlencode([(k, v) for k, value in named.items() for v in (value if type(value) is list else [value])])
        status, headers, body = get(self.url, f"/api/v1/{path}?{query}")
        is_json = headers["content-type"].startswith("application/json")
        return status, headers, json.loads(body) if is_json else body.decode()

    def rows(self, path: str, **parameters: Any) -> Any:
        """Return the content of a response with status 200."""
        status, _, content = self.get(path, **parameters)
        assert status == 200, content
        return content


@pytest.fixture(scope="session")
def two_days_counted(bootstrap: str, redis_server: RedisProcess, tmp_path_factory: pytest.TempPathFactory) -> Counted:
    directory = tmp_path_factory.mktemp("two-days")
    return count_and_archive(bootstrap, redis_server.url, directory.name, directory)


@pytest.fixture(scope="session")
def api(two_days_counted: Counted) -> Iterator[Api]:
    with running_page(two_days_counted.addresses, archive=two_days_counted.archive) as running:
        yield Api(running.url, list(two_days_counted.events))
