"""`edgechat models`: the models on this machine."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from edgechat.cli import models_keep, models_pull, models_search, plan
from edgechat.cli.options import AsJsonOption
from edgechat.cli.output import clipped, json_object, note, one_line
from edgechat.cli.tables import pairs, table
from edgechat.errors import BrokenModelError, EngineCrashedError, ExitCode, from_exception
from edgechat.library.places import Program
from edgechat.library.summaries import Trouble
from edgechat.units import ago, bytes_text, count_text

if TYPE_CHECKING:
    from edgechat.library.inspect import ModelSummary
    from edgechat.library.local import ModelFile

app = typer.Typer(no_args_is_help=True, help="The models on this machine: find, pull, check, remove.")
app.command("pull")(models_pull.pull)
app.command("link")(models_pull.link)
app.command("search", short_help="Search a catalog of models that run on laptops.")(models_search.search)
app.command("rm")(models_keep.rm)
app.command("du")(models_keep.du)
app.command("plan", short_help="Say whether a model fits into memory, and how.")(plan.plan)

# Where several files fail, the gravest decides on the exit code.
GRAVITY = (ExitCode.BROKEN_MODEL, ExitCode.NOT_FOUND, ExitCode.UNSUPPORTED)


@app.command("ls", short_help="List the models that are here, whoever brought them.")
def list_(as_json: AsJsonOption = False) -> None:
    """List the models that can be named: pulled, of the settings' folders, and of other programs."""
    from edgechat.library.local import list_models, models_dir
    from edgechat.library.summaries import summaries
    from edgechat.library.usage import last_uses

    models = list_models()
    found = list(zip(models, summaries(models), last_uses(model.path for model in models), strict=True))
    if as_json:
        json_object({"models": [_as_json(*one) for one in found]})
        return
    table(
        ("name", "weights", "quantization", "size", "context", "from", "last used"),
        [_row(*one) for one in found],
        spare=("context", "last used", "weights"),
    )
    for _, known, _ in found:
        if isinstance(known, Trouble):
            note(known.message)
    if not found:
        from edgechat.library.starter import INSTALL

        note(
            f"no models here: install the starter with `{INSTALL}`, put GGUF files into {models_dir()}, or "
            "pull one (`edgechat models search`)"
        )


@app.command("show", short_help="Say what a model is, and where it came from.")
def show(
    model: Annotated[str, typer.Argument(help="Path or name of a model; `starter` for the starter.")],
    as_json: AsJsonOption = False,
) -> None:
    """Say what a model is: size, quantization, context, template, licence, where it came from."""
    from edgechat.library.inspect import summarize
    from edgechat.library.resolve import resolve_model
    from edgechat.library.source import load_source
    from edgechat.library.usage import last_use

    file = resolve_model(model)
    summary = summarize(file.path, file.name)
    source, used = load_source(file.path), last_use(file.path)
    if as_json:
        json_object(
            {**msgspec.to_builtins(summary), "from": file.program, "source": source, "last_used": used}
        )
        return
    template = summary.template_family if summary.has_template else "none: a base model, it continues texts"
    rows = [
        ("name", summary.name),
        ("path", summary.path),
        ("links to", str(file.path.resolve()) if file.path.is_symlink() else ""),
        ("from", "" if file.program is Program.PACKAGE else file.program),
        ("title", clipped(summary.title)),
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
        ("licence", clipped(summary.licence) or (source.licence if source else "")),
        ("pulled from", f"{source.repository} at {source.revision[:12]}" if source else ""),
        ("pulled on", time.strftime("%Y-%m-%d", time.localtime(source.pulled)) if source else ""),
        ("sha256", source.files[0].sha256 if source and source.files else ""),
        ("last used", ago(used)),
    ]
    rows += [(f"receipt: {name}", _told(value)) for name, value in (summary.receipt or {}).items()]
    pairs([row for row in rows if row[1]])


def _told(value: object) -> str:
    """A part of a receipt, for a person."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_told(one)}" for name, one in value.items())
    if isinstance(value, list):
        return " ".join(_told(one) for one in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@app.command("verify", short_help="Check that files are whole and safe to load.")
def verify(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Paths or names of models.")],
    load: Annotated[bool, typer.Option("--load", help="Load each in an engine of its own, too.")] = False,
    fast: Annotated[bool, typer.Option("--fast", help="Don't compute checksums again.")] = False,
    as_json: AsJsonOption = False,
) -> None:
    """Check that files are whole and safe to load, and of those that were pulled, the checksums.

    Exit code 0: all are sound. 3: not found. 4: broken or unsafe. 6: sound, but not supported here.
    """
    results = [_verify(name, load, fast) for name in files]
    failed = sorted((result for result in results if result["error"]), key=_gravity)
    if as_json:
        error = {"code": failed[0]["code"], "message": failed[0]["error"]} if failed else None
        json_object({"files": results, "error": error})
    for result in results:
        if result["error"]:
            note(f"edgechat: {result['error']}")
        elif not as_json:
            print(one_line(f"{result['path']}: sound ({result['what']})"))
    if failed:
        raise typer.Exit(failed[0]["code"])


def _gravity(result: dict[str, Any]) -> int:
    """Where what is wrong with a file stands among what may be wrong with others."""
    code = result["code"]
    return GRAVITY.index(code) if code in GRAVITY else len(GRAVITY)


def _verify(name: str, load: bool, fast: bool) -> dict[str, Any]:
    """What is so about one file; errors that are ours become part of it."""
    from edgechat.library.checksums import check_sums
    from edgechat.library.resolve import resolve
    from models.verify import verify_gguf

    path = name
    try:
        path = str(resolve(name))
        header = verify_gguf(path)
        hashed = "" if fast else check_sums(Path(path))
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
        f"{hashed and ', ' + hashed}"
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


def _row(model: "ModelFile", known: "ModelSummary | Trouble", used: float | None) -> tuple[str, ...]:
    size = bytes_text(model.size_bytes)
    if isinstance(known, Trouble):
        state = "unsupported" if known.code == ExitCode.UNSUPPORTED else "broken"
        return (model.name, state, "", size, "", model.program, ago(used))
    return (
        model.name,
        count_text(known.parameters),
        known.quantization,
        size,
        f"{known.n_ctx_train:,}",
        model.program,
        ago(used),
    )


def _as_json(model: "ModelFile", known: "ModelSummary | Trouble", used: float | None) -> dict[str, object]:
    trouble = known if isinstance(known, Trouble) else None
    return {
        "name": model.name,
        "path": str(model.path),
        "size_bytes": model.size_bytes,
        "from": model.program,
        "last_used": used,
        "error": trouble.message if trouble else None,
        "summary": None if trouble else known,
    }
