"""From a model's file to what answers. Runs in the engine's process only."""

import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edgechat import hardware, huge_pages
from edgechat.engine.process.messages import Message
from edgechat.engine.spare import Spare
from edgechat.records import LoadSettings
from models.errors import UnsupportedTemplate

if TYPE_CHECKING:
    from edgechat.engine.process.draft_loading import Drafting
    from edgechat.engine.process.work import Work
    from edgechat.engine.states import StateStore

Progress = Callable[[float], bool]
"""Told 0 to 1; False would end the load."""
Emit = Callable[[Message], None]

RUNTIME_VARIABLE = "EDGECHAT_RUNTIME"
"""For tests alone: "module:function", which makes the runtime from LoadSettings in place of llama.cpp."""


def import_runtime() -> None:
    """Import ahead what a model will need."""
    if not os.environ.get(RUNTIME_VARIABLE):
        importlib.import_module("edgechat.runtimes.llamacpp")
    importlib.import_module("edgechat.engine.process.work")


def load(settings: LoadSettings, emit: Emit, progress: Progress) -> tuple["Work", float, tuple[str, ...]]:
    """Check a model's file, then load it.

    Returns:
        What answers, the seconds that it took, and what the person should know of how it was loaded.

    Raises:
        FileNotFoundError: there is no such file.
        models.errors.ModelError: the file is broken, or not supported.
        edgechat.errors.EdgechatError: it can't be loaded here.
    """
    from edgechat.engine.process.work import Work

    started = time.monotonic()
    idle_clock = hardware.idle_clock()
    spare = None if idle_clock is None else Spare(idle_clock, free_now=hardware.free_cpus)
    runtime, notes, eos = _load_runtime(settings, progress)
    settings = getattr(runtime, "settings", settings)  # where memory was short, not what was asked for
    template, template_notes = _chat_template(runtime, eos)
    states = _states(settings, runtime)
    drafting = _drafting(settings, runtime)
    huge_pages.settle()
    load_s = time.monotonic() - started
    work = Work(
        runtime,
        template,
        emit,
        load_s=load_s,
        states=states,
        adapt_threads=settings.n_threads == 0,
        spare=spare,
        drafter=drafting.drafter,
    )
    return work, load_s, (*notes, *template_notes, *drafting.notes)


def _drafting(settings: LoadSettings, runtime: Any) -> "Drafting":
    """What drafts for the model; nothing for a runtime that tests bring, whose times mean nothing."""
    from edgechat.engine.process.draft_loading import Drafting, load_drafter

    return Drafting() if os.environ.get(RUNTIME_VARIABLE) else load_drafter(settings, runtime)


def _states(settings: LoadSettings, runtime: Any) -> "StateStore":
    """Where the states of this model and these context settings are kept: in memory no more of them than the
    machine, or EDGECHAT_MEMORY_LIMIT, leaves beside the model."""
    from edgechat.engine.states import open_states

    info = runtime.info
    memory = hardware.memory(held=hardware.own_memory())
    return open_states(
        settings.state_folder,
        min(settings.state_memory_bytes, memory.room),
        settings.state_disk_bytes,
        identity=f"{info.fingerprint} kv={settings.kv_type} ctx={runtime.n_ctx}",
        n_vocab=info.n_vocab,
    )


def _load_runtime(settings: LoadSettings, progress: Progress) -> tuple[Any, tuple[str, ...], int | None]:
    """The runtime, its notes, and the token that ends a text."""
    named = os.environ.get(RUNTIME_VARIABLE)
    if named:
        module, _, function = named.partition(":")
        return getattr(importlib.import_module(module), function)(settings, progress), (), None
    from models.verify import verify_gguf

    header = verify_gguf(Path(settings.path))  # before native code sees the file
    from edgechat.runtimes.llamacpp import LlamaCppRuntime

    runtime = LlamaCppRuntime.load(settings, progress)
    eos = header.metadata.get("tokenizer.ggml.eos_token_id")
    return runtime, tuple(getattr(runtime, "notes", ())), eos if isinstance(eos, int) else None


def _chat_template(runtime: Any, eos: int | None) -> tuple[Any, tuple[str, ...]]:
    """The model's chat template; None where there is none, plain text and a note where it is refused."""
    source = runtime.info.chat_template
    if source is None:
        return None, ()  # which each conversation says of itself
    from edgechat.engine.end_of_turn import end_of_turn_ids
    from models.chat_template import usable_template

    tokenizer = runtime.tokenizer
    try:
        template = usable_template(
            source,
            bos=None if tokenizer.bos_id is None else tokenizer.name(tokenizer.bos_id),
            eos=None if eos is None else tokenizer.name(eos),
        )
    except UnsupportedTemplate as error:
        from edgechat.engine.rendering import PlainRenderer

        note = f"the model's chat template was refused, and it continues plain text instead: {error}"
        return PlainRenderer(refused=True), (note,)
    ends = {*runtime.info.eog_ids, *end_of_turn_ids(template.after_answer, tokenizer)}
    runtime.info = msgspec.structs.replace(runtime.info, eog_ids=tuple(sorted(ends)))
    return template, ()
