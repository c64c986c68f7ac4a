"""What comes with a model: its template, or plain text where that is refused; the states of conversations."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from edgechat import hardware
from edgechat.engine.process.loading import _chat_template, _states
from edgechat.engine.rendering import PlainRenderer
from edgechat.engine.states import SavedState
from edgechat.records import LoadSettings
from models.chat import ChatMessage
from tests.edgechat.scripted_engine import ScriptedTokenizer
from tests.edgechat.scripted_runtime import ScriptedRuntime


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


@pytest.mark.parametrize(("left", "kept"), [(5000, 2), (1500, 1), (-5000, 0)])
def test_states_of_idle_conversations_take_no_more_memory_than_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int, kept: int
) -> None:
    """Of EDGECHAT_MEMORY_LIMIT, what the model has is taken."""
    taken = 600 * 2**20
    monkeypatch.setattr(hardware, "own_memory", lambda: taken)
    monkeypatch.setenv(hardware.MEMORY_LIMIT, str(round((taken + left) / (1 - hardware.OFF))))
    states = _states(LoadSettings("toy.gguf", state_memory_bytes=10_000), ScriptedRuntime())
    for number in range(2):
        states.put(number, SavedState("", states.identity, (1,), (), blob=bytes(1000)))
    assert states.n_bytes == kept * 1016
