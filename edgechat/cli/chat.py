"""`edgechat chat`: talk to a model in the terminal."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgechat.cli.options import (
    ContextOption,
    DraftOption,
    GPULayersOption,
    KVTypeOption,
    MaxTokensOption,
    MinPOption,
    SeedOption,
    SummarizeOption,
    TemperatureOption,
    ThreadsOption,
    TopKOption,
    TopPOption,
)
from edgechat.cli.output import well_formed

if TYPE_CHECKING:
    from edgechat.history import Conversation, HistoryStore

app = typer.Typer(rich_markup_mode=None)


@app.command(epilog="F1 in the chat shows its keys. Conversations are saved as they are written.")
def chat(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Name or path; none: the settings' model.")
    ] = None,
    *,
    system: Annotated[
        str | None, typer.Option(help="System prompt of new conversations; '': none, not the model's own.")
    ] = None,
    go_on: Annotated[
        bool, typer.Option("--continue", "-c", help="Go on with the last conversation.")
    ] = False,
    resume: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Go on with the conversation of this number.")
    ] = None,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    min_p: MinPOption = None,
    seed: SeedOption = None,
    ctx: ContextOption = None,
    threads: ThreadsOption = None,
    kv_type: KVTypeOption = None,
    draft: DraftOption = None,
    summarize: SummarizeOption = None,
    gpu_layers: GPULayersOption = None,
    theme: Annotated[str | None, typer.Option(help="Colours: dark or light; remembered.")] = None,
) -> None:
    """Talk to a model in the terminal."""
    import asyncio
    import os
    import sys

    from edgechat import paths, settings
    from edgechat.engine.process.state_files import states_dir
    from edgechat.errors import UnsupportedError, UsageError
    from edgechat.history import open_history
    from edgechat.library.local import model_name
    from edgechat.terminals import is_dumb
    from models.verify import verify_gguf

    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise UsageError('the chat needs a terminal; in pipes and scripts use `edgechat ask "..."`')
    if is_dumb(os.environ):
        raise UnsupportedError(
            f"TERM is {os.environ['TERM']!r}, which can't show the chat: use another one, or `edgechat ask`"
        )
    if theme not in (None, "dark", "light"):
        raise UsageError(f"theme {theme!r}: give dark or light")
    if go_on and resume is not None:
        raise UsageError("--continue and --resume: give one of them")

    config = settings.load()
    history = open_history(paths.history_file())
    # What is wrong with the conversation or the file is told in the shell, before the app opens.
    going_on = _conversation(history.store, last=go_on, number=resume)
    path = _model_file(model, going_on, config.chat.model)
    verify_gguf(path)
    load = config.engine.load(
        path,
        n_ctx=ctx,
        n_threads=threads,
        kv_type=kv_type,
        draft=draft,
        n_gpu_layers=gpu_layers,
        state_folder=str(states_dir()),
        state_memory_bytes=config.cache.memory_mb << 20,
        state_disk_bytes=config.cache.disk_mb << 20,
    )
    sampling = config.sampling.settings(
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed
    )

    from edgechat.chat.app import ChatSetup, run_chat
    from edgechat.chat.appearance import NAMES, ThemeMemory
    from edgechat.chat.engine import EngineState
    from edgechat.chat.options import ChatOptions
    from edgechat.engine.process.supervisor import EngineSupervisor, State

    memory = ThemeMemory(paths.state_dir() / "theme", config.chat.theme)
    if theme is not None:
        memory.remember(NAMES[theme])
    states = {State.LOADING: EngineState.STARTING, State.READY: EngineState.READY}
    setup = ChatSetup(
        engine=lambda *, on_progress, on_note, on_warning, on_state: EngineSupervisor(
            load,
            on_progress=on_progress,
            on_note=on_note,
            on_warning=on_warning,
            on_state=lambda state: on_state(states.get(state, EngineState.ENDED)),
        ),
        history=history,
        options=ChatOptions(
            model=model_name(path),
            model_path=str(path),
            system_prompt=config.chat.system_prompt if system is None else well_formed(system).strip(),
            sampling=sampling,
            max_tokens=config.sampling.max_tokens if max_tokens is None else max_tokens,
            summarize=config.engine.summarize if summarize is None else summarize,
        ),
        theme=memory,
        resume=None if going_on is None else going_on.id,
    )
    raise typer.Exit(asyncio.run(run_chat(setup)))


def _conversation(store: "HistoryStore", *, last: bool, number: int | None) -> "Conversation | None":
    """The conversation to go on with; None: a new one.

    Raises:
        ConversationGone: there is none of that number.
    """
    if last:
        return store.latest()
    return None if number is None else store.get(number)


def _model_file(asked: str | None, going_on: "Conversation | None", usual: str) -> Path:
    """The file of the model that was asked for, else of the conversation's, else of the settings'.

    Raises:
        EdgechatError: there is none.
    """
    from edgechat.errors import EdgechatError
    from edgechat.library.resolve import resolve_to_load

    if asked is None and going_on is not None:
        for name in filter(None, (going_on.model_path, going_on.model)):
            with contextlib.suppress(EdgechatError):  # it is gone: the chat says which one answers instead
                return resolve_to_load(name)
    return resolve_to_load(usual if asked is None else asked)
