"""Who goes when, without a model."""

from dataclasses import dataclass

from edgechat.engine.scheduler import PrefillBudget, Scheduler


@dataclass
class Job:
    name: str
    pending: int
    answering: bool = False
    n_tokens: int = 10
    n_run: int = 0
    held: bool = False


def scheduler(*jobs: Job, n_batch: int = 64, n_sequences: int = 8, n_ctx: int = 1000) -> Scheduler[Job]:
    made = Scheduler[Job](n_batch, n_sequences, n_ctx)
    for job in jobs:
        made.submit(job)
    while (job := made.next_to_admit()) is not None:
        made.admit(job)
    return made


def plan(made: Scheduler[Job]) -> dict[str, int]:
    return {share.job.name: share.n_tokens for share in made.plan()}


def test_nothing_to_do() -> None:
    assert plan(scheduler()) == {}


def test_a_prompt_alone_fills_the_batch() -> None:
    job = Job("a", 150)
    made = scheduler(job)
    assert plan(made) == {"a": 64}
    job.pending = 22
    assert plan(made) == {"a": 22}


def test_prompts_come_first_come_first_served_and_share_a_batch() -> None:
    assert plan(scheduler(Job("a", 50), Job("b", 50), Job("c", 50))) == {"a": 50, "b": 14}


def test_every_answer_goes_on_in_every_step() -> None:
    made = scheduler(Job("a", 500), Job("b", 1, answering=True), Job("c", 3, answering=True))
    assert plan(made) == {"b": 1, "c": 3, "a": PrefillBudget.FIRST}  # the three are one token and two drafts


def test_more_answers_than_fit_take_turns() -> None:
    made = scheduler(*(Job(str(i), 1, answering=True) for i in range(5)), n_batch=2)
    assert [list(plan(made)) for _ in range(5)] == [
        ["0", "1"],
        ["2", "3"],
        ["4", "0"],
        ["1", "2"],
        ["3", "4"],
    ]


def test_admission_waits_for_a_sequence() -> None:
    made = scheduler(Job("a", 1), Job("b", 1), Job("c", 1), n_sequences=2)
    assert [job.name for job in made.active] == ["a", "b"]
    made.remove(made.active[0])
    assert made.next_to_admit() is made.waiting[0]


def test_admission_waits_for_room_and_keeps_the_order() -> None:
    a, b, c = Job("a", 1, n_tokens=500), Job("b", 1, n_tokens=499), Job("c", 1, n_tokens=5)
    made = scheduler(a, b, c)
    assert made.active == [a]  # 501 + 500 > 1000; c would fit, but b came first
    b.n_tokens = 498
    assert made.next_to_admit() is b


def test_the_youngest_gives_way_and_is_the_next_again() -> None:
    a, b, c = Job("a", 1), Job("b", 1), Job("c", 1)
    made = scheduler(a, b, c, n_sequences=2)
    assert made.give_way() is b
    assert made.active == [a]
    assert list(made.waiting) == [b, c]
    assert made.give_way() is None


def test_the_queue_is_bounded() -> None:
    made = Scheduler[Job](64, 1, 1000, max_waiting=2)
    made.submit(Job("a", 1))
    assert not made.full
    made.submit(Job("b", 1))
    assert made.full


def run_beside(decode_s: float, token_s: float, steps: int) -> tuple[PrefillBudget, list[int]]:
    """Steps of one answer with a long prompt beside it, on a machine with these costs."""
    budget = PrefillBudget()
    budget.observe(0, 64, 64 * token_s)
    for _ in range(3):
        budget.observe(1, 0, decode_s)
    slices = []
    for _ in range(steps):
        tokens = min(budget.tokens(), 512)
        budget.observe(1, tokens, decode_s + tokens * token_s)
        slices.append(tokens)
    return budget, slices


def test_a_slice_makes_a_step_at_most_about_twice_as_long() -> None:
    _, slices = run_beside(decode_s=0.02, token_s=0.001, steps=30)
    assert all(19 <= tokens <= 20 for tokens in slices)
    _, slices = run_beside(decode_s=0.02, token_s=0.00001, steps=30)
    assert set(slices) == {512}


def test_a_slow_machine_still_computes_the_prompt() -> None:
    _, slices = run_beside(decode_s=0.02, token_s=1.0, steps=30)
    assert set(slices) == {PrefillBudget.LEAST}


def test_the_budget_follows_the_machine() -> None:
    budget, _ = run_beside(decode_s=0.02, token_s=0.001, steps=30)
    for _ in range(40):  # something else takes the cores: all is four times slower
        tokens = budget.tokens()
        budget.observe(1, tokens, 0.08 + tokens * 0.004)
    assert budget.tokens() < 20
    for _ in range(400):  # the answer alone is measured now and then, so it finds its way back
        tokens = budget.tokens()
        budget.observe(1, tokens, 0.08 + tokens * 0.004)
    assert 17 <= budget.tokens() <= 23 or budget.tokens() == 0


def test_the_answer_alone_is_measured_now_and_then() -> None:
    _, slices = run_beside(decode_s=0.02, token_s=0.001, steps=100)
    assert [index for index, tokens in enumerate(slices) if tokens == 0] == [32, 65, 98]


def test_a_long_answer_gives_way_only_where_others_wait() -> None:
    long, short = Job("long", 1, answering=True, n_tokens=90, n_run=200), Job("short", 20, n_tokens=20)
    made = scheduler(long, n_ctx=100)
    assert made.overdue(100) is None
    made.submit(short)
    assert made.overdue(1000) is None
    assert made.overdue(100) is long
    made.wait_again(long)
    assert made.next_to_admit() is short
    made.admit(short)
    assert made.active == [short]
    assert list(made.waiting) == [long]


def test_one_that_fits_beside_it_does_not_wait_for_it() -> None:
    made = scheduler(Job("long", 1, answering=True, n_tokens=50, n_run=200), n_ctx=100)
    made.submit(Job("short", 20, n_tokens=20))
    assert made.overdue(100) is None
