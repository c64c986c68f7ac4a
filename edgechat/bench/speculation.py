"""What drafts gain, by kind of text."""

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec

from edgechat.bench import texts
from edgechat.bench.asking import Timed, ask, engine
from edgechat.bench.plan import Plan, median_ratio
from edgechat.bench.results import KindOfText, SpeculationResult
from edgechat.engine.process.client import EngineClient
from edgechat.engine.process.messages import Generate
from models.chat import ChatMessage

CTX = 2048


@dataclass(slots=True)
class _Kind:
    """What was measured of one kind."""

    off: list[Timed] = field(default_factory=list)
    on: list[Timed] = field(default_factory=list)


async def measure(plan: Plan) -> SpeculationResult:
    """Each kind of text with and without drafts, in turns.

    The engine that drafts is started anew for each round: it would quote its own answer of the round before.
    So is the other one, that both are as new.

    Raises:
        EdgechatError: an engine failed.
    """
    sizes = plan.sizes
    load = msgspec.structs.replace(plan.load, n_ctx=CTX, n_sequences=1)
    off = msgspec.structs.replace(load, draft="off")
    notes: tuple[str, ...] = ()
    kinds = {kind: _Kind() for kind in texts.KINDS}
    for round_ in range(sizes.text_rounds):
        async with engine(off) as plain, engine(load) as drafting:
            notes = tuple(note for note in drafting.notes if note not in plain.notes)
            for kind, found in kinds.items():
                plan.tell(f"speculation, round {round_ + 1} of {sizes.text_rounds}: {kind}")
                pair = [(plain, found.off), (drafting, found.on)]
                for client, timed in pair if round_ % 2 == 0 else pair[::-1]:
                    timed.append(await _answer(client, kind, sizes.text_tokens))
    return SpeculationResult(
        draft=Path(load.draft).name.removesuffix(".gguf") or "ngram",
        tokens=sizes.text_tokens,
        rounds=sizes.text_rounds,
        kinds=tuple(_row(kind, found) for kind, found in kinds.items()),
        notes=notes,
    )


async def _answer(client: EngineClient, kind: str, n_tokens: int) -> Timed:
    sampling = texts.KINDS[kind]
    return await ask(
        client,
        Generate(
            0,
            messages=(ChatMessage("user", texts.prompt(kind)),),
            sampling=sampling,
            max_tokens=n_tokens,
            ignore_eog=sampling is texts.DRAWN,  # an answer that is right may be short; a story mayn't
        ),
    )


def _row(kind: str, found: _Kind) -> KindOfText:
    """Medians of the rounds. Rates are the engine's own: one event may bring several tokens."""
    on = [timed.finished.timings.tokens_per_s for timed in found.on]
    off = [timed.finished.timings.tokens_per_s for timed in found.off]
    measurable = all(on) and all(off)  # not where the answer is a single token
    spoken = [timed.finished.speculation for timed in found.on]
    known = [one for one in spoken if one is not None]
    steps = sum(one.steps for one in known)
    return KindOfText(
        kind=kind,
        off_tokens_per_s=median(off),
        tokens_per_s=median(on),
        over_off=median_ratio(on, off) if measurable else 0.0,
        drafted=sum(one.drafted for one in known),
        accepted=sum(one.accepted for one in known),
        tokens_per_step=sum(one.tokens for one in known) / steps if steps else 1.0,
        predicted=median(one.predicted for one in known) if known else 1.0,
        same_text=all(
            a.finished.tokens == b.finished.tokens for a, b in zip(found.on, found.off, strict=True)
        ),
        reason=known[-1].reason if known else "nothing drafts here",
    )
