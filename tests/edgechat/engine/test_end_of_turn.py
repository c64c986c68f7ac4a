"""The tokens that end an answer, from what a template puts after one."""

import msgspec
import pytest

from edgechat.engine.end_of_turn import end_of_turn_ids
from edgechat.engine.process import loading
from edgechat.records import LoadSettings
from tests.edgechat.scripted_runtime import END_OF_TEXT, IM_END, ScriptedRuntime, ToyTokenizer


class Marked(ToyTokenizer):
    """Has "<x>" as a piece of plain text, as files have whose converter forgot to call it a control token."""

    X = 300

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        before, found, after = text.partition("<x>")
        rest = [self.X, *super().encode(after)] if found else []
        return [*super().encode(before), *rest]

    def piece(self, token: int) -> bytes:
        return b"<x>" if token == self.X else super().piece(token)

    def name(self, token: int) -> str:
        return "<x>" if token == self.X else super().name(token)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("<|im_end|>\n", (IM_END,)),
        ("<|im_end|>\n<|endoftext|>", (IM_END, END_OF_TEXT)),
        (" \n <|endoftext|><|endoftext|>", (END_OF_TEXT,)),
        ("<|im_end|>\nuser<|endoftext|>", (IM_END,)),
        ("\n", ()),
        ("", ()),
        ("</s>", ()),
        ("<x>", (Marked.X,)),
        ("<", ()),
        ("<>", ()),
    ],
)
def test_are_the_markers_before_any_text(text: str, ids: tuple[int, ...]) -> None:
    assert end_of_turn_ids(text, Marked()) == ids


def test_a_space_that_a_vocabulary_puts_before_a_text_is_passed_over() -> None:
    tokenizer = ToyTokenizer(space_before=True)
    assert end_of_turn_ids(" <|im_end|>", tokenizer) == (IM_END,)


CHATML = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}"


def loaded(monkeypatch: pytest.MonkeyPatch, template: str) -> tuple[ScriptedRuntime, tuple[str, ...]]:
    runtime = ScriptedRuntime(template=template)
    runtime.info = msgspec.structs.replace(runtime.info, eog_ids=(IM_END,))
    monkeypatch.setattr(loading, "_load_runtime", lambda settings, progress: (runtime, (), None))
    _, _, notes = loading.load(LoadSettings("toy"), lambda event: None, lambda done: True)
    return runtime, notes


def test_the_template_adds_to_what_the_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, notes = loaded(monkeypatch, CHATML)
    assert runtime.info.eog_ids == (IM_END, END_OF_TEXT)
    assert notes == ()


def test_a_template_that_fails_at_any_question_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, (note,) = loaded(monkeypatch, "{{ raise_exception('I am broken') }}")
    assert "I am broken" in note
    assert "plain text" in note
    assert runtime.info.eog_ids == (IM_END,)
