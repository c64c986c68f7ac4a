"""The question for a summary, and what is kept of the answer."""

from collections.abc import Iterator
from typing import Any

import pytest

from edgechat.engine import summary
from edgechat.engine.process.messages import Generate
from tests.edgechat.engine.harness import ChatML
from tests.edgechat.engine.summing import N_CTX
from tests.edgechat.scripted_runtime import ScriptedRuntime


def templates() -> Iterator[Any]:
    """Renderers of several kinds."""
    yield ChatML()
    yield ChatML(bos="<s>")


@pytest.mark.parametrize("renderer", list(templates()))
def test_the_question_is_what_the_template_would_write(renderer: Any) -> None:
    from edgechat.engine.sequence import TextTokens
    from models.chat import ChatMessage

    runtime = ScriptedRuntime(n_ctx=N_CTX)
    found = summary.Summaries(renderer, TextTokens(runtime.tokenizer), N_CTX)
    assert found.possible
    asked_for = ChatMessage("user", summary.INSTRUCTION)
    messages = [ChatMessage("user", "q"), ChatMessage("assistant", "a"), asked_for]
    whole = renderer.render(messages, True).text
    asked = "".join(map(runtime.tokenizer.name, found.question))
    assert whole.endswith("<|im_start|>assistant\na" + asked)
    assert found.reserve <= N_CTX // 2


@pytest.mark.parametrize(
    ("text", "whole", "kept"),
    [
        ("A fact. Another", True, "A fact. Another"),
        ("A fact. Another", False, "A fact."),
        ("A fact", False, ""),
        ("Line\nand", False, "Line"),
        ("事实。还有", False, "事实。"),
        ("Version 1.2 is", False, ""),
        ("**Summary:** A fact.", True, "A fact."),
        ("Here is the summary of our conversation:\nA fact.", True, "A fact."),
        ("<think>\nHm.\n</think>\n\nA fact.", True, "A fact."),
        ("<think>\nHm.", True, ""),
        ("  \n", True, ""),
        ("Summary of facts", True, "Summary of facts"),
    ],
)
def test_what_is_kept_of_an_answer(text: str, whole: bool, kept: str) -> None:
    assert summary.usable(text, whole=whole) == kept


def test_requests_carry_it() -> None:
    import msgspec

    request = Generate(1, prompt="x", summarize=True, summary="A fact.", summarized=3)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Generate) == request
