"""Threads that follow the machine, as the engine sets them."""

from edgechat.engine.engine import Engine
from edgechat.engine.pace import Pace
from edgechat.engine.spare import Spare
from tests.edgechat.engine.harness import Bench, Clock
from tests.edgechat.scripted_runtime import ScriptedRuntime


class Crowded(ScriptedRuntime):
    """Two cores; a step with two threads takes ten times as long as with one, and gets half of its cores."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = (2, 2)
        self.calls: list[tuple[int, int]] = []

    def set_threads(self, n_decode: int, n_prefill: int) -> None:
        self.threads = (n_decode, n_prefill)
        self.calls.append(self.threads)


def drive(runtime: Crowded, n_tokens: int, steps: int) -> None:
    clock, cpu = Clock(), Clock()
    pace = Pace(runtime, 2, clock=clock, cpu_clock=cpu)
    for _ in range(steps):
        pace.before(n_tokens)
        threads = runtime.threads[n_tokens > 1]
        seconds = {1: 0.02, 2: 0.2}[threads]
        clock.now += seconds
        cpu.now += seconds * threads * {1: 0.99, 2: 0.5}[threads]
        pace.after(n_tokens, seconds)


def test_single_tokens_step_down_on_a_busy_machine() -> None:
    runtime = Crowded()
    drive(runtime, 1, 60)
    assert runtime.threads[0] == 1


def test_prompts_step_down_by_themselves() -> None:
    runtime = Crowded()
    drive(runtime, 64, 60)
    assert runtime.threads == (2, 1)


def test_a_few_tokens_go_with_the_single_ones() -> None:
    runtime = Crowded()
    drive(runtime, 4, 60)
    assert runtime.threads == (1, 1)


def test_nothing_is_set_without_a_reason() -> None:
    runtime = Crowded()
    clock, cpu = Clock(), Clock()
    pace = Pace(runtime, 2, clock=clock, cpu_clock=cpu)
    for n_tokens in [64, 1, 1, 1] * 50:
        pace.before(n_tokens)
        clock.now += 0.01 * n_tokens
        cpu.now += 0.01 * n_tokens * 2
        pace.after(n_tokens, 0.01 * n_tokens)
    assert runtime.calls == []


class Watched:
    """A pace on two cores of which others leave `free`."""

    def __init__(self, most: int = 2) -> None:
        self.clock, self.cpu, self.idle = Clock(), Clock(), Clock()
        self.runtime = Crowded()
        self.runtime.threads = (most, most)
        spare = Spare(self.idle, clock=self.clock, cpu_clock=self.cpu)
        self.pace = Pace(self.runtime, most, clock=self.clock, cpu_clock=self.cpu, spare=spare)

    def wait(self, seconds: float, free: float) -> None:
        self.clock.now += seconds
        self.idle.now += seconds * free

    def step(self, n_tokens: int = 1) -> tuple[int, int]:
        self.pace.before(n_tokens)
        self.clock.now += 0.02
        self.cpu.now += 0.02 * self.runtime.threads[n_tokens > 1]
        self.pace.after(n_tokens, 0.02)
        return self.runtime.threads


def test_the_first_step_has_as_many_threads_as_there_were_cores_while_loading() -> None:
    for free, threads in ((2.0, 2), (1.75, 2), (1.25, 1), (0.0, 1)):
        watched = Watched()
        watched.wait(1.0, free)
        assert watched.step() == (threads, threads)


def test_a_load_too_short_to_see_anything_says_nothing() -> None:
    watched = Watched()
    watched.wait(0.05, 0.0)
    assert watched.step(64) == (2, 2)


def test_a_step_after_a_rest_has_no_more_threads_than_there_are_cores() -> None:
    watched = Watched(8)
    watched.wait(1.0, 8.0)
    assert watched.step() == (8, 8)
    watched.pace.rest()
    watched.wait(5.0, 3.0)
    assert watched.step() == (3, 3)
    watched.pace.rest()
    watched.wait(5.0, 8.0)
    assert watched.step() == (3, 3)  # that more pay is seen by trying
    watched.pace.rest()
    watched.wait(60.0, 8.0)
    assert watched.step() == (8, 8)


def test_between_the_steps_of_an_answer_nobody_looks() -> None:
    watched = Watched()
    watched.wait(1.0, 2.0)
    watched.step()
    watched.wait(1.0, 0.0)
    assert watched.step() == (2, 2)


def test_the_engine_adapts_only_if_told_to() -> None:
    for adapt in (False, True):
        runtime = Crowded()
        runtime.info = type(runtime.info)(**{**_fields(runtime), "n_threads": 2})
        bench = Bench(runtime, adapt_threads=adapt)
        assert isinstance(bench.engine, Engine)
        bench.ask(1, "hello", max_tokens=40)
        assert (bench.engine._loop._pace is not None) == adapt


def _fields(runtime: ScriptedRuntime) -> dict[str, object]:
    return {name: getattr(runtime.info, name) for name in runtime.info.__struct_fields__}
