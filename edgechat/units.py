"""Numbers as a person reads them."""

import time

UNITS = ("B", "kB", "MB", "GB", "TB")
SPANS = ((86_400 * 7, "week"), (86_400, "day"), (3_600, "hour"), (60, "minute"))


def bytes_text(count: int) -> str:
    """A size in decimal units: 98362432 is "98.4 MB"."""
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in UNITS:
        if size < 999.95:
            return f"{size:.1f} {unit}"
        size /= 1000
    return f"{size * 1000:.1f} {UNITS[-1]}"


def count_text(count: int) -> str:
    """A number of weights, in three figures: 134515008 is "135M"."""
    for limit, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= limit * 0.9995:
            share = count / limit
            return f"{share:.0f}{unit}" if share >= 99.95 else f"{share:.3g}{unit}"
    return str(count)


def ago(moment: float | None, now: float | None = None) -> str:
    """How long ago that was: "3 days ago"; "" for None.

    Args:
        moment: in seconds since 1970.
        now: None for now.
    """
    if moment is None:
        return ""
    passed = (time.time() if now is None else now) - moment
    for seconds, name in SPANS:
        if passed >= seconds:
            count = int(passed // seconds)
            return f"{count} {name}{'s' if count > 1 else ''} ago"
    return "just now"
