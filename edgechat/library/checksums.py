"""Compares a model with the checksums that were noted when it was pulled."""

from pathlib import Path

from edgechat.errors import BrokenModelError
from edgechat.library.source import load_source, sha256_of


def check_sums(model: Path) -> str:
    """Compute a model's checksums again, all of its parts.

    Returns:
        What was found, in a few words; "" where no checksums are known.

    Raises:
        BrokenModelError: the file is not what was pulled.
    """
    source = load_source(model)
    if source is None:
        return ""
    for part in source.files:
        path = model.with_name(part.name)
        if sha256_of(path) != part.sha256:
            raise BrokenModelError(
                f"{path} is not what was pulled from {source.repository} (its checksum differs): remove it "
                "with `edgechat models rm`, and pull it again"
            )
    return "checksums as pulled"
