"""The registry for tests behaves like ZooKeeper: the same calls, with the same results."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from onceflow.testing.registry import MemoryRegistry
from onceflow.zookeeper.kazoo_session import ZooKeeper
from onceflow.zookeeper.session import (
    Check,
    Conflict,
    Create,
    Delete,
    Operation,
    OutcomeUnknown,
    Put,
    Session,
    Set,
)
from tests.broker.cluster.conftest import Tree

Open = Callable[[], Session]


@pytest.fixture(params=["in this process", "zookeeper"])
def open_session(request: pytest.FixtureRequest) -> Iterator[Open]:
    opened: list[Session] = []
    registry = MemoryRegistry()
    tree: Tree | None = request.getfixturevalue("tree") if request.param == "zookeeper" else None

    def open_one() -> Session:
        session: Session = registry.session()
        if tree is not None:
            session = ZooKeeper(tree.connect, session_timeout_ms=10_000, connection_timeout_ms=10_000)
        session.open()
        session.ensure("")
        opened.append(session)
        return session

    yield open_one
    for session in opened:
        session.close()


def outcome(session: Session, *operations: Operation) -> tuple[int, bool] | None:
    """The position of a conflict, and whether it is one of versions."""
    try:
        session.commit(operations)
    except Conflict as conflict:
        return conflict.position, conflict.is_bad_version
    return None


def test_a_write_is_applied_as_a_whole(open_session: Open) -> None:
    session = open_session()
    assert outcome(session, Create("/a", b"1"), Create("/a/b"), Set("/a", b"2", 0), Create("/a/c", b"3")) is None
    for refused, expected in (
        ([Create("/x"), Create("/a")], (1, False)),
        ([Create("/x/y")], (0, False)),
        ([Set("/x", b"")], (0, False)),
        ([Create("/x"), Set("/a", b"3", 0)], (1, True)),
        ([Check("/a", 7), Create("/x")], (0, True)),
        ([Check("/x", 0)], (0, False)),
        ([Delete("/a")], (0, False)),
        ([Delete("/a/b"), Delete("/a/b")], (1, False)),
        ([Delete("/a/c"), Create("/a/c/d")], (1, False)),
        ([Set("/a", b"3", 1), Set("/a", b"4", 1)], (1, True)),
        ([Create("/x"), Set("/x", b"", 1)], (1, True)),
        ([Delete("/a/b"), Delete("/a/c"), Create("/a/d"), Delete("/a")], (3, False)),
    ):
        assert outcome(session, *refused) == expected, refused
    assert session.tree("/a") == ["/a/c", "/a/b", "/a"] or session.tree("/a") == ["/a/b", "/a/c", "/a"]
    assert session.read("/x") is None
    assert outcome(session, Set("/a", b"3", 1), Set("/a", b"4", 2)) is None
    assert outcome(session, Check("/a", 3), Delete("/a/b"), Delete("/a/c"), Delete("/a")) is None
    assert session.tree("/a") == []


def test_values_versions_and_owners(open_session: Open) -> None:
    session = open_session()
    session.ensure("/a/b/c")
    session.commit([Create("/e", b"x", ephemeral=True), Put("/a", b"y"), Put("/new", b"z")])
    session.commit([Put("/new", b"w")])
    ephemeral, above, new, other = session.read_all(["/e", "/a", "/new", "/none"])
    assert ephemeral is not None and above is not None and new is not None and other is None
    assert (ephemeral.value, ephemeral.version, ephemeral.owner) == (b"x", 0, session.session_id)
    assert (above.value, above.version, above.owner) == (b"y", 1, 0)
    assert (new.value, new.version) == (b"w", 1)
    assert 0 < above.creation_id < new.creation_id < new.change_id
    assert session.children("/a") == ["b"]
    session.sync()


def test_sequences_count_up(open_session: Open) -> None:
    session = open_session()
    session.ensure("/s")
    session.commit([Create("/s/n_", b"1", sequence=True), Create("/s/n_", b"2", sequence=True)])
    session.commit([Delete("/s/n_0000000000"), Create("/s/n_", b"3", sequence=True)])
    assert session.children("/s") == ["n_0000000001", "n_0000000002"]


def test_watches_fire_once(open_session: Open) -> None:
    session, other = open_session(), open_session()
    session.ensure("/a")
    fired: list[str] = []
    done = threading.Event()

    def watch(name: str) -> Callable[[], None]:
        def fire() -> None:
            fired.append(name)
            if name == "last":
                done.set()

        return fire

    session.read_all(["/a", "/none"], [watch("value"), watch("none")])
    session.children("/a", watch("children"))
    other.commit([Create("/none")])
    other.commit([Set("/a", b"1")])
    other.commit([Set("/a", b"2")])
    other.commit([Create("/a/b")])
    other.commit([Create("/a/c")])
    session.read_all(["/a/b"], [watch("last")])
    other.commit([Delete("/a/b")])
    assert done.wait(20)
    assert fired == ["value", "children", "last"]


def test_ephemeral_nodes_end_with_the_session(open_session: Open) -> None:
    session, other = open_session(), open_session()
    session.commit([Create("/e", ephemeral=True)])
    assert not other.wait_until_deleted("/e", 0.01)
    assert session.is_connected
    session.close()
    assert other.wait_until_deleted("/e", 20)
    assert other.read("/e") is None
    assert other.wait_until_deleted("/e", 0)
    assert not session.is_connected
    with pytest.raises(OutcomeUnknown):
        _: Any = session.session_id


def test_a_session_ends_once() -> None:
    """A second end, after a power cut, must not delete the nodes that belong to no session."""
    registry = MemoryRegistry()
    session = registry.session()
    session.open()
    session.ensure("/a")
    session.disconnect()
    session.disconnect()
    assert registry.value("/a") == b""


def test_open_survives_a_lost_connection(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first connection may be lost before its waiter looks at it; the session lives on."""
    session = ZooKeeper(tree.connect, session_timeout_ms=10_000, connection_timeout_ms=10_000)
    with monkeypatch.context() as patch:
        patch.setattr(KazooClient, "connected", property(lambda _client: False))
        session.open()
    session.ensure("")
    assert tree.exists("")
    session.close()
