"""The prompt that is made of a transcript."""

from hypothesis import given
from hypothesis import strategies as st

from edgechat.chat.entries import Entry, Kind, title_of
from edgechat.chat.prompt import build_prompt
from edgechat.history import Status

PARTS = st.lists(
    st.builds(
        Entry,
        key=st.just(0),
        kind=st.sampled_from(Kind),
        text=st.sampled_from(["", " ", "a", "b", "c\n"]),
        status=st.sampled_from(Status),
    ),
    max_size=12,
)


@given(PARTS, st.sampled_from([None, "", " ", "Be brief."]))
def test_roles_alternate_and_nothing_a_person_said_is_lost(entries: list[Entry], system: str | None) -> None:
    messages = build_prompt(entries, system).messages
    roles = [m.role for m in messages]
    assert [m.content for m in messages if m.role == "system"] == ([] if system is None else [system])
    if system is not None:
        assert roles.pop(0) == "system"
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"] * (len(roles) % 2)
    asked = [e.text for e in entries if e.kind is Kind.USER and e.text.strip()]
    said = "\n\n".join(m.content for m in messages if m.role == "user")
    assert said == "\n\n".join(asked)


def test_titles() -> None:
    assert title_of("  Why are\nthere   tides? ") == "Why are there tides?"
    assert title_of("x" * 60) == "x" * 60
    assert title_of("x" * 61) == "x" * 59 + "…"
