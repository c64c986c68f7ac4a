"""Damaged and hostile GGUF files: the same ones each time.

They are made from models of two layers that llama.cpp loads, and from the header of a real one: cut off,
with flipped bytes, and with each number that llama.cpp is known to crash on or to swallow in silence.
"""

import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.oracles.damaged_structure import FILE, TENSORS
from tests.oracles.damaged_values import BPE, EXPERTS, GEMMA, NUMBERS, TOKENS
from tests.oracles.gguf_changes import ANY, BROKEN, Change
from tests.oracles.raw_gguf import tiny_llama

Base = tuple[str, str, int]
"""Tokenizer, architecture, experts: what `tiny_llama` takes."""
DENSE: Base = ("llama", "llama", 0)
MIXTURE: Base = ("llama", "llama", 4)
QWEN: Base = ("gpt2", "qwen2", 0)
GEMMA_3: Base = ("llama", "gemma3", 0)


@dataclass(frozen=True, slots=True)
class Damaged:
    """One damaged file."""

    name: str
    codes: frozenset[int]
    """What `edgechat models verify` may answer."""
    head: bytes
    size: int
    """Of the file; zeros follow `head`."""

    def write(self, folder: Path) -> Path:
        """Put the file into a folder; the zeros take no room."""
        path = folder / f"{self.name}.gguf"
        with path.open("wb") as file:
            file.write(self.head)
            file.truncate(self.size)
        return path


def damaged_files(real: Path) -> Iterator[Damaged]:
    """All of them.

    Args:
        real: a sound model, whose header is used; Llama, with a BPE tokenizer.
    """
    yield from _cut_tiny()
    yield from _cut_real(real)
    yield from _flipped_tiny(90)
    yield from _flipped_real(real, 40)
    for group, cases in (("file", FILE), ("tensor", TENSORS), ("number", NUMBERS), ("token", TOKENS)):
        for name, (codes, change) in cases.items():
            yield _changed(f"{group}-{name}", codes, DENSE, change)
    for name, (codes, change) in EXPERTS.items():
        yield _changed(f"experts-{name}", codes, MIXTURE, change)
    for name, (codes, change) in BPE.items():
        yield _changed(f"bpe-{name}", codes, QWEN, change)
    for name, (codes, change) in GEMMA.items():
        yield _changed(f"gemma-{name}", codes, GEMMA_3, change)


def _changed(name: str, codes: frozenset[int], base: Base, change: Change) -> Damaged:
    file = tiny_llama(*base)
    change(file)
    head = file.header() + _data(base)
    return Damaged(name, codes, head, len(head))


@functools.cache
def _data(base: Base) -> bytes:
    return tiny_llama(*base).data()


def _cut_tiny() -> Iterator[Damaged]:
    header = tiny_llama(*DENSE).header()
    whole = header + _data(DENSE)
    places = {
        0,
        1,
        3,
        4,
        6,
        8,
        12,
        16,
        20,
        24,
        28,
        32,
        len(header) - 1,
        len(header),
        len(header) + 1,
        len(whole) - 400,
    }
    places |= {len(header) * step // 16 for step in range(1, 16)}
    places |= {len(header) + (len(whole) - len(header)) * step // 8 for step in range(1, 8)}
    for place in sorted(places):
        yield Damaged(f"cut-tiny-{place}", BROKEN, whole[:place], place)


def _cut_real(real: Path) -> Iterator[Damaged]:
    header, size = _real_header(real), real.stat().st_size
    for step in range(1, 10):
        place = len(header) * step // 10
        yield Damaged(f"cut-real-{place}", BROKEN, header[:place], place)
    for place in (len(header), len(header) + 1, size // 2, size - 2**20, size - 2**11, size - 1):
        yield Damaged(f"cut-real-{place}", BROKEN, header, place)


def _flipped_tiny(count: int) -> Iterator[Damaged]:
    numbers = random.Random(1)
    for number in range(count):
        base = (DENSE, QWEN, GEMMA_3, MIXTURE)[number % 4]
        header = bytearray(tiny_llama(*base).header())
        # Half of them where the numbers are, not in the long lists of tokens.
        end = len(header) if number % 2 else 900
        for _ in range(1 + number % 3):
            header[numbers.randrange(end)] ^= 1 << numbers.randrange(8)
        whole = bytes(header) + _data(base)
        yield Damaged(f"flip-tiny-{number}", ANY, whole, len(whole))


def _flipped_real(real: Path, count: int) -> Iterator[Damaged]:
    numbers = random.Random(2)
    sound, size = _real_header(real), real.stat().st_size
    for number in range(count):
        header = bytearray(sound)
        place = (
            numbers.randrange(1200) if number % 2 else numbers.randrange(len(header) - 16_000, len(header))
        )
        header[place] ^= 1 << numbers.randrange(8)
        yield Damaged(f"flip-real-{number}", ANY, bytes(header), size)


def _real_header(real: Path) -> bytes:
    """Up to the data, which begins after the description of the tensor named last."""
    with real.open("rb") as file:
        start = file.read(4 * 2**20)
    last = start.rindex(b"output_norm.weight")
    end = last + len(b"output_norm.weight") + 4 + 8 + 4 + 8
    return start[: -(-end // 32) * 32]
