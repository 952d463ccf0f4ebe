"""API keys and the origins that may use them."""

from pathlib import Path

import pytest

from onceflow.clicks.ingest.access import Access, ApiKey, WrongKeys, read_keys

KEYS = """
[keys.shop]
key = "pub"
origins = ["https://shop.example", "http://localhost:8000"]
events_per_second = 500

[keys.backend]
key = "secret"

[keys.open]
key = "all"
origins = ["*"]
"""


def keys_of(directory: Path, text: str) -> Access:
    path = directory / "keys.toml"
    path.touch(0o600)
    path.write_text(text)
    return read_keys(path)


def test_keys_of_a_file(tmp_path: Path) -> None:
    access = keys_of(tmp_path, KEYS)
    assert access.key("pub") == ApiKey("shop", ("https://shop.example", "http://localhost:8000"), 500)
    assert access.key("secret") == ApiKey("backend")
    assert access.key("") is access.key("shop") is None
    assert [key.name for key in access.keys] == ["shop", "backend", "open"]


@pytest.mark.parametrize(
    ("secret", "origin", "allowed"),
    [
        ("pub", "https://shop.example", True),
        ("pub", "https://shop.example.evil.example", False),
        ("pub", "null", False),
        ("pub", None, False),
        ("secret", None, True),
        ("secret", "https://shop.example", False),
        ("all", "https://any.example", True),
        ("all", None, False),
    ],
)
def test_origins(secret: str, origin: str | None, allowed: bool, tmp_path: Path) -> None:
    key = keys_of(tmp_path, KEYS).key(secret)
    assert key is not None
    assert key.allows(origin) is allowed


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        ("http://localhost:8000", True),
        ("http://127.0.0.1", True),
        ("https://[::1]:8443", True),
        ("https://shop.example", False),
        ("http://localhost.evil.example", False),
        ("null", False),
        ("http://[", False),
        ("", False),
    ],
)
def test_without_keys_only_this_machine(origin: str | None, allowed: bool) -> None:
    access = Access()
    key = access.key("")
    assert key is not None
    assert key.allows(origin) is allowed
    assert origin is None or access.knows(origin) is allowed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keys = ", "cannot read the keys in .*keys.toml: Invalid value"),
        ("", "has no keys; expected tables such as"),
        ("[keys]", "has no keys"),
        ("[other.shop]\nkey = 'k'", "has no keys"),
        ("[keys.a]\nkey = 'k'\n[keys.b]\nkey = 'k'", r"\[keys.b\] has the same key as \[keys.a\]"),
        ("[keys.a]\norigins = []", r"\[keys.a\] has no key"),
        ("[keys.a]\nkey = ''", r"\[keys.a\] has no key"),
        ("[keys.a]\nkey = 'k'\norigin = 'https://a.example'", "may have only events_per_second, key, origins"),
        ("[keys.a]\nkey = 'k'\norigins = ['https://a.example/']", "has an invalid origin"),
        ("[keys.a]\nkey = 'k'\norigins = 'https://a.example'", "has an invalid origin"),
        ("[keys.a]\nkey = 'k'\norigins = ['https://A.example']", "has an invalid origin"),
        ("[keys.a]\nkey = 'k'\nevents_per_second = -1", "invalid events_per_second: -1"),
        ("[keys.a]\nkey = 'k'\nevents_per_second = true", "invalid events_per_second: True"),
        ("[keys]\na = 1", "may have only"),
    ],
)
def test_wrong_files(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(WrongKeys, match=message):
        keys_of(tmp_path, text)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(WrongKeys, match=r"cannot read the keys in .*missing\.toml: .*No such file"):
        read_keys(tmp_path / "missing.toml")
