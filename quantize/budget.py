"""How large a result may be: `--target-size 4GB`, or `--target-bpw 4.5`."""

import math
from dataclasses import dataclass

from models.sizes import amount, lacks_unit
from quantize.errors import BadRequest
from quantize.formats.gguf import padded
from quantize.plan import Target, human

NAMES = {
    "TB": 10**12, "TiB": 2**40, "GB": 10**9, "GiB": 2**30, "MB": 10**6, "MiB": 2**20, "kB": 10**3,
}  # fmt: skip
MAX_BPW = 32.0


@dataclass(frozen=True, slots=True)
class Budget:
    """Of the whole file in bytes, or of the weights alone in bits for each."""

    n_bytes: int | None = None
    """With its metadata and its vocabulary."""
    bits_per_weight: float | None = None
    """Over all tensors, as `models show` counts."""

    def __post_init__(self) -> None:
        if (self.n_bytes is None) == (self.bits_per_weight is None):
            raise BadRequest("--target-size or --target-bpw: give one of both")

    @property
    def option(self) -> str:
        """By which it was given."""
        return "--target-size" if self.n_bytes is not None else "--target-bpw"

    @property
    def label(self) -> str:
        """For file names: "4GB", "4.5bpw"."""
        if self.bits_per_weight is not None:
            return f"{self.bits_per_weight:g}bpw"
        assert self.n_bytes is not None
        for unit, size in NAMES.items():
            if self.n_bytes >= size and self.n_bytes * 100 % size == 0:
                whole, hundredths = divmod(self.n_bytes * 100 // size, 100)
                return f"{whole}.{hundredths:02}".rstrip("0").rstrip(".") + unit
        return f"{self.n_bytes}B"

    @property
    def target(self) -> Target:
        """The type of a file that is a mix; its number in the file is settled when the mix is."""
        return Target(self.label, 15)

    def room(self, header_bytes: int, n_weights: int) -> int:
        """Bytes for the tensors, as `taken` counts them.

        Args:
            header_bytes: what stands before the data.
            n_weights: of all tensors.
        """
        if self.bits_per_weight is not None:
            return math.floor(self.bits_per_weight * n_weights / 8)
        assert self.n_bytes is not None
        return self.n_bytes - padded(header_bytes)

    def taken(self, n_bytes: int) -> int:
        """What a tensor takes of the room: in a file it is padded."""
        return n_bytes if self.bits_per_weight is not None else padded(n_bytes)

    def shown(self, room: int, header_bytes: int, n_weights: int) -> str:
        """An amount of room in the person's own unit."""
        if self.bits_per_weight is not None:
            return f"{math.ceil(800 * room / n_weights) / 100:.2f} bits per weight"
        n_bytes = room + padded(header_bytes)
        return f"{human(n_bytes)} ({n_bytes} bytes)"


def size_budget(text: str) -> Budget:
    """`--target-size`.

    Raises:
        BadRequest: it is no amount.
    """
    if meant := lacks_unit(text):
        raise BadRequest(f"--target-size {text} lacks a unit: give {meant}, or whatever you mean")
    n_bytes = amount(text)
    if n_bytes is None:
        raise BadRequest(f"--target-size {text!r}: an amount such as 4GB or 700MB belongs there")
    return Budget(n_bytes=n_bytes)


def bpw_budget(bits: float) -> Budget:
    """`--target-bpw`.

    Raises:
        BadRequest: it is no such number.
    """
    if not 0 < bits <= MAX_BPW:
        raise BadRequest(f"--target-bpw {bits:g}: bits per weight such as 4.5 belong there")
    return Budget(bits_per_weight=bits)
