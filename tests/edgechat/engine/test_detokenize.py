"""The pieces of a text, however it is cut, are the text."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.engine.detokenize import Detokenizer, n_tokens_before, n_tokens_within, text_of

texts = st.text(alphabet="aé中😀\u0301\ufffd \n")
# Valid text, damaged text and noise; cut anywhere, so that most tokens end inside a character.
some_bytes = st.one_of(
    texts.map(str.encode),
    st.binary(max_size=40),
    st.lists(
        st.sampled_from(
            [b"\xf0", b"\x9f\x98", b"\x80", b"\xed\xa0\x80", b"\xc0\x80", b"a", b"\xe4\xb8", b"\xad"]
        )
    ).map(b"".join),
)


@st.composite
def pieces(draw: st.DrawFn) -> list[bytes]:
    whole = draw(some_bytes)
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    return [whole[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


@given(pieces())
def test_the_deltas_are_the_whole(pieces: list[bytes]) -> None:
    detokenizer = Detokenizer(pieces.__getitem__)
    deltas = [detokenizer.feed(token) for token in range(len(pieces))]
    assert "".join(deltas) + detokenizer.flush() == b"".join(pieces).decode("utf-8", "replace")
    assert text_of(pieces.__getitem__, range(len(pieces))) == b"".join(pieces).decode("utf-8", "replace")


def test_an_unfinished_character_is_held_back() -> None:
    pieces = [b"a\xf0\x9f", b"\x98", b"\x80b", b"\xe4"]
    detokenizer = Detokenizer(pieces.__getitem__)
    assert [detokenizer.feed(token) for token in range(4)] == ["a", "", "😀b", ""]
    assert not detokenizer.whole
    assert detokenizer.flush() == "\ufffd"


@given(pieces())
def test_where_it_is_cut_a_begun_character_is_left_out(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    detokenizer = Detokenizer(pieces.__getitem__)
    told = "".join(detokenizer.feed(token) for token in range(len(pieces))) + detokenizer.flush(cut=True)
    cuts = range(max(0, len(whole) - 3), len(whole))
    end = next((cut for cut in cuts if can_become_a_character(whole[cut:])), len(whole))
    assert told == whole[:end].decode("utf-8", "replace")
    assert detokenizer.flush() == ""


def can_become_a_character(begun: bytes) -> bool:
    """Whether bytes that are no character become one by any bytes that follow, by Python's strict decoder."""
    return any(
        is_a_character(begun + bytes(more))
        for n_more in (1, 2, 3)
        for more in itertools.product((0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF), repeat=n_more)
    )


def is_a_character(data: bytes) -> bool:
    try:
        return len(data.decode("utf-8")) == 1
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("begun", [b"\xc3", b"\xe4\xb8", b"\xed\x9f", b"\xed", b"\xf0\x9f\x98", b"\xf4\x8f"])
def test_a_begun_character_is_left_out_or_shown_as_broken(begun: bytes) -> None:
    for cut, left in ((True, ""), (False, "\ufffd")):
        detokenizer = Detokenizer([b"a" + begun].__getitem__)
        assert detokenizer.feed(0) == "a"
        assert detokenizer.flush(cut=cut) == left


@pytest.mark.parametrize("broken", [b"\xed\xa0", b"\x80", b"\xc0", b"\xf5", b"\xe0\x80", b"\xf4\x90"])
def test_what_can_never_be_a_character_is_shown_as_broken_where_it_is_cut_too(broken: bytes) -> None:
    detokenizer = Detokenizer([b"a" + broken].__getitem__)
    told = detokenizer.feed(0) + detokenizer.flush(cut=True)
    assert told == (b"a" + broken).decode("utf-8", "replace")
    assert told.startswith("a\ufffd")


@given(pieces(), st.text(alphabet="aé中", max_size=3), st.integers(0, 40), texts)
def test_tokens_within_a_text_are_those_whose_text_it_begins_with(
    pieces: list[bytes], before: str, cut: int, after: str
) -> None:
    tokens = list(range(len(pieces)))
    text = before + text_of(pieces.__getitem__, tokens)[:cut] + after
    count = n_tokens_within(pieces.__getitem__, tokens, text, len(before))
    assert text.startswith(text_of(pieces.__getitem__, tokens[:count]), len(before))


def test_tokens_within_stop_at_the_first_difference_and_at_whole_characters() -> None:
    pieces = [b"Hel", b"lo", b" \xe4", b"\xb8\xad", b"!"]
    tokens = list(range(5))
    assert n_tokens_within(pieces.__getitem__, tokens, ">Hello 中!...", 1) == 5
    assert n_tokens_within(pieces.__getitem__, tokens, "Hello 中?") == 4
    assert n_tokens_within(pieces.__getitem__, tokens, "Hello ?") == 2  # the third is a part of 中
    assert n_tokens_within(pieces.__getitem__, tokens, "Hell") == 1
    assert n_tokens_within(pieces.__getitem__, tokens, "") == 0


def test_a_token_without_text_agrees_only_with_more_behind_it() -> None:
    pieces = [b"", b"a", b""]
    assert n_tokens_within(pieces.__getitem__, [0, 1, 2], "") == 0
    assert n_tokens_within(pieces.__getitem__, [0, 1, 2], "ab") == 2


@pytest.mark.parametrize(
    ("characters", "tokens"), [(0, 0), (1, 1), (3, 1), (4, 2), (5, 2), (6, 4), (7, 4), (8, 5)]
)
def test_tokens_before_a_place_are_those_that_write_it(characters: int, tokens: int) -> None:
    pieces = [b"Hel", b"lo", b" \xe4", b"\xb8\xad", b"!"]  # "Hello 中!": the space and 中 share a token
    assert n_tokens_before(pieces.__getitem__, range(5), characters) == tokens
