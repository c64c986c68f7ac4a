"""What a run that makes a GGUF file is asked, and what comes of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantize.errors import BadRequest
from quantize.importance import Say, Wanted
from quantize.layer_request import free_memory
from quantize.plan import Target
from quantize.progress import Progress
from quantize.shares import Share
from quantize.targets import Mix
from quantize.type_choice import NO_WISHES, Wishes

if TYPE_CHECKING:
    from quantize.gguf_evaluation import Evaluation
    from quantize.imatrix_workspace import MatrixWorkspace


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asks for."""

    source: Path
    """A folder in safetensors, or a GGUF file."""
    target: Target
    output: Path | None = None
    """A file, or a folder for it; None: the current folder."""
    force: bool = False
    """Replace the output."""
    threads: int = 0
    """0: as many as there are cores for us."""
    importance: Wanted | None = None
    """The importance matrix, for types that are quantized by one; None: without."""
    wishes: Wishes = NO_WISHES
    """Types of single tensors, or a size for which they are chosen."""
    resume: bool = False
    """Go on with a stopped run, if there is one."""
    evaluated: bool | None = False
    """Compare the result with its source; None: where llama.cpp rounds, and where it can be done."""
    free_memory: Callable[[], int] = free_memory
    """Tells how many bytes this process may take: the application knows more of limits than we do."""

    @property
    def is_direct(self) -> bool:
        """We write such a file ourselves; llama.cpp quantizes the others."""
        return self.target.direct is not None and not self.wishes

    def check(self) -> None:
        """Refuse options that don't go with the type, and a type that doesn't go without.

        Raises:
            BadRequest: with what doesn't.
            SourceNotFound: a file or a folder that is named is not there.
        """
        if self.importance is not None:
            self.importance.check(self.target, self.wishes, resumes=self.resume)
        elif self.target.needs_imatrix:
            raise BadRequest(f"{self.target.name} needs an importance matrix: leave out --imatrix off")
        self.wishes.check(self.target)

    def check_repacked(self) -> None:
        """Refuse options that mean nothing where the source's integers are taken over as they are.

        Raises:
            BadRequest: with what does.
        """
        given = [] if self.importance is None else self.importance.given()
        if given:
            raise BadRequest(
                f"{given[0]} doesn't go with this source: it becomes {self.target.label} as it is, and "
                "nothing is rounded"
            )
        self.wishes.check_repacked(self.target)


@dataclass(frozen=True, slots=True)
class Run:
    """A request under way."""

    request: Request
    output: Path
    progress: Progress
    """Is told of each step."""
    say: Say
    """Is told in a sentence what is planned."""
    begun: float
    """By the monotonic clock, in seconds."""
    kept: "MatrixWorkspace"
    """What is kept of its importance matrix."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came out."""

    path: Path
    architecture: str
    type: str
    n_bytes: int
    n_parameters: int
    source_bytes: int
    seconds: float
    notes: tuple[str, ...]
    bits_per_weight: float
    """Over all weights, without the file's vocabulary and other data: as `models show` has it."""
    importance: Mapping[str, Any] | None = None
    """Where the importance matrix is from; None: there was none."""
    types: tuple[Share, ...] = ()
    """How many tensors are of which type."""
    mix: Mix | None = None
    """What was chosen for a size; None: nothing was."""
    evaluation: "Evaluation | None" = None
    """How far it is from its source; None: nobody looked."""
    is_plain: bool = False
    """Its chat template can't be used: it continues texts, and answers no questions."""
