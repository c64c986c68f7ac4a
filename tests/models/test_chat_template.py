"""Chat templates render as transformers renders them."""

import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest

from models.chat import ChatMessage
from models.chat_template import ChatTemplate, Limits, TemplateNote
from models.errors import UnsupportedTemplate

TEMPLATES = Path(__file__).parent / "templates"
NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
PATIENT = Limits(seconds=60)  # no test fails because the machine is busy


def system(text: str) -> ChatMessage:
    return ChatMessage("system", text)


def user(text: str) -> ChatMessage:
    return ChatMessage("user", text)


def assistant(text: str) -> ChatMessage:
    return ChatMessage("assistant", text)


CONVERSATIONS = {
    "question": [user("What is the tallest tree?")],
    "system": [system("Answer in French."), user("Hi")],
    "no system": [system(""), user("Hi"), assistant("Yo"), user("Bye")],
    "turns": [user("One?"), assistant("Two."), user("Three?"), assistant("Four."), user("Five?")],
    "system and turns": [system("Be brief."), user("a"), assistant("b"), user("c"), assistant("d")],
    "scripts": [
        user("Grüße, 你好, नमस्ते, 👩‍👩‍👧 \u202eabc e\u0301"),
        assistant("Здравствуйте ﷽"),
        user("\u2028?"),
    ],
    "blanks": [system("  \n padded\t"), user("\n\n  hello  \n"), assistant("  there \n\n"), user(" x ")],
    "empty": [user(""), assistant(""), user(" ")],
    "markup": [
        user("<b>&amp; {{ 7 * 7 }} {% raw %} \\n 'quoted' \"twice\""),
        assistant("%s {0}"),
        user("</s>"),
    ],
    "thought": [
        user("Q"),
        assistant("<think>\nso\n</think>\n\nA"),
        user("and?"),
        assistant("B</think>"),
        user("!"),
    ],
    "lines": [user("a\r\nb\rc\n\n\nd"), assistant("```py\nx = 1\n```\n"), user("\tindented")],
}


def as_transformers(
    source: str, messages: Sequence[ChatMessage], add_generation_prompt: bool, **variables: str
) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    conversation = [{"role": message.role, "content": message.content} for message in messages]
    rendered, _ = render_jinja_template(
        [conversation],
        chat_template=source,
        add_generation_prompt=add_generation_prompt,
        **variables,
    )
    text: str = rendered[0]
    return text


def source_of(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.mark.oracle
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_renders_as_transformers(name: str, conversation: str, add_generation_prompt: bool) -> None:
    source, messages = source_of(name), CONVERSATIONS[conversation]
    template = ChatTemplate(source, bos="<s>", eos="</s>", limits=PATIENT)
    rendered = template.render(messages, add_generation_prompt)
    if rendered.notes:
        assert rendered.notes == (TemplateNote.SYSTEM_FOLDED,)
        messages = [user(messages[0].content + "\n\n" + messages[1].content), *messages[2:]]
    elif messages == CONVERSATIONS["no system"] and template.refuses_system:
        messages = messages[1:]
    expected = as_transformers(source, messages, add_generation_prompt, bos_token="<s>", eos_token="</s>")
    assert rendered.text == expected


@pytest.mark.oracle
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_renders_the_starter_models_own_template_as_transformers(
    starter_gguf: Path, conversation: str
) -> None:
    from gguf import GGUFReader

    source = GGUFReader(starter_gguf).fields["tokenizer.chat_template"].contents()
    messages = CONVERSATIONS[conversation]
    assert ChatTemplate(source, limits=PATIENT).render(messages).text == as_transformers(
        source, messages, True
    )


@pytest.mark.oracle
@pytest.mark.parametrize("name", NAMES)
def test_apply_chat_template_of_a_tokenizer_agrees(name: str) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>")),
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
    )
    tokenizer.chat_template = source_of(name)
    messages = CONVERSATIONS["turns"]
    expected = tokenizer.apply_chat_template(
        [{"role": message.role, "content": message.content} for message in messages],
        tokenize=False,
        add_generation_prompt=True,
    )
    template = ChatTemplate(
        source_of(name), bos="<bos>", eos="<eos>", variables={"unk_token": "<unk>"}, limits=PATIENT
    )
    assert template.render(messages).text == expected


def test_the_date_is_the_callers() -> None:
    template = ChatTemplate(source_of("llama3"), bos="<s>", now=lambda: datetime(2031, 2, 3), limits=PATIENT)
    assert "Today: 03 Feb 2031\n" in template.render(CONVERSATIONS["question"]).text


def test_a_missing_bos_is_undefined_as_in_transformers() -> None:
    template = ChatTemplate("{{ bos_token is defined }}|{{ bos_token }}|", limits=PATIENT)
    assert template.render([user("")]).text == "False||"


class TestFolding:
    def test_a_system_prompt_that_is_refused_goes_before_the_first_question(self) -> None:
        template = ChatTemplate(source_of("gemma"), bos="<bos>", limits=PATIENT)
        rendered = template.render([system("Be kind."), user("Hi"), assistant("Yo"), user("Bye")])
        assert rendered.notes == ("system_folded",)
        assert rendered.text == (
            "<bos><start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n<start_of_turn>model\nYo<end_of_turn>\n"
            "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
        )
        assert rendered.notes[0].sentence.count(".") == 1

    def test_a_system_prompt_that_is_dropped_in_silence_is_folded_too(self) -> None:
        source = "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        rendered = ChatTemplate(source, limits=PATIENT).render([system("S"), user("U"), assistant("A")])
        assert rendered.text == "[user]S\n\nU[assistant]A"
        assert rendered.notes == (TemplateNote.SYSTEM_FOLDED,)

    @pytest.mark.parametrize("text", ["", " \n"])
    def test_an_empty_system_prompt_leaves_no_trace_and_no_note(self, text: str) -> None:
        template = ChatTemplate(source_of("gemma"), bos="<bos>", limits=PATIENT)
        assert template.render([system(text), user("Hi")]) == template.render([user("Hi")])

    def test_a_system_prompt_alone_becomes_a_question(self) -> None:
        template = ChatTemplate(source_of("gemma"), bos="", limits=PATIENT)
        assert template.render([system("S")], False).text == "<start_of_turn>user\nS<end_of_turn>\n"

    @pytest.mark.parametrize("name", ["chatml", "llama2", "llama3", "mistral_v7", "qwen2_5", "zephyr"])
    def test_a_system_prompt_that_is_taken_stays(self, name: str) -> None:
        assert not ChatTemplate(source_of(name), bos="<s>", eos="</s>", limits=PATIENT).refuses_system

    @pytest.mark.parametrize("name", ["gemma", "llama2", "mistral_v3"])
    def test_turns_that_are_refused_are_joined(self, name: str) -> None:
        template = ChatTemplate(source_of(name), bos="<s>", eos="</s>", limits=PATIENT)
        rendered = template.render([user("a"), user("b"), assistant("c"), assistant("d"), user("e")])
        assert rendered.notes == (TemplateNote.TURNS_FOLDED,)
        assert rendered.text == template.render([user("a\n\nb"), assistant("c\n\nd"), user("e")]).text

    def test_turns_that_are_dropped_in_silence_are_joined_too(self) -> None:
        template = ChatTemplate(source_of("command_r"), bos="<B>", limits=PATIENT)
        rendered = template.render([user("a"), user("b")], False)
        assert rendered.text == "<B><|START_OF_TURN_TOKEN|><|USER_TOKEN|>a\n\nb<|END_OF_TURN_TOKEN|>"
        assert rendered.notes == (TemplateNote.TURNS_FOLDED,)

    def test_both_at_once(self) -> None:
        template = ChatTemplate(source_of("gemma"), bos="", limits=PATIENT)
        rendered = template.render([system("S"), user("a"), user("b")], False)
        assert rendered.text == "<start_of_turn>user\nS\n\na\n\nb<end_of_turn>\n"
        assert rendered.notes == (TemplateNote.SYSTEM_FOLDED, TemplateNote.TURNS_FOLDED)

    def test_two_turns_that_are_taken_stay(self) -> None:
        template = ChatTemplate(source_of("chatml"), limits=PATIENT)
        rendered = template.render([user("a"), user("b")], False)
        assert rendered.text == "<|im_start|>user\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n"
        assert not rendered.notes

    def test_a_refusal_that_folding_does_not_help_is_the_templates_own_sentence(self) -> None:
        template = ChatTemplate(source_of("gemma"), bos="", limits=PATIENT)
        with pytest.raises(UnsupportedTemplate, match="Turns must go user, assistant"):
            template.render([assistant("I begin"), user("a")])


class TestAfterAnAnswer:
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("chatml", "<|im_end|>\n"),
            ("llama2", " </s>"),
            ("llama3", "<|eot_id|>"),
            ("gemma", "<end_of_turn>\n"),
            ("mistral_v3", "</s>"),
            ("phi3", "<|end|>\n</s>"),
            ("deepseek", "<｜end▁of▁sentence｜>"),
            ("zephyr", "</s>\n"),
            ("command_r", "<|END_OF_TURN_TOKEN|>"),
            ("granite", "<|end_of_text|>\n"),
        ],
    )
    def test_comes_what_ends_it(self, name: str, text: str) -> None:
        assert ChatTemplate(source_of(name), bos="<s>", eos="</s>", limits=PATIENT).after_answer == text

    def test_comes_nothing_where_the_template_refuses_or_hides_the_answer(self) -> None:
        assert ChatTemplate("{{ raise_exception('never') }}", limits=PATIENT).after_answer == ""
        assert ChatTemplate("{{ messages[0].content }}<end>", limits=PATIENT).after_answer == ""


class TestRefusals:
    @pytest.mark.parametrize("source", ["", "  \n\t"])
    def test_an_empty_template(self, source: str) -> None:
        with pytest.raises(UnsupportedTemplate, match="empty"):
            ChatTemplate(source)

    @pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% for m in messages %}", "{{ x|nofilter }}"])
    def test_what_is_no_template(self, source: str) -> None:
        with pytest.raises(UnsupportedTemplate, match="can't be compiled") as caught:
            ChatTemplate(source, limits=PATIENT)
        assert "\n" not in str(caught.value)

    def test_a_long_message_of_a_template_is_cut_to_one_line(self) -> None:
        template = ChatTemplate("{{ raise_exception('a\n' * 1000) }}", limits=PATIENT)
        with pytest.raises(UnsupportedTemplate) as caught:
            template.render([user("")])
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300


def test_a_template_serves_many_threads() -> None:
    template = ChatTemplate(source_of("llama3"), bos="<s>", limits=PATIENT)
    texts: list[str] = []

    def render(number: int) -> None:
        texts.append(template.render([user(f"question {number}")]).text)

    before = threading.active_count()
    threads = [threading.Thread(target=render, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(text.split("question ")[1].split("<")[0] for text in texts) == sorted(map(str, range(16)))
    assert threading.active_count() == before


@pytest.mark.parametrize("name", ["llama3", "mistral_v3", "deepseek", "command_r"])
def test_long_conversations_are_within_the_limits(name: str) -> None:
    text = "All work and no play makes a dull day. " * 12
    messages = [user(text) if i % 2 == 0 else assistant(text) for i in range(1999)]
    template = ChatTemplate(source_of(name), bos="<s>", eos="</s>", limits=PATIENT)
    assert len(template.render(messages).text) > len(text.strip()) * 1999
