"""What identifies a model file, without reading all of it."""

import hashlib
import re
from pathlib import Path

HEAD_BYTES = 16 * 2**20
SAMPLES = 64
SAMPLE_BYTES = 64 * 2**10
SPLIT = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


def fingerprint(path: Path) -> str:
    """SHA-256, in hex, over each part's size, its first 16 MiB and 64 samples of 64 KiB of the rest.

    The first 16 MiB hold the GGUF header with the vocabulary and the template; the samples are spread
    evenly to the very end of the tensors' data. Two files that differ only between samples are taken for
    the same: enough to tell models, quantizations and vocabularies apart, and no proof against tampering.

    Raises:
        OSError: a part can't be read.
    """
    digest = hashlib.sha256()
    for part in parts(path):
        size = part.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with part.open("rb") as file:
            digest.update(file.read(HEAD_BYTES))
            span = size - HEAD_BYTES - SAMPLE_BYTES
            for index in range(SAMPLES if span > 0 else 1):
                file.seek(HEAD_BYTES + max(0, span) * index // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def parts(path: Path) -> list[Path]:
    """The files of a model: itself, or all parts of "name-00001-of-00003.gguf" that are there."""
    match = SPLIT.match(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    names = (f"{match['stem']}-{number:05d}-of-{match['count']}.gguf" for number in range(1, count + 1))
    return [part for part in (path.with_name(name) for name in names) if part.exists()] or [path]
