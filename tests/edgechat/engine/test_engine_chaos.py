"""Random requests, cancellations and failures on random machines: every request ends once, and rightly."""

from hypothesis import given, settings

from tests.edgechat.engine.chaos import Chaos, machines, scripts
from tests.edgechat.engine.harness import Bench
from tests.edgechat.scripted_runtime import ScriptedRuntime


@settings(max_examples=150, deadline=None)
@given(machines, scripts)
def test_chaos(machine: dict[str, object], script: list[tuple[object, ...]]) -> None:
    chaos = Chaos()
    bench = Bench(ScriptedRuntime(on_decode=chaos.decode, **machine), max_waiting=12)  # type: ignore[arg-type]
    chaos.play(bench, script)
    chaos.check(bench)
