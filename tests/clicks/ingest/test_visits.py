"""Fields that are added to events, and bots."""

import json

import pytest

from onceflow.clicks.ingest.visits import DAY_MS, AddedFields, AddressHash, Stamp, is_bot

NOON_MS = 20_000 * DAY_MS + DAY_MS // 2


@pytest.mark.parametrize(
    ("agent", "bot"),
    [
        ("Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)", True),
        ("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 HeadlessChrome/120.0.0.0 Safari/537.36", True),
        ("facebookexternalhit/1.1", True),
        ("Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:120.0) Gecko/20100101 Firefox/120.0", False),
        ("Mozilla/5.0 (Linux; Android 9; CUBOT X19) AppleWebKit/537.36 Chrome/120.0.0.0 Mobile Safari/537.36", False),
        ("curl/8.5.0", False),
        ("", False),
    ],
)
def test_bots(agent: str, bot: bool) -> None:
    assert is_bot(agent) is bot


def test_address_hash_changes_every_day() -> None:
    hashes = AddressHash()
    today = hashes.of("192.0.2.1", NOON_MS)
    assert len(today) == 16
    assert today == hashes.of("192.0.2.1", NOON_MS + DAY_MS // 2 - 1)
    assert today != hashes.of("192.0.2.2", NOON_MS)
    assert today != hashes.of("192.0.2.1", NOON_MS + DAY_MS // 2)
    assert AddressHash().of("192.0.2.1", NOON_MS) != today, "each server has its own salt"


def stamped(stamp: Stamp, event: bytes) -> bytes:
    return stamp.add(event, stamp.of("192.0.2.1", 7), 7)


def test_fields_are_appended_to_the_text() -> None:
    event = b'{"uid": "ann", "click_count": 1.0000000000000000001e0, "event_time": "5"} '
    assert stamped(Stamp(AddedFields()), event) == event.rstrip()[:-1] + b',"server_time":7}'
    assert stamped(Stamp(AddedFields(server_time="")), event) == event


@pytest.mark.parametrize("time", ["", ',"event_time":null'])
def test_missing_time_is_the_servers(time: str) -> None:
    event = f'{{"uid":"ann"{time}}}'.encode()
    assert json.loads(stamped(Stamp(AddedFields(server_time="")), event)) == {"uid": "ann", "event_time": 7}
    assert json.loads(stamped(Stamp(AddedFields("", "", "ts")), event))["ts"] == 7


def test_sender_cannot_set_added_fields() -> None:
    stamp = Stamp(AddedFields(address="visitor"))
    document = json.loads(stamped(stamp, b'{"uid":"ann","server_time":1,"visitor":"forged","event_time":5}'))
    assert document == {"uid": "ann", "event_time": 5, "server_time": 7, "visitor": document["visitor"]}
    assert document["visitor"] != "forged"
    assert "192.0.2.1" not in str(document)
