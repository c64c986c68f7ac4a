"""`edgechat models`: the models on this machine."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgechat.cli import models_pull
from edgechat.cli.output import json_object, note, one_line
from edgechat.cli.tables import pairs, table
from edgechat.errors import BrokenModelError, EdgechatError, EngineCrashedError, ExitCode, from_exception
from edgechat.units import bytes_text, count_text

if TYPE_CHECKING:
    from edgechat.library.inspect import ModelSummary
    from edgechat.library.local import ModelFile

app = typer.Typer(no_args_is_help=True, help="The models on this machine: find, pull, check, remove.")
app.command("pull")(models_pull.pull)
app.command("link")(models_pull.link)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

# Where several files fail, the gravest decides on the exit code.
GRAVITY = (ExitCode.BROKEN_MODEL, ExitCode.NOT_FOUND, ExitCode.UNSUPPORTED)


@app.command("ls")
def list_(as_json: AsJson = False) -> None:
    """List the models that can be named: the starter, the models folder, the settings' folders."""
    from edgechat.library.inspect import summarize
    from edgechat.library.local import list_models, models_dir

    found: list[tuple[ModelFile, ModelSummary | None, EdgechatError | None]] = []
    for model in list_models():
        try:
            found.append((model, summarize(model.path, model.name), None))
        except Exception as error:
            found.append((model, None, _known(error)))
    if as_json:
        json_object({"models": [_as_json(*one) for one in found]})
        return
    table(
        ("name", "architecture", "parameters", "quantization", "size", "context"),
        [_row(*one) for one in found],
    )
    for *_, trouble in found:
        if trouble:
            note(str(trouble))
    if not found:
        from edgechat.library.starter import INSTALL

        note(f"no models here: install the starter with `{INSTALL}`, or put GGUF files into {models_dir()}")


@app.command("show")
def show(
    model: Annotated[str, typer.Argument(help="Path or name of a model; `starter` for the starter.")],
    as_json: AsJson = False,
) -> None:
    """Say what a model is: size, quantization, context, template, licence."""
    from edgechat.library.inspect import summarize
    from edgechat.library.resolve import resolve
    from edgechat.library.starter import NAME, find_starter

    path = resolve(model)
    summary = summarize(path, NAME if path == find_starter() else "")
    if as_json:
        json_object(summary)
        return
    template = summary.template_family if summary.has_template else "none: a base model, it continues texts"
    rows = [
        ("name", summary.name),
        ("path", summary.path),
        ("title", summary.title),
        ("architecture", summary.architecture),
        ("parameters", f"{count_text(summary.parameters)} ({summary.parameters:,})"),
        ("experts", str(summary.n_experts or "")),
        ("quantization", f"{summary.quantization}, {summary.bits_per_weight:.2f} bits per weight"),
        ("size", f"{bytes_text(summary.size_bytes)} ({summary.size_bytes:,} bytes)"),
        ("context", f"trained on {summary.n_ctx_train:,} tokens"),
        ("memory per token", f"{bytes_text(summary.kv_bytes_per_token)} in f16"),
        ("layers", str(summary.n_layers)),
        ("chat template", template),
        ("tokenizer", f"{summary.tokenizer}, {summary.vocab_size:,} tokens"),
        ("licence", summary.licence),
    ]
    rows += [(f"receipt: {name}", str(value)) for name, value in (summary.receipt or {}).items()]
    pairs([row for row in rows if row[1]])


@app.command("verify")
def verify(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Paths or names of models.")],
    load: Annotated[bool, typer.Option("--load", help="Load each in an engine of its own, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check that files are whole and safe to load.

    Exit code 0: all are sound. 3: not found. 4: broken or unsafe. 6: sound, but not supported here.
    """
    results = [_verify(name, load) for name in files]
    if as_json:
        json_object({"files": results})
    for result in results:
        if result["error"]:
            note(f"edgechat: {result['error']}")
        elif not as_json:
            print(one_line(f"{result['path']}: sound ({result['what']})"))
    codes = {result["code"] for result in results} - {int(ExitCode.DONE)}
    if codes:
        raise typer.Exit(next((int(code) for code in GRAVITY if code in codes), max(codes)))


def _verify(name: str, load: bool) -> dict[str, Any]:
    """What is so about one file; errors that are ours become part of it."""
    from edgechat.library.resolve import resolve
    from models.verify import verify_gguf

    path = name
    try:
        path = str(resolve(name))
        header = verify_gguf(path)
        if load:
            _load(path)
    except Exception as error:
        known = from_exception(error)
        if known is None:
            raise
        return {
            "path": path,
            "sound": False,
            "what": None,
            "error": one_line(str(known)),
            "code": int(known.code),
        }
    weights = count_text(sum(tensor.n_elements for tensor in header.tensors))
    what = (
        f"{header.architecture}, {weights} weights in {len(header.tensors)} tensors, GGUF v{header.version}"
    )
    return {"path": path, "sound": True, "what": what, "error": None, "code": int(ExitCode.DONE)}


def _load(path: str) -> None:
    """Load a model in a process of its own, which may die of it.

    Raises:
        BrokenModelError: the process died.
    """
    import asyncio

    from edgechat.engine.process.client import EngineClient
    from edgechat.records import LoadSettings

    async def run() -> None:
        client = await EngineClient.start(LoadSettings(path, n_ctx=512, n_sequences=1))
        await client.close()

    try:
        asyncio.run(run())
    except EngineCrashedError as error:
        raise BrokenModelError(
            f"{path} makes llama.cpp crash ({error}): download or convert it again"
        ) from error


def _known(error: Exception) -> EdgechatError:
    """An error of ours.

    Raises:
        Exception: `error` itself, where it can only be a bug.
    """
    known = from_exception(error)
    if known is None:
        raise error
    return known


def _row(
    model: "ModelFile", summary: "ModelSummary | None", trouble: EdgechatError | None
) -> tuple[str, ...]:
    size = bytes_text(model.size_bytes)
    if summary is None:
        unsupported = trouble is not None and trouble.code == ExitCode.UNSUPPORTED
        return (model.name, "unsupported" if unsupported else "broken", "", "", size, "")
    return (
        model.name,
        summary.architecture,
        count_text(summary.parameters),
        summary.quantization,
        size,
        f"{summary.n_ctx_train:,}",
    )


def _as_json(
    model: "ModelFile", summary: "ModelSummary | None", trouble: EdgechatError | None
) -> dict[str, object]:
    return {
        "name": model.name,
        "path": str(model.path),
        "size_bytes": model.size_bytes,
        "error": str(trouble) if trouble else None,
        "summary": summary,
    }
