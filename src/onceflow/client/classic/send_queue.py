"""Queue of an asynchronous producer and the thread that empties it."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from onceflow.client.classic.handlers import CallbackHandler, Messages
from onceflow.client.classic.messages import KeyedMessage
from onceflow.client.errors import ClientError
from onceflow.remedies import Remedy

Message = KeyedMessage[Any, Any]


class QueueFull(ClientError):
    """The queue had no space within `queue.enqueue.timeout.ms`."""


class SendQueue:
    """Queue that passes messages to `send` in batches of `batch_messages`, or after `queue_time_ms`.

    A batch that `send` refuses is not retried; its error is raised by the next `put`, or by `close`.
    """

    def __init__(
        self,
        send: Callable[[Messages], None],
        callback: CallbackHandler,
        *,
        size_messages_max: int,
        batch_messages: int,
        queue_time_ms: int,
        enqueue_timeout_ms: int,
    ) -> None:
        self._send = send
        self._callback = callback
        self._batch_messages = batch_messages
        self._queue_time_ms = queue_time_ms
        self._enqueue_timeout_ms = enqueue_timeout_ms
        self._messages: queue.Queue[Message | None] = queue.Queue(size_messages_max)
        self._errors: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="onceflow-producer", daemon=True)
        self._thread.start()

    def put(self, message: Message) -> None:
        """Queue one message. Raises QueueFull, and an earlier batch's error."""
        self._raise_error()
        message = self._callback.before_enqueue(message)
        try:
            self._messages.put(message, timeout=self._enqueue_timeout_s())
        except queue.Full:
            self._callback.after_enqueue(message, False)
            raise QueueFull(
                f"the queue of {self._messages.maxsize} messages was full for {self._enqueue_timeout_ms} ms;"
                f" {Remedy.SEND_LESS}, or {Remedy.LARGER_QUEUE}, or {Remedy.LONGER_ENQUEUE}"
            ) from None
        self._callback.after_enqueue(message, True)

    def _enqueue_timeout_s(self) -> float | None:
        # -1 waits without limit: the sending thread empties the queue as long as it lives, even if sending fails.
        return None if self._enqueue_timeout_ms < 0 else self._enqueue_timeout_ms / 1000

    def close(self) -> None:
        """Send the queued messages and end the thread. Raises a batch's error."""
        self._messages.put(None)
        self._thread.join()
        self._raise_error()

    def _raise_error(self) -> None:
        if not self._errors.empty():
            raise self._errors.get()

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch, is_open = self._gather()
            self._send_batch(batch)
        self._guarded(lambda: self._send_batch(list(self._callback.last_batch_before_close())))
        self._guarded(self._callback.close)

    def _gather(self) -> tuple[list[Message], bool]:
        """Return the next batch, and whether more may follow."""
        batch: list[Message] = []
        deadline = time.monotonic() + self._queue_time_ms / 1000
        while len(batch) < self._batch_messages:
            try:
                message = self._messages.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self._dequeued(None, batch)
                return batch, True
            if message is None:
                return batch, False
            self._dequeued(message, batch)
        return batch, True

    def _dequeued(self, message: Message | None, batch: list[Message]) -> None:
        self._guarded(lambda: batch.extend(self._callback.after_dequeuing_existing_data(message)))

    def _send_batch(self, batch: list[Message]) -> None:
        if batch:
            self._guarded(lambda: self._send(self._callback.before_sending_data(batch)))

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever a user's handler raises is raised again by put or close
            self._errors.put(error)
