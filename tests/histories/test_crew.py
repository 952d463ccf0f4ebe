"""Workers that run together: a hung one is replaced and fenced off, an error of one is raised."""

import threading

import pytest

from tests.histories.crew import Crew
from tests.histories.workers import Run, Worker

HANG_S = 0.05
WITHIN_S = 60


class Step(Worker):
    """Completes steps without a client."""

    def open(self) -> None:
        """No client is needed."""

    def step(self) -> None:
        self.work.copied.set()


class HangingOnce(Step):
    """Its first worker hangs until the run stops."""

    def step(self) -> None:
        if self.work.next_value() == 0:
            self.work.stopping.wait(WITHIN_S)
        else:
            super().step()


class HangingTwice(Step):
    """The first two workers hang until the run stops."""

    def step(self) -> None:
        if self.work.next_value() < 2:
            self.work.stopping.wait(WITHIN_S)
        else:
            super().step()


class Kept(HangingTwice):
    """Its records would be missing in the history."""

    may_be_abandoned = False


class Failing(Step):
    """Fails with an error that no client raises."""

    def step(self) -> None:
        raise ZeroDivisionError


def test_hung_worker_is_replaced() -> None:
    work, ended = Run("", 0), threading.Event()
    with Crew(work, [HangingOnce], ended, HANG_S) as crew:
        assert work.copied.wait(WITHIN_S)
    first, *others = crew.all
    assert first.is_replaced and first.is_alive()
    assert {worker.name for worker in others} == {first.name}
    work.stopping.set()
    first.join(WITHIN_S)


def test_workers_without_limit_are_not_replaced() -> None:
    work, ended = Run("", 0), threading.Event()
    with Crew(work, [HangingOnce, Step], ended) as crew:
        assert work.copied.wait(WITHIN_S)
        work.stopping.set()
    assert len(crew.all) == 2


def test_a_worker_with_unknown_sends_stays() -> None:
    work, ended = Run("", 0), threading.Event()
    with Crew(work, [Kept, HangingTwice], ended, HANG_S) as crew:
        assert work.copied.wait(WITHIN_S)
        assert [worker.is_replaced for worker in crew.all] == [False, True, False]
        work.stopping.set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_error_of_a_worker_is_raised() -> None:
    with pytest.raises(ZeroDivisionError), Crew(Run("", 0), [Failing], threading.Event()):
        pass
