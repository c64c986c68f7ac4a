"""`edgechat ask`: one answer, for pipes and scripts."""

import shlex
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from edgechat.cli.options import (
    AsJsonOption,
    ContextOption,
    DraftOption,
    KVTypeOption,
    MaxTokensOption,
    MinPOption,
    QuietOption,
    SeedOption,
    SummarizeOption,
    TemperatureOption,
    ThreadsOption,
    TopKOption,
    TopPOption,
)
from edgechat.cli.output import well_formed
from edgechat.cli.text_file import read_text
from edgechat.engine.process.spawn import spawn_host
from edgechat.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from edgechat.records import Grammar

app = typer.Typer()

MAX_INPUT_BYTES = 32 * 2**20
MAX_FORM_BYTES = 2**20

Words = Annotated[
    list[str] | None, typer.Argument(metavar="[MODEL] PROMPT|-", help="`-` reads the prompt from a pipe.")
]


@app.command(
    epilog="With a prompt and a pipe, the piped text follows the prompt:  git diff | edgechat ask 'Explain:'"
)
def ask(
    words: Words = None,
    *,
    system: Annotated[str | None, typer.Option(help="System prompt; '': none, not the model's own.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is, untemplated.")] = False,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    min_p: MinPOption = None,
    seed: SeedOption = None,
    stop: Annotated[list[str] | None, typer.Option(help="End the answer at this text; repeatable.")] = None,
    json_schema: Annotated[
        str | None, typer.Option(metavar="FILE", help="The answer is JSON as this schema says.")
    ] = None,
    grammar: Annotated[
        str | None, typer.Option(metavar="FILE", help="The answer is as this grammar says (GBNF, Lark).")
    ] = None,
    ctx: ContextOption = None,
    threads: ThreadsOption = None,
    kv_type: KVTypeOption = None,
    draft: DraftOption = None,
    summarize: SummarizeOption = None,
    overflow: Annotated[
        Literal["refuse", "window"],
        typer.Option(help="A prompt longer than the context: refuse it, or cut its middle."),
    ] = "refuse",
    as_json: AsJsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Answer one prompt, for pipes and scripts: the answer on stdout, all else on stderr.

    One word is the prompt, for the starter model; of two, the first names the model, by its path or its name.
    """
    words = words or []
    with failing_as_json(as_json):
        check_words(words, system=system, raw=raw, summarize=bool(summarize))
        form = read_form(json_schema, grammar)
        host = spawn_host()  # it imports llama.cpp while we read on
    try:
        with failing_as_json(as_json):
            from edgechat import settings
            from edgechat.cli.asking import Asking, run
            from edgechat.library.local import shown_name

            config = settings.load()
            path = find_model(words, config.chat.model)
            prompt = read_prompt(words[-1] if words else "-")
            sums_up = not raw and (config.engine.summarize if summarize is None else summarize)
            asking = Asking(
                load=config.engine.load(
                    path,
                    n_ctx=ctx,
                    n_threads=threads,
                    kv_type=kv_type,
                    draft=draft,
                    n_sequences=2 if sums_up else 1,  # a summary is written in one of its own
                ),
                sampling=config.sampling.settings(
                    temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed
                ),
                prompt=prompt,
                model=shown_name(path),
                system=None if system is None else well_formed(system),
                raw=raw,
                max_tokens=config.sampling.max_tokens if max_tokens is None else max_tokens,
                stop=tuple(map(well_formed, stop or ())),
                grammar=form,
                overflow=overflow,
                summarize=sums_up,
                as_json=as_json,
                quiet=quiet,
            )
        code = run(asking, host)
    finally:
        host.discard()
    raise typer.Exit(code)


@contextmanager
def failing_as_json(as_json: bool) -> Iterator[None]:
    """Before there is anything of an answer: print the object that tells of an error, if that was asked."""
    try:
        yield
    except Exception as error:
        if as_json:
            from edgechat.cli.asking import Result, print_failure

            print_failure(error, Result())
        raise


def find_model(words: list[str], usual: str) -> "Path":
    """The file of the model that is asked, and that its last use is now.

    Args:
        words: of the command line; the first of two names the model.
        usual: what the settings name.

    Raises:
        EdgechatError: there is no such model, or several.
    """
    from edgechat.library.resolve import resolve_to_load

    if len(words) != 2:
        return resolve_to_load(usual)
    try:
        return resolve_to_load(words[0])
    except NotFoundError as error:
        if len(words[0]) > 40 or set("/.:\\") & set(words[0]):  # hardly a word of a prompt
            raise
        prompt = shlex.quote(" ".join(words)[:60])
        raise NotFoundError(
            f"{error}; if both words are the prompt, put it in quotes, as in: edgechat ask {prompt}"
        ) from error


def check_words(words: list[str], *, system: str | None, raw: bool, summarize: bool = False) -> None:
    """Refuse what can't be meant, before anything is started.

    Raises:
        UsageError: it can't be meant.
    """
    if len(words) > 2:
        raise UsageError(
            f"{len(words)} words: put the prompt in quotes, as in: edgechat ask 'Why is the sky blue?'"
        )
    if not words and sys.stdin.isatty():
        raise UsageError("no prompt, as in: edgechat ask 'Why is the sky blue?'")
    if raw and system is not None:
        raise UsageError("--raw takes no --system: put all of it in the prompt")
    if raw and summarize:
        raise UsageError("--raw takes no --summarize: a summary is asked for as in a conversation")


def read_form(json_schema: str | None, grammar: str | None) -> "Grammar | None":
    """What the answer must be, from the files named; None for anything.

    Raises:
        NotFoundError: there is no such file, or it can't be read.
        UsageError: both are named, or a file is empty, too long, or no UTF-8.
    """
    if json_schema is not None and grammar is not None:
        raise UsageError("--json-schema and --grammar: an answer has one form, give one of them")
    path = grammar if json_schema is None else json_schema
    if path is None:
        return None
    if path == "-":
        raise UsageError("the form of an answer is read from a file: standard input is the prompt's")
    from edgechat.records import Grammar

    return Grammar(read_text(path, MAX_FORM_BYTES), "gbnf" if json_schema is None else "json_schema")


def read_prompt(given: str) -> str:
    """The prompt, with what is piped in.

    Args:
        given: the prompt on the command line, or "-".

    Raises:
        UsageError: there is none, or it is too long.
    """
    if given == "-":
        prompt = _read_stdin()
    else:
        piped = _read_stdin() if _is_piped() else ""
        prompt = well_formed(f"{given}\n\n{piped}" if piped.strip() else given)
    if not prompt.strip():
        raise UsageError("the prompt is empty, as in: edgechat ask 'Why is the sky blue?'")
    return prompt


def _is_piped() -> bool:
    """Whether standard input brings a text: a pipe or a file, and not whatever a program inherits."""
    import os

    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read_stdin() -> str:
    try:
        data = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"standard input can't be read ({why}): give a file or a pipe") from error
    if len(data) > MAX_INPUT_BYTES:
        raise UsageError(f"standard input is longer than {MAX_INPUT_BYTES >> 20} MiB: give a part of it")
    if (at := data.find(0)) >= 0:  # as git tells them from texts
        raise UsageError(f"standard input is no text (byte {at + 1} is 0): convert it to UTF-8 first")
    return data.decode("utf-8", "replace")
