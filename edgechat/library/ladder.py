"""What gives way where a model doesn't fit into the memory: one step after the other, each said.

Pure policy. What a step would need is asked of a function; nothing here knows a model.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from edgechat.hardware import MARGIN
from edgechat.library.needs import Available, Needs
from edgechat.records import LoadSettings
from edgechat.units import bytes_text

MIB = 2**20
PLENTY = 0.6
"""Of what is free: what needs less is no burden, and is loaded without a closer look."""
CTX_STEP = 256
COMFORTABLE_CTX = 2048
"""Rather than less context than this, layers leave the GPU and the draft model goes."""
SMALLEST_CTX = 512
BATCHES = (256, 128)

Requirements = Callable[[LoadSettings, bool], Needs | None]
"""What settings would take, with the draft model or without; None where no such context can be made.

`n_ctx` is never 0 in what it is asked, and `n_gpu_layers` never negative.
"""


class Verdict(StrEnum):
    """Whether a model fits into the memory."""

    FITS = "fits"
    WITH_SETTINGS = "fits with these settings"
    DOES_NOT = "does not fit"


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model will be loaded, or why it can't be."""

    verdict: Verdict
    settings: LoadSettings
    """The best; where it doesn't fit, those that need least."""
    draft: bool
    """Whether the draft model is kept."""
    needs: Needs
    """Of `settings`."""
    asked: Needs
    """Of what was asked for."""
    available: Available
    steps: tuple[str, ...] = ()
    """What gave way, for people, in order."""

    @property
    def fits(self) -> bool:
        """Whether it can be loaded."""
        return self.verdict is not Verdict.DOES_NOT

    @property
    def short(self) -> int:
        """Bytes that are missing; 0 where it fits."""
        return shortage(self.needs, self.available)


@dataclass(frozen=True, slots=True)
class _State:
    settings: LoadSettings
    draft: bool
    needs: Needs
    asked_ctx: int
    steps: tuple[tuple[str, str], ...] = ()
    """What gave way, and how that is said; each only once."""


def mapping(settings: LoadSettings, held: int, available: Available, *, huge_pages: bool) -> LoadSettings:
    """The same settings, with the choice between mapping weights and reading them made.

    Mapped weights can be given back to the system and read again; memory that is short needs that.

    Args:
        settings: for the CPU.
        held: bytes that must stay in memory: `Needs.held`, the draft model's among them.
        available: what may be taken.
        huge_pages: what is read comes into huge pages.
    """
    if settings.use_mmap is not None:
        return settings
    return msgspec.structs.replace(settings, use_mmap=not (huge_pages and held < plenty(available)))


def plenty(available: Available) -> int:
    """Bytes that nobody will miss."""
    return int(min(available.ram * PLENTY, available.room))


def fits(needs: Needs, available: Available) -> bool:
    """Whether it can be taken, and the margin left."""
    return shortage(needs, available) == 0


def shortage(needs: Needs, available: Available) -> int:
    """Bytes that are missing, in main memory or on the GPUs; 0 where it fits."""
    ram = needs.held + (needs.gpu if available.shared else 0) - available.room
    vram = needs.gpu + MARGIN - available.vram if needs.gpu and available.vram else 0
    return max(0, ram, vram)


def ladder(
    requirements: Requirements, available: Available, asked: LoadSettings, *, n_ctx: int, draft: bool = False
) -> Plan:
    """Find settings that fit, giving up as little as can be.

    The cache in q8_0, a smaller batch, a smaller context, fewer layers on the GPU, no draft model; then the
    smallest context. What the person fixed (`asked.fixed`, and any `asked.n_ctx` but 0) stays.

    Args:
        requirements: what settings would take.
        available: what may be taken.
        asked: the person's settings; its `n_gpu_layers` is the number of layers that is wanted on GPUs.
        n_ctx: tokens of context that `asked` comes to.
        draft: whether there is a draft model.

    Raises:
        ValueError: not even what was asked for can be said to need anything.
    """
    first = msgspec.structs.replace(asked, n_ctx=n_ctx)
    needs = requirements(first, draft)
    if needs is None:
        raise ValueError("no such context can be made")
    state = _State(first, draft, needs, n_ctx)
    if fits(needs, available):
        return Plan(Verdict.FITS, first, draft, needs, needs, available)
    free = frozenset(("kv_type", "n_batch", "n_gpu_layers", "draft")) - set(asked.fixed)
    free |= {"n_ctx"} if asked.n_ctx == 0 else set()
    for rung in _RUNGS:
        if rung.gives_up not in free:
            continue
        for step in rung.steps(state, requirements, available):
            state = step
            if fits(state.needs, available):
                return _plan(Verdict.WITH_SETTINGS, state, needs, available)
    return _plan(Verdict.DOES_NOT, state, needs, available)


def _plan(verdict: Verdict, state: _State, asked: Needs, available: Available) -> Plan:
    steps = tuple(text for _, text in state.steps)
    return Plan(verdict, state.settings, state.draft, state.needs, asked, available, steps)


def _try(
    state: _State, requirements: Requirements, step: str, *, draft: bool | None = None, **changed: object
) -> _State | None:
    """The state with changed settings; None where that is impossible or saves nothing."""
    settings = msgspec.structs.replace(state.settings, **changed)
    draft = state.draft if draft is None else draft
    needs = requirements(settings, draft)
    if needs is None or (needs.held >= state.needs.held and needs.gpu >= state.needs.gpu):
        return None
    what = next(iter(changed), "draft")
    before = tuple(one for one in state.steps if one[0] != what)
    return _State(settings, draft, needs, state.asked_ctx, (*before, (what, step)))


def _smaller_cache(state: _State, requirements: Requirements, _: Available) -> Iterator[_State]:
    if state.settings.kv_type == "f16":
        saved = _try(state, requirements, "the context's memory in q8_0 instead of f16", kv_type="q8_0")
        if saved:
            yield saved


def _smaller_batch(state: _State, requirements: Requirements, _: Available) -> Iterator[_State]:
    for n_batch in BATCHES:
        if n_batch < state.settings.n_batch:
            step = f"batches of {n_batch} instead of {state.settings.n_batch} tokens"
            if saved := _try(state, requirements, step, n_batch=n_batch):
                yield saved


def _shorter(floor: int) -> "_Steps":
    def steps(state: _State, requirements: Requirements, available: Available) -> Iterator[_State]:
        """The longest context that fits, or the floor."""
        low, high = floor // CTX_STEP, (state.settings.n_ctx - 1) // CTX_STEP

        def at(blocks: int) -> _State | None:
            n_ctx = blocks * CTX_STEP
            step = f"{n_ctx:,} instead of {state.asked_ctx:,} tokens of context"
            return _try(state, requirements, step, n_ctx=n_ctx)

        best = _largest(low, high, at, available)
        if best is not None:
            yield best

    return steps


def _fewer_layers(state: _State, requirements: Requirements, available: Available) -> Iterator[_State]:
    """As many layers on the GPU as fit."""
    current = state.settings.n_gpu_layers

    def at(layers: int) -> _State | None:
        where = f"{layers} of {current} layers on the GPU" if layers else "no layers on the GPU"
        return _try(state, requirements, f"{where}; the CPU runs the rest", n_gpu_layers=layers)

    best = _largest(0, current - 1, at, available)
    if best is not None:
        yield best


def _no_draft(state: _State, requirements: Requirements, _: Available) -> Iterator[_State]:
    if state.draft and (saved := _try(state, requirements, "no draft model", draft=False)):
        yield saved


def _largest(low: int, high: int, at: Callable[[int], _State | None], available: Available) -> _State | None:
    """The state of the largest number that fits; of the smallest where none does."""
    if high < low:
        return None
    best = at(low)
    if best is None or not fits(best.needs, available):
        return best
    while low < high:
        middle = (low + high + 1) // 2
        state = at(middle)
        if state is not None and fits(state.needs, available):
            low, best = middle, state
        else:
            high = middle - 1
    return best


_Steps = Callable[[_State, Requirements, Available], Iterator[_State]]


@dataclass(frozen=True, slots=True)
class _Rung:
    gives_up: str
    steps: _Steps


_RUNGS = (
    _Rung("kv_type", _smaller_cache),
    _Rung("n_batch", _smaller_batch),
    _Rung("n_ctx", _shorter(COMFORTABLE_CTX)),
    _Rung("n_gpu_layers", _fewer_layers),
    _Rung("draft", _no_draft),
    _Rung("n_ctx", _shorter(SMALLEST_CTX)),
)


def context_that_fits(requirements: Requirements, plan: Plan, n_ctx_train: int = 0) -> int:
    """For a context that the person fixed, the longest that would fit instead; 0 for none.

    Args:
        requirements: what settings would take.
        plan: one that doesn't fit.
        n_ctx_train: what the model was trained on: no more is proposed. 0 where it isn't known.
    """
    settings = plan.settings
    if n_ctx_train:  # longer ones need not be asked of
        n_ctx = min(settings.n_ctx, max(n_ctx_train, SMALLEST_CTX) + CTX_STEP)
        settings = msgspec.structs.replace(settings, n_ctx=n_ctx)
    state = _State(settings, plan.draft, plan.needs, plan.settings.n_ctx)
    for step in _shorter(SMALLEST_CTX)(state, requirements, plan.available):
        if fits(step.needs, plan.available):
            found = step.settings.n_ctx
            return min(found, max(n_ctx_train, SMALLEST_CTX)) if n_ctx_train else found
    return 0


def refusal(plan: Plan, name: str, *, longest_ctx: int = 0, smaller: str = "") -> str:
    """Why a model is not loaded, with the numbers and what to do, in one line.

    Args:
        plan: one that doesn't fit.
        name: the model's.
        longest_ctx: for a context that the person fixed, the longest that would fit; 0 for none.
        smaller: a smaller quantization by its name, that would fit.
    """
    says = f"{name} needs {_needed(plan)}; {bytes_text(plan.available.ram)} of memory can be taken"
    says += f", of which {bytes_text(plan.available.margin)} must stay free"
    if plan.needs.gpu and plan.available.vram and plan.needs.gpu + MARGIN > plan.available.vram:
        says += (
            f"; of the GPU's, {bytes_text(plan.needs.gpu)} are needed, {bytes_text(plan.available.vram)} free"
        )
    if longest_ctx:
        return f"{says}; try --ctx {longest_ctx}"
    if smaller:
        return f"{says}; take a smaller quantization, such as {smaller}, or a smaller model"
    return f"{says}; its weights alone are {bytes_text(plan.needs.weights)}: choose a smaller model"


def _needed(plan: Plan) -> str:
    asked = bytes_text(plan.asked.held)
    if plan.asked.held == plan.needs.held:
        return f"{asked} with {plan.settings.n_ctx:,} tokens of context"
    return f"{asked}, or {bytes_text(plan.needs.held)} at the least ({', '.join(plan.steps)})"


def note(plan: Plan) -> str:
    """What gave way, for people; "" where nothing did."""
    if not plan.steps:
        return ""
    room = bytes_text(max(0, plan.available.room))
    return (
        f"memory is short ({bytes_text(plan.asked.held)} needed, {room} can be had): {'; '.join(plan.steps)}"
    )
