"""Threads on a simulated machine with measured speeds: two AVX2 cores, SmolLM2, busy loops beside it."""

import math
import random
from collections.abc import Callable

import pytest

from edgechat.engine.threads import ThreadController

# Tokens per second by (threads, busy loops), and the share of their cores that the threads get.
SPEED = {(1, 0): 85, (2, 0): 122, (1, 1): 84, (2, 1): 45, (1, 2): 61.2, (2, 2): 19.7, (1, 4): 36, (2, 4): 6.0}
SHARE = {(1, 0): 1, (2, 0): 1, (1, 1): 1, (2, 1): 0.75, (1, 2): 0.67, (2, 2): 0.5, (1, 4): 0.4, (2, 4): 0.33}


class Machine:
    """Steps of a model on cores that others use too."""

    def __init__(
        self,
        speed: Callable[[int, int], float],
        share: Callable[[int, int], float],
        *,
        knows_cpu: bool = True,
        cores: int = 2,
        noise: float = 0.08,
        seed: int = 0,
    ) -> None:
        self.now = 0.0
        self.speed, self.share, self.knows_cpu, self.noise = speed, share, knows_cpu, noise
        self.cores = cores
        self.rng = random.Random(seed)

    def clock(self) -> float:
        return self.now

    def step(self, n: int, loops: int, slower: float = 1.0) -> tuple[float, float | None]:
        seconds = slower / self.speed(n, loops) * math.exp(self.rng.gauss(0, self.noise))
        if n + loops > self.cores and self.rng.random() < 0.1:
            seconds *= 4  # a thread was away for a whole slice
        elif self.rng.random() < 0.02:
            seconds *= 3  # something woke up
        self.now += seconds
        cpu = seconds * n * min(1.0, self.share(n, loops) * math.exp(self.rng.gauss(-0.02, 0.02)))
        return seconds, cpu if self.knows_cpu else None


def two_cores(**options: object) -> Machine:
    return Machine(lambda n, loops: SPEED[n, loops], lambda n, loops: SHARE[n, loops], **options)  # type: ignore[arg-type]


def run(
    machine: Machine,
    controller: ThreadController,
    n: int,
    loops: Callable[[float], int],
    slower: Callable[[int], float] = lambda i: 1.0,
) -> tuple[float, int]:
    """Tokens per second over `n` steps, and how often the number of threads changed."""
    start, changes, last = machine.now, 0, controller.n_threads
    for i in range(n):
        controller.observe(*machine.step(last, loops(machine.now), slower(i)))
        changes += controller.n_threads != last
        last = controller.n_threads
    return n / (machine.now - start), changes


def fixed(machine: Machine, n_threads: int, n: int, loops: int) -> float:
    start = machine.now
    for _ in range(n):
        machine.step(n_threads, loops)
    return n / (machine.now - start)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("knows_cpu", [True, False])
def test_idle(seed: int, knows_cpu: bool) -> None:
    machine = two_cores(seed=seed, knows_cpu=knows_cpu)
    speed, _ = run(machine, ThreadController(2, clock=machine.clock), 1500, lambda now: 0)
    assert speed >= 0.97 * fixed(machine, 2, 1500, 0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("loops", "least"), [(1, 1.6), (2, 2.5), (4, 4.0)])
def test_busy_from_the_start(seed: int, loops: int, least: float) -> None:
    machine = two_cores(seed=seed)
    speed, changes = run(machine, ThreadController(2, clock=machine.clock), 400, lambda now: loops)
    assert speed >= least * fixed(machine, 2, 400, loops)
    assert speed >= 0.8 * fixed(machine, 1, 400, loops)
    assert changes <= 20


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("loops", "least"), [(2, 2.3), (4, 4.0)])
def test_busy_from_some_time_on_without_cpu_times(seed: int, loops: int, least: float) -> None:
    machine = two_cores(seed=seed, knows_cpu=False)
    controller = ThreadController(2, clock=machine.clock)
    run(machine, controller, 200, lambda now: 0)
    speed, _ = run(machine, controller, 600, lambda now: loops)
    assert speed >= least * fixed(machine, 2, 600, loops)


@pytest.mark.parametrize("knows_cpu", [True, False])
@pytest.mark.parametrize("loops", [1, 2, 4])
def test_load_comes_and_goes(loops: int, knows_cpu: bool) -> None:
    machine = two_cores(seed=3, knows_cpu=knows_cpu)
    controller = ThreadController(2, clock=machine.clock)
    for _ in range(3):
        start = machine.now
        run(machine, controller, 600, lambda now: loops)
        if controller.n_threads == 2:  # on trial: it goes back
            run(machine, controller, 8, lambda now: loops)
        assert controller.n_threads == 1
        assert controller.busy
        end = machine.now
        speed, _ = run(machine, controller, 4000, lambda now: 0)
        assert controller.n_threads == 2
        assert speed >= (0.93 if knows_cpu else 0.85) * SPEED[2, 0] * 0.93  # the machine's own hiccups
        assert machine.now > end > start


def test_a_growing_context_is_no_load() -> None:
    for knows_cpu in (True, False):
        machine = two_cores(seed=1, knows_cpu=knows_cpu)
        controller = ThreadController(2, clock=machine.clock)
        _, changes = run(machine, controller, 4000, lambda now: 0, slower=lambda i: 1 + i / 1000)
        assert controller.n_threads == 2
        assert changes <= (0 if knows_cpu else 6)


def test_the_step_width_is_no_load() -> None:
    machine = two_cores(seed=1)
    controller = ThreadController(2, clock=machine.clock)
    for i in range(500):
        width = 1 + i % 5
        seconds, cpu = machine.step(2, 0, slower=width)
        assert controller.observe(seconds, cpu, work=width) == 2


def big(n: int, loops: int) -> float:
    """Eight cores: seven threads are as fast as eight, and losing a core costs more than it brings."""
    base = 10 * min(n, 7) ** 0.8
    return base if n + loops <= 8 else base * 8 / (n + loops) * 0.35


def big_share(n: int, loops: int) -> float:
    return min(1.0, 8 / (n + loops))


@pytest.mark.parametrize("loops", [0, 1, 3, 6, 12])
def test_eight_cores(loops: int) -> None:
    machine = Machine(big, big_share, cores=8, noise=0.05)
    controller = ThreadController(8, clock=machine.clock)
    run(machine, controller, 1500, lambda now: loops)
    speed, changes = run(machine, controller, 1500, lambda now: loops)
    best = max(fixed(machine, n, 1500, loops) for n in range(1, 9))
    assert speed >= 0.9 * best
    assert changes <= 60


# Seen on two cores where the others share one: a thread of ours has the other to itself, and two collapse.
ALONE = {(1, 0): 66, (2, 0): 100, (1, 2): 66, (2, 2): 5.0, (1, 4): 66, (2, 4): 0.3}
ALONE_SHARE = {(1, 0): 1, (2, 0): 1, (1, 2): 1, (2, 2): 0.5, (1, 4): 1, (2, 4): 0.5}


@pytest.mark.parametrize("loops", [2, 4])
def test_a_core_to_itself_is_no_room_for_two(loops: int) -> None:
    """The share says that all is well; that no core is idle says what a second thread would find."""
    machine = Machine(lambda n, m: ALONE[n, m], lambda n, m: ALONE_SHARE[n, m])
    idle = {"loops": loops}

    def idle_clock() -> float:
        return machine.now * (0 if idle["loops"] else 2 - controller.n_threads)

    controller = ThreadController(2, clock=machine.clock, idle_clock=idle_clock)
    run(machine, controller, 10, lambda now: loops)
    assert controller.n_threads == 1
    assert machine.now < 12  # the second step with two threads would take as long again
    _, changes = run(machine, controller, 3000, lambda now: loops)
    assert (controller.n_threads, changes) == (1, 0)
    idle["loops"] = 0
    began = machine.now
    run(machine, controller, 200, lambda now: 0)
    assert controller.n_threads == 2
    assert machine.now - began < 3


def test_a_trial_of_more_threads_ends_at_the_first_dreadful_step() -> None:
    machine = Machine(lambda n, m: ALONE[n, m], lambda n, m: ALONE_SHARE[n, m], noise=0)
    controller = ThreadController(2, clock=machine.clock)
    run(machine, controller, 300, lambda now: 2)
    trials = []
    for _ in range(2000):
        before = controller.n_threads
        seconds, cpu = machine.step(before, 4)
        controller.observe(seconds, cpu)
        if before == 2:
            trials.append(controller.n_threads)
    assert trials
    assert set(trials) == {1}  # never two such steps in a row


def test_prefill_is_judged_by_few_long_slices() -> None:
    machine = two_cores(seed=2)
    controller = ThreadController(2, window=2, trial=1, settle=0, clock=machine.clock)
    for _ in range(40):
        seconds, cpu = machine.step(controller.n_threads, 2, slower=512)
        controller.observe(seconds, cpu, work=512)
    assert controller.n_threads == 1


def test_work_after_a_pause_begins_anew() -> None:
    machine = two_cores(seed=2)
    controller = ThreadController(2, clock=machine.clock)
    run(machine, controller, 400, lambda now: 2)
    assert controller.n_threads == 1
    machine.now += 600
    run(machine, controller, 40, lambda now: 0)
    assert controller.n_threads == 2


def test_one_core_and_bad_numbers() -> None:
    machine = two_cores()
    controller = ThreadController(1, clock=machine.clock)
    run(machine, controller, 100, lambda now: 2)
    assert controller.n_threads == 1
    with pytest.raises(ValueError, match="give 1 or more"):
        ThreadController(0)
