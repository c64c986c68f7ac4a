"""What a run that goes layer by layer is asked, what it tells, and what comes of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from quantize.calibration import SAMPLES
from quantize.recipe import Recipe

if TYPE_CHECKING:
    from quantize.layer_plan import LayerPlan
    from quantize.receipt import Receipt
    from quantize.streaming import LayerStep


def free_memory() -> int:
    """Bytes that are free on this machine."""
    import psutil

    return int(psutil.virtual_memory().available)


@dataclass(frozen=True, slots=True)
class LayerRequest:
    """What a person asks for."""

    source: Path
    """A folder in safetensors, or a GGUF file."""
    recipe: Recipe = field(default_factory=Recipe)
    output: Path | None = None
    """The folder that the result will be; None: beside nothing, in the current folder."""
    calibration: Path | None = None
    """A text file or JSONL; None: the mix that comes with edgechat."""
    self_seed: int | None = None
    """The model writes its own samples, of this seed, and `calibration` is not read; None: it doesn't."""
    samples: int = SAMPLES
    length: int | None = None
    """Tokens of a sample; None: as usual, or the model's context where that is shorter."""
    device: str = "cpu"
    """"cpu", "cuda", "mps", or "auto": a GPU where there is one."""
    resume: bool = False
    force: bool = False
    max_memory: int | None = None
    """Bytes; None: what is free."""
    threads: int = 0
    evaluated: bool = True
    """Compare the result with the source afterwards."""
    free_memory: Callable[[], int] = free_memory
    """Tells how many bytes this process may take: the application knows more of limits than we do."""


class Reporter(Protocol):
    """Is told what happens."""

    def plan(self, plan: "LayerPlan") -> None:
        """Before anything is done."""

    def sampling(self, share: float) -> None:
        """That much of its own calibration text the model has written."""

    def layer(self, step: "LayerStep") -> None:
        """A part of a layer is done."""

    def evaluating(self, share: float) -> None:
        """That much of the comparison with the source is done."""

    def note(self, text: str) -> None:
        """Something that a person should know."""


class Silent:
    """Tells nobody."""

    def plan(self, plan: "LayerPlan") -> None:
        """Nothing."""

    def sampling(self, share: float) -> None:
        """Nothing."""

    def layer(self, step: "LayerStep") -> None:
        """Nothing."""

    def evaluating(self, share: float) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class LayerResult:
    """What came out."""

    path: Path
    receipt: "Receipt"
    notes: tuple[str, ...]
    is_plain: bool = False
    """Its chat template can't be used: it continues texts, and answers no questions."""
