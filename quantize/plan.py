"""The types that a GGUF file can be made of, and whether a run fits on the disk."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from models.ggml_types import GGMLType
from quantize.errors import BadRequest, NotEnoughDisk


@dataclass(frozen=True, slots=True)
class Target:
    """A type of file, as llama.cpp names it."""

    name: str
    """As people write it: "q4_k_m"."""
    ftype: int
    """`llama_ftype`'s number, which stands in the file."""
    direct: GGMLType | None = None
    """The type of its matrices, where we write them ourselves; None: llama.cpp quantizes."""
    needs_imatrix: bool = False
    trained: bool = False
    """Only for models whose training made such weights: little is left of others."""

    @property
    def is_dense(self) -> bool:
        """Nothing is quantized: numbers of 16 or 32 bits."""
        return self.name in {"f32", "f16", "bf16"}

    @property
    def label(self) -> str:
        """As it stands in file names: "Q4_K_M"."""
        return self.name.upper()


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("f32", 0, GGMLType.F32),
        Target("f16", 1, GGMLType.F16),
        Target("bf16", 32, GGMLType.BF16),
        Target("q8_0", 7, GGMLType.Q8_0),
        Target("q6_k", 18),
        Target("q5_k_m", 17),
        Target("q5_k_s", 16),
        Target("q5_1", 9),
        Target("q5_0", 8),
        Target("q4_k_m", 15),
        Target("q4_k_s", 14),
        Target("q4_1", 3),
        Target("q4_0", 2),
        Target("iq4_nl", 25),
        Target("iq4_xs", 30),
        Target("q3_k_l", 13),
        Target("q3_k_m", 12),
        Target("q3_k_s", 11),
        Target("iq3_m", 27),
        Target("iq3_s", 26),
        Target("q2_k", 10),
        Target("q2_k_s", 21, needs_imatrix=True),
        Target("iq3_xs", 22, needs_imatrix=True),
        Target("iq3_xxs", 23, needs_imatrix=True),
        Target("iq2_m", 29, needs_imatrix=True),
        Target("iq2_s", 28, needs_imatrix=True),
        Target("iq2_xs", 20, needs_imatrix=True),
        Target("iq2_xxs", 19, needs_imatrix=True),
        Target("iq1_m", 31, needs_imatrix=True),
        Target("iq1_s", 24, needs_imatrix=True),
        Target("mxfp4_moe", 38),
        Target("tq2_0", 37, trained=True),
        Target("tq1_0", 36, trained=True),
        Target("q2_0", 41, trained=True),
        Target("q1_0", 40, trained=True),
    )
}

ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m"}
"""As in llama.cpp's llama-quantize."""

USABLE = tuple(name for name, target in TARGETS.items() if not target.needs_imatrix)
"""Without an importance matrix."""


def target_of(name: str) -> Target:
    """The type that a person means.

    Raises:
        BadRequest: there is none of that name.
    """
    plain = name.strip().lower().replace("-", "_")
    target = TARGETS.get(ALIASES.get(plain, plain))
    if target is None:
        raise BadRequest(f"there is no type {name!r}: give one of {', '.join(TARGETS)}")
    return target


def check_disk(folder: Path, result_bytes: int, temporary_bytes: int = 0) -> None:
    """Refuse a run that would fill the disk.

    Raises:
        NotEnoughDisk: with the numbers.
    """
    free = shutil.disk_usage(folder).free
    needed = result_bytes + temporary_bytes
    if needed <= free:
        return
    extra = f" and {human(temporary_bytes)} on the way" if temporary_bytes else ""
    raise NotEnoughDisk(
        f"{folder}: {human(needed)} needed ({human(result_bytes)} for the result{extra}), "
        f"{human(free)} free: make room for {human(needed - free)}, or give another place with -o"
    )


@contextmanager
def said_when_full(output: Path, option: str = "-o") -> Iterator[None]:
    """A disk that fills up in spite of the check, because others write too, or that takes no file so large.

    Args:
        output: what is written there, or beside it.
        option: that gives it another place.

    Raises:
        NotEnoughDisk: which place it is, and what helps.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise
        place = output.absolute().parent
        full = NotEnoughDisk(f"{place} is full: make room, or give another place with {option}")
        if error.errno == errno.EFBIG:
            full = NotEnoughDisk(
                f"{place} takes no file as large as this one (FAT32's end at 4 GB, a limit of the system's "
                f"may be lower): give a place on another disk with {option}"
            )
        for note in getattr(error, "__notes__", ()):
            full.add_note(note)
        raise full from None


def human(n_bytes: int | float) -> str:
    """A number of bytes as people read it: "1.26 GB"."""
    amount = float(n_bytes)
    for unit in ("B", "kB", "MB"):
        if amount < 999.5:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.2f} GB" if amount < 999.995 else f"{amount / 1000:.2f} TB"
