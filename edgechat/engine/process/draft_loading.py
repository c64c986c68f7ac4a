"""What drafts for a model: measured, checked and loaded. Runs in the engine's process only.

A draft model is a help, never a need: one that can't be used is refused with the reason, and the answers come
without it.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from edgechat.engine.drafting import LONGEST, Drafter, longest_for
from edgechat.engine.speculation.cost import CostTable, StepCost
from edgechat.engine.speculation.draft_model import DraftModel
from edgechat.engine.speculation.keeping import AcceptanceFile
from edgechat.engine.speculation.measuring import draft_seconds, step_costs
from edgechat.errors import EdgechatError
from edgechat.records import LoadSettings
from edgechat.runtimes.base import ContextFull, DecodeFailed, Runtime
from models.errors import ModelError

if TYPE_CHECKING:
    from models.gguf import GGUFHeader

_log = logging.getLogger(__name__)

LIKELY = 0.8
"""As often do drafts of a good draft model stand; one that pays only above that is left out."""
WORTH = 1.1
"""A model that was found, not named, must promise so much."""
OFF = frozenset({"", "off"})


@dataclass(frozen=True, slots=True)
class Drafting:
    """What was loaded."""

    drafter: Drafter | None = None
    notes: tuple[str, ...] = ()


def load_drafter(settings: LoadSettings, runtime: Runtime) -> Drafting:
    """What `settings.draft` asks for, for a model that is loaded and holds nothing yet."""
    if settings.draft in OFF:
        return Drafting()
    named = settings.draft != "ngram"
    longest = min(longest_for(runtime.can, min(settings.n_draft_max, LONGEST)), runtime.n_batch - 1)
    if longest < 1:
        note = f"{runtime.info.name} can't take tokens back, so that nothing can be drafted for it"
        return Drafting(notes=(note,) if named else ())
    try:
        table = step_costs(runtime, settings.cost_folder)
    except (DecodeFailed, ContextFull, ValueError) as error:
        _log.warning("no costs could be measured: %s", error)
        return Drafting(notes=(f"nothing is drafted: {error}",))
    model, notes = _model(settings, runtime, table) if named else (None, ())
    kept = AcceptanceFile(settings.cost_folder, runtime.info, None if model is None else model.runtime.info)
    drafter = Drafter(
        StepCost(table),
        eog=runtime.info.eog_ids,
        model=model,
        longest=longest,
        calibration=kept.read(),
        keep=kept.write,
    )
    return Drafting(drafter, notes)


def _model(
    settings: LoadSettings, runtime: Runtime, table: CostTable
) -> tuple[DraftModel | None, tuple[str, ...]]:
    """The draft model that was named or found; None, and why, where it can't be used."""
    quiet = settings.draft_must_pay
    name = Path(settings.draft).name.removesuffix(".gguf")
    try:
        refusal = _refusal(Path(settings.path), Path(settings.draft))
        drafts = None if refusal else _load(settings, runtime)
    except (EdgechatError, ModelError, OSError, ValueError) as error:
        refusal, drafts = " ".join(str(error).split()), None
    if drafts is None:
        note = f"{name} can't draft for {runtime.info.name}: {refusal}. Answers come without it"
        return None, () if quiet else (note,)
    step_s = draft_seconds(drafts, settings.cost_folder)
    best = 0.0 if step_s is None else best_speedup(table, step_s, LIKELY)
    if step_s is None or (quiet and best < WORTH):
        drafts.close()
        note = f"{name} failed while it was measured: answers come without it"
        return None, () if quiet else (note,)
    model = DraftModel(drafts, runtime.tokenizer.n_vocab, step_s)
    if best >= 1:
        return model, ()
    return model, (
        f"{name} can hardly make {runtime.info.name} faster on this machine: a draft of it takes "
        f"{step_s / table.seconds[0]:.0%} of the time of a token. It is used only where it pays",
    )


def _load(settings: LoadSettings, runtime: Runtime) -> Runtime:
    from edgechat.runtimes.llamacpp import LlamaCppRuntime

    own = msgspec.structs.replace(
        settings, path=settings.draft, n_ctx=runtime.n_ctx, draft="off", state_folder=""
    )
    return cast(Runtime, LlamaCppRuntime.load(own))


def _refusal(target: Path, draft: Path) -> str:
    """Why a model's tokens can't stand for those of another; "" where they can."""
    from models.same_vocabulary import vocabulary_difference
    from models.verify import verify_gguf

    header: GGUFHeader = verify_gguf(draft)  # before native code sees the file
    from models.gguf import read_header

    return vocabulary_difference(read_header(target), header)


def best_speedup(table: CostTable, step_s: float, acceptance: float) -> float:
    """Tokens per plain step at the best number of drafts, each of which stands with `acceptance`."""
    plain = table.seconds[0]
    best, standing, tokens = 0.0, 1.0, 1.0
    for width, seconds in zip(table.widths[1:], table.seconds[1:], strict=True):
        standing *= acceptance
        tokens += standing
        best = max(best, tokens * plain / (seconds + (width - 1) * step_s))
    return best
