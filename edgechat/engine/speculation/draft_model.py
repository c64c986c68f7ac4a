"""A second, smaller model that drafts: its own cache, kept in step with the target's tokens.

Whatever a draft model has read, the answer is the target's: what it hasn't read costs acceptance, never
truth. So a model that comes late reads the first tokens and the last few hundred, not a whole conversation.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgechat.engine.holes import Range
from edgechat.engine.sampling import BadLogits, Row, Sampler
from edgechat.engine.sequence import common_prefix
from edgechat.engine.speculation.proposal import Draft, Source
from edgechat.records import SamplingSettings
from edgechat.runtimes.base import Chunk, ContextFull, DecodeFailed, Runtime, Wanted

_log = logging.getLogger(__name__)

SINKS = 4
"""First tokens that are always read: what follows leans on them."""
MOST_LAG = 384
"""Tokens that are read to catch up; where more are missing, the middle is left out."""
RECENT = 256
"""Of the last tokens, so many are read then."""
LOW_TEMPERATURE = 0.3
"""Up to here the likeliest token stands more often than a drawn one."""

Choose = Callable[[Row], Draft]
"""A draft from the draft model's logits."""


def chooser(sampling: SamplingSettings) -> Choose:
    """How tokens are drafted for a request.

    Drawn drafts stand more often where the text is open, but a seed's text would depend on them; so seeded
    answers, and those that hardly leave the likeliest token, get the likeliest token.
    """
    if sampling.seed is not None or sampling.temperature <= LOW_TEMPERATURE:
        return likeliest
    # Penalties are the target's business: q is whatever the draft was drawn from.
    plain = SamplingSettings(
        temperature=sampling.temperature,
        top_k=sampling.top_k or 512,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
    )
    sampler = Sampler(plain)

    def drawn(row: Row) -> Draft:
        q = sampler.distribution(row)
        token = q.draw(sampler.random.random())
        return Draft(token, Source.MODEL, q.probability(token), q)

    return drawn


def likeliest(row: Row) -> Draft:
    """The likeliest token, and its probability."""
    token = int(row.argmax())
    top = row[token]
    if not np.isfinite(top):
        raise BadLogits(f"the largest logit is {top}")
    return Draft(token, Source.MODEL, float(1 / np.exp(row - top).sum()))


@dataclass(slots=True)
class _Read:
    """What a sequence of the draft model holds: tokens[:SINKS] and tokens[SINKS + gap :] of the target's."""

    tokens: list[int] = field(default_factory=list)
    gap: int = 0

    def wanted(self, tokens: Sequence[int]) -> list[int]:
        if not self.gap:
            return list(tokens)
        return [*tokens[:SINKS], *tokens[SINKS + self.gap :]]


class DraftModel:
    """Drafts with a runtime whose sequences are numbered as the target's."""

    def __init__(self, runtime: Runtime, n_vocab: int, step_s: float = 0.0) -> None:
        """Own all of the runtime's sequences.

        Args:
            runtime: the draft model.
            n_vocab: the target's; what lies beyond is never drafted.
            step_s: seconds of a step, as measured.
        """
        self.runtime = runtime
        self.step_s = step_s
        self.read_s = step_s / 3
        """Seconds that each token takes which is read to catch up; a guess until it was seen."""
        self.trouble = ""
        """Why it no longer drafts."""
        self._n_vocab = min(n_vocab, runtime.tokenizer.n_vocab)
        self._read = [_Read() for _ in range(runtime.n_sequences)]

    def lag(self, sequence: int, tokens: Sequence[int]) -> int:
        """Tokens that the next draft after `tokens` must read; 1 is the usual."""
        held = self._read[sequence]
        wanted = held.wanted(tokens)
        lag = len(wanted) - self._keep(held, wanted)
        return lag if lag <= MOST_LAG else SINKS + RECENT

    def learn_reading(self, n_tokens: int, seconds: float) -> None:
        """So many tokens were read in one go."""
        self.read_s += 0.5 * (max(0.0, seconds - self.step_s) / n_tokens - self.read_s)

    def draft(self, sequence: int, tokens: Sequence[int], choose: Choose) -> Draft | None:
        """A draft of the token after `tokens`; None where it can't be had."""
        if self.trouble or max(tokens[-MOST_LAG:]) >= self.runtime.tokenizer.n_vocab:
            return None
        try:
            row = self._decode(sequence, tokens)
            return choose(row[: self._n_vocab])
        except (DecodeFailed, BadLogits, ValueError) as error:
            _log.warning("the draft model failed: %s", error)
            self.trouble = f"the draft model failed ({error})"
            self.free(sequence)
        except ContextFull:
            self.free(sequence)
        return None

    def _decode(self, sequence: int, tokens: Sequence[int]) -> Row:
        held = self._read[sequence]
        wanted = held.wanted(tokens)
        keep = self._keep(held, wanted)
        if len(wanted) - keep > MOST_LAG:
            self.free(sequence)
            held = self._read[sequence]
            held.gap = max(0, len(tokens) - SINKS - RECENT)
            wanted, keep = held.wanted(tokens), 0
        if keep < len(held.tokens):
            if keep:
                self.runtime.truncate(sequence, keep)
            else:
                self.runtime.free(sequence)
            del held.tokens[keep:]
        return self._feed(sequence, held, wanted[keep:])

    def _feed(self, sequence: int, held: _Read, tokens: list[int]) -> Row:
        """Read `tokens`; the last one's logits."""
        size = self.runtime.n_batch
        for at in range(0, len(tokens), size):
            part = tokens[at : at + size]
            chunk = Chunk(sequence, part, len(held.tokens), Wanted.LAST)
            try:
                rows = self.runtime.decode([chunk])
            except ContextFull:  # the others can read theirs again
                for other in range(self.runtime.n_sequences):
                    if other != sequence:
                        self.free(other)
                rows = self.runtime.decode([chunk])
            held.tokens.extend(part)
        row: Row = rows[-1]
        return row

    def _keep(self, held: _Read, wanted: list[int]) -> int:
        """How much of what is held can stay; the last token's logits are needed, so it is read again."""
        keep = min(common_prefix(wanted, held.tokens), len(wanted) - 1)
        rollback = self.runtime.can.rollback
        return keep if rollback < 0 or len(held.tokens) - keep <= rollback else 0

    def evicted(self, sequence: int, ranges: Sequence[Range]) -> None:
        """The target's sequence lost `ranges`, which ascend: do the same here, where that can be."""
        held = self._read[sequence]
        try:
            for start, stop in reversed(ranges):
                unread = SINKS + held.gap
                skipped = max(0, min(stop, unread) - max(start, SINKS)) if held.gap else 0
                first = start - held.gap if start >= unread else (SINKS if held.gap else start)
                last = min(stop - held.gap, len(held.tokens)) if stop > unread or not held.gap else first
                if start < SINKS:
                    self.free(sequence)
                    return
                if last > first:
                    self.runtime.evict(sequence, first, last)
                    del held.tokens[first:last]
                held.gap -= skipped
        except (ValueError, ContextFull):
            self.free(sequence)

    def free(self, sequence: int) -> None:
        """Forget what a sequence has read."""
        self.runtime.free(sequence)
        self._read[sequence] = _Read()
