"""What was learnt of drafts, from one run to the next."""

from pathlib import Path

import msgspec
import pytest

from edgechat.engine.drafting import Drafter
from edgechat.engine.speculation.calibration import Calibration, Learnt, LearntBin
from edgechat.engine.speculation.cost import CostTable, StepCost
from edgechat.engine.speculation.keeping import MAX_FILE_BYTES, AcceptanceFile
from edgechat.engine.speculation.proposal import Draft, Source
from tests.edgechat.engine.drafts import restless
from tests.edgechat.engine.harness import Bench
from tests.edgechat.scripted_runtime import ScriptedRuntime

INFO = ScriptedRuntime().info
OTHER = msgspec.structs.replace(INFO, fingerprint="other")


def draft(source: Source = Source.NGRAM, confidence: float = 0.6) -> Draft:
    return Draft(7, source, confidence)


def taught(n: int = 200, stood: int = 0) -> Calibration:
    calibration = Calibration()
    for _ in range(n):
        calibration.learn([draft()], stood, 1)
    return calibration


def test_the_next_run_believes_what_was_learnt(tmp_path: Path) -> None:
    AcceptanceFile(str(tmp_path), INFO).write(taught())
    again = AcceptanceFile(str(tmp_path), INFO).read()
    assert again.mean(Source.NGRAM) < 0.05
    assert again.acceptance(draft(), 0) < 0.1 < Calibration().acceptance(draft(), 0)
    (kept,) = tmp_path.iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    assert kept.stat().st_size < MAX_FILE_BYTES


def test_but_less_firmly_than_what_it_sees() -> None:
    """A bin's weight is KEPT at most, so that it takes so many drafts to outweigh it."""
    learnt = taught().learnt()
    again = Calibration(learnt)
    assert max(one.weight for one in learnt.bins) > Calibration.KEPT
    assert max(one.weight for one in again.learnt().bins) == pytest.approx(Calibration.KEPT)
    before = again.acceptance(draft(), 0)
    for _ in range(16):
        again.learn([draft()], 1, 1)
    assert again.acceptance(draft(), 0) > max(0.4, before)


def test_each_pair_of_models_has_its_own(tmp_path: Path) -> None:
    AcceptanceFile(str(tmp_path), INFO).write(taught())
    for other in (AcceptanceFile(str(tmp_path), OTHER), AcceptanceFile(str(tmp_path), INFO, OTHER)):
        assert other.read().learnt() == Learnt()
    AcceptanceFile(str(tmp_path), INFO, OTHER).write(taught(stood=1))
    assert len(list(tmp_path.iterdir())) == 2
    assert AcceptanceFile(str(tmp_path), INFO).read().mean(Source.NGRAM) < 0.05


GOOD = Learnt((LearntBin(Source.NGRAM, 0, 3, 10.0, 4.0),), {Source.NGRAM: 0.5}, {Source.NGRAM: 0.4})


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b'{"bins":[["ngram",0,3,10.0,11.0]]}',
        b'{"bins":[["ngram",9,3,10.0,4.0]]}',
        b'{"bins":[["ngram",0,-1,10.0,4.0]]}',
        b'{"bins":[["nobody",0,3,10.0,4.0]]}',
        b'{"shift":{"ngram":1e9}}',
        b'{"mean":{"ngram":2}}',
        b'{"mean":{"ngram":NaN}}',
        b" " * (MAX_FILE_BYTES + 1),
    ],
)
def test_a_damaged_file_is_ignored(tmp_path: Path, damage: bytes) -> None:
    file = AcceptanceFile(str(tmp_path), INFO)
    file.write(Calibration(GOOD))
    (kept,) = tmp_path.iterdir()
    assert AcceptanceFile(str(tmp_path), INFO).read().learnt() == GOOD
    kept.write_bytes(damage)
    again = AcceptanceFile(str(tmp_path), INFO)
    assert again.read().learnt() == Learnt()
    again.write(Calibration(GOOD))
    assert AcceptanceFile(str(tmp_path), INFO).read().learnt() == GOOD


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("x")
    AcceptanceFile(str(blocked), INFO).write(taught())
    nowhere = AcceptanceFile("", INFO)
    nowhere.write(taught())
    assert nowhere.read().learnt() == Learnt()
    assert blocked.read_text() == "x"


def test_it_is_bounded() -> None:
    """A bin for each proposer, place and confidence, and no more."""
    calibration = Calibration()
    for source in Source:
        for place in range(40):
            for percent in range(101):
                calibration.learn([draft(source, percent / 100)], 1, 1, first=place)
    assert len(msgspec.json.encode(calibration.learnt())) < MAX_FILE_BYTES


def test_the_engine_saves_it_when_it_is_idle_and_at_the_end(tmp_path: Path) -> None:
    def bench() -> Bench:
        kept = AcceptanceFile(str(tmp_path), INFO)
        table = CostTable((1, 2, 3, 4), (0.05, 0.055, 0.06, 0.065))
        drafter = Drafter(StepCost(table), longest=3, calibration=kept.read(), keep=kept.write)
        return Bench(ScriptedRuntime(logits=restless), drafter=drafter)

    one = bench()
    one.ask(1, "hello", max_tokens=200)
    assert one.engine.unsaved
    one.engine.save_one()
    assert not one.engine.unsaved
    (file,) = tmp_path.iterdir()
    first = file.read_bytes()
    two = bench()
    two.ask(1, "good day", max_tokens=200)
    two.engine.save_all(1)
    assert file.read_bytes() != first
