"""An engine on the scripted runtime, with a clock that tests move."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from edgechat.engine.engine import Engine
from edgechat.engine.process.messages import Delta, Event, Finished, Generate, Note, Prefilled, Refused
from edgechat.records import Capabilities, SamplingSettings
from edgechat.runtimes.base import Chunk
from models.chat import ChatMessage
from tests.edgechat.scripted_runtime import ScriptedRuntime

GREEDY = SamplingSettings(temperature=0)
NO_SHIFT = Capabilities(shift=False, rollback=-1, fork=True)
NO_ROLLBACK = Capabilities(shift=False, rollback=0, fork=False)
MACHINES = pytest.mark.parametrize(
    "can", [None, NO_SHIFT, NO_ROLLBACK], ids=["shift", "no shift", "no rollback"]
)


@dataclass(frozen=True)
class Rendered:
    text: str
    notes: tuple[str, ...] = ()


def message(role: str, content: str) -> str:
    """A message as ChatML writes it."""
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


class ChatML:
    """<|im_start|>role\\ncontent<|im_end|>\\n, as SmolLM2 and Qwen have it."""

    def __init__(self, *, notes: tuple[str, ...] = (), bos: str = "") -> None:
        self.notes, self.bos = notes, bos

    def render(self, messages: Sequence[ChatMessage], add_generation_prompt: bool = True) -> Rendered:
        text = self.bos + "".join(message(one.role, one.content) for one in messages)
        return Rendered(text + "<|im_start|>assistant\n" * add_generation_prompt, self.notes)


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """One engine with its runtime, events and clock. A decode takes `step_s`, and `token_s` a token."""

    def __init__(
        self,
        runtime: ScriptedRuntime | None = None,
        template: Any = ChatML(),  # noqa: B008
        *,
        step_s: float = 0.05,
        token_s: float = 0.0,
        **options: Any,
    ) -> None:
        self.runtime = runtime or ScriptedRuntime()
        self.clock = Clock()
        self.step_s, self.token_s = step_s, token_s
        self._before = self.runtime.on_decode
        self.runtime.on_decode = self._takes_time
        self.events: list[Event] = []
        self.engine = Engine(self.runtime, template, self.events.append, clock=self.clock, **options)

    def _takes_time(self, batch: Sequence[Chunk]) -> None:
        self.clock.now += self.step_s + self.token_s * sum(len(chunk.tokens) for chunk in batch)
        self._before(batch)

    def submit(self, id: int, *contents: str, **options: Any) -> None:
        """User and assistant in turn; a first content that begins with "!" is the system message."""
        messages = []
        if contents and contents[0].startswith("!"):
            messages.append(ChatMessage("system", contents[0][1:]))
            contents = contents[1:]
        roles: tuple[Any, Any] = ("user", "assistant")
        messages += [ChatMessage(roles[index % 2], content) for index, content in enumerate(contents)]
        options.setdefault("sampling", GREEDY)
        options.setdefault("max_tokens", 16)
        self.engine.submit(Generate(id, tuple(messages), **options))

    def run(self, steps: int = 100_000) -> None:
        """Step until there is nothing to do."""
        while steps and self.engine.step():
            steps -= 1
        assert steps, "it never ends"

    def ask(self, id: int, *contents: str, **options: Any) -> str:
        """Submit, run, and the answer's text."""
        self.submit(id, *contents, **options)
        self.run()
        return self.text(id)

    def of(self, id: int, kind: Any = object) -> list[Any]:
        """The events of one request."""
        return [
            event for event in self.events if getattr(event, "id", None) == id and isinstance(event, kind)
        ]

    def text(self, id: int) -> str:
        """The answer so far."""
        return "".join(delta.text for delta in self.of(id, Delta))

    def finished(self, id: int) -> Finished:
        """How the answer ended; it is the last event, and there is one."""
        (last,) = self.of(id, (Finished, Refused))
        assert self.of(id)[-1] is last
        assert isinstance(last, Finished), last
        return last

    def refused(self, id: int) -> Refused:
        """Why there was no answer."""
        (last,) = self.of(id, (Finished, Refused))
        assert self.of(id)[-1] is last
        assert isinstance(last, Refused), last
        return last


__all__ = [
    "GREEDY",
    "MACHINES",
    "NO_ROLLBACK",
    "NO_SHIFT",
    "Bench",
    "ChatML",
    "Clock",
    "Delta",
    "Finished",
    "Note",
    "Prefilled",
    "Refused",
    "message",
]
