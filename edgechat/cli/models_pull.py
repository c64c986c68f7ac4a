"""`edgechat models pull` and `link`: models come to this machine, or to its models folder."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgechat.cli.options import AsJsonOption, QuietOption
from edgechat.cli.output import json_object, note
from edgechat.errors import NotFoundError, UsageError
from edgechat.units import bytes_text

if TYPE_CHECKING:
    from edgechat.library.choose import Candidate
    from edgechat.library.hub import Hub, Listing
    from edgechat.library.pull import Pulled
    from edgechat.library.reference import Wanted


def pull(
    model: Annotated[
        str,
        typer.Argument(
            metavar="REPO[:QUANT]|ALIAS|PATH", help="As in Qwen/Qwen3-4B-GGUF:q4_k_m, qwen3-4b, ~/model.gguf."
        ),
    ],
    *,
    draft: Annotated[bool, typer.Option("--draft", help="The small model that drafts for it, too.")] = False,
    as_json: AsJsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Download a model, and check it. What was interrupted goes on where it was.

    HF_TOKEN opens gated and private repositories, HF_ENDPOINT names a mirror, HTTPS_PROXY a proxy. Of
    something on this machine a link is made, not a copy.

    Exit code 3: there is no such model. 4: it is broken or unsafe. 5: the disk is too small. 7: network
    trouble, or offline.
    """
    from edgechat import offline
    from edgechat.library import reference

    wanted = reference.parse(model)
    if isinstance(wanted, Path):
        link(str(wanted), as_json=as_json)
        return
    offline.require_network("pull a model")
    if draft:
        drafter = reference.draft_of(wanted)  # raises before anything is downloaded
    from edgechat.library.hub import Hub

    hub = Hub()
    pulled = [_pull(hub, wanted, quiet)]
    if draft:
        pulled.append(_pull(hub, drafter, quiet))
    if as_json:
        json_object({"models": [_as_json(one) for one in pulled]})
        return
    for one in pulled:
        print(one.path)


def link(
    path: Annotated[str, typer.Argument(help="A GGUF file, or a folder of them.")],
    *,
    name: Annotated[str, typer.Option(help="What to call it; none: as the file is called.")] = "",
    as_json: AsJsonOption = False,
) -> None:
    """Give a model that lies elsewhere a name here: a link, not a copy."""
    from edgechat.library.link import link as make_link

    if not path.strip():  # an unset variable is no folder to link all of
        raise UsageError("the path is empty: give a GGUF file, or a folder of them")
    links = make_link(Path(path).expanduser(), name)
    if as_json:
        json_object({"links": [{"path": str(one), "target": str(one.resolve())} for one in links]})
        return
    for one in links:
        print(one)


def _pull(hub: "Hub", wanted: "Wanted", quiet: bool) -> "Pulled":
    from edgechat.cli.pull_progress import progress_for
    from edgechat.library.local import model_name
    from edgechat.library.pull import models_of
    from edgechat.library.pull import pull as pull_model

    listing = hub.listing(wanted.repository)
    found = models_of(listing)
    chosen = _choose(listing, found, wanted)
    if not quiet:
        note(f"{wanted.repository}: {chosen.shown}" + (f", {listing.licence}" if listing.licence else ""))
    try:
        pulled = pull_model(hub, listing, chosen, progress_for(quiet))
    except KeyboardInterrupt:
        if not quiet:
            note("interrupted: what came so far is kept; the same command goes on with it")
        raise
    if not quiet:
        size = bytes_text(pulled.size_bytes)
        state = "is here already" if pulled.was_here else "pulled"
        checked = "checksums are right" if pulled.verified else "the hub gave no checksums"
        name = model_name(pulled.path)
        note(f"{name} {state} ({size}, {checked}): edgechat chat {name}")
    return pulled


def _choose(listing: "Listing", found: "list[Candidate]", wanted: "Wanted") -> "Candidate":
    from edgechat.library.choose import ambiguous, choose

    try:
        chosen = choose(found, wanted.quantization, wanted.recommended)
    except NotFoundError as error:
        raise NotFoundError(f"{listing.repository}: {error}") from error
    if chosen is not None:
        return chosen
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ambiguous(found, wanted.repository, wanted.quantization)
    for number, one in enumerate(found, start=1):
        note(f"{number:3}  {one.files[0].name}  {'' if one.size is None else bytes_text(one.size)}")
    while True:
        number = int(typer.prompt("Which one", type=int, err=True))
        if 1 <= number <= len(found):
            return found[number - 1]


def _as_json(pulled: "Pulled") -> dict[str, Any]:
    from edgechat.library.local import model_name

    return {
        "name": model_name(pulled.path),
        "path": str(pulled.path),
        "size_bytes": pulled.size_bytes,
        "was_here": pulled.was_here,
        "verified": pulled.verified,
    }
