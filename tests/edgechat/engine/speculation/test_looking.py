"""Where looking for drafts takes a part of a step that counts: it is paid for, and left where it can't be."""

import pytest

from edgechat.engine.speculation.controller import Controller
from edgechat.engine.speculation.ledger import allowance
from edgechat.engine.speculation.proposal import Draft, Source
from edgechat.engine.speculation.round import Round
from tests.edgechat.engine.speculation.machines import V15, adversaries, controller, iid
from tests.oracles.speculation import best_fixed, fixed_speedup, simulate


@pytest.mark.parametrize("looking", [0.005, 0.05, 0.3])
@pytest.mark.parametrize("name", list(adversaries()))
@pytest.mark.parametrize(("source", "d"), [(Source.NGRAM, 0.0), (Source.MODEL, 0.1)])
def test_looking_is_paid_for_as_well(name: str, source: Source, d: float, looking: float) -> None:
    run = simulate(
        controller(V15), V15, adversaries()[name], source=source, d=d, n=1000, confidence=0.95,
        drawn=source is Source.MODEL, looking=looking,
    )  # fmt: skip
    assert run.speedup >= 0.97


@pytest.mark.parametrize("looking", [0.05, 0.3])
@pytest.mark.parametrize("a", [0.0, 0.7, 0.9, 1.0])
def test_what_looking_takes_is_told(a: float, looking: float) -> None:
    fixed = [fixed_speedup(V15, [a] * 15, k, 0.0, 1.0) / (1 + looking / V15[k + 1]) for k in range(1, 16)]
    best = max(1.0, *fixed)
    run = simulate(controller(V15), V15, iid(a, 0), n=3000, looking=looking)
    assert run.predicted == pytest.approx(run.speedup, rel=0.1)
    assert run.speedup >= 0.95 * best


def test_looks_again_after_a_pause() -> None:
    """Nothing repeats for a thousand tokens, and then everything does."""
    ours = controller(V15)
    offered: list[int] = []

    def offers(position: int) -> int:
        offered.append(position)
        return 15 if position > 1000 else 0

    run = simulate(ours, V15, lambda position, place, k: True, n=2000, offers=offers, looking=0.1)
    before = [position for position in offered if position <= 1000]
    assert 50 <= len(before) <= 10 * allowance(1000) + 1
    each = allowance(1001) - allowance(1000)
    late = (V15[2] - 1 + Controller.LOOKS * 0.1) / each  # tokens in which that is earned
    tail = best_fixed(V15, [1.0] * 15)[1] / (1 + 0.1 / V15[16])
    assert run.speedup >= 0.95 * 2000 / (1000 + allowance(1000) + late + (1000 - late) / tail)
    assert ours.stats().reason == ""


def test_a_light_look_is_always_taken() -> None:
    ours = controller(V15)
    offered: list[int] = []

    def offers(position: int) -> int:
        offered.append(position)
        return 1

    simulate(ours, V15, lambda position, place, k: False, n=500, offers=offers, looking=0.01)
    assert offered == list(range(500))
    busy = controller(V15)
    simulate(busy, V15, lambda position, place, k: False, n=500, offers=lambda position: 0, looking=0.1)
    assert busy.stats().reason == "pausing: looking for drafts took more time than they saved"


def test_steps_of_a_pause_count_as_if_each_was_recorded() -> None:
    told, recorded = controller(V15), controller(V15)
    for ours in (told, recorded):
        ours.pause()
        ours.record(Round([], 0, 0, [0], V15[1] * 0.05, looking_s=0.02))
    told.passed(60)
    for token in range(60):
        recorded.record(Round([], 0, 0, [token], V15[1] * 0.05))
    assert told.credit == pytest.approx(recorded.credit)
    before, after = recorded.stats(), told.stats()
    assert (after.rounds, after.tokens) == (before.rounds, before.tokens) == (61, 61)
    # The oldest count a little less where they are told one by one.
    assert after.speedup == pytest.approx(before.speedup, rel=1e-3)
    assert after.predicted == pytest.approx(before.predicted, rel=1e-3)


def test_a_pause_is_over_when_there_is_credit_again() -> None:
    ours = controller(V15)
    for token in range(40):  # each look takes a third of a step
        if ours.pause():
            break
        ours.plan([])
        ours.record(Round([], 0, 0, [token], V15[1] * 0.05, looking_s=0.05 / 3))
    looking = ours._look
    steps = 0
    while n_steps := ours.pause():
        assert n_steps <= Controller.LONGEST_PAUSE
        ours.passed(n_steps)
        steps += n_steps
    assert ours.credit >= Controller.LOOKS * looking + V15[2] - 1
    assert ours.credit < Controller.LOOKS * looking + V15[2] - 1 + 0.012 * Controller.LONGEST_PAUSE


DEAR = [v if k < 2 else v + 0.42 for k, v in enumerate(V15)]
"""Two tokens take 1.8 steps: what an answer may lose covers one miss, and not two."""


def test_with_little_credit_drafts_come_true_before_any_is_verified() -> None:
    ours = controller(DEAR)
    drafts = [Draft(7, Source.NGRAM, 0.99) for _ in range(15)]
    for _ in range(2):
        assert ours.plan(drafts) == 0
        assert ours.stats().reason == "waiting: the last words did not come as drafted"
        ours.record(Round([], 0, 0, [7], DEAR[1] * 0.05))
    n = ours.plan(drafts)
    assert n > 0
    ours.record(Round(drafts[:n], n, n, [7] * (n + 1), DEAR[n + 1] * 0.05))
    assert ours.plan(drafts) > 0

    wrong = controller(DEAR)
    for _ in range(5):
        assert wrong.plan(drafts) == 0
        wrong.record(Round([], 0, 0, [8], DEAR[1] * 0.05))


def test_where_two_misses_are_covered_the_first_draft_is_verified() -> None:
    assert controller(V15).plan([Draft(7, Source.NGRAM, 0.99) for _ in range(15)]) > 0


def test_computed_drafts_are_not_computed_in_vain() -> None:
    assert controller(DEAR).plan([Draft(7, Source.MODEL, 0.99) for _ in range(3)]) > 0
