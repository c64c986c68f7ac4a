"""Which tokens belong to which message, for templates of several kinds; and spans behind holes."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.engine.eviction import Span
from edgechat.engine.holes import NONE
from edgechat.engine.rendering import PlainRenderer
from edgechat.engine.sequence import TextTokens
from edgechat.engine.spans import Layout, Rendered, Wrapping, behind_holes, chat_layout, unseen
from edgechat.engine.window import Window
from edgechat.errors import UsageError
from models.chat import ChatMessage
from models.chat_template import ChatTemplate
from tests.edgechat.engine.harness import ChatML
from tests.edgechat.scripted_runtime import ToyTokenizer

CHATML = (
    "{% for m in messages %}"
    "{% if loop.first and m.role != 'system' %}"
    "{{ '<|im_start|>system\nYou are user.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA = (
    "{{ '<s>' }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}{% endif %}"
    "{{ '[' + m.role + '] ' + m.content | trim + ' [end]' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"
)
INTO_THE_QUESTION = (
    "{{ '<s>' }}{% if messages[0].role == 'system' %}{% set before = messages[0].content + '\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set before = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{{ '[' + m.role + '] ' + (before if loop.first else '') + m.content + ' [end]' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"
)
THINKING = (  # of the last answer alone the thoughts are shown
    "{% for m in messages %}{{ '<' + m.role + '>' }}"
    "{% if m.role == 'assistant' and loop.last %}{{ '(hm)' }}{% endif %}{{ m.content + '</>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def messages(*contents: str) -> tuple[ChatMessage, ...]:
    system = (ChatMessage("system", contents[0][1:]),) if contents[0].startswith("!") else ()
    rest = contents[len(system) :]
    return (
        *system,
        *(ChatMessage("assistant" if i % 2 else "user", content) for i, content in enumerate(rest)),
    )


def lay_out(
    renderer: object, asked: Sequence[ChatMessage], tokenizer: ToyTokenizer | None = None
) -> tuple[Layout, list[str]]:
    """The layout, and the name of each token."""
    tokenizer = tokenizer or ToyTokenizer()
    texts = TextTokens(tokenizer)
    text = renderer.render(asked, True).text  # type: ignore[attr-defined]
    whole = texts.with_bos(text)
    from edgechat.engine.sequence import Transcript

    transcript = texts.extend(Transcript(), whole)
    rendered = Rendered(tuple(asked), text, transcript)
    wrapping = Wrapping(renderer)  # type: ignore[arg-type]
    layout = chat_layout(rendered, renderer, wrapping, texts)  # type: ignore[arg-type]
    return layout, list(map(tokenizer.name, transcript.tokens))


def bodies(layout: Layout, names: list[str]) -> list[str]:
    return ["".join(names[span.start + span.head : span.stop - span.tail]) for span in layout.spans]


def check(layout: Layout, n_tokens: int) -> None:
    assert layout.spans[0].start == 0
    assert layout.spans[-1].stop == n_tokens
    assert all(a.stop == b.start for a, b in pairwise(layout.spans))


def test_each_message_has_its_tokens() -> None:
    layout, names = lay_out(ChatML(), messages("!Be kind.", "hello", "user", "assistant"))
    check(layout, len(names))
    assert bodies(layout, names)[1:] == ["hello", "user", "assistant", ""]
    assert [span.pinned for span in layout.spans] == [True, False, False, False, False]
    assert [span.role for span in layout.spans] == ["system", "user", "assistant", "user", "assistant"]
    assert [span.head for span in layout.spans] == [0, 3, 3, 3, 3]
    assert [span.tail for span in layout.spans] == [0, 2, 2, 2, 0]
    assert layout.groups == ((0,), (1,), (2,), (3,), (4,))


def test_a_template_s_own_system_prompt_is_part_of_the_first_header() -> None:
    layout, names = lay_out(ChatTemplate(CHATML, bos=None, eos=None), messages("user", "hi", "ho"))
    check(layout, len(names))
    assert bodies(layout, names) == ["user", "hi", "ho", ""]
    assert "You are " in "".join(names[: layout.spans[0].head])
    pinned = Window(500).pinned(layout.spans)
    assert pinned == layout.spans[0].head


def test_an_empty_system_prompt_is_pinned_where_the_template_writes_it() -> None:
    layout, names = lay_out(ChatTemplate(CHATML, bos=None, eos=None), messages("!", "user", "hi", "ho"))
    check(layout, len(names))
    assert layout.spans[0].pinned
    assert "".join(names[: layout.spans[0].stop]) == "<|im_start|>system\n<|im_end|>\n"
    assert bodies(layout, names)[1:] == ["user", "hi", "ho", ""]
    assert layout.groups == ((0,), (1,), (2,), (3,), (4,))


@pytest.mark.parametrize("question", ["hello", "s", "user", "[user]"])  # the header has these too
def test_an_empty_system_prompt_that_is_folded(question: str) -> None:
    renderer = ChatTemplate(GEMMA, bos="<s>", eos=None)
    layout, names = lay_out(renderer, messages("!", question, "hi", "ho"))
    check(layout, len(names))
    assert layout.spans[0].pinned
    assert "".join(names[: layout.spans[0].stop]) == "<s>[user] "
    assert bodies(layout, names)[1:] == [question, "hi", "ho", ""]


def test_an_empty_system_prompt_of_a_transcript() -> None:
    layout, names = lay_out(PlainRenderer(), messages("!", "hello", "hi", "ho"))
    check(layout, len(names))
    assert bodies(layout, names)[1:] == ["hello", "hi", "ho", ""]


def test_a_system_prompt_that_the_template_writes_into_the_first_question() -> None:
    """Without a question such a template writes nothing, or the BOS alone, of the system prompt."""
    renderer = ChatTemplate(INTO_THE_QUESTION, bos="<s>", eos=None)
    assert renderer.render(messages("!Be kind."), False).text == "<s>"
    layout, names = lay_out(renderer, messages("!Be kind.", "hello", "hi", "ho"))
    check(layout, len(names))
    assert layout.spans[0].pinned
    assert "".join(names[: layout.spans[0].stop]) == "<s>[user] Be kind.\n\n"
    assert bodies(layout, names)[1:] == ["hello", "hi", "ho", ""]


@pytest.mark.parametrize("add_bos", [False, True])
def test_a_folded_system_prompt(add_bos: bool) -> None:
    renderer = ChatTemplate(GEMMA, bos="<s>", eos=None)
    layout, names = lay_out(
        renderer, messages("!Be kind.", "hello", "hi", "ho"), ToyTokenizer(add_bos=add_bos)
    )
    check(layout, len(names))
    assert [span.role for span in layout.spans] == ["system", "user", "assistant", "user", "assistant"]
    assert layout.spans[0].pinned
    assert layout.spans[1].opened
    assert "".join(names[: layout.spans[0].stop]).startswith("<s>[user] Be kind.")
    assert bodies(layout, names)[1:] == ["hello", "hi", "ho", ""]


def test_a_transcript_without_a_template() -> None:
    layout, names = lay_out(
        PlainRenderer(), messages("!Be kind.", "hello", "hi", "ho"), ToyTokenizer(add_bos=True)
    )
    check(layout, len(names))
    assert bodies(layout, names)[1:] == ["hello", "hi", "ho", ""]


def test_messages_that_can_not_be_told_apart_go_together() -> None:
    renderer = ChatTemplate(THINKING, bos=None, eos=None)
    layout, names = lay_out(renderer, messages("one", "two", "three", "four", "five"))
    check(layout, len(names))
    assert layout.groups == ((0,), (1, 2), (3, 4), (5,))
    assert sorted(message for group in layout.groups for message in group) == [0, 1, 2, 3, 4, 5]


def test_a_space_before_the_text() -> None:
    layout, names = lay_out(
        PlainRenderer(), messages("hello", "hi", "ho"), ToyTokenizer(add_bos=True, space_before=True)
    )
    check(layout, len(names))
    assert [body.strip() for body in bodies(layout, names)] == ["hello", "hi", "ho", ""]


def test_known_ends_spare_the_rendering() -> None:
    renderer = ChatML()
    asked = messages("!Be kind.", "hello", "hi", "ho")
    whole, _ = lay_out(renderer, asked)
    tokenizer = ToyTokenizer()
    texts = TextTokens(tokenizer)
    from edgechat.engine.sequence import Transcript

    text = renderer.render(asked, True).text
    rendered = Rendered(asked, text, texts.extend(Transcript(), text), whole.ends[:3])
    assert chat_layout(rendered, renderer, Wrapping(renderer), texts) == whole


contents = st.text(alphabet="abc user assistant\n", min_size=1, max_size=60).map(lambda text: f"x{text}x")


@settings(max_examples=150, deadline=None)
@given(st.lists(contents, min_size=1, max_size=12), st.booleans(), st.integers(60, 300), st.integers(1, 40))
def test_spans_behind_holes_are_those_that_the_evictions_left(
    said: list[str], with_system: bool, budget: int, need: int
) -> None:
    said = said if len(said) % 2 else said[:-1]
    layout, names = lay_out(ChatML(), messages(*(["!Be kind."] if with_system else []), *said))
    check(layout, len(names))
    window = Window(budget)
    holes, spans = NONE, layout.spans
    for _ in range(3):
        try:
            eviction = window.make_room(spans, need)
        except UsageError:
            break
        if eviction is None or not eviction.ranges:
            break
        holes, spans = holes.evicted(eviction.ranges), eviction.spans
        assert _told(behind_holes(layout, holes, window)) == _told(spans)
        gone, cut = unseen(layout, spans, window.pinned(spans))
        assert set(gone).isdisjoint(cut)
        for message in eviction.messages:
            assert message in gone


def _told(spans: Sequence[Span]) -> list[Span]:
    return [span for span in spans if len(span) > span.head + span.tail or span.head]
