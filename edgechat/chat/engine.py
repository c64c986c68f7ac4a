"""What the chat needs of an engine. `edgechat.engine.process.supervisor` has it; tests have a script."""

from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Protocol

from edgechat.engine.process.messages import Event, Generate
from edgechat.records import ModelInfo


class EngineState(StrEnum):
    """What becomes of the engine beside the answers: told by whoever keeps it running."""

    STARTING = "starting"
    READY = "ready"
    ENDED = "ended"
    """It isn't started again by itself."""


class RunningAnswer(Protocol):
    """The events of one answer: Prefilled, Delta and Note, then Finished or Refused; iterated once."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """The events; EngineCrashedError where the process dies. Leaving the loop ends the answer."""
        ...

    def cancel(self) -> None:
        """End the answer at the engine's next step; its Finished still comes."""
        ...


class ChatEngine(Protocol):
    """A model that answers, in another process."""

    async def start(self) -> ModelInfo:
        """Load the model.

        Raises:
            EdgechatError: it can't be loaded; another `start` tries again.
        """
        ...

    def generate(self, request: Generate) -> RunningAnswer:
        """Answer. Where the engine's process died before, another one is started first."""
        ...

    def forget(self, conversation: str) -> None:
        """A conversation was deleted: nothing of it may stay in the engine's states."""
        ...

    async def close(self) -> None:
        """End the engine's process."""
        ...
