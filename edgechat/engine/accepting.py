"""From a request to a turn: checked, rendered, tokenized, and gone on with what is known of it."""

from collections.abc import Callable
from typing import cast

import msgspec

from edgechat.engine.cache import Cache
from edgechat.engine.evicting import Evicting
from edgechat.engine.grammar import Grammars
from edgechat.engine.holes import NONE
from edgechat.engine.lengths import Lengths
from edgechat.engine.memory import Memory, Remembered
from edgechat.engine.process.messages import Event, Generate, Note, NoteKind
from edgechat.engine.rendering import ChatRenderer, PlainRenderer, sentence
from edgechat.engine.sequence import TextTokens, Transcript
from edgechat.engine.sliding import Sliding
from edgechat.engine.turn import Turn
from edgechat.engine.visible import Visible
from edgechat.errors import UsageError
from edgechat.runtimes.base import Runtime

MAX_STOPS = 64


class Accepting:
    """Makes turns of requests."""

    def __init__(
        self,
        runtime: Runtime,
        renderer: ChatRenderer,
        texts: TextTokens,
        *,
        sliding: Sliding,
        evicting: Evicting,
        cache: Cache,
        memory: Memory,
        emit: Callable[[Event], None],
    ) -> None:
        """Take requests on for `runtime`, whose conversations `cache` and `memory` keep."""
        self._tokenizer = runtime.tokenizer
        self._grammars = Grammars(runtime.tokenizer, runtime.info.eog_ids)
        self._renderer = renderer
        self._plain = renderer if isinstance(renderer, PlainRenderer) else None
        self._texts = texts
        self._lengths = Lengths(runtime.tokenizer, runtime.n_ctx)
        self._sliding = sliding
        self._evicting = evicting
        self._cache = cache
        self._memory = memory
        self._emit = emit

    def turn(self, request: Generate, now: float) -> Turn:
        """The turn that answers `request`. Emits the notes of its rendering, and what it doesn't see.

        Raises:
            UsageError: it can't be meant, or can't fit.
            UnsupportedError: an answer in a given form, which nothing here can make.
            models.errors.ModelError: the template can't be rendered.
        """
        check(request)
        completion = self._plain.completion(request.messages) if self._plain and request.complete else None
        if completion is not None:
            request = msgspec.structs.replace(request, messages=(), prompt=completion.text)
        self._lengths.check(request)
        request, n_cut = self._lengths.cut(request)
        stop, plain = request.stop, self._plain is not None and bool(request.messages)
        if request.messages:
            rendered = self._renderer.render(request.messages, True)
            text, notes = rendered.text, tuple(rendered.notes)
        elif completion is not None:
            text, notes = request.prompt, completion.notes
        else:
            text, notes = request.prompt, ()
        if plain:
            stop = (*stop, *PlainRenderer.stop)
        visible, key = self._visible(request, text)
        visible.n_cut = n_cut
        steps = () if request.grammar is None else (self._grammars.form(request.grammar),)
        turn = Turn(visible, self._tokenizer.piece, key=key, stop=stop, strip=plain, steps=steps, now=now)
        if not turn.tokens:
            raise UsageError("the prompt has no tokens: write something")
        n_gone = self._evicting.fit(turn)
        for note in notes:
            self._emit(Note(request.id, cast(NoteKind, str(note)), sentence(note)))
        self._evicting.told_of(turn, n_gone)
        return turn

    def _visible(self, request: Generate, text: str) -> tuple[Visible, str | int]:
        """What the model sees of a request, and the key of the conversation that it goes on with."""
        whole = self._texts.with_bos(text)
        known = self._known(request, whole)
        if known is None:
            known = Remembered("", Transcript())
        transcript = self._texts.extend(known.transcript, whole)
        tokens = transcript.tokens
        holes = known.carried(tokens) if request.messages else NONE
        ends = known.known_ends(request.messages, text)
        visible = Visible(request, text, transcript, holes.applied(tokens), holes, ends)
        self._sliding.adopt(visible)
        return visible, known.key

    def _known(self, request: Generate, text: str) -> Remembered | None:
        """The conversation that `text` continues: the one that is named, or else the closest one.

        A prompt on its own continues none: the same prompt gives the same tokens, whatever was asked before.
        """
        name = request.conversation
        named = self._memory.get(name) or self._cache.saving.recall(name) if name else None
        if named is not None or not request.messages:
            return named
        return self._memory.closest(text, self._tokenizer.piece)


def check(request: Generate) -> None:
    """Refuse what can't be meant.

    Raises:
        UsageError: that.
    """
    if bool(request.messages) == bool(request.prompt):
        raise UsageError("a request needs either messages or a prompt")
    if request.max_tokens < 0:
        raise UsageError(f"max-tokens of {request.max_tokens}: give 0 (no limit) or more")
    if len(request.stop) > MAX_STOPS:
        raise UsageError(f"{len(request.stop)} stop strings: give at most {MAX_STOPS}")
    if not all(request.stop):
        raise UsageError("a stop string is empty: leave it out")
