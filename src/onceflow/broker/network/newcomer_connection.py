"""A connection whose client must be authenticated: until it is admitted, it reads when it is its turn."""

from onceflow.broker.network.connection import Connection
from onceflow.broker.security.principal import KafkaPrincipal


class NewcomerConnection(Connection):
    """A connection that waits for its turn among the newcomers before each read."""

    __slots__ = ()

    def _on_readable(self) -> None:
        if self._newcomers is None:
            self._read_now()
            return
        # Without its reader the loop does not report the same bytes in every turn.
        self._loop.remove_reader(self.fileno())
        self._wait_for_turn()

    def admit(self, principal: KafkaPrincipal) -> None:
        """Read without turns from now on; a turn that it waits for does not come any more."""
        super().admit(principal)
        if self._is_reading:
            self._resume_reading()

    def _wait_for_turn(self) -> None:
        if self._newcomers is not None:
            self._newcomers.do_soon(self, self._take_turn)

    def _take_turn(self) -> None:
        if self._is_reading and not self._waits_for_memory:
            self._loop.add_reader(self.fileno(), self._on_readable)
            self._read_now()

    def _read_now(self) -> None:
        super()._on_readable()
