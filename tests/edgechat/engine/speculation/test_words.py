"""The words of conversations: followed, kept apart, and lent to the ones that come after."""

import random

from edgechat.engine.speculation.proposal import Source
from edgechat.engine.speculation.words import MAX_CONVERSATIONS, Library


def text(seed: int, n: int = 60) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000) for _ in range(n)]


def drafted(library: Library, name: str, tokens: list[int], n: int = 4) -> list[int]:
    words = library.open(name, tokens)
    drafts = [draft.token for draft in words.propose(n)]
    library.close(words)
    return drafts


def test_drafts_from_the_prompt_and_the_answer() -> None:
    library, one = Library(), text(1)
    words = library.open("a", one)
    words.extend(one[10:14])
    assert [draft.token for draft in words.propose(4)] == one[14:18]
    words.extend(text(2)[:20])
    words.extend(text(2)[:6])
    assert [draft.token for draft in words.propose(4)] == text(2)[6:10]


def test_an_edited_conversation_forgets_what_was_edited() -> None:
    library, old, new = Library(), text(1), text(2)
    assert drafted(library, "a", [*old, *old[10:14]]) == old[14:18]
    changed = [*old[:30], *new, *old[40:44]]
    assert drafted(library, "a", changed) == []  # those words are gone
    assert drafted(library, "a", [*changed, *new[5:10]]) == new[10:14]


def test_earlier_conversations_lend_their_words() -> None:
    library, one, two = Library(), text(1), text(2)
    drafted(library, "a", one)
    words = library.open("b", [*two, *one[20:26]])
    drafts = words.propose(4)
    assert [draft.token for draft in drafts] == one[26:30]
    assert {draft.source for draft in drafts} == {Source.PAST}


def test_a_conversation_without_a_name_is_known_by_its_words() -> None:
    library, one, two = Library(), text(1, 100), text(2, 100)
    first = library.open("", one)
    library.close(first)
    other = library.open("", two)
    library.close(other)
    assert other is not first
    again = library.open("", [*one, *text(3)])
    assert again is first
    assert library.open("", [*one, *text(4)]) is not first  # which is busy


def test_names_are_not_mixed_up() -> None:
    library, one = Library(), text(1, 100)
    first = library.open("a", one)
    library.close(first)
    assert library.open("b", one) is not first
    assert library.open("", one) is not first
    assert library.open("a", one) is first


def test_forgets_the_longest_unused() -> None:
    library = Library()
    opened = []
    for seed in range(MAX_CONVERSATIONS + 2):
        opened.append(library.open(str(seed), text(seed)))
        library.close(opened[-1])
    assert library.open(str(MAX_CONVERSATIONS + 1), text(MAX_CONVERSATIONS + 1)) is opened[-1]
    assert library.open("0", text(0)) is not opened[0]


def test_a_deleted_conversation_is_drafted_from_no_more() -> None:
    library, one, two = Library(), text(1), text(2)
    drafted(library, "a", one)
    library.forget("a")
    assert drafted(library, "b", [*two, *one[20:26]]) == []
    # Where its words were lent to others already, they go as well.
    drafted(library, "c", one)
    assert drafted(library, "d", [*two[:50], *one[30:36]], n=2) == one[36:38]
    library.forget("c")
    assert drafted(library, "d", [*two[:50], *one[30:35]], n=2) == []
    library.forget("never heard of")
