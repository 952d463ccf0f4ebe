"""One broker in a case: its requests and responses, step by step."""

import dataclasses
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from onceflow.wire.apis import APIS, METADATA
from onceflow.wire.errors import ErrorCode
from onceflow.wire.frames import decode_response
from tests.broker.raw_client import RawClient, milliseconds
from tests.conformance.normal_form import ORDER_COUNTS, Names, normal_form

PATIENCE_SECONDS = 10
CLOSED = "closed the connection"
SILENT = "did not respond"
TIMEOUT = milliseconds(10_000)


class Step(NamedTuple):
    """A request's API and version, or an action on a connection, and its result."""

    what: str
    came: Any


class Side:
    """Apache Kafka or Onceflow's broker: results of `ask` are compared, those of `ask_quietly` are not."""

    def __init__(self, bootstrap: str, case: str) -> None:
        self.bootstrap = bootstrap
        self.topic = re.sub(r"[^a-z0-9-]", "-", case.lower())[:200]
        self.group = f"group of {self.topic}"
        self.steps: list[Step] = []
        self.names = Names()
        self._clients: dict[str, RawClient] = {}

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def client(self, on: str = "main") -> RawClient:
        if on not in self._clients:
            self._clients[on] = RawClient(self.bootstrap)
            self._clients[on].socket.settimeout(PATIENCE_SECONDS)
        return self._clients[on]

    def ask(self, api_key: int, version: int, *, on: str = "main", **fields: Any) -> Any:
        """Return the decoded response and record it for the comparison; None if the connection was closed."""
        self.send(api_key, version, on=on, **fields)
        return self.receive(api_key, version, on=on)

    def send(self, api_key: int, version: int, *, on: str = "main", **fields: Any) -> None:
        self.client(on).send(api_key, version, **fields)

    def receive(self, api_key: int, version: int, *, on: str = "main") -> Any:
        try:
            frame = self.client(on).receive_frame()
        except TimeoutError:
            frame = None
        if not frame:
            self.note(f"{APIS[api_key].name} {version}", CLOSED if frame == b"" else SILENT)
            self.leave(on)
            return None
        response = decode_response(api_key, version, frame)[1]
        self._note_response(api_key, version, response)
        return response

    def ask_about_own(self, api_key: int, version: int, **fields: Any) -> None:
        """Ask for a list of groups or transactions, leaving out those of other cases."""
        response = self.ask_quietly(api_key, version, **fields)
        lists = {
            field.name: tuple(entity for entity in getattr(response, field.name) if self.topic in repr(entity))
            for field in dataclasses.fields(response)
            if field.name in ("groups", "transaction_states")
        }
        self._note_response(api_key, version, dataclasses.replace(response, **lists))

    def _note_response(self, api_key: int, version: int, response: Any) -> None:
        name = APIS[api_key].name
        self.note(f"{name} {version}", normal_form(response, self.names, ordered=name in ORDER_COUNTS))

    def note(self, what: str, came: Any) -> None:
        """Record another value to compare."""
        self.steps.append(Step(what, came))

    def leave(self, on: str = "main") -> None:
        """Close a connection; the next request opens another."""
        self._clients.pop(on).close()

    def ask_quietly(self, api_key: int, version: int, *, on: str = "main", **fields: Any) -> Any:
        """Return a response that is not compared: it prepares the case."""
        response = self.client(on).ask(api_key, version, **fields)
        normal_form(response, self.names, ordered=True)
        return response

    def until(self, wanted: Callable[[Any], bool], api_key: int, version: int, **fields: Any) -> Any:
        """Repeat a request until the response is as wanted: changes that take time are not compared."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not wanted(response := self.ask_quietly(api_key, version, **fields)):
            assert time.monotonic() < deadline, (self.bootstrap, response)
            time.sleep(0.01)
        return response

    def create_topic(self, partitions: int = 1, name: str = "", **configs: str) -> str:
        """Create the case's topic on all partitions; `configs` with underscores."""
        self.client().create_topic(name or self.topic, partitions, **configs)
        return name or self.topic

    def await_changes(self) -> None:
        """Wait until the broker has applied all changes: Kafka does so in their order, after its responses."""
        name = self.create_topic(name=f"{self.topic}-last")
        self.until(
            lambda response: response.topics[0].error_code == ErrorCode.none,
            METADATA,
            4,
            topics=[{"name": name}],
            allow_auto_topic_creation=False,
        )
