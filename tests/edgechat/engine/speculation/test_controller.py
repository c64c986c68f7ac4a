"""The controller on a simulated machine: never slow, nearly the best, and true to its word."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.engine.speculation.calibration import Calibration
from edgechat.engine.speculation.controller import Controller
from edgechat.engine.speculation.cost import CostTable, StepCost
from edgechat.engine.speculation.ledger import allowance
from edgechat.engine.speculation.proposal import Draft, Source
from edgechat.engine.speculation.round import Round
from tests.edgechat.engine.speculation.machines import V05, V15, adversaries, controller, iid
from tests.oracles.speculation import best_fixed, simulate

# --- stationary texts


@pytest.mark.parametrize("v", [V15, V05], ids=["1.5B", "0.5B"])
@pytest.mark.parametrize("a", [0.0, 0.4, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_ngrams_nearly_reach_the_best_fixed_length(v: list[float], a: float) -> None:
    best = best_fixed(v, [a] * 15)[1]
    runs = [simulate(controller(v), v, iid(a, seed), seed=seed) for seed in range(3)]
    mean = sum(run.speedup for run in runs) / len(runs)
    assert mean >= 0.95 * best
    assert min(run.speedup for run in runs) >= 0.97
    for run in runs:
        assert run.predicted == pytest.approx(run.speedup, rel=0.1)


@pytest.mark.parametrize(
    ("a", "d"), [(0.2, 0.1), (0.7, 0.2), (0.8, 0.2), (0.9, 0.1), (0.95, 0.05), (0.8, 0.45), (0.95, 0.7)]
)
@pytest.mark.parametrize("drawn", [False, True])
def test_draft_models_nearly_reach_the_best_fixed_length(a: float, d: float, drawn: bool) -> None:
    best = best_fixed(V15, [a] * 15, d)[1]
    runs = [
        simulate(controller(V15), V15, iid(a, seed), source=Source.MODEL, d=d, drawn=drawn, seed=seed, n=4000)
        for seed in range(3)
    ]
    mean = sum(run.speedup for run in runs) / len(runs)
    assert mean >= 0.95 * best
    assert min(run.speedup for run in runs) >= 0.97
    for run in runs:
        assert run.predicted == pytest.approx(run.speedup, rel=0.1)


@pytest.mark.parametrize("offered", [0.1, 0.5])
def test_drafts_that_come_only_sometimes(offered: float) -> None:
    """Long quotes between stretches without any match."""
    best = best_fixed(V15, [0.93] * 15, offered=offered)[1]
    runs = []
    for seed in range(6):
        rng = random.Random(seed)
        run = simulate(
            controller(V15),
            V15,
            iid(0.93, seed),
            offers=lambda position: 15 if rng.random() < offered else 0,  # noqa: B023
            seed=seed,
        )
        runs.append(run.speedup)
    assert sum(runs) / len(runs) >= 0.95 * best


def test_confidence_is_used() -> None:
    """Drafts of high confidence stand, others don't: better than any length that ignores it."""

    def run(confidences: tuple[float, float]) -> float:
        ours = controller(V15)
        position = steps = 0.0
        rng = random.Random(0)
        for _ in range(1500):
            sure = rng.random() < 0.5
            drafts = [Draft(i, Source.NGRAM, confidences[0] if sure else confidences[1]) for i in range(15)]
            k = ours.plan(drafts)
            accepted = 0
            while accepted < k and rng.random() < (0.97 if sure else 0.1):
                accepted += 1
            tokens = [drafts[i].token for i in range(accepted)] + [0 if sure and accepted == 0 else -1]
            ours.cost.observe(k + 1, V15[k + 1] * 0.05)
            ours.record(Round(drafts[:k], accepted, min(k, accepted + 1), tokens, V15[k + 1] * 0.05))
            position += accepted + 1
            steps += V15[k + 1]
        return position / steps

    assert run((0.95, 0.3)) > 1.1 * run((0.6, 0.6))


def test_what_was_not_verified_is_learnt_from_too() -> None:
    """Drafts that don't seem to pay are compared with what comes, and so found to pay."""
    ours = controller(V15)
    drafts = [Draft(7, Source.NGRAM, 0.2)]
    tried = []
    for _ in range(60):
        k = ours.plan(drafts)
        tried.append(k)
        ours.record(Round(drafts[:k], k, k, [7] * (k + 1), V15[k + 1] * 0.05))
    assert tried[0] == 0
    assert tried[-1] == 1


def test_words_that_fall_are_told_from_words_that_stand() -> None:
    """Two keys stand and a value falls, at the same confidence: after a few records no value is verified."""
    ours = controller(V15)
    value, verified = 100, []
    for record in range(40):
        value += 1
        drafts = [
            Draft(token, Source.NGRAM, 0.8, after=after) for token, after in ((1, 3), (2, 1), (value - 1, 2))
        ]
        at = 0
        while at < 3:
            k = ours.plan(drafts[at:])
            stood = min(k, 2 - at)
            tokens = [1, 2, value][at : at + stood + 1]
            ours.cost.observe(k + 1, V15[k + 1] * 0.05)
            ours.record(Round(drafts[at : at + k], stood, min(k, stood + 1), tokens, V15[k + 1] * 0.05))
            verified += [(record, place) for place in range(at, at + k)]
            at += stood + 1
    late = [place for record, place in verified if record >= 20]
    assert 2 not in late
    assert late.count(0) >= 15


def test_waits_until_a_match_has_grown() -> None:
    """Half of the short matches fall, and what stands once stands on: it pays to see one word more."""
    flat = [0.0, 1.0, *[2.4] * 15]
    ours = controller(flat)
    ours.credit = 9.0
    doubtful = [Draft(0, Source.NGRAM, 0.5), *(Draft(i, Source.NGRAM, 0.99) for i in range(1, 4))]
    assert ours.plan(doubtful) == 0
    assert ours.stats().reason == "waiting: the draft grows surer with each word that comes as it says"
    ours.record(Round([], 0, 0, [0], 0.05))
    assert ours.plan(doubtful[1:]) == 3
    computed = [Draft(draft.token, Source.MODEL, draft.confidence) for draft in doubtful]
    ours.credit = 9.0
    assert ours.plan(computed) == 4  # these would be lost


# --- texts that change


@pytest.mark.parametrize(("stretch", "least"), [(100, 0.8), (500, 0.93)])
def test_follows_a_text_that_changes(stretch: int, least: float) -> None:
    def stands(position: int, place: int, k: int) -> bool:
        a = 0.92 if position // stretch % 2 == 0 else 0.1
        return random.Random(hash((position, place))).random() < a

    best = 2 / (1 / best_fixed(V15, [0.92] * 15)[1] + 1)
    assert simulate(controller(V15), V15, stands, n=4000).speedup >= least * best


def test_a_model_is_tried_again_after_it_was_off() -> None:
    def stands(position: int, place: int, k: int) -> bool:
        return position > 1000

    ours = controller(V15)
    run = simulate(ours, V15, stands, n=3000, source=Source.MODEL, d=0.1, drawn=True)
    tail = best_fixed(V15, [1.0] * 15, 0.1)[1]
    assert run.speedup >= 0.85 * 3000 / (1000 + 2000 / tail)
    assert ours.stats().reason == ""


# --- the worst that a text can do


@pytest.mark.parametrize("name", list(adversaries()))
@pytest.mark.parametrize(("source", "d"), [(Source.NGRAM, 0.0), (Source.MODEL, 0.1), (Source.MODEL, 0.6)])
@pytest.mark.parametrize("v", [V15, V05], ids=["1.5B", "0.5B"])
def test_never_more_than_three_percent_slower(name: str, source: Source, d: float, v: list[float]) -> None:
    for confidence in (0.6, 0.95):
        run = simulate(
            controller(v), v, adversaries()[name], source=source, d=d, n=1000, confidence=confidence,
            drawn=source is Source.MODEL,
        )  # fmt: skip
        assert run.speedup >= 0.97


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(0, 2), st.sampled_from([0.5, 0.99]))
@settings(max_examples=60, deadline=None)
def test_no_pattern_makes_it_slow(pattern: list[bool], mode: int, confidence: float) -> None:
    calls = [0]

    def stands(position: int, place: int, k: int) -> bool:
        calls[0] += 1
        index = (calls[0], position, position + place)[mode]
        return pattern[index % len(pattern)]

    run = simulate(controller(V15), V15, stands, n=400, confidence=confidence, noise=0.0)
    assert run.tokens / run.speedup <= run.tokens + allowance(run.tokens) + 1e-6


def all_fall(ours: Controller, v: list[float], n: int) -> list[float]:
    """Plain steps that each of `n` tokens has taken when no draft stands though all would have."""
    steps, after = 0.0, []
    for _ in range(n):
        drafts = [Draft(i, Source.NGRAM, 0.99) for i in range(15)]
        k = ours.plan(drafts)
        steps += v[k + 1]
        after.append(steps)
        ours.cost.observe(k + 1, v[k + 1] * 0.05)
        # What was not verified would have stood: trust stays as it was.
        ours.record(Round(drafts[:k], 0, min(k, 1), [-1 if k else 0], v[k + 1] * 0.05))
    return after


def test_no_answer_of_forty_tokens_or_more_is_three_percent_slower() -> None:
    """Credit covers each round's worst outcome before it runs: so much is lost at most, and no more."""
    for v in (V15, V05):
        for n, steps in enumerate(all_fall(controller(v), v, 1000), start=1):
            assert steps <= n + allowance(n) + 1e-9
            assert n < 40 or steps <= 1.03 * n + 1e-9


def test_even_with_a_wrong_table() -> None:
    """All batches take twice what was measured at load: drafting seems to pay, and does not."""
    v = [v if k < 2 else 2 * v for k, v in enumerate(V15)]
    for a in (0.6, 0.9):
        run = simulate(controller(v, wrong=2.0), v, iid(a, 0), n=2000)
        assert run.speedup >= 0.97 * best_fixed(v, [a] * 15)[1] - 0.01


def test_even_while_the_machine_is_busy() -> None:
    for a in (0.0, 0.5):
        run = simulate(
            controller(V15), V15, iid(a, 0), n=3000,
            slower=lambda position: 3.0 if position // 500 % 2 else 1.0,
        )  # fmt: skip
        assert run.speedup >= 0.97


# --- the words


def test_says_why_it_is_off() -> None:
    ours = controller(V05)
    simulate(ours, V05, lambda position, place, k: position % 5 < 2, n=800, noise=0.0)
    assert ours.stats().reason.startswith("drafting 1 token would need 6")
    assert ours.stats().reason.endswith("% were")

    mixed = controller(V05)  # most drafts stand, and those that are declined are others
    sure, doubtful = [Draft(1, Source.NGRAM, 0.98)], [Draft(1, Source.NGRAM, 0.2)]
    for _ in range(40):
        mixed.plan(sure)
        mixed.record(Round(sure, 1, 1, [1, 1], V05[2]))
    for _ in range(4):
        assert mixed.plan(doubtful) == 0
        mixed.record(Round([], 0, 0, [2], V05[1]))
        needed, were = map(int, re.findall(r"([0-9]+)%", mixed.stats().reason))
        assert were < needed, mixed.stats().reason
    mixed = controller(V15)  # a draft that pays beside plain steps, and not beside the long ones before
    for _ in range(40):
        mixed.plan(sure * 15)
        mixed.record(Round(sure * 15, 15, 15, [1] * 16, V15[16]))
    assert mixed.plan([Draft(1, Source.NGRAM, 0.6)]) == 0
    assert mixed.stats().reason == "drafting 1 token here would gain less than drafts did of late"

    dear = controller([0.0, 1.0, 2.4, 3.6, 4.8])
    dear.longest = 3
    simulate(dear, [0.0, 1.0, 2.4, 3.6, 4.8], lambda position, place, k: True, n=300, offers=lambda p: 3)
    assert dear.stats().reason == (
        "drafting can't pay here: 3 tokens would take 4.8 times a plain step, for 4 tokens at best"
    )

    silent = controller(V15)
    simulate(silent, V15, lambda position, place, k: True, n=50, offers=lambda position: 0)
    assert silent.stats().reason == "nothing to draft: no words repeat here"

    glad = controller(V15)
    simulate(glad, V15, lambda position, place, k: True, n=300)
    stats = glad.stats()
    assert stats.reason == ""
    assert stats.tokens_per_step > 5
    assert stats.accepted == stats.drafted > 200
    assert stats.speedup > 2
    glad.start()
    assert glad.stats().tokens_per_step == 0.0


# --- beside others


def test_beside_other_sequences_it_asks_for_more() -> None:
    """A longer batch makes the others wait as well: what pays alone may not pay beside three."""
    drafts = [Draft(i, Source.NGRAM, 0.55) for i in range(15)]
    ours = controller(V15)
    ours.credit = 10.0
    assert ours.plan(drafts, rows=0) > 0
    assert ours.plan(drafts, rows=4) == 0
    sure = [Draft(i, Source.NGRAM, 0.98) for i in range(15)]
    assert ours.plan(sure, rows=11) > 0  # V(16) < V(12): more rows for nothing


def test_a_model_that_can_never_pay_is_never_tried() -> None:
    """A draft takes 0.6 of a plain step: even if every draft stood, all rounds would lose."""
    v = [0.0, *(1.0 + 0.6 * (k - 1) for k in range(1, 17))]
    losses = [v[k + 1] - 1 + 0.6 * k for k in range(1, 16)]
    assert all(loss > k for k, loss in enumerate(losses, start=1))
    seconds = tuple(one * 0.05 for one in v[1:])
    cost = StepCost(CostTable(tuple(range(1, len(v))), seconds))
    ours = Controller(cost, Calibration(), 15, {Source.MODEL: 0.6 * 0.05})
    ours.start()
    for token in range(1000):
        assert not ours.wants_more(Source.MODEL, [])
        ours.record(Round([], 0, 0, [token], 0.05))
    assert ours.stats().reason.startswith("drafting can't pay here: ")


def test_a_model_that_costs_nothing_yet_is_measured() -> None:
    ours = controller(V15)
    assert ours.wants_more(Source.MODEL, [])
    draft = Draft(1, Source.MODEL, 0.9)
    k = ours.plan([draft])
    assert k == 1
    ours.record(Round([draft], 0, 1, [5], V15[2] * 0.05, draft_s=0.04, n_computed=1))
    assert ours.credit == pytest.approx(allowance(1) + 1 - (1 + 0.8 + 0.38))
    assert not ours.wants_more(Source.MODEL, [])
    ours.hint()
    ours.credit = 5.0
    assert not ours.wants_more(Source.MODEL, [draft] * 15)
