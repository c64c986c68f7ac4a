"""`edgechat models rm` and `du`: what the models on this machine take, and how it is given back."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgechat.cli.options import AsJsonOption
from edgechat.cli.output import json_object, note
from edgechat.cli.tables import table
from edgechat.errors import UsageError
from edgechat.library.places import Program
from edgechat.units import bytes_text

if TYPE_CHECKING:
    from edgechat.library.remove import Removal


def rm(
    models: Annotated[list[str] | None, typer.Argument(metavar="MODEL", help="Names or paths.")] = None,
    *,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Downloads that were not finished.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also what is another program's, or linked to.")
    ] = False,
    as_json: AsJsonOption = False,
) -> None:
    """Remove models, once you have said yes. Of a link, the link alone goes.

    What other programs or your own folders keep is left to them, unless --force says otherwise.
    """
    from edgechat.library.remove import plan_removal, remove, remove_unfinished
    from edgechat.library.resolve import resolve_model

    if not models and not unfinished:
        raise UsageError("name a model, as in: edgechat models rm qwen3-4b; `edgechat models ls` lists them")
    removals = [plan_removal(resolve_model(name)) for name in dict.fromkeys(models or ())]
    for removal in removals:
        _check(removal, force)
    if not yes:
        _confirm(removals, unfinished)
    for removal in removals:
        remove(removal)
        what = "link removed" if removal.is_link else f"removed, {bytes_text(removal.freed_bytes)} freed"
        note(f"{removal.model.name}: {what}")
    freed = remove_unfinished() if unfinished else 0
    if unfinished:
        note(f"unfinished downloads: removed, {bytes_text(freed)} freed")
    if as_json:
        json_object({"removed": [_as_json(one) for one in removals], "unfinished_bytes": freed})


def du(as_json: AsJsonOption = False) -> None:
    """Say what each place with models takes."""
    from edgechat.library.usage_of_disk import disk_use

    places = disk_use()
    if as_json:
        json_object({"places": places, "total_bytes": sum(one.size_bytes for one in places)})
        return
    rows = [(one.program, str(one.models), bytes_text(one.size_bytes), one.folder) for one in places]
    rows.append(("total", str(sum(one.models for one in places)), bytes_text(_total(places)), ""))
    table(("place", "models", "size", "folder"), rows)
    if any(one.program == "unfinished downloads" for one in places):
        note("pull goes on with unfinished downloads; `edgechat models rm --unfinished` removes them")


def _as_json(removal: "Removal") -> dict[str, Any]:
    return {
        "name": removal.model.name,
        "path": str(removal.model.path),
        "freed_bytes": removal.freed_bytes,
        "is_link": removal.is_link,
    }


def _total(places: "list[Any]") -> int:
    return sum(one.size_bytes for one in places)


def _check(removal: "Removal", force: bool) -> None:
    """Refuse what needs --force.

    Raises:
        UsageError: it does, and was not given.
    """
    from edgechat.library.remove import remedy

    model = removal.model
    if removal.foreign and not force:
        own = model.program in (Program.SETTINGS, Program.NONE)
        whose = "lies outside edgechat's own folder" if own else f"is kept by {model.program}"
        raise UsageError(f"{model.name} {whose}: {remedy(model)}, or give --force (it removes {model.path})")
    if removal.warning and not force:
        raise UsageError(f"{removal.warning}, and would be broken: remove that first, or give --force")
    if removal.users and not force:
        users = ", ".join(map(str, removal.users))
        raise UsageError(
            f"{model.name} is running (process {users}): end that first, or give --force "
            "(what runs goes on; its disk space is free when it ends)"
        )


def _confirm(removals: "list[Removal]", unfinished: bool) -> None:
    """Ask whether to remove them.

    Raises:
        UsageError: nobody can be asked.
        Abort: the answer is no.
    """
    from edgechat.library.remove import unfinished as find_unfinished

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("nobody to ask: --yes removes without asking")
    for removal in removals:
        what = "link" if removal.is_link else bytes_text(removal.freed_bytes)
        note(f"{removal.model.name}: {removal.model.path} ({what})")
    if unfinished:
        size = sum(size for _, size in find_unfinished())
        note(f"unfinished downloads ({bytes_text(size)})")
    typer.confirm("Remove?", abort=True, err=True)
