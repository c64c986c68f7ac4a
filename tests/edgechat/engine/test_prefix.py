"""Where a prompt is computed."""

from edgechat.engine.prefix import Placement, least_recently_used, place, reusable
from edgechat.engine.sequence import Slot
from edgechat.records import Capabilities

ANY = Capabilities(shift=True, rollback=-1, fork=True)
NO_FORK = Capabilities(shift=True, rollback=-1, fork=False)
NO_ROLLBACK = Capabilities(shift=False, rollback=0, fork=False)
HEAD = [1, 2, 3, 4]


def slots(*held: tuple[str, list[int]], busy: tuple[int, ...] = ()) -> list[Slot]:
    return [
        Slot(number, list(tokens), conversation, number in busy, last_used=number + 1)
        for number, (conversation, tokens) in enumerate(held)
    ]


def test_an_empty_cache() -> None:
    made = slots(("", []), ("", []))
    assert place([1, 2], "a", made, ANY) == Placement(made[0], 0)


def test_the_conversation_goes_on_where_it_was() -> None:
    made = slots(("b", [*HEAD, 5, 6, 7, 8]), ("a", [*HEAD, 9]))
    assert place([*HEAD, 5, 6, 7, 8, 9], "a", made, ANY) == Placement(made[1], 4)


def test_of_two_sequences_of_the_conversation_the_closer_one() -> None:
    made = slots(("a", [*HEAD, 9]), ("a", [*HEAD, 5, 6]))
    assert place([*HEAD, 5, 6, 7], "a", made, ANY) == Placement(made[1], 6)


def test_the_last_token_of_the_prompt_is_always_computed() -> None:
    made = slots(("a", [1, 2, 3, 4]))
    assert place([1, 2, 3, 4], "a", made, ANY) == Placement(made[0], 3)
    assert place([1, 2], "a", made, ANY) == Placement(made[0], 1)


def test_without_rollback_it_begins_anew_unless_it_only_goes_on() -> None:
    made = slots(("a", [1, 2, 3, 4]))
    assert place([1, 2, 3, 5], "a", made, NO_ROLLBACK) == Placement(made[0], 0)
    assert place([1, 2, 3, 4, 5], "a", made, NO_ROLLBACK) == Placement(made[0], 4)
    two = Capabilities(shift=False, rollback=2, fork=False)
    assert reusable([1, 2, 9], made[0], two) == 2
    assert reusable([1, 9, 9], made[0], two) == 0


def test_another_conversation_s_head_is_forked() -> None:
    made = slots(("b", [*HEAD, 5, 6]), ("", []))
    assert place([*HEAD, 9], "a", made, ANY) == Placement(made[1], 4, parent=made[0])


def test_without_fork_another_conversation_is_left_alone() -> None:
    made = slots(("b", [*HEAD, 5, 6]), ("", []))
    assert place([*HEAD, 9], "a", made, NO_FORK) == Placement(made[1], 0)


def test_a_running_conversation_s_head_is_forked() -> None:
    made = slots(("b", [*HEAD, 5, 6]), ("", []), busy=(0,))
    assert place([*HEAD, 9], "a", made, ANY) == Placement(made[1], 4, parent=made[0])
    assert place([*HEAD, 9], "b", made, ANY) == Placement(made[1], 4, parent=made[0])


def test_a_sequence_that_nobody_comes_back_to_is_taken_over() -> None:
    made = slots(("", [*HEAD, 5, 6]), ("", []))
    assert place([*HEAD, 5, 9], "", made, ANY) == Placement(made[0], 5)


def test_a_sequence_that_shares_only_its_head_is_not_cut_for_it() -> None:
    made = slots(("", [*HEAD, 5, 6, 7, 8, 9, 10]), ("", []))
    assert place([*HEAD, 11], "", made, ANY) == Placement(made[1], 4, parent=made[0])


def test_with_no_empty_slot_the_least_recently_used_goes() -> None:
    made = slots(("b", [7, 7]), ("c", [8, 8]))
    made[0].last_used = 5
    assert place([1, 2], "a", made, ANY) == Placement(made[1], 0)
    assert place([7, 7, 1], "a", made, ANY) == Placement(made[1], 2, parent=made[0])
    assert place([8, 8, 1], "a", made, ANY) == Placement(made[1], 2)  # it goes anyway: its head stays


def test_cells_that_saw_what_is_gone_are_good_for_their_own_conversation_alone() -> None:
    made = slots(("b", [*HEAD, 5, 6, 7]), ("", []))
    made[0].tainted = 4
    assert place([*HEAD, 5, 6, 9], "a", made, ANY) == Placement(made[1], 4, parent=made[0])
    assert place([*HEAD, 5, 6, 9], "b", made, ANY) == Placement(made[0], 4)
    assert place([*HEAD, 5, 6, 9], "b", made, ANY, own=made[0]) == Placement(made[0], 6)
    made[0].cut(4)
    made[0].tokens += [5, 6]
    assert place([*HEAD, 5, 6, 9], "b", made, ANY) == Placement(made[0], 6)  # computed anew: as good as any


def test_all_busy() -> None:
    assert place([1], "a", slots(("a", [1]), busy=(0,)), ANY) is None


def test_what_to_give_up_first() -> None:
    made = slots(("a", [1]), ("b", [1]), ("", []), busy=(0,))
    assert least_recently_used(made) is made[1]
    made[1].busy = True
    assert least_recently_used(made) is None
