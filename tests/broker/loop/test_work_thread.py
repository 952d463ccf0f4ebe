"""A worker thread of the broker: order of its work, results, and its end."""

import threading
from concurrent.futures import CancelledError

import pytest

from onceflow.broker.loop.work_thread import WorkThread


def test_work_runs_in_order_in_one_thread() -> None:
    thread = WorkThread("turns")
    outcomes = [thread.submit(lambda number: (number, threading.current_thread().name), n) for n in range(50)]
    failed = thread.submit(int, "x")
    assert [outcome.result(10) for outcome in outcomes] == [(number, "turns") for number in range(50)]
    with pytest.raises(ValueError, match="invalid literal"):
        failed.result(10)
    assert thread.submit(int, "7").result(10) == 7, "a failure does not end the thread"
    thread.shutdown()


def test_a_shutdown_finishes_or_cancels_queued_work() -> None:
    for cancels in (False, True):
        threads = set(threading.enumerate())
        thread, may_end = WorkThread("ending"), threading.Event()
        first, second = thread.submit(may_end.wait, 10), thread.submit(int, "7")
        while not first.running():
            pass
        thread.shutdown(wait=False, cancel_futures=cancels)
        with pytest.raises(RuntimeError, match="ending is shut down"):
            thread.submit(int, "8")
        may_end.set()
        thread.shutdown()
        assert first.result(0)
        assert set(threading.enumerate()) <= threads
        if cancels:
            with pytest.raises(CancelledError):
                second.result(0)
        else:
            assert second.result(0) == 7


def test_a_thread_without_work_is_not_started() -> None:
    threads = set(threading.enumerate())
    thread = WorkThread("idle")
    assert set(threading.enumerate()) <= threads
    thread.shutdown()
    assert set(threading.enumerate()) <= threads
