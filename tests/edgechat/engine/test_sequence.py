"""A conversation's text and tokens, as they were rendered and generated."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from edgechat.engine.rendering import PlainRenderer
from edgechat.engine.sequence import Segment, TextTokens, Transcript, common_prefix, message_ends
from models.chat import ChatMessage
from tests.edgechat.engine.harness import ChatML
from tests.edgechat.scripted_runtime import BOS, IM_END, IM_START, ToyTokenizer

SPELT = tuple(b"Hello")  # a model may write a word in pieces that its tokenizer would join


def test_what_comes_before_an_answer_is_tokenized_once() -> None:
    tokenizer = ToyTokenizer()
    texts = TextTokens(tokenizer)
    question = texts.extend(Transcript(), "<|im_start|>user\nhi")
    assert question.tokens == tokenizer.encode("<|im_start|>user\nhi")
    known = Transcript((*question.segments, Segment("Hello", SPELT, generated=True)))
    before = tokenizer.n_encoded
    longer = texts.extend(known, "<|im_start|>user\nhiHello<|im_end|>")
    assert tokenizer.n_encoded - before == len("<|im_end|>")
    assert longer.tokens == [*known.tokens, IM_END]


def test_an_answer_keeps_the_tokens_that_the_model_chose() -> None:
    texts = TextTokens(ToyTokenizer())
    known = Transcript([Segment("Q:", tuple(b"Q:")), Segment("Hello", SPELT, generated=True)])
    assert texts.extend(known, "Q:Hello\n").tokens == [*b"Q:Hello\n"]
    assert texts.extend(Transcript(), "Q:Hello\n").tokens == [*b"Q:", 260, *b"\n"]


def test_an_answer_whose_end_was_cut_off_keeps_what_is_left() -> None:
    texts = TextTokens(ToyTokenizer())
    known = Transcript([Segment("Q:", tuple(b"Q:")), Segment("Hello  ", (*SPELT, *b"  "), generated=True)])
    assert texts.extend(known, "Q:Hello\n").tokens == [*b"Q:Hello\n"]


def test_a_question_is_tokenized_as_if_it_had_been_the_first() -> None:
    tokenizer = ToyTokenizer()
    texts = TextTokens(tokenizer)
    known = texts.extend(Transcript(), "Q: Hell")
    for text in ("Q: Hello", "Q: Help", "Q: Hell", "Q: He"):
        assert texts.extend(known, text).tokens == tokenizer.encode(text)


def test_asking_again_keeps_nothing_of_the_answer() -> None:
    texts = TextTokens(ToyTokenizer())
    known = Transcript([Segment("Q:", tuple(b"Q:")), Segment("A", (257, 65), generated=True)])
    assert texts.extend(known, "Q:").tokens == [*b"Q:"]


def test_one_bos_and_no_more() -> None:
    texts = TextTokens(ToyTokenizer(add_bos=True))
    for text in ("hi", "<s>hi"):
        assert texts.extend(Transcript(), texts.with_bos(text)).tokens == [BOS, *b"hi"]
    known = Transcript([Segment("<s>hi", (BOS, *b"hi")), Segment("Hello", SPELT, generated=True)])
    assert texts.extend(known, texts.with_bos("hiHello you")).tokens == [BOS, *b"hiHello you"]
    assert TextTokens(ToyTokenizer()).with_bos("hi") == "hi"


def test_a_continuation_gets_no_space_before_it() -> None:
    tokenizer = ToyTokenizer(space_before=True)
    texts = TextTokens(tokenizer)
    first = texts.extend(Transcript(), "hi")
    assert first.tokens == [*b" hi"]
    known = Transcript((*first.segments, Segment("Hello", SPELT, generated=True)))
    for rest in ("\nyou", " you", "you"):
        assert texts.extend(known, "hiHello" + rest).tokens == [*b" hiHello", *rest.encode()]
    assert texts.extend(known, "hiHello<|im_end|> you").tokens == [*b" hiHello", IM_END, *b" you"]


def test_where_messages_end() -> None:
    messages = [ChatMessage("system", "s"), ChatMessage("user", "q"), ChatMessage("assistant", "a")]
    messages.append(ChatMessage("user", "q2"))
    text = ChatML().render(messages).text
    ends = message_ends(ChatML(), messages, text)
    assert [text[: end or 0].count("<|im_end|>\n") for end in ends] == [1, 2, 3, 4]
    assert message_ends(PlainRenderer(), messages, PlainRenderer().render(messages).text)[-1] == len(
        "s\n\nUser: q\nAssistant: a\nUser: q2\n"
    )

    class Reversed:
        def render(self, messages: list[ChatMessage], add_generation_prompt: bool = True) -> object:
            return ChatML().render(messages[::-1], add_generation_prompt)

    text = Reversed().render(messages).text  # type: ignore[attr-defined]
    assert message_ends(Reversed(), messages, text)[:3] == [None, None, None]  # type: ignore[arg-type]


def test_where_a_character_is_among_the_tokens() -> None:
    texts = TextTokens(ToyTokenizer(add_bos=True))
    head = "<s><|im_start|>user\nHello world"
    known = texts.extend(Transcript(), head)
    known = Transcript((*known.segments, Segment("Hello", SPELT, generated=True)))
    known = texts.extend(known, head + "Hello<|im_end|>\nok")
    assert known.tokens == [BOS, IM_START, 265, 10, 260, 261, *SPELT, IM_END, *b"\nok"]
    for marked, count in (
        ("<s>", 1),
        ("<s><|im_start|>user", 3),
        (head, 6),
        (head + "Hel", 9),
        (head + "Hello", 11),
        (head + "Hello<|im_end|>\n", 13),
        (head + "Hello<|im_end|>\nok", 15),
        (head[:-3], 5),  # inside of a token: before it
    ):
        assert texts.token_at(known, len(marked)) == count, marked


@given(st.lists(st.integers(0, 2), max_size=9), st.lists(st.integers(0, 2), max_size=9), st.integers(0, 600))
def test_common_prefix(left: list[int], right: list[int], padding: int) -> None:
    expected = 0
    while expected < min(len(left), len(right)) and left[expected] == right[expected]:
        expected += 1
    head = [7] * padding
    assert common_prefix(head + left, head + right) == padding + expected


@given(
    st.lists(st.text(alphabet="a Hello\n world", max_size=12), min_size=1, max_size=5),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_tokens_before_many_places(
    parts: list[str], add_bos: bool, space_before: bool, data: st.DataObject
) -> None:
    tokenizer = ToyTokenizer(add_bos=add_bos, space_before=space_before)
    texts = TextTokens(tokenizer)
    transcript, text = Transcript(), texts.with_bos("")
    for index, part in enumerate(parts):
        if index % 2:
            answer = Segment(part, tuple(part.encode()), generated=True)
            transcript = Transcript((*transcript.segments, answer))
            text += part
        else:
            text += f"<|im_start|>{part}<|im_end|>"
            transcript = texts.extend(transcript, text)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    ends = list(accumulate(len(tokenizer.name(token)) for token in transcript.tokens))
    assert ends[-1] == len(text)  # of this alphabet each token's name is its text
    expected = [sum(end <= place for end in ends) for place in places]
    assert texts.tokens_at(transcript, places) == expected
