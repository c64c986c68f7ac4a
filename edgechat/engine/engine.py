"""The engine: requests in, events out.

Synchronous and without threads: the engine's process drives it. A request is made a turn (accepting), and the
decode loop computes the turns step by step; in between the engine keeps, saves and forgets conversations.
"""

import logging
import time
from collections.abc import Callable

from edgechat.engine.accepting import Accepting
from edgechat.engine.cache import Cache
from edgechat.engine.decode_loop import DecodeLoop
from edgechat.engine.drafting import Drafter
from edgechat.engine.evicting import Evicting
from edgechat.engine.memory import Memory
from edgechat.engine.pace import Pace
from edgechat.engine.process.messages import Event, Generate, Refused
from edgechat.engine.rendering import ChatRenderer, PlainRenderer
from edgechat.engine.scheduler import Scheduler
from edgechat.engine.sequence import TextTokens
from edgechat.engine.sliding import Sliding
from edgechat.engine.spare import Spare
from edgechat.engine.states import StateStore
from edgechat.engine.turn import Turn
from edgechat.engine.window import PromptTooLong
from edgechat.errors import EdgechatError, ResourceError, UsageError, from_exception
from edgechat.records import FinishReason, ModelInfo
from edgechat.runtimes.base import Runtime

_log = logging.getLogger(__name__)


class Engine:
    """Answers requests on one runtime."""

    def __init__(
        self,
        runtime: Runtime,
        template: ChatRenderer | None,
        emit: Callable[[Event], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        load_s: float = 0.0,
        max_waiting: int = 64,
        slack: int = 0,
        states: StateStore | None = None,
        adapt_threads: bool = False,
        spare: Spare | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        """Take over `runtime`.

        Args:
            runtime: whose sequences are all this engine's from now on.
            template: None or a PlainRenderer for a model that continues plain text.
            emit: gets each event; must not call the engine.
            clock: seconds.
            load_s: what loading took; told with the first answer.
            max_waiting: requests beyond it are refused.
            slack: tokens of context kept free for drafts.
            drafter: proposes tokens, of which several are verified in one step; None: plain decoding.
            adapt_threads: change the runtime's threads as the machine's load changes.
            spare: looks at what others leave of the machine, for that; None where that is unknown.
            states: where conversations are kept that the cache has no room for; None keeps none.
        """
        self.runtime = runtime
        self.info: ModelInfo = runtime.info
        self._emit = emit
        self._clock = clock
        self._scheduler = Scheduler[Turn](runtime.n_batch, runtime.n_sequences, runtime.n_ctx, max_waiting)
        self._memory = Memory()
        adapts = adapt_threads and runtime.info.n_gpu_layers == 0 and runtime.info.n_threads > 1
        pace = Pace(runtime, runtime.info.n_threads, clock=clock, spare=spare) if adapts else None
        self._cache = Cache(runtime, self._memory, states or StateStore())
        renderer: ChatRenderer = template or PlainRenderer()
        texts = TextTokens(runtime.tokenizer)
        sliding = Sliding(
            runtime.n_ctx,
            renderer,
            texts,
            recompute=not self._cache.shifts,
            slack=slack,
            trained=self.info.n_ctx_train,
        )
        evicting = Evicting(sliding, self._cache, self._scheduler, emit=emit, clock=clock)
        self._accepting = Accepting(
            runtime,
            renderer,
            texts,
            sliding=sliding,
            evicting=evicting,
            cache=self._cache,
            memory=self._memory,
            emit=emit,
        )
        self._loop = DecodeLoop(
            runtime,
            self._scheduler,
            sliding=sliding,
            evicting=evicting,
            cache=self._cache,
            memory=self._memory,
            pace=pace,
            emit=emit,
            clock=clock,
            load_s=load_s,
        )
        self.draft_with(drafter)

    def draft_with(self, drafter: Drafter | None) -> None:
        """Draft with another drafter, or none, from the next answer on; nothing may be running."""
        self._drafter = drafter
        self._loop.draft_with(drafter)

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._scheduler.active or self._scheduler.waiting)

    def submit(self, request: Generate) -> None:
        """Begin to answer, or emit Refused."""
        try:
            self._check(request)
            turn = self._accepting.turn(request, self._clock())
        except Exception as error:
            ours = from_exception(error)
            if ours is None:
                _log.exception("request %d", request.id)
                ours = EdgechatError(f"a bug of edgechat: {type(error).__name__}: {error}")
            too_long = isinstance(error, PromptTooLong)
            self._emit(Refused(request.id, ours.code, " ".join(str(ours).split()), too_long))
            return
        self._scheduler.submit(turn)

    def _check(self, request: Generate) -> None:
        if any(turn.id == request.id for turn in self._scheduler):
            raise UsageError(f"request {request.id} is being answered already")
        if self._scheduler.full:
            raise ResourceError(
                f"the engine is busy: {self._scheduler.max_waiting} requests are waiting; try again later"
            )

    def cancel(self, request_id: int) -> None:
        """End an answer where it is. Unknown requests have ended already: nothing to do."""
        turn = next((turn for turn in self._scheduler if turn.id == request_id), None)
        if turn is not None:
            self._loop.finish(turn, FinishReason.CANCELLED, self._clock())

    def step(self) -> bool:
        """Compute one batch and tell what came of it; False when there is nothing to do."""
        return self._loop.step()

    def release_idle(self) -> None:
        """Give back the cache of all conversations that are not being answered."""
        self._cache.release_idle()

    @property
    def unsaved(self) -> bool:
        """Whether `save_one` has something to do."""
        drafter = self._drafter
        return not self.busy and (self._cache.saving.unsaved or (drafter is not None and drafter.unsaved))

    def save_one(self) -> None:
        """Save a conversation's state, or what was learnt of drafts, for the next run: call it while there is
        nothing else to do."""
        if self._drafter is not None and self._drafter.unsaved:
            self._drafter.save()
        else:
            self._cache.saving.save_one()

    def save_all(self, seconds: float) -> None:
        """Save what can be within `seconds`: the engine is about to end."""
        if self._drafter is not None:
            self._drafter.save()
        self._cache.saving.save_all(seconds, self._clock)

    def forget(self, conversation: str) -> None:
        """A conversation was deleted: let go of what is known of it."""
        self._memory.drop(conversation)
        self._cache.forget(conversation)
        if self._drafter is not None:
            self._drafter.forget(conversation)
