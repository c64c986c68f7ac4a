"""Measuring V(k): what is kept, and what is not trusted."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgechat.engine.speculation.cost import CostTable
from edgechat.engine.speculation.measuring import ROUGH_S, TYPICAL, completed, draft_seconds, step_costs
from edgechat.runtimes.base import Chunk, DecodeFailed
from tests.edgechat.engine.harness import Clock
from tests.edgechat.scripted_runtime import ScriptedRuntime


class Timed(ScriptedRuntime):
    """A runtime whose batches take what they usually do."""

    def __init__(self, step_s: float = 0.01, jitter: float = 0.0) -> None:
        super().__init__(on_decode=self._take_time)
        self.clock, self.step_s, self.jitter = Clock(), step_s, jitter
        self.n_plain = 0

    def _take_time(self, batch: Sequence[Chunk]) -> None:
        width = sum(len(chunk.tokens) for chunk in batch)
        took = self.step_s * TYPICAL[width - 1]
        if width == 1:
            self.n_plain += 1
            took *= 1 + self.jitter * (self.n_plain % 2)
        self.clock.now += took


def test_measures_all_widths_and_leaves_nothing(tmp_path: Path) -> None:
    runtime = Timed()
    table = step_costs(runtime, str(tmp_path), clock=runtime.clock, seconds=60)
    assert table.widths == tuple(range(1, 17))
    assert table.seconds == pytest.approx([0.01 * v for v in TYPICAL])
    assert runtime.n_used == 0


def test_keeps_what_it_measured(tmp_path: Path) -> None:
    runtime = Timed()
    first = step_costs(runtime, str(tmp_path), clock=runtime.clock)
    again = Timed(step_s=1.0)
    assert step_costs(again, str(tmp_path), clock=again.clock) == first
    assert again.batches == []
    (kept,) = tmp_path.iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    other = Timed(step_s=1.0)
    step_costs(other, "", clock=other.clock)
    assert other.batches


@pytest.mark.parametrize("damage", [b"", b"{", b'{"widths":[2],"seconds":[1]}', b"x" * 100_000])
def test_a_damaged_file_is_measured_anew(tmp_path: Path, damage: bytes) -> None:
    runtime = Timed()
    first = step_costs(runtime, str(tmp_path), clock=runtime.clock)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(damage)
    again = Timed()
    assert step_costs(again, str(tmp_path), clock=again.clock).seconds == pytest.approx(first.seconds)
    assert again.batches


def test_what_was_measured_on_a_busy_machine_is_soon_measured_again(tmp_path: Path) -> None:
    busy = Timed(jitter=3.0)
    table = step_costs(busy, str(tmp_path), clock=busy.clock)
    soon = Timed()
    assert step_costs(soon, str(tmp_path), clock=soon.clock) == table
    (kept,) = tmp_path.iterdir()
    past = kept.stat().st_mtime - ROUGH_S - 1
    os.utime(kept, (past, past))
    later = Timed()
    assert step_costs(later, str(tmp_path), clock=later.clock).seconds[0] == pytest.approx(0.01)


def test_a_slow_model_is_not_measured_for_long(tmp_path: Path) -> None:
    runtime = Timed(step_s=0.4)
    started = runtime.clock.now
    table = step_costs(runtime, str(tmp_path), clock=runtime.clock)
    assert runtime.clock.now - started <= 0.8 + 1e-9  # the first step warms up, the second one counts
    assert table.seconds == pytest.approx([0.4 * v for v in TYPICAL])  # the usual shape


def test_what_was_not_measured_goes_on_from_the_last() -> None:
    table = completed(CostTable((1, 2, 4), (1.0, 1.2, 1.2)))
    assert table.widths == (1, 2, 4, *range(5, 17))
    assert table.seconds[:3] == (1.0, 1.2, 1.2)
    assert table.seconds[-1] == pytest.approx(1.2 * TYPICAL[15] / TYPICAL[3])
    assert completed(table) == table


def test_a_draft_model_that_fails_has_no_time() -> None:
    def fail(batch: object) -> None:
        raise DecodeFailed("no")

    assert draft_seconds(ScriptedRuntime(on_decode=fail)) is None
    seconds = draft_seconds(ScriptedRuntime())
    assert seconds is not None
    assert seconds > 0
