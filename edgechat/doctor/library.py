"""The checks of models and of the network's use: what places there are, what is half-done, offline or not."""

import os

from edgechat import offline
from edgechat.doctor.findings import Finding, Severity
from edgechat.errors import EdgechatError
from edgechat.units import bytes_text


def check_models() -> Finding:
    """The models that are here, by the place that keeps them; what can't be read is said."""
    from edgechat import settings
    from edgechat.library.local import all_places
    from edgechat.library.usage_of_disk import NOT_DONE, disk_use

    try:
        settings.load()
    except EdgechatError:  # the check of the settings tells of it
        return Finding("models", "not looked for: the settings can't be read")
    try:
        used = disk_use()
        closed = [
            place for place in all_places() if place.folder.is_dir() and not os.access(place.folder, os.R_OK)
        ]
    except (EdgechatError, OSError) as error:
        return Finding("models", "?", Severity.WARNING, str(error), "correct the settings")
    parts = [
        f"{one.program}: {one.models} ({bytes_text(one.size_bytes)})"
        for one in used
        if one.program != NOT_DONE
    ]
    found = ", ".join(parts) or "none"
    data = {
        "places": [
            {"program": one.program, "folder": one.folder, "models": one.models, "size_bytes": one.size_bytes}
            for one in used
        ]
    }
    if closed:
        place = closed[0]
        return Finding(
            "models",
            found,
            Severity.WARNING,
            f"the models of {place.program} in {place.folder} can't be read",
            "let your user read that folder, or set models.other_programs = false",
            data,
        )
    half = next((one for one in used if one.program == NOT_DONE), None)
    if half is not None:
        return Finding(
            "models",
            found,
            Severity.WARNING,
            f"{bytes_text(half.size_bytes)} of downloads are unfinished",
            "pull those models again to go on, or run `edgechat models rm --unfinished`",
            data,
        )
    return Finding("models", found, data=data)


def check_offline() -> Finding:
    """Whether the network may be used; it is needed by nothing but pulls."""
    why = offline.active() or offline.reason()
    endpoint = os.environ.get("HF_ENDPOINT", "")
    data = {
        "offline": bool(why),
        "reason": why,
        "endpoint": endpoint,
        "token": bool(os.environ.get("HF_TOKEN")),
    }
    if why:
        return Finding("network", f"offline ({why}): every connection is refused", data=data)
    mirror = f", the hub is {endpoint}" if endpoint else ""
    return Finding("network", f"asked by `models pull` and `search --online` alone{mirror}", data=data)
