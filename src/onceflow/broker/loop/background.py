"""Work for a thread of the broker, whose result comes back to the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import ParamSpec, TypeVar

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

Failed = Callable[[str], None]
"""Called with a reason when an unexpected error prevents the response, so that the client is not left waiting."""


def ignore_failure(_reason: str) -> None:
    """Do nothing: no connection waits for the operation, and the event loop logs the error."""


def reporting_failure(failed: Failed, callback: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Return `callback` so that it reports an error to `failed` before it raises it."""

    def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
        try:
            callback(*arguments, **named)
        except BaseException as error:
            failed(f"an operation failed: {error!r}")
            raise

    return call


def run_in_thread(
    thread: Executor,
    work: Callable[[], Result],
    done: Callable[[Result], None],
    failed: Failed = ignore_failure,
) -> None:
    """Run `work` in the thread, then `done` on the loop; an error of `work` is reported to `failed` and raised.

    Neither is called if the thread ends before it begins the work.
    """

    def finish(future: asyncio.Future[Result]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            failed(f"its work in a thread failed: {error!r}")
            raise error
        done(future.result())

    asyncio.get_running_loop().run_in_executor(thread, work).add_done_callback(finish)
