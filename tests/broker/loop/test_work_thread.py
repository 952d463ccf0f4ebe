"""A broker's thread: work in turn, its outcomes, and its end."""

import threading
from concurrent.futures import CancelledError

import pytest

from onceflow.broker.loop.work_thread import WorkThread


def test_work_is_done_in_turn_in_one_thread_and_failures_are_handed_back() -> None:
    thread = WorkThread("turns")
    outcomes = [thread.submit(lambda number: (number, threading.current_thread().name), n) for n in range(50)]
    failed = thread.submit(int, "x")
    assert [outcome.result(10) for outcome in outcomes] == [(number, "turns") for number in range(50)]
    with pytest.raises(ValueError, match="invalid literal"):
        failed.result(10)
    assert thread.submit(int, "7").result(10) == 7, "a failure does not end the thread"
    thread.shutdown()


def test_a_shutdown_ends_after_the_work_that_waits_or_cancels_it() -> None:
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


def test_a_thread_that_had_no_work_is_not_started() -> None:
    threads = set(threading.enumerate())
    thread = WorkThread("idle")
    assert set(threading.enumerate()) <= threads
    thread.shutdown()
    assert set(threading.enumerate()) <= threads
