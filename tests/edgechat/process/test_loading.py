"""What a model's template becomes when it is loaded: itself, nothing, or plain text where it is refused."""

from types import SimpleNamespace

from edgechat.engine.process.loading import _chat_template
from edgechat.engine.rendering import PlainRenderer
from models.chat import ChatMessage
from tests.edgechat.scripted_engine import ScriptedTokenizer


def _runtime(template: str | None) -> SimpleNamespace:
    return SimpleNamespace(
        info=SimpleNamespace(chat_template=template, eog_ids=()), tokenizer=ScriptedTokenizer()
    )


def test_a_refused_template_is_said_once_and_not_called_a_base_model() -> None:
    template, notes = _chat_template(_runtime("{{ raise_exception('no') }}"), None)
    assert notes == (
        "the model's chat template was refused, and it continues plain text instead: the chat template can't "
        "be rendered: no",
    )
    assert isinstance(template, PlainRenderer)
    question = ChatMessage("user", "hi")
    assert template.render([question]).notes == ()
    completed = template.completion([question])
    assert completed is not None
    assert (completed.text, completed.notes) == ("hi", ())


def test_without_a_template_each_conversation_says_it() -> None:
    assert _chat_template(_runtime(None), None) == (None, ())
    plain = PlainRenderer()
    assert plain.render([ChatMessage("user", "hi")]).notes == ("no_template",)
    assert plain.completion([ChatMessage("system", "s"), ChatMessage("user", "hi")]) is None
