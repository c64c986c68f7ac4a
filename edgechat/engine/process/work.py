"""Everything that the engine's process has to do, one step at a time: answers first, then scores."""

from collections.abc import Callable

from edgechat.engine.drafting import Drafter
from edgechat.engine.engine import Engine
from edgechat.engine.process.messages import Event, Generate, Score
from edgechat.engine.rendering import ChatRenderer
from edgechat.engine.score import Scorer
from edgechat.engine.spare import Spare
from edgechat.engine.states import StateStore
from edgechat.records import ModelInfo
from edgechat.runtimes.base import Runtime


class Work:
    """One runtime, shared by answers and scores."""

    def __init__(
        self,
        runtime: Runtime,
        template: ChatRenderer | None,
        emit: Callable[[Event], None],
        *,
        load_s: float = 0.0,
        states: StateStore | None = None,
        adapt_threads: bool = False,
        spare: Spare | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        """As for Engine."""
        self.info: ModelInfo = runtime.info
        self._engine = Engine(
            runtime,
            template,
            emit,
            load_s=load_s,
            states=states,
            adapt_threads=adapt_threads,
            spare=spare,
            drafter=drafter,
        )
        self._scorer = Scorer(runtime, emit, make_room=self._engine.release_idle)

    @property
    def busy(self) -> bool:
        """Whether a step would do something."""
        return self._engine.busy or self._scorer.busy

    def submit(self, request: Generate | Score) -> None:
        """Take a request on."""
        if isinstance(request, Score):
            self._scorer.submit(request)
        else:
            self._engine.submit(request)

    def cancel(self, request_id: int) -> None:
        """End a request; unknown ones have ended already."""
        self._engine.cancel(request_id)
        self._scorer.cancel(request_id)

    @property
    def unsaved(self) -> bool:
        """Whether there is a state to save, now that there is nothing else to do."""
        return not self.busy and self._engine.unsaved

    def save_one(self) -> None:
        """Save one conversation's state, in the background."""
        self._engine.save_one()

    def save_all(self, seconds: float) -> None:
        """Save the states that aren't saved yet, as far as `seconds` allow."""
        if not self._scorer.holds_cache:
            self._engine.save_all(seconds)

    def forget(self, conversation: str) -> None:
        """Let go of a deleted conversation."""
        self._engine.forget(conversation)

    def step(self) -> None:
        """Compute one batch. From its first slice to its last, a score's window has the cache to itself."""
        if self._scorer.holds_cache or not self._engine.busy:
            self._scorer.step()
        else:
            self._engine.step()
