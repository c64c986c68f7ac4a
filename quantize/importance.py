"""Which importance matrix a GGUF file is quantized with: one that is read, one that is made, or none."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.ggml_types import BLOCKS
from quantize.errors import BadRequest, SourceNotFound
from quantize.imatrix import ImportanceMatrix
from quantize.partial import partial
from quantize.plan import Target

if TYPE_CHECKING:
    from quantize.type_choice import Wishes

EIGHT_BITS = 8
KEYS_BYTES = 512
"""More than `Made.keys` ever take in a header."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person asks for; all at its default: one is made where it helps."""

    file: Path | None = None
    """Read if it is there; else made and written there."""
    calibration: Path | None = None
    """A text file or JSONL; None: the mix that comes with edgechat."""
    self_seed: int | None = None
    """The model writes the text itself, with this seed, where it is run by llama.cpp; None: it does not."""
    samples: int | None = None
    """None: as many as `imatrix_maker.SAMPLES`."""
    length: int | None = None
    """Tokens of each; None: as for GPTQ, or the model's context if that is shorter."""
    device: str = "auto"
    """Of torch: "auto", "cpu", "cuda" or "mps"."""

    def given(self) -> list[str]:
        """The options that were given, as they are typed."""
        options = {
            "--imatrix": self.file,
            "--calibration": self.calibration if self.self_seed is None else self.self_seed,
            "--samples": self.samples,
            "--sequence-length": self.length,
        }
        return [name for name, value in options.items() if value is not None]

    @property
    def is_there(self) -> bool:
        """The file is: it is read."""
        return self.file is not None and self.file.exists()

    def check(self, target: Target, wishes: "Wishes", *, resumes: bool = False) -> None:
        """Refuse what contradicts itself or can't be done, before anything is read.

        Args:
            target: the type of the file.
            wishes: types of single tensors.
            resumes: the run goes on with a stopped one, which may have written the file: `check_read` tells
                later, if it had not.

        Raises:
            BadRequest: with what does.
            SourceNotFound: there is no folder for the file, or no text.
        """
        given = self.given()
        if given and not is_for(target, wishes):
            raise BadRequest(
                f"{given[0]} doesn't go with --type {target.name}: an importance matrix is for types below "
                "8 bits"
            )
        if not resumes:
            self.check_read()
        if self.file is not None and not self.is_there and not self.file.absolute().parent.is_dir():
            raise SourceNotFound(f"nothing at {self.file}, and no folder to write it to: give another place")
        text = self.calibration
        if text is not None and not text.is_file():
            raise SourceNotFound(f"no file at {text}: --calibration takes a .txt or a .jsonl file")

    def check_read(self) -> None:
        """Refuse what says how one is made, where the file is there.

        Raises:
            BadRequest: with what does.
        """
        given = self.given()
        if self.is_there and len(given) > 1:
            raise BadRequest(f"{self.file} is there and will be read: {given[1]} doesn't go with it")


def is_for(target: Target, wishes: "Wishes") -> bool:
    """Whether an importance matrix is of use: for types below 8 bits."""
    below = any(BLOCKS[one.type].bits_per_weight < EIGHT_BITS for one in wishes.overrides)
    return target.direct is None or below


@dataclass(frozen=True, slots=True)
class Made:
    """An importance matrix for this model, and where it is from."""

    matrix: ImportanceMatrix
    record: Mapping[str, Any]
    """For the receipt."""
    file: Path | None = None
    """Where it was read from or written to."""

    @property
    def keys(self) -> tuple[tuple[str, str | int], ...]:
        """What llama.cpp's own tool puts in the metadata."""
        keys: list[tuple[str, str | int]] = []
        if self.file is not None:
            keys.append(("quantize.imatrix.file", _short(self.file.name)))
        if self.matrix.datasets:
            keys.append(("quantize.imatrix.dataset", _short(self.matrix.datasets[0])))
        keys.append(("quantize.imatrix.entries_count", len(self.matrix.entries)))
        if self.matrix.chunk_count:
            keys.append(("quantize.imatrix.chunks_count", self.matrix.chunk_count))
        return tuple(keys)


def _short(text: str) -> str:
    """At most the 127 bytes that llama.cpp takes."""
    return text.encode()[:127].decode("utf-8", "ignore")


@contextmanager
def stored(made: Made | None, output: Path) -> Iterator[str | None]:
    """A file in the making beside the output, for llama.cpp's process; None: there is none."""
    if made is None:
        yield None
        return
    with partial(output) as path:
        made.matrix.store(path)
        yield str(path)
