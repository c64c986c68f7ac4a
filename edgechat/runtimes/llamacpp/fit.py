"""Settings that fit into the main memory, found before a model is loaded."""

from pathlib import Path

import msgspec

from edgechat import hardware, huge_pages
from edgechat.errors import ResourceError
from edgechat.hardware import MARGIN
from edgechat.library import estimate, ladder
from edgechat.library.needs import Available, Needs
from edgechat.library.smaller import smaller_quantization
from edgechat.records import LoadSettings
from edgechat.runtimes.llamacpp.dry_run import DryRun
from models.errors import ModelError

RETREAT = 0.8
"""Of what was refused: what is tried next."""


def to_memory(settings: LoadSettings, path: Path, free: Available) -> tuple[LoadSettings, str]:
    """The same settings where they fit, else lower ones.

    Args:
        settings: what is asked for, to be run on the CPU.
        path: the model's first file.
        free: what can be taken beside what the engine holds.

    Returns:
        The settings, and what gave way; "" where nothing did.

    Raises:
        ResourceError: nothing fits; with the numbers and a remedy.
        EdgechatError: llama.cpp can't load the model.
    """
    try:
        parts = estimate.read_parts(path)
    except (OSError, ModelError):
        return settings, ""  # llama.cpp will say what is wrong with it
    # The engine is here, and counted: so that the numbers are those of `models plan`.
    free = msgspec.structs.replace(free, ram=free.ram + estimate.ENGINE)
    beside = _draft_bytes(settings)
    rough = estimate.estimate(parts, settings, hardware.cpu_features())
    held = rough.held + beside
    settings = ladder.mapping(settings, held, free, huge_pages=huge_pages.in_use())
    if held < ladder.plenty(free):
        return settings, ""  # without asking llama.cpp
    with DryRun(path) as dry:

        def requirements(wanted: LoadSettings, draft: bool) -> Needs | None:
            needs = dry.needs(wanted)
            if needs is not None:
                needs = msgspec.structs.replace(needs, engine=needs.engine + estimate.ENGINE)
            return msgspec.structs.replace(needs, draft=_draft_bytes(wanted)) if needs and draft else needs

        if requirements(settings, False) is None:
            return settings, ""  # loading will say why
        plan = ladder.ladder(requirements, free, settings, n_ctx=dry.n_ctx(settings), draft=beside > 0)
        if plan.fits:
            return _chosen(settings, plan), ladder.note(plan)
        longest = ladder.context_that_fits(requirements, plan, dry.n_ctx_train)
    raise ResourceError(
        ladder.refusal(plan, path.stem, longest_ctx=longest, smaller=smaller_quantization(parts, plan))
    )


def less(settings: LoadSettings, path: Path) -> Available:
    """What to plan with after the system refused what these settings take, though it seemed free."""
    return Available(int(estimate.estimate_file(path, settings).held * RETREAT) + MARGIN)


def _chosen(asked: LoadSettings, plan: ladder.Plan) -> LoadSettings:
    """What the plan comes to; where nothing gave way, what was asked for, unresolved."""
    if not plan.steps:
        return asked
    dropped = {} if plan.draft or not _draft_bytes(asked) else {"draft": ""}
    return msgspec.structs.replace(plan.settings, **dropped)


def _draft_bytes(settings: LoadSettings) -> int:
    """What the draft model adds; 0 without one, and where its file can't be read, which its own load says."""
    if settings.draft in ("", "ngram", "off"):
        return 0
    try:
        needs = estimate.estimate_file(Path(settings.draft), settings)
    except (OSError, ModelError):
        return 0
    return needs.held - estimate.ENGINE
