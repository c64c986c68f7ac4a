"""Which of a repository's files make the model that a person wants."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from edgechat.errors import NotFoundError, UsageError
from edgechat.library.places import COMPANION
from edgechat.units import bytes_text
from models.verify import SPLIT_NAME

USUAL = "Q4_K_M"
"""Taken where nobody says otherwise: half a bit over the smallest that still answers as the model does."""

QUANTIZATION = re.compile(
    r"(?:^|[-._/])(?P<name>(?:UD-)?(?:"
    r"I?Q[1-8]_(?:XXS|XS|S|M|NL|K_(?:XXL|XL|L|M|S|XS)|K|[01](?:_\d_\d)?)"
    r"|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|F16|FP16|F32))(?=$|[-._/])",
    re.IGNORECASE,
)
NOT_MODELS = re.compile(r"(^|[-._])(imatrix|lora|adapter|vocab)([-._]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository."""

    name: str
    """With its folders, separated by slashes."""
    size: int | None
    """None where the hub doesn't say."""
    sha256: str | None
    """None where the hub doesn't say."""

    @property
    def base_name(self) -> str:
        """Without its folders."""
        return PurePosixPath(self.name).name


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model of a repository: one file, or all parts of it in order."""

    quantization: str
    """In capitals, as the name says it: "Q4_K_M"; "" where it doesn't."""
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int | None:
        """Of all parts; None where it isn't known."""
        total = 0
        for file in self.files:
            if file.size is None:
                return None
            total += file.size
        return total

    @property
    def shown(self) -> str:
        """For a list of choices: "Q4_K_M (2.5 GB)"."""
        name = self.quantization or self.files[0].base_name
        return name if self.size is None else f"{name} ({bytes_text(self.size)})"


def candidates(files: Iterable[RemoteFile]) -> list[Candidate]:
    """The models among a repository's files, smallest first; a split model that lacks a part is none."""
    found: list[Candidate] = []
    split: dict[tuple[str, str], dict[int, RemoteFile]] = {}
    for file in files:
        name = file.base_name
        if ".." in PurePosixPath(file.name).parts or name.startswith(".") or not name.isprintable():
            continue  # no file of ours has such a name
        if not name.endswith(".gguf") or COMPANION.search(name) or NOT_MODELS.search(name):
            continue
        match = SPLIT_NAME.match(name)
        if match is None:
            found.append(Candidate(quantization_of(file.name), (file,)))
        else:
            key = (file.name.removesuffix(name) + match["stem"], match["count"])
            split.setdefault(key, {})[int(match["number"])] = file
    for (stem, count), parts in split.items():
        if sorted(parts) == list(range(1, int(count) + 1)):
            files_in_order = tuple(part for _, part in sorted(parts.items()))
            found.append(Candidate(quantization_of(stem), files_in_order))
    return sorted(found, key=lambda one: (one.size or 0, one.files[0].name))


def quantization_of(name: str) -> str:
    """The quantization in a file's name, or else in its folders'; "" where there is none."""
    for part in reversed(PurePosixPath(name).parts):
        matches = list(QUANTIZATION.finditer(part.removesuffix(".gguf")))
        if matches:
            return matches[-1]["name"].upper()
    return ""


def choose(found: Sequence[Candidate], wanted: str, recommended: str = "") -> Candidate | None:
    """The model that is meant; None where several could be, so that the person must choose.

    Args:
        found: the repository's models.
        wanted: a quantization, or a file's name; "" for the recommended one.
        recommended: the quantization that is recommended for this model.

    Raises:
        NotFoundError: the one that is wanted is not there; the message lists those that are.
    """
    if wanted:
        fitting = _fitting(found, wanted)
        if not fitting:
            raise NotFoundError(f"there is no {wanted}: choose one of {listed(found)}")
        return fitting[0] if len(fitting) == 1 else None
    for name in (recommended, USUAL):
        fitting = _fitting(found, name) if name else []
        if len(fitting) == 1:
            return fitting[0]
    return found[0] if len(found) == 1 else None


def ambiguous(found: Sequence[Candidate], reference: str, wanted: str) -> UsageError:
    """What to say where nobody can be asked which one is meant."""
    fitting = _fitting(found, wanted) if wanted else list(found)
    if len({one.quantization for one in fitting}) == len(fitting) and all(
        one.quantization for one in fitting
    ):
        example = f"{reference}:{fitting[0].quantization.lower()}"
        return UsageError(
            f"{reference} has {len(fitting)} models: choose, as in {example} ({listed(fitting)})"
        )
    names = ", ".join(one.files[0].name for one in fitting[:6])
    example = f"{reference}:{fitting[0].files[0].base_name}"
    return UsageError(f"{reference} has {len(fitting)} models: name a file, as in {example} ({names})")


def listed(found: Sequence[Candidate]) -> str:
    """The choices in one line."""
    return ", ".join(one.shown for one in found)


def _fitting(found: Sequence[Candidate], wanted: str) -> list[Candidate]:
    if wanted.casefold().endswith(".gguf"):
        return [
            one
            for one in found
            if wanted.casefold() in {name.casefold() for name in (one.files[0].name, one.files[0].base_name)}
        ]
    plain = _plain(wanted)
    exact = [one for one in found if _plain(one.quantization) == plain]
    return exact or [one for one in found if _plain(one.quantization.removeprefix("UD-")) == plain]


def _plain(quantization: str) -> str:
    return quantization.upper().replace("-", "_")
