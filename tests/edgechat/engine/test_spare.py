"""What others leave of the machine, on clocks of our own."""

import pytest

from edgechat.engine.spare import Spare


class Machine:
    def __init__(self) -> None:
        self.now = self.idle = self.cpu = 100.0
        self.free_now: int | None = None
        self.glances: list[int] = []  # what is free at each, before `free_now` is
        self.slept = 0.0
        self.spare = Spare(
            lambda: self.idle,
            free_now=lambda: self.glances.pop(0) if self.glances else self.free_now,
            clock=lambda: self.now,
            cpu_clock=lambda: self.cpu,
            sleep=self.sleep,
        )

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def go(self, seconds: float, *, idle: float, ours: float = 0.0) -> None:
        self.now += seconds
        self.idle += seconds * idle
        self.cpu += seconds * ours


def test_idle_cores_and_our_own_are_there_for_us() -> None:
    machine = Machine()
    machine.go(2.0, idle=1.25, ours=0.5)
    assert machine.spare.look(2) == pytest.approx((1.75, 2.0))
    machine.go(2.0, idle=0.0, ours=0.25)
    assert machine.spare.look(2) == pytest.approx((1.0, 4.0))


def test_a_mark_begins_anew() -> None:
    machine = Machine()
    machine.go(60.0, idle=0.0)
    machine.spare.mark()
    machine.go(1.0, idle=2.0)
    assert machine.spare.look(2) == pytest.approx((2.0, 1.0))


def test_a_moment_says_nothing() -> None:
    machine = Machine()
    machine.go(0.05, idle=0.0)
    assert machine.spare.look(2) is None


def test_others_that_have_gone_are_not_counted() -> None:
    machine = Machine()
    machine.go(600.0, idle=0.0)
    machine.free_now = 2
    assert machine.spare.look(2) == (2, 600.0)


def test_others_that_came_this_moment_are_not_counted() -> None:
    machine = Machine()
    machine.go(5.0, idle=1.875)
    machine.free_now = 0
    assert machine.spare.look(2) == pytest.approx((1.875, 5.0))


def test_who_runs_for_a_moment_only_is_not_counted() -> None:
    """Such as whoever asked, or threads that spin on for a while after their work."""
    machine = Machine()
    machine.go(5.0, idle=0.1)
    machine.glances = [0, 1, 1]
    machine.free_now = 2
    assert machine.spare.look(2) == (2, 5.0)
    assert machine.slept == pytest.approx(3 * Spare.BETWEEN_S)


@pytest.mark.parametrize(
    ("idle", "free", "seen", "slept"), [(0.1, 0, 0.1, 4), (1.9, 0, 1.9, 0), (0.1, None, 0.1, 0)]
)
def test_who_runs_on_is_counted(idle: float, free: int | None, seen: float, slept: int) -> None:
    """And nobody waits where there is nothing to be learnt."""
    machine = Machine()
    machine.go(5.0, idle=idle)
    machine.free_now = free
    assert machine.spare.look(2) == pytest.approx((seen, 5.0))
    assert machine.slept == pytest.approx(slept * Spare.BETWEEN_S)
