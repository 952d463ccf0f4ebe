"""The table of APIs: compared with kio's schemas, and the generated page."""

from pathlib import Path

from kio.schema.index import api_key_map

from onceflow.wire import apis
from onceflow.wire.apis import APIS
from onceflow.wire.frames import request_class, response_class


def test_the_page_is_what_the_table_says() -> None:
    written = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    assert written == apis.page(), "run: .venv/bin/python -m onceflow.wire.apis > docs/protocol.md"


def test_names_and_flexible_versions_are_kafkas() -> None:
    for api in APIS.values():
        assert api_key_map[api.key].replace("_", "") == api.name.lower()
        for version in range(api.version_min, api.version_max + 1):
            flexible = version >= api.flexible_from
            assert request_class(api.key, version).__flexible__ is flexible, (api.name, version)
            assert response_class(api.key, version).__flexible__ is flexible, (api.name, version)


def test_only_produce_is_advertised_below_served() -> None:
    assert {api.name: api.advertised_min for api in APIS.values() if api.advertised_min != api.version_min} == {
        "Produce": 0
    }
