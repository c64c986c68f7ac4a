"""Will a model fit? What it needs, part by part, against what is free; and the settings that fit best.

Exact through llama.cpp's dry run; where that can't be had, estimated from the header.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from edgechat import hardware, huge_pages
from edgechat.library import estimate, ladder
from edgechat.library.dry_run import Answer, DryRunProcess, NoDryRun
from edgechat.library.inspect import number
from edgechat.library.ladder import Plan, Verdict
from edgechat.library.local import model_name
from edgechat.library.needs import Available, Needs
from edgechat.library.smaller import smaller_quantization
from edgechat.records import KVType, LoadSettings
from edgechat.units import bytes_text
from models.gguf import GGUFHeader
from models.verify import verify_gguf

Ask = Callable[[LoadSettings], Answer]


class Choice(msgspec.Struct, frozen=True):
    """Settings that decide on memory."""

    ctx: int
    kv_type: KVType
    batch: int
    gpu_layers: int
    """The output layer counts as one."""
    draft: bool


class PlanReport(msgspec.Struct, frozen=True):
    """Whether a model fits, with the numbers. Sizes are in bytes."""

    model: str
    path: str
    draft: str
    """Path of the draft model; "" for none."""
    verdict: Verdict
    fits: bool
    exact: bool
    """llama.cpp said it; False where it is estimated from the header."""
    asked: Choice
    asked_needs: Needs
    planned: Choice
    """What it will be loaded with; where it doesn't fit, what needs least."""
    needs: Needs
    """Of `planned`."""
    peak: int
    """Resident memory that the system will show of it."""
    held: int
    """What of it must be free, besides the margin."""
    available: Available
    margin: int
    gpu: str
    """The GPUs' names; "" without."""
    steps: tuple[str, ...]
    """What gives way, in order."""
    remedy: str
    """What to do where it doesn't fit, in one line; "" where it does."""


def plan(
    path: Path,
    settings: LoadSettings,
    *,
    draft: Path | None = None,
    available: Available | None = None,
    exact: bool = True,
) -> PlanReport:
    """Plan a load.

    Args:
        path: the model's first file.
        settings: what is asked for; see `edgechat.library.ladder` for what may give way.
        draft: a draft model that is to run beside it.
        available: what may be taken; None looks. The GPUs' memory comes from llama.cpp.
        exact: ask llama.cpp; False is instant, and good to some percent.

    Raises:
        FileNotFoundError: no such file.
        models.errors.ModelError: a file is broken or not supported.
        EdgechatError: llama.cpp can't load it.
    """
    parts = [verify_gguf(path), *estimate.read_parts(path)[1:]]  # before native code sees the file
    if draft is not None:
        verify_gguf(draft)
    free = available or main_memory()
    features = hardware.cpu_features()

    def estimated(file: Path) -> Ask:
        headers = parts if file == path else estimate.read_parts(file)

        def ask(wanted: LoadSettings) -> Answer:
            trained = number(headers[0], "context_length")
            return Answer(
                needs=estimate.estimate(headers, wanted, features),
                n_ctx=estimate.context(wanted, trained),
                n_ctx_train=trained,
            )

        return ask

    if exact:
        try:
            with DryRunProcess(path) as model, DryRunProcess(draft or path) as second:
                report = _plan(path, settings, draft, free, (model.ask, second.ask))
                return _advised(report, parts, exact=True)
        except NoDryRun:
            pass
    report = _plan(path, settings, draft, free, (estimated(path), estimated(draft or path)))
    return _advised(report, parts, exact=False)


def main_memory() -> Available:
    """The main memory that may be taken now."""
    found = hardware.memory()
    return Available(ram=found.available, total_ram=found.total, margin=found.margin)


def line(report: PlanReport) -> str:
    """The verdict in one line: "fits: 352.2 MB with 8,192 tokens of context, 21.4 GB free"."""
    free = f"{bytes_text(report.available.ram)} free"
    where = f" (and {bytes_text(report.needs.gpu)} on {report.gpu})" if report.needs.gpu else ""
    about = "" if report.exact else "about "
    if not report.fits:
        return f"{report.verdict}: {report.remedy}"
    return (
        f"{report.verdict}: {about}{bytes_text(report.held)}{where} "
        f"with {report.planned.ctx:,} tokens of context, {free}"
    )


def to_run(path: Path, settings: LoadSettings | None = None) -> str:
    """What a model that was just made takes to run, in one line, from its header: instantly.

    Raises:
        FileNotFoundError: no such file.
        models.errors.ModelError: it is broken or not supported.
    """
    report = plan(path, settings or LoadSettings(str(path)), exact=False)
    return f"to run, it {line(report).removeprefix('it ')}"


class _Planned(msgspec.Struct, frozen=True):
    report: PlanReport
    plan: Plan
    longest: int


def _plan(
    path: Path, settings: LoadSettings, draft: Path | None, free: Available, asks: tuple[Ask, Ask]
) -> "_Planned":
    """A plan by what the two that can be asked say: one of the model, one of the draft model."""
    model, second = asks
    first = model(settings)
    layers = first.n_layers if settings.n_gpu_layers < 0 else min(settings.n_gpu_layers, first.n_layers)
    asked = msgspec.structs.replace(settings, n_gpu_layers=layers if first.gpu else 0)
    free = msgspec.structs.replace(free, vram=first.vram, shared=first.shared)

    def requirements(wanted: LoadSettings, with_draft: bool) -> Needs | None:
        needs = model(wanted).needs
        if needs is None or not with_draft:
            return needs
        more = second(wanted).needs
        return more and msgspec.structs.replace(needs, draft=_beside(more), gpu=needs.gpu + more.gpu)

    needs = requirements(msgspec.structs.replace(asked, n_ctx=first.n_ctx), draft is not None)
    if needs is not None and not first.gpu:
        asked = ladder.mapping(asked, needs.held, free, huge_pages=huge_pages.available())
    found = ladder.ladder(requirements, free, asked, n_ctx=first.n_ctx, draft=draft is not None)
    longest = 0
    if not found.fits:
        longest = ladder.context_that_fits(requirements, found, first.n_ctx_train)
    report = PlanReport(
        model=model_name(path),
        path=str(path),
        draft=str(draft or ""),
        verdict=found.verdict,
        fits=found.fits,
        exact=True,
        asked=_choice(asked, first.n_ctx, draft is not None),
        asked_needs=found.asked,
        planned=_choice(found.settings, found.settings.n_ctx, found.draft),
        needs=found.needs,
        peak=found.needs.peak,
        held=found.needs.held,
        available=free,
        margin=free.margin,
        gpu=first.gpu,
        steps=found.steps,
        remedy="",
    )
    return _Planned(report, found, longest)


def _beside(needs: Needs) -> int:
    """What a draft model adds to an engine that is there already: all but Python and llama.cpp."""
    return needs.held - estimate.ENGINE


def _choice(settings: LoadSettings, n_ctx: int, draft: bool) -> Choice:
    return Choice(n_ctx, settings.kv_type, settings.n_batch, max(0, settings.n_gpu_layers), draft)


def _advised(planned: _Planned, parts: Sequence[GGUFHeader], *, exact: bool) -> PlanReport:
    """The report, with what to do where it doesn't fit."""
    remedy = ""
    if not planned.plan.fits:
        remedy = ladder.refusal(
            planned.plan,
            planned.report.model,
            longest_ctx=planned.longest,
            smaller=smaller_quantization(parts, planned.plan),
        )
    return msgspec.structs.replace(planned.report, exact=exact, remedy=remedy)
