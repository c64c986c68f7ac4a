"""Stop strings depend on the text alone, not on how it comes in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.engine.stop import StopStrings


def one_shot(text: str, stops: list[str]) -> str:
    """All before the stop string that is complete first; of two complete at once, the longer one."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return text[: min(found)[1]] if found else text


few_letters = st.text(alphabet="ab\n", max_size=30)


@given(
    st.lists(few_letters, max_size=15), st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=4)
)
def test_the_shown_text_is_the_same_however_it_is_cut(chunks: list[str], stops: list[str]) -> None:
    watch = StopStrings(stops)
    shown = "".join(watch.feed(chunk) for chunk in chunks)
    text = "".join(chunks)
    assert watch.stopped == any(stop in text for stop in stops)
    assert shown + watch.flush() == one_shot(text, stops)


@given(few_letters, st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), min_size=1, max_size=4))
def test_no_more_is_held_back_than_could_begin_a_stop_string(text: str, stops: list[str]) -> None:
    watch = StopStrings(stops)
    shown = "".join(map(watch.feed, text))
    if not watch.stopped:
        held = text[len(shown) :]
        possible = [
            n for n in range(1, len(text) + 1) if any(s[:n] == text[-n:] and n < len(s) for s in stops)
        ]
        assert len(held) == max(possible, default=0)


def test_across_token_borders() -> None:
    watch = StopStrings(["\nUser:"])
    assert [watch.feed(piece) for piece in ("Hi", "\nUs", "es\n", "User", ": and")] == [
        "Hi", "", "\nUses", "", ""
    ]  # fmt: skip
    assert watch.stopped
    assert watch.flush() == ""
    assert watch.feed("more") == ""


def test_without_stop_strings_all_passes() -> None:
    watch = StopStrings([])
    assert watch.feed("anything") == "anything"
    assert watch.flush() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])
